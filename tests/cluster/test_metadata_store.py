"""The contract of a metadata store, over each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol

import pytest

from harness.etcd import EtcdCluster
from harness.tcp_link import TcpLink
from ottla.broker.cluster.store.etcd_store import EtcdStore
from ottla.broker.cluster.store.memory_store import MemoryStore, MemoryStoreServer
from ottla.broker.cluster.store.metadata_store import (
    KEEP_LEASE,
    MAX_OPERATIONS,
    Change,
    CompactedError,
    CreateRevision,
    Delete,
    LeaseExpiredError,
    MetadataStore,
    ModRevision,
    Put,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from ottla.broker.cluster.store.store_url import StoreUrl

ABSENT = 0


class Backend(Protocol):
    """A store, and connections to it that can be cut."""

    def connect(self) -> Any: ...

    async def compact(self) -> None: ...

    def cut(self, store: Any) -> None: ...

    def restore(self, store: Any) -> None: ...

    def lose_answers(self, store: Any) -> None:
        """Let the next transaction take effect, and lose its answer, until `restore`."""

    async def until_unanswered(self, store: Any) -> None:
        """Wait until the answer of a transaction was lost, and restore the connection."""


class MemoryBackend:
    def __init__(self) -> None:
        self.server = MemoryStoreServer()

    async def connect(self) -> MetadataStore:
        return MemoryStore(self.server)

    async def compact(self) -> None:
        self.server.compact(self.server.revision)

    def cut(self, store: MemoryStore) -> None:
        store.disconnect()

    def restore(self, store: MemoryStore) -> None:
        store.lose_answers = 0
        store.connect()

    def lose_answers(self, store: MemoryStore) -> None:
        store.lose_answers = 1

    async def until_unanswered(self, store: MemoryStore) -> None:
        pass


class EtcdBackend:
    """Each store has a link of its own, and each test keys of its own."""

    def __init__(self, etcd: EtcdCluster, name: str, stack: AsyncExitStack) -> None:
        self.etcd = etcd
        self._name = name
        self._stack = stack
        self._links: dict[int, TcpLink] = {}

    async def connect(self) -> MetadataStore:
        link = await self._stack.enter_async_context(TcpLink(self.etcd[0].port))
        store = EtcdStore.open(StoreUrl((link.address,), self._name, False))
        self._stack.push_async_callback(store.close)
        self._links[id(store)] = link
        return store

    async def compact(self) -> None:
        await asyncio.to_thread(self.etcd.compact)

    def cut(self, store: EtcdStore) -> None:
        self._links[id(store)].cut()

    def restore(self, store: EtcdStore) -> None:
        self._links[id(store)].restore()

    def lose_answers(self, store: EtcdStore) -> None:
        self._links[id(store)].lose_answers()

    async def until_unanswered(self, store: EtcdStore) -> None:
        await self._links[id(store)].unanswered.wait()
        self._links[id(store)].restore()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(params=["memory", "etcd"])
async def backend(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    async with AsyncExitStack() as stack:
        yield EtcdBackend(request.getfixturevalue("etcd"), name, stack)


@pytest.fixture
async def store(backend: Any) -> MetadataStore:
    connected: MetadataStore = await backend.connect()
    return connected


async def put(store: MetadataStore, key: bytes, value: bytes, lease_id: int = 0) -> int:
    """Put a key whatever it is; return the revision."""
    result = await store.transact([], [Put(key, value, lease_id)])
    assert result.succeeded
    return result.revision


async def first(store: MetadataStore, revision: int, count: int = 1) -> list[Change]:
    """Return the first changes after a revision."""
    async with asyncio.timeout(20), aclosing(store.watch(revision)) as watch:
        return [change async for _, change in azip(count, watch)]


async def azip(count: int, watch: Any) -> AsyncIterator[tuple[int, Change]]:
    index = 0
    async for change in watch:
        index += 1
        yield index, change
        if index == count:
            return


class TestTransactions:
    async def test_an_empty_store_is_loaded(self, store: MetadataStore) -> None:
        snapshot = await store.load()
        assert snapshot.entries == {}
        assert snapshot.store_id == store.store_id != ""

    async def test_entries_have_their_revisions(self, store: MetadataStore) -> None:
        created = await put(store, b"a", b"1")
        modified = await put(store, b"a", b"2")
        assert created < modified
        snapshot = await store.load()
        assert snapshot.revision == modified
        entry = snapshot.entries[b"a"]
        assert entry[:4] == (b"a", b"2", created, modified)

    async def test_a_deleted_key_gets_a_new_create_revision(self, store: MetadataStore) -> None:
        created = await put(store, b"a", b"1")
        await store.transact([], [Delete(b"a")])
        assert (await store.load()).entries == {}
        assert await put(store, b"a", b"1") > created
        assert (await store.load()).entries[b"a"].create_revision > created

    async def test_load_takes_a_prefix(self, store: MetadataStore) -> None:
        await store.transact([], [Put(b"topic/a", b"1"), Put(b"topic/b", b"2"), Put(b"u", b"3")])
        assert set((await store.load(b"topic/")).entries) == {b"topic/a", b"topic/b"}

    async def test_load_returns_more_than_a_page(self, store: MetadataStore) -> None:
        keys = [b"k%05d" % index for index in range(2500)]
        for start in range(0, len(keys), MAX_OPERATIONS):
            await store.transact([], [Put(key, key) for key in keys[start : start + 128]])
        entries = (await store.load()).entries
        assert list(entries) == keys
        assert all(entry.value == key for key, entry in entries.items())

    async def test_a_failed_compare_changes_nothing_and_returns_what_is(
        self, store: MetadataStore
    ) -> None:
        revision = await put(store, b"a", b"1")
        result = await store.transact(
            [ModRevision(b"a", revision - 1)], [Put(b"a", b"2"), Put(b"b", b"2"), Delete(b"c")]
        )
        assert not result.succeeded
        assert set(result.current) == {b"a", b"b", b"c"}
        current = result.current[b"a"]
        assert current is not None
        assert (current.value, current.mod_revision) == (b"1", revision)
        assert result.current[b"b"] is None
        assert set((await store.load()).entries) == {b"a"}

    @pytest.mark.parametrize("kind", [CreateRevision, ModRevision])
    async def test_a_key_is_created_once(
        self, store: MetadataStore, kind: type[CreateRevision | ModRevision]
    ) -> None:
        compares = [kind(b"a", ABSENT)]
        assert (await store.transact(compares, [Put(b"a", b"1")])).succeeded
        assert not (await store.transact(compares, [Put(b"a", b"2")])).succeeded

    async def test_the_create_revision_fences(self, store: MetadataStore) -> None:
        epoch = await put(store, b"controller", b"1")
        await put(store, b"controller", b"2")
        fence = CreateRevision(b"controller", epoch)
        assert (await store.transact([fence], [Put(b"a", b"1")])).succeeded
        await store.transact([], [Delete(b"controller")])
        await put(store, b"controller", b"3")
        assert not (await store.transact([fence], [Put(b"a", b"2")])).succeeded

    async def test_one_of_many_writers_wins(self, backend: Any) -> None:
        stores = [await backend.connect() for _ in range(5)]
        for round_ in range(5):
            key = b"round/%d" % round_
            results = await asyncio.gather(
                *(
                    store.transact([ModRevision(key, ABSENT)], [Put(key, b"%d" % number)])
                    for number, store in enumerate(stores)
                )
            )
            assert [result.succeeded for result in results].count(True) == 1

    async def test_the_limit_is_that_of_the_interface(self, store: MetadataStore) -> None:
        puts = [Put(b"%d" % index, b"") for index in range(MAX_OPERATIONS + 1)]
        compares = [ModRevision(put.key, ABSENT) for put in puts]
        assert (await store.transact(compares[:-1], puts[:-1])).succeeded
        with pytest.raises(ValueError, match="at most 128"):
            await store.transact(compares, puts)
        with pytest.raises(ValueError, match="twice"):
            await store.transact([], [Put(b"a", b"1"), Delete(b"a")])

    async def test_a_store_that_is_away_is_unavailable(
        self, backend: Any, store: MetadataStore
    ) -> None:
        await store.load()
        backend.cut(store)
        with pytest.raises(StoreUnavailableError):
            await store.keep_alive(1)


class TestUnknownOutcomes:
    async def test_a_compared_change_takes_effect_once(self, backend: Any) -> None:
        store, other = await backend.connect(), await backend.connect()
        revision = await put(store, b"a", b"1")
        backend.lose_answers(store)
        transaction = asyncio.create_task(
            store.transact([ModRevision(b"a", revision)], [Put(b"a", b"mine"), Put(b"b", b"2")])
        )
        await backend.until_unanswered(store)
        result = await transaction
        assert result.succeeded
        snapshot = await other.load()
        assert snapshot.entries[b"a"].value == b"mine"
        assert result.revision == snapshot.entries[b"a"].mod_revision == revision + 1

    async def test_its_revision_is_that_of_the_change(self, backend: Any) -> None:
        store, other = await backend.connect(), await backend.connect()
        revision = await put(store, b"a", b"1")
        backend.lose_answers(store)
        transaction = asyncio.create_task(
            store.transact([ModRevision(b"a", revision)], [Put(b"a", b"mine")])
        )
        # Before it is sent again, the revision of the store rises.
        later = asyncio.create_task(put(other, b"b", b"2"))
        await backend.until_unanswered(store)
        result = await transaction
        await later
        assert result.revision == (await other.load()).entries[b"a"].mod_revision

    async def test_the_outcome_of_any_other_is_unknown(self, backend: Any) -> None:
        store, other = await backend.connect(), await backend.connect()
        await store.load()
        backend.lose_answers(store)
        transaction = asyncio.create_task(store.transact([], [Put(b"a", b"1")]))
        await backend.until_unanswered(store)
        with pytest.raises(UnknownOutcomeError):
            await transaction
        assert (await other.load()).entries[b"a"].value == b"1"


class TestWatches:
    async def test_changes_come_whole_and_in_order(self, backend: Any) -> None:
        store, writer = await backend.connect(), await backend.connect()
        start = (await store.load()).revision
        watching = asyncio.create_task(first(store, start, 3))
        await put(writer, b"a", b"1")
        await writer.transact([], [Put(b"a", b"2"), Put(b"b", b"2"), Delete(b"c")])
        await writer.transact([], [Put(b"c", b"3"), Delete(b"a")])
        one, two, three = await watching
        assert [entry.value for entry in one.entries] == [b"1"]
        assert {entry.key: entry.value for entry in two.entries} == {b"a": b"2", b"b": b"2"}
        assert two.deleted == []
        assert [entry.key for entry in three.entries] == [b"c"]
        assert list(three.deleted) == [b"a"]
        assert start < one.revision < two.revision < three.revision
        assert {entry.mod_revision for entry in two.entries} == {two.revision}

    async def test_a_watch_starts_in_the_past(self, store: MetadataStore) -> None:
        revisions = [await put(store, b"a", b"%d" % number) for number in range(5)]
        changes = await first(store, revisions[1], 3)
        assert [change.revision for change in changes] == revisions[2:]

    async def test_a_watch_takes_a_prefix(self, store: MetadataStore) -> None:
        start = (await store.load()).revision
        await store.transact([], [Put(b"t/a", b"1"), Put(b"u", b"1")])
        async with asyncio.timeout(20), aclosing(store.watch(start, b"t/")) as watch:
            change = await anext(watch)
        assert [entry.key for entry in change.entries] == [b"t/a"]

    async def test_a_compacted_revision_is_an_error(
        self, backend: Any, store: MetadataStore
    ) -> None:
        start = await put(store, b"a", b"1")
        await put(store, b"a", b"2")
        await put(store, b"a", b"3")
        await backend.compact()
        with pytest.raises(CompactedError):
            await first(store, start - 1)

    async def test_a_watch_goes_on_after_the_connection_was_cut(self, backend: Any) -> None:
        store, writer = await backend.connect(), await backend.connect()
        start = (await store.load()).revision
        async with asyncio.timeout(20), aclosing(store.watch(start)) as watch:
            await put(writer, b"a", b"1")
            assert (await anext(watch)).entries[0].value == b"1"
            backend.cut(store)
            await put(writer, b"a", b"2")
            await put(writer, b"a", b"3")
            backend.restore(store)
            assert (await anext(watch)).entries[0].value == b"2"
            assert (await anext(watch)).entries[0].value == b"3"

    async def test_history_compacted_while_cut_off_is_an_error(self, backend: Any) -> None:
        store, writer = await backend.connect(), await backend.connect()
        start = (await store.load()).revision
        async with asyncio.timeout(20), aclosing(store.watch(start)) as watch:
            await put(writer, b"a", b"1")
            await anext(watch)
            backend.cut(store)
            await put(writer, b"a", b"2")
            await put(writer, b"a", b"3")
            await backend.compact()
            backend.restore(store)
            with pytest.raises(CompactedError):
                await anext(watch)
        snapshot = await store.load()
        assert snapshot.entries[b"a"].value == b"3"
        assert (await put(writer, b"a", b"4"),) == tuple(
            change.revision for change in await first(store, snapshot.revision)
        )


class TestLeases:
    async def test_keys_vanish_together_when_their_lease_is_revoked(
        self, store: MetadataStore
    ) -> None:
        lease_id = await store.grant_lease(30)
        await put(store, b"other", b"1")
        revision = await put(store, b"a", b"1", lease_id)
        await put(store, b"b", b"1", lease_id)
        assert (await store.load()).entries[b"a"].lease_id == lease_id
        await store.keep_alive(lease_id)
        await store.revoke_lease(lease_id)
        assert set((await store.load()).entries) == {b"other"}
        changes = await first(store, revision, 2)
        assert sorted(changes[1].deleted) == [b"a", b"b"]
        with pytest.raises(LeaseExpiredError):
            await store.keep_alive(lease_id)
        await store.revoke_lease(lease_id)

    async def test_a_key_keeps_its_lease_or_loses_it(self, store: MetadataStore) -> None:
        lease_id = await store.grant_lease(30)
        await put(store, b"kept", b"1", lease_id)
        await put(store, b"lost", b"1", lease_id)
        await put(store, b"kept", b"2", KEEP_LEASE)
        await put(store, b"lost", b"2")
        entries = (await store.load()).entries
        assert (entries[b"kept"].lease_id, entries[b"lost"].lease_id) == (lease_id, 0)
        await store.revoke_lease(lease_id)
        assert set((await store.load()).entries) == {b"lost"}

    async def test_a_key_cannot_have_a_lease_that_is_gone(self, store: MetadataStore) -> None:
        lease_id = await store.grant_lease(30)
        await store.revoke_lease(lease_id)
        with pytest.raises(LeaseExpiredError):
            await put(store, b"a", b"1", lease_id)
        assert (await store.load()).entries == {}

    async def test_a_lease_that_is_not_kept_alive_ends(self, store: MetadataStore) -> None:
        lease_id = await store.grant_lease(2)
        revision = await put(store, b"a", b"1", lease_id)
        (change,) = await first(store, revision)
        assert (list(change.entries), list(change.deleted)) == ([], [b"a"])
        with pytest.raises(LeaseExpiredError):
            await store.keep_alive(lease_id)
