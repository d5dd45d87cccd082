"""The metadata store on etcd, through its JSON gateway.

Supported are etcd 3.5 (from 3.5.3 on), 3.6 and 3.7. `etcd_client` describes how members are chosen.
The keepalive of a lease is also the probe of the member in use: a watch by itself cannot tell a
member that hangs from one that has no news.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from .etcd_client import EtcdClient, EtcdError, MemberLostError
from .metadata_store import (
    KEEP_LEASE,
    NO_LEASE,
    Change,
    CompactedError,
    Compare,
    CreateRevision,
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
from .store_url import StoreCredentials, StoreUrl

#: Time after which a request fails that no member answers.
_DEADLINE_SECONDS = 5.0
#: Pause after all members were tried once.
_RETRY_SECONDS = 0.2
#: Keys of one page of a load: large answers would hold the event loop up.
_KEYS_PER_PAGE = 1000


class EtcdStore(MetadataStore):
    """A connection to etcd, for the keys of one cluster."""

    def __init__(self, client: EtcdClient, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix

    @classmethod
    def open(cls, url: StoreUrl, credentials: StoreCredentials | None = None) -> EtcdStore:
        """Return a store; the first request connects. Raises ConfigError."""
        credentials = credentials or StoreCredentials()
        client = EtcdClient(
            url.addresses,
            tls=credentials.ssl_context() if url.is_tls else None,
            username=credentials.username,
            password=credentials.password(),
        )
        return cls(client, url.prefix)

    @property
    def store_id(self) -> str:
        """The id of the etcd cluster; empty before the first answer."""
        return self._client.cluster_id

    async def load(self, prefix: bytes = b"") -> Snapshot:
        """Return all entries whose keys start with a prefix: a linearizable read, in pages."""
        while True:
            try:
                return await self._load_pages(self._prefix + prefix)
            except CompactedError:
                continue  # Between two pages.

    async def _load_pages(self, prefix: bytes) -> Snapshot:
        entries: dict[bytes, Entry] = {}
        body = {"key": _text(prefix), "range_end": _text(_end_of(prefix)), "limit": _KEYS_PER_PAGE}
        # The first page decides on the revision; the others are of the same one.
        first = page = await self._call("/v3/kv/range", body)
        while True:
            for content in page.get("kvs", ()):
                entry = self._entry(content)
                entries[entry.key] = entry
            if not page.get("more"):
                break
            body["key"] = _text(self._prefix + next(reversed(entries)) + b"\0")
            body["revision"] = first["header"]["revision"]
            page = await self._call("/v3/kv/range", body)
        return Snapshot(self.store_id, int(first["header"]["revision"]), entries)

    async def watch(self, revision: int, prefix: bytes = b"") -> AsyncGenerator[Change]:
        """Yield all changes after a revision, each once and in order."""
        full_prefix = self._prefix + prefix
        failures = 0
        while True:
            try:
                # A member that was restored from a backup would be silent until it is there again.
                self._client.saw_revision(revision)
                await self._call("/v3/kv/range", {"key": _text(full_prefix), "count_only": True})
                body = {
                    "create_request": {
                        "key": _text(full_prefix),
                        "range_end": _text(_end_of(full_prefix)),
                        "start_revision": revision + 1,
                    }
                }
                async with aclosing(self._client.stream("/v3/watch", body)) as messages:
                    async for message in messages:
                        failures = 0
                        if message.get("canceled"):
                            raise await self._cancellation(message)
                        for change in self._changes(message.get("events", ())):
                            revision = change.revision
                            self._client.saw_revision(revision)
                            yield change
            except StoreUnavailableError:
                if self._client.is_closed:
                    return
                failures += 1
                if failures >= self._client.member_count:
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _cancellation(self, message: Mapping[str, Any]) -> StoreError:
        """Return the error for a watch that etcd has cancelled; its stream would stay open."""
        compact_revision = int(message.get("compact_revision", 0))
        if compact_revision:
            return CompactedError(f"etcd has compacted its history up to {compact_revision}")
        reason = message.get("cancel_reason", "")
        if "permission denied" in reason:
            return StoreError(f"etcd cancelled a watch: {reason}")
        return await self._client.leave_member(f"it cancelled a watch: {reason}")

    def _changes(self, events: Sequence[Mapping[str, Any]]) -> list[Change]:
        """Return events as changes, one for each revision."""
        changes: list[Change] = []
        entries: list[Entry] = []
        deleted: list[bytes] = []
        for event in events:
            revision = int(event["kv"]["mod_revision"])
            if not changes or changes[-1].revision != revision:
                entries, deleted = [], []
                changes.append(Change(revision, entries, deleted))
            if event.get("type") == "DELETE":
                deleted.append(self._key(event["kv"]))
            else:
                entries.append(self._entry(event["kv"]))
        return changes

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        """Carry out all operations if all compares hold, else none."""
        keys = check_transaction(compares, operations)
        body = {
            "compare": [self._compare(compare) for compare in compares],
            "success": [self._operation(operation) for operation in operations],
            "failure": [
                {"request_range": {"key": _text(self._prefix + key)}} for key in sorted(keys)
            ],
        }
        can_repeat = is_repeatable(compares, operations)
        was_sent = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DEADLINE_SECONDS
        attempts = 0
        while True:
            try:
                content = await self._client.call("/v3/kv/txn", body)
                break
            except MemberLostError as error:
                was_sent = was_sent or error.was_sent
                if was_sent and not can_repeat:
                    raise UnknownOutcomeError(f"A transaction was not answered: {error}") from error
                if loop.time() > deadline:
                    kind = UnknownOutcomeError if was_sent else StoreUnavailableError
                    raise kind(f"A transaction was not answered: {error}") from error
            except EtcdError as error:
                raise _lease_error(error) from error
            attempts += 1
            if attempts % self._client.member_count == 0:
                await asyncio.sleep(_RETRY_SECONDS)
        revision = int(content["header"]["revision"])
        if content.get("succeeded"):
            return TransactionResult(True, revision, {})
        current: dict[bytes, Entry | None] = dict.fromkeys(keys)
        for response in content["responses"]:
            for found in response["response_range"].get("kvs", ()):
                entry = self._entry(found)
                current[entry.key] = entry
        if was_sent and was_applied(operations, current):
            # By an attempt whose answer was lost. Later changes may have other revisions.
            changed = [current[operation.key] for operation in operations]
            revision = max((entry.mod_revision for entry in changed if entry), default=revision)
            return TransactionResult(True, revision, {})
        return TransactionResult(False, revision, current)

    async def grant_lease(self, ttl_seconds: int) -> int:
        """Return the id of a new lease."""
        content = await self._call("/v3/lease/grant", {"TTL": ttl_seconds}, is_linearizable=False)
        return int(content["ID"])

    async def keep_alive(self, lease_id: int) -> None:
        """Begin the time of a lease anew: one attempt. Raises LeaseExpiredError."""
        content = await self._client.call(
            "/v3/lease/keepalive", {"ID": lease_id}, is_linearizable=False
        )
        if int(content.get("TTL", 0)) <= 0:
            raise LeaseExpiredError(f"Lease {lease_id} has expired")

    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease and delete its keys."""
        try:
            await self._call("/v3/lease/revoke", {"ID": lease_id}, is_linearizable=False)
        except EtcdError as error:
            if not error.is_not_found:
                raise

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _call(
        self, path: str, body: Mapping[str, Any], *, is_linearizable: bool = True
    ) -> dict[str, Any]:
        """Send a request that may be sent twice, until a member answers or the deadline passes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DEADLINE_SECONDS
        attempts = 0
        while True:
            try:
                return await self._client.call(path, body, is_linearizable=is_linearizable)
            except MemberLostError:
                attempts += 1
                if loop.time() > deadline:
                    raise
                if attempts % self._client.member_count == 0:
                    await asyncio.sleep(_RETRY_SECONDS)
            except EtcdError as error:
                if "compacted" in str(error):
                    raise CompactedError(str(error)) from error
                if "future revision" in str(error):
                    raise OtherStoreError(str(error)) from error
                raise

    def _compare(self, compare: Compare) -> dict[str, Any]:
        is_created = isinstance(compare, CreateRevision)
        return {
            "key": _text(self._prefix + compare.key),
            "target": "CREATE" if is_created else "MOD",
            "create_revision" if is_created else "mod_revision": compare.revision,
            "result": "EQUAL",
        }

    def _operation(self, operation: Operation) -> dict[str, Any]:
        key = _text(self._prefix + operation.key)
        if not isinstance(operation, Put):
            return {"request_delete_range": {"key": key}}
        put: dict[str, Any] = {"key": key, "value": _text(operation.value)}
        if operation.lease_id == KEEP_LEASE:
            put["ignore_lease"] = True
        elif operation.lease_id != NO_LEASE:
            put["lease"] = operation.lease_id
        return {"request_put": put}

    def _entry(self, content: Mapping[str, str]) -> Entry:
        return Entry(
            self._key(content),
            b64decode(content.get("value", "")),
            int(content["create_revision"]),
            int(content["mod_revision"]),
            int(content.get("lease", NO_LEASE)),
        )

    def _key(self, content: Mapping[str, str]) -> bytes:
        return b64decode(content["key"])[len(self._prefix) :]


def _lease_error(error: EtcdError) -> StoreError:
    """Return the error of a transaction: what it did not find can only be a lease."""
    return LeaseExpiredError(str(error)) if error.is_not_found else error


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys with a prefix, which does not end with 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
