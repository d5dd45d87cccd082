"""Offsets in transactions: a shard that replays records one by one equals one that is loaded.

Whatever plain commits, commits in transactions, markers and tombstones follow each other, the
offset of a partition is that of the last record in the log that counts.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.coordinators.shard_runtime import LogReader
from ottla.coord.config import GroupCoordinatorConfig
from ottla.coord.deadlines import Now
from ottla.coord.group_shard import GroupShard
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import CommittedOffset, GroupRecord, OffsetRecord, encode_record
from ottla.protocol.batch import RecordBatch, build_batch, build_control_batch

GROUPS = ["g", "h"]
TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
PRODUCERS = [7, 8]
KEYS = st.tuples(st.sampled_from(GROUPS), st.sampled_from(TPS))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS),
        st.tuples(st.just("transaction"), st.tuples(st.sampled_from(PRODUCERS), KEYS)),
        st.tuples(st.just("marker"), st.tuples(st.sampled_from(PRODUCERS), st.booleans())),
        st.tuples(st.just("tombstone"), KEYS),
        st.tuples(st.just("delete"), st.sampled_from(GROUPS)),
        st.tuples(st.just("load"), st.none()),
    ),
    max_size=25,
)


class Log:
    """A log in memory, the shard that follows it, and what should be committed."""

    def __init__(self) -> None:
        self.shard = GroupShard(GroupCoordinatorConfig())
        self.shard.activate(Now(0, 0))
        self.batches: list[bytes] = []
        self.offset = 0
        self.expected: dict[tuple[str, TopicPartition], tuple[int, int | None]] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], tuple[int, int]]] = {}

    def append(self, record, producer_id: int = -1) -> int:
        key, value = encode_record(record)
        header = {}
        if producer_id >= 0:
            header = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        batch = build_batch(
            [(self.offset, 0, key, value, ())],
            base_offset=self.offset,
            transactional=producer_id >= 0,
            **header,
        )
        self.batches.append(bytes(batch))
        self.shard.replay(record, offset=self.offset, producer_id=producer_id)
        self.offset += 1
        return self.offset - 1

    def commit(self, key) -> None:
        value = self.offset
        at = self.append(OffsetRecord(*key, CommittedOffset(value, -1, "", 0)))
        self.expected[key] = (at, value)

    def transaction(self, producer_id, key) -> None:
        value = self.offset
        at = self.append(OffsetRecord(*key, CommittedOffset(value, -1, "", 0)), producer_id)
        self.pending.setdefault(producer_id, {})[key] = (at, value)

    def marker(self, producer_id, is_commit) -> None:
        batch = build_control_batch(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            is_commit=is_commit,
            timestamp=0,
        )
        RecordBatch(memoryview(batch)).assign(self.offset, 0)
        self.batches.append(bytes(batch))
        self.offset += 1
        self.shard.replay_marker(producer_id, is_commit=is_commit)
        for key, (at, value) in self.pending.pop(producer_id, {}).items():
            if is_commit and self.expected.get(key, (-1, None))[0] < at:
                self.expected[key] = (at, value)

    def tombstone(self, key) -> None:
        at = self.append(OffsetRecord(*key, None))
        self.expected[key] = (at, None)

    def delete(self, group) -> None:
        for tp in {
            *self.shard.offsets.of_group(group),
            *self.shard.pending_offsets.of_group(group),
        }:
            self.tombstone((group, tp))
        self.append(GroupRecord(group, None))
        for pending in self.pending.values():
            for key in [key for key in pending if key[0] == group]:
                del pending[key]

    def loaded(self) -> GroupShard:
        shard = GroupShard(GroupCoordinatorConfig())
        reader = LogReader("the log")
        for batch in self.batches:
            reader.read(RecordBatch(memoryview(bytearray(batch))))
        for key, logged in reader.records():
            record = shard.decode(key, logged.value)
            shard.replay(record, offset=logged.offset, producer_id=logged.producer_id)
        shard.activate(Now(0, 0))
        return shard


@given(OPERATIONS)
def test_live_and_loaded_shards_agree(operations):
    log = Log()
    for name, argument in operations:
        if name == "load":
            # A load in the middle continues with the rest of the log.
            log.shard = log.loaded()
        elif name in ("transaction", "marker"):
            getattr(log, name)(*argument)
        else:
            getattr(log, name)(argument)
    expected = {key: value for key, (_at, value) in log.expected.items() if value is not None}
    pending = {key for of_producer in log.pending.values() for key in of_producer}
    for shard in (log.shard, log.loaded()):
        committed = {
            (group, tp): offset.offset
            for group in GROUPS
            for tp, offset in shard.offsets.of_group(group).items()
        }
        assert committed == expected
        assert {
            (group, tp) for group in GROUPS for tp in shard.pending_offsets.of_group(group)
        } == pending
        assert set(shard.groups) == {group for group, _tp in {*expected, *pending}}
    assert log.shard.size_bytes == log.loaded().size_bytes
