"""The interface of a metadata store: load, watch, transactions and leases.

A store is a small key-value database that a consensus protocol replicates. It holds everything that
must survive the loss of a broker: topics, partition states, configs, broker registrations and who
the controller is. Each implementation passes the same tests (tests/cluster/test_metadata_store.py).

**Revisions.** Every transaction that changes something has a revision, one above the last. An entry
has the revision that created its key and the one that modified it last. A key that was deleted and
put again has a new create revision: the epoch of a broker is the create revision of its
registration, and the epoch of the controller that of the `controller` key.

**Safety.** Only transactions decide anything: they compare revisions and change keys, all or
nothing. Reads are linearizable. A lease only says when to try; it may end at any moment, and a
keepalive that succeeded proves nothing about any key.

**Keys** are relative to the cluster: implementations add a prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

#: Compares, operations, and distinct keys of a transaction; etcd's default limit.
MAX_OPERATIONS = 128
#: As the lease of a `Put`: keep the one that the key has. The key must exist.
KEEP_LEASE = -1
NO_LEASE = 0


class StoreError(Exception):
    """The metadata store refused a request, or did not answer it."""


class StoreUnavailableError(StoreError):
    """No member of the store answered. Nothing was changed."""


class UnknownOutcomeError(StoreUnavailableError):
    """A transaction was sent and not answered: it took effect, will take effect, or never will.

    Act on the stricter of both states until a watch or a load shows which it is.
    """


class LeaseExpiredError(StoreError):
    """The lease does not exist any longer, and neither do its keys."""


class CompactedError(StoreError):
    """The store no longer has the changes that a watch asked for: load everything again."""


class OtherStoreError(StoreError):
    """The store is not the one that was used before: its id differs."""


class Entry(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes
    #: The revision that created the key, and the last one that changed it.
    create_revision: int
    mod_revision: int
    lease_id: int = NO_LEASE


class Snapshot(NamedTuple):
    """All entries under a prefix as of one revision."""

    #: Identifies the store: another one has other revisions.
    store_id: str
    revision: int
    entries: Mapping[bytes, Entry]


class Change(NamedTuple):
    """What one transaction changed, or the end of one lease: complete, never a part of it."""

    revision: int
    entries: Sequence[Entry]
    deleted: Sequence[bytes]


class CreateRevision(NamedTuple):
    """Compares the create revision of a key; 0: the key does not exist."""

    key: bytes
    revision: int


class ModRevision(NamedTuple):
    """Compares the revision that last modified a key; 0: the key does not exist."""

    key: bytes
    revision: int


class Put(NamedTuple):
    """Sets a key, with a lease if it is to vanish when the lease ends."""

    key: bytes
    value: bytes
    lease_id: int = NO_LEASE


class Delete(NamedTuple):
    """Deletes a key; one that does not exist is not an error."""

    key: bytes


Compare = CreateRevision | ModRevision
Operation = Put | Delete


class TransactionResult(NamedTuple):
    """Whether all compares held, and the store's revision after the transaction."""

    succeeded: bool
    revision: int
    #: If a compare failed: all keys of the transaction as they are; None: the key does not exist.
    current: Mapping[bytes, Entry | None]


class MetadataStore(ABC):
    """A connection to a metadata store."""

    @property
    @abstractmethod
    def store_id(self) -> str:
        """The id of the store; empty before the first answer."""

    @abstractmethod
    async def load(self, prefix: bytes = b"") -> Snapshot:
        """Return all entries whose keys start with a prefix: a linearizable read."""

    @abstractmethod
    def watch(self, revision: int, prefix: bytes = b"") -> AsyncGenerator[Change]:
        """Yield all changes after a revision, each once and in order, until it is closed.

        Reconnects by itself when a member is lost. Raises CompactedError, OtherStoreError.
        """

    @abstractmethod
    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        """Carry out all operations if all compares hold, else none; no key may occur twice.

        A transaction that changes a key that it compares is sent again if its answer is lost: the
        compare keeps it from taking effect twice, and if the compares fail then, the values tell
        whose change it was. Its values must therefore be unique to it (a version, the writer's
        epoch). Raises UnknownOutcomeError if no answer can be had.
        """

    @abstractmethod
    async def grant_lease(self, ttl_seconds: int) -> int:
        """Return the id of a new lease, which ends if it is not kept alive for that long."""

    @abstractmethod
    async def keep_alive(self, lease_id: int) -> None:
        """Begin the time of a lease anew. Raises LeaseExpiredError.

        It is one attempt, and the probe of the member in use: after a StoreUnavailableError the
        next request, and all watches, go to another member.
        """

    @abstractmethod
    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease and delete its keys; one that does not exist is not an error."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Leases end by themselves."""


def check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> set[bytes]:
    """Return the keys of a transaction. Raises ValueError if it is not allowed."""
    changed = [operation.key for operation in operations]
    keys = {compare.key for compare in compares}.union(changed)
    if not operations:
        raise ValueError("A transaction needs at least one operation")
    if len(set(changed)) != len(changed):
        raise ValueError("A transaction cannot change a key twice")
    if max(len(compares), len(keys)) > MAX_OPERATIONS:
        raise ValueError(f"A transaction has at most {MAX_OPERATIONS} compares and keys")
    return keys


def is_repeatable(compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
    """Whether a transaction makes one of its own compares fail, so that it takes effect once."""
    puts = {operation.key for operation in operations if isinstance(operation, Put)}
    deletes = {operation.key for operation in operations if isinstance(operation, Delete)}
    return any(
        (compare.key in deletes and compare.revision != 0)
        or (compare.key in puts and (isinstance(compare, ModRevision) or compare.revision == 0))
        for compare in compares
    )


def was_applied(operations: Sequence[Operation], current: Mapping[bytes, Entry | None]) -> bool:
    """Whether the current entries are what the operations of a transaction made of them."""
    for operation in operations:
        entry = current[operation.key]
        if isinstance(operation, Delete):
            if entry is not None:
                return False
        elif entry is None or entry.value != operation.value:
            return False
    return True
