"""A metadata store in memory, for tests and simulation: the same contract as etcd, and faults.

`MemoryStoreServer` is the store; each broker has a `MemoryStore`, a connection to it, which can be
cut off. Time is that of the event loop, so that leases end in virtual time under a virtual clock.

    server = MemoryStoreServer()
    store = MemoryStore(server)
    store.disconnect()              # requests fail and watches are silent, until connect()
    store.lose_answers = 1          # the next transaction takes effect, its answer is lost
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from .metadata_store import (
    KEEP_LEASE,
    NO_LEASE,
    Change,
    CompactedError,
    Compare,
    CreateRevision,
    Delete,
    Entry,
    LeaseExpiredError,
    MetadataStore,
    Operation,
    OtherStoreError,
    Put,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    TransactionResult,
    UnknownOutcomeError,
    check_transaction,
    is_repeatable,
    was_applied,
)


@dataclass
class _Lease:
    ttl_seconds: float
    timer: asyncio.TimerHandle
    keys: set[bytes] = field(default_factory=set)


class MemoryStoreServer:
    """The entries, the history and the leases of a store."""

    def __init__(self, store_id: str = "memory") -> None:
        self.store_id = store_id
        self.revision = 1
        self.entries: dict[bytes, Entry] = {}
        self.compact_revision = 0
        #: All changes after `compact_revision`.
        self.history: list[Change] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease_id = 0
        self._changed = asyncio.Event()

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        """Carry out a transaction. Raises StoreError if a lease does not exist."""
        keys = check_transaction(compares, operations)
        if not all(self._holds(compare) for compare in compares):
            return TransactionResult(
                False, self.revision, {key: self.entries.get(key) for key in keys}
            )
        for operation in operations:
            if isinstance(operation, Put):
                self._lease_of(operation)  # All or nothing: check them before the first change.
        self._commit(operations)
        return TransactionResult(True, self.revision, {})

    def grant_lease(self, ttl_seconds: float) -> int:
        """Return the id of a new lease."""
        self._last_lease_id += 1
        lease_id = self._last_lease_id
        self._leases[lease_id] = _Lease(ttl_seconds, self._expiry_timer(lease_id, ttl_seconds))
        return lease_id

    def keep_alive(self, lease_id: int) -> None:
        """Begin the time of a lease anew. Raises LeaseExpiredError."""
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseExpiredError(f"Lease {lease_id} does not exist")
        lease.timer.cancel()
        lease.timer = self._expiry_timer(lease_id, lease.ttl_seconds)

    def end_lease(self, lease_id: int) -> None:
        """End a lease and delete its keys."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            lease.timer.cancel()
            if lease.keys:
                self._commit([Delete(key) for key in sorted(lease.keys)])

    def compact(self, revision: int) -> None:
        """Forget the changes up to a revision."""
        self.compact_revision = max(self.compact_revision, revision)
        self.history = [change for change in self.history if change.revision > revision]

    async def wait_for_change(self) -> None:
        """Wait until the next change, or until a connection has changed."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.revision == 0
        if isinstance(compare, CreateRevision):
            return compare.revision == entry.create_revision
        return compare.revision == entry.mod_revision

    def _lease_of(self, put: Put) -> int:
        current = self.entries.get(put.key)
        lease_id = put.lease_id
        if lease_id == KEEP_LEASE:
            if current is None:
                raise StoreError(f"Key {put.key!r} does not exist")
            lease_id = current.lease_id
        if lease_id not in (NO_LEASE, *self._leases):
            raise LeaseExpiredError(f"Lease {lease_id} does not exist")
        return lease_id

    def _commit(self, operations: Sequence[Operation]) -> None:
        revision = self.revision + 1
        entries: list[Entry] = []
        deleted: list[bytes] = []
        for operation in operations:
            current = self.entries.get(operation.key)
            if isinstance(operation, Put):
                created = revision if current is None else current.create_revision
                lease_id = self._lease_of(operation)
                self._detach(current)
                entry = Entry(operation.key, operation.value, created, revision, lease_id)
                if lease_id != NO_LEASE:
                    self._leases[lease_id].keys.add(operation.key)
                self.entries[operation.key] = entry
                entries.append(entry)
            elif current is not None:
                self._detach(current)
                del self.entries[operation.key]
                deleted.append(operation.key)
        if entries or deleted:
            self.revision = revision
            self.history.append(Change(revision, entries, deleted))
            self.wake()

    def _detach(self, entry: Entry | None) -> None:
        lease = None if entry is None else self._leases.get(entry.lease_id)
        if entry is not None and lease is not None:
            lease.keys.discard(entry.key)

    def _expiry_timer(self, lease_id: int, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.end_lease, lease_id)


class MemoryStore(MetadataStore):
    """A connection to a store in memory. Keys are those of the server: there is one cluster."""

    def __init__(self, server: MemoryStoreServer) -> None:
        self._server = server
        self._is_connected = True
        self._is_closed = False
        self._store_id = ""
        #: Transactions that take effect, and whose answers are then lost. More than one is lost
        #: for good: the transaction is sent again once.
        self.lose_answers = 0

    @property
    def store_id(self) -> str:
        """The id of the store; empty before the first answer."""
        return self._store_id

    def disconnect(self) -> None:
        """Let requests fail and watches be silent."""
        self._is_connected = False

    def connect(self, server: MemoryStoreServer | None = None) -> None:
        """Connect again, to the same store or another one."""
        self._is_connected = True
        self._server, previous = server or self._server, self._server
        previous.wake()

    async def load(self, prefix: bytes = b"") -> Snapshot:
        """Return all entries whose keys start with a prefix."""
        server = await self._request()
        entries = {key: entry for key, entry in server.entries.items() if key.startswith(prefix)}
        return Snapshot(server.store_id, server.revision, entries)

    async def watch(self, revision: int, prefix: bytes = b"") -> AsyncGenerator[Change]:
        """Yield all changes after a revision, each once and in order."""
        while True:
            # Before the look at the history: a change in between must wake us.
            server = self._server
            if self._is_closed:
                return
            if self._is_connected:
                self._check_store_id()
                if revision < server.compact_revision:
                    raise CompactedError(
                        f"Changes after revision {revision} are compacted up to"
                        f" {server.compact_revision}"
                    )
                changes = [change for change in server.history if change.revision > revision]
                for change in changes:
                    revision = change.revision
                    selected = _under(prefix, change)
                    if selected is not None:
                        yield selected
                if changes:
                    continue
            await server.wait_for_change()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        """Carry out all operations if all compares hold, else none."""
        check_transaction(compares, operations)
        server = await self._request()
        result = server.transact(compares, operations)
        if self.lose_answers == 0:
            return result
        self.lose_answers -= 1
        if not is_repeatable(compares, operations) or self.lose_answers:
            self.lose_answers = max(self.lose_answers - 1, 0)
            raise UnknownOutcomeError("The transaction was not answered")
        result = (await self._request()).transact(compares, operations)
        if not result.succeeded and was_applied(operations, result.current):
            # Later changes may have other revisions.
            changed = [result.current[operation.key] for operation in operations]
            revision = max((one.mod_revision for one in changed if one), default=result.revision)
            return TransactionResult(True, revision, {})
        return result

    async def grant_lease(self, ttl_seconds: int) -> int:
        """Return the id of a new lease."""
        return (await self._request()).grant_lease(ttl_seconds)

    async def keep_alive(self, lease_id: int) -> None:
        """Begin the time of a lease anew. Raises LeaseExpiredError."""
        (await self._request()).keep_alive(lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease and delete its keys."""
        (await self._request()).end_lease(lease_id)

    async def close(self) -> None:
        """End the watches."""
        self._is_closed = True
        self._server.wake()

    async def _request(self) -> MemoryStoreServer:
        # Others run between a request and its answer, as over a network.
        await asyncio.sleep(0)
        if not self._is_connected or self._is_closed:
            raise StoreUnavailableError("The metadata store is not reachable")
        self._check_store_id()
        return self._server

    def _check_store_id(self) -> None:
        if self._store_id not in ("", self._server.store_id):
            raise OtherStoreError(
                f"The metadata store is {self._server.store_id}, and was {self._store_id}"
            )
        self._store_id = self._server.store_id


def _under(prefix: bytes, change: Change) -> Change | None:
    entries = [entry for entry in change.entries if entry.key.startswith(prefix)]
    deleted = [key for key in change.deleted if key.startswith(prefix)]
    return Change(change.revision, entries, deleted) if entries or deleted else None
