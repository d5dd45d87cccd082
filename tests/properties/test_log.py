"""A log against a model made of lists: after any operations, both have the same records."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.logs import NoSyncDisk
from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.errors import OffsetOutOfRangeError
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

pytestmark = pytest.mark.exhaustive

NOW = 1_700_000_000_000
SPAN_MS = 1000
SEGMENT_BYTES = 1024


@dataclass
class Batch:
    """A batch of the model."""

    base_offset: int
    times: list[int]
    value: bytes
    size: int
    producer: int
    sequence: int
    data: bytes

    @property
    def end_offset(self):
        return self.base_offset + len(self.times)

    @property
    def rows(self):
        return [
            (self.base_offset + index, time, self.value) for index, time in enumerate(self.times)
        ]


@dataclass
class Model:
    """The log as a list of segments, which are lists of batches."""

    segments: list[list[Batch]] = field(default_factory=lambda: [[]])
    bases: list[int] = field(default_factory=lambda: [0])
    start: int = 0
    end: int = 0

    @property
    def batches(self):
        return [batch for segment in self.segments for batch in segment]

    @property
    def rows(self):
        rows = [row for batch in self.batches for row in batch.rows]
        return [row for row in rows if row[0] >= self.start]

    def size(self, at):
        return sum(batch.size for batch in self.segments[at])

    def roll(self):
        if self.segments[-1]:
            self.segments.append([])
            self.bases.append(self.end)

    def append(self, batch):
        if self.size(-1) + batch.size > SEGMENT_BYTES:
            self.roll()
        self.segments[-1].append(batch)
        self.end = batch.end_offset

    def truncate(self, offset):
        if offset >= self.end:
            return
        while len(self.bases) > 1 and self.bases[-1] >= offset:
            del self.bases[-1], self.segments[-1]
        self.segments[-1] = [batch for batch in self.segments[-1] if batch.end_offset <= offset]
        self.end = max([self.bases[-1], *(batch.end_offset for batch in self.segments[-1])])
        self.start = min(self.start, self.end)

    def delete_records_before(self, offset):
        self.start = offset
        while len(self.bases) > 1 and self.bases[1] <= self.start:
            del self.bases[0], self.segments[0]

    def max_timestamp(self, at):
        return max([time for batch in self.segments[at] for time in batch.times], default=-1)

    def retain(self, retention_ms, retention_bytes, now_ms):
        def is_old(at):
            return 0 <= self.max_timestamp(at) < now_ms - retention_ms

        if retention_ms >= 0 and self.segments[-1] and is_old(-1):
            self.roll()
        while len(self.segments) > 1:
            rest = sum(self.size(at) for at in range(1, len(self.segments)))
            surplus = 0 <= retention_bytes <= rest
            if not surplus and not (retention_ms >= 0 and is_old(0)):
                break
            self.delete_records_before(max(self.start, self.bases[1]))

    def offset_for_timestamp(self, time):
        return next(((row[0], row[1]) for row in self.rows if row[1] >= time), None)


class LogMachine(RuleBasedStateMachine):
    """Applies the same operations to a log and to the model."""

    @initialize(interval=st.sampled_from([1, 200, 4096]), limit=st.sampled_from([1, 2, 2000]))
    def begin(self, interval, limit):
        self.folder = Path(tempfile.mkdtemp(prefix="log-"))
        self.interval, self.limit = interval, limit
        self.model = Model()
        self.sequences = {}
        self.newest = {}
        self.next_producer = 10
        self.counter = 0
        self.views = []
        self.open(None)

    def open(self, recovery_point):
        self.config = LogConfig(
            segment_bytes=SEGMENT_BYTES, index_interval_bytes=self.interval, retention_ms=-1
        )
        files = OpenFiles(NoSyncDisk(), limit=self.limit)
        self.log, self.report = open_log(
            self.folder / "t-0", self.config, files, recovery_point=recovery_point
        )
        assert self.report.damaged_ranges == []

    def crash(self):
        for segment in self.log.segments:
            segment.close()

    def teardown(self):
        if hasattr(self, "log"):
            self.crash()
            shutil.rmtree(self.folder)

    @rule(
        times=st.lists(st.integers(NOW, NOW + SPAN_MS), min_size=1, max_size=3),
        padding=st.sampled_from([0, 10, 100, 280]),
        producer=st.sampled_from([None, 0, 1]),
    )
    def append(self, times, padding, producer):
        self.counter += 1
        value = b"%d" % self.counter + b"." * padding
        records = [Record(index, time, None, value) for index, time in enumerate(times)]
        header = {}
        producer_id, sequence = -1, -1
        if producer is not None:
            producer_id = self.sequences.setdefault(producer, [self.next_producer, 0])[0]
            sequence = self.sequences[producer][1]
            self.next_producer = max(self.next_producer, producer_id + 1)
            header = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        data = build_batch(records, **header)
        batch = Batch(self.model.end, times, value, len(data), producer_id, sequence, bytes(data))

        appended = self.log.append(data, leader_epoch=0, now_ms=NOW)

        self.model.append(batch)
        assert (appended.base_offset, appended.last_offset + 1) == (
            batch.base_offset,
            batch.end_offset,
        )
        if producer is not None:
            self.sequences[producer][1] += len(times)
            self.newest[producer] = batch

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def resend(self, data):
        producer = data.draw(st.sampled_from(sorted(self.newest)))
        batch = self.newest[producer]

        again = self.log.append(batch.data, leader_epoch=0, now_ms=NOW)

        assert again.is_duplicate
        assert again.base_offset == batch.base_offset

    @rule()
    def roll(self):
        self.log.roll()

        self.model.roll()

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 100, 300, 700, 5000]))
    def read(self, data, max_bytes):
        offset = data.draw(st.integers(self.model.start, self.model.end))
        end = data.draw(st.none() | st.integers(self.model.start, self.model.end))

        view = self.log.read(offset, max_bytes, end).view

        visible = self.model.end if end is None else end
        expected = [
            batch
            for batch in self.model.batches
            if batch.end_offset > offset and batch.base_offset < visible
        ]
        if offset >= visible:
            expected = []
        returned = list(split_batches(bytes(view)))
        assert sum(batch.size for batch in returned) == len(view)
        assert bool(returned) == bool(expected)
        assert [batch.base_offset for batch in returned] == [
            batch.base_offset for batch in expected[: len(returned)]
        ]
        assert len(returned) <= 1 or len(view) <= max_bytes
        # It ends at the visible end, at the end of a segment, or before max_bytes is exceeded.
        rest = expected[len(returned) :]
        assert (
            not rest
            or rest[0].base_offset in self.model.bases
            or len(view) + rest[0].size > max_bytes
        )
        self.views = [*self.views[-3:], (view, bytes(view))]

    @rule(past=st.integers(1, 5))
    def read_outside(self, past):
        for offset in (self.model.start - past, self.model.end + past):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, 100)

    @rule(data=st.data())
    def truncate(self, data):
        offset = data.draw(st.integers(self.model.start, self.model.end))

        self.log.truncate(offset)

        self.model.truncate(offset)
        for producer in list(self.sequences):
            newest = self.newest.get(producer)
            if newest is None or newest.end_offset > self.model.end:
                self.newest.pop(producer, None)
                del self.sequences[producer]
                self.next_producer += 1

    @rule(data=st.data())
    def delete_records_before(self, data):
        offset = data.draw(st.integers(self.model.start, self.model.end))

        self.log.delete_records_before(offset)

        self.model.delete_records_before(offset)
        self.forget_producers_of_deleted_batches()

    @rule(
        age=st.sampled_from([None, 0, SPAN_MS // 2, SPAN_MS]),
        max_bytes=st.sampled_from([None, 0, 500, 2000]),
    )
    def retain(self, age, max_bytes):
        retention_ms = -1 if age is None else SPAN_MS - age
        retention_bytes = -1 if max_bytes is None else max_bytes
        now = NOW + SPAN_MS
        config, self.log.config = (
            self.log.config,
            LogConfig(
                segment_bytes=SEGMENT_BYTES,
                index_interval_bytes=self.interval,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
            ),
        )

        self.log.apply_retention(now)

        self.log.config = config
        self.model.retain(retention_ms, retention_bytes, now)
        self.forget_producers_of_deleted_batches()

    def forget_producers_of_deleted_batches(self):
        first = self.model.bases[0]
        for producer in [p for p, batch in self.newest.items() if batch.base_offset < first]:
            del self.newest[producer], self.sequences[producer]
            self.next_producer += 1

    @rule()
    def purge_deleted_segments(self):
        self.views = []

        assert self.log.purge_deleted_segments() == 0

    @rule()
    def sync(self):
        assert self.log.flush() == self.model.end

        assert self.log.recovery_point == self.model.end

    @rule()
    def stop_and_start(self):
        self.log.close()

        self.open(None)

        assert self.report.was_clean

    @rule(from_the_start=st.booleans())
    def crash_and_start(self, from_the_start):
        recovery_point = 0 if from_the_start else self.log.recovery_point
        self.crash()

        self.open(recovery_point)

    @rule(time=st.integers(NOW - 1, NOW + SPAN_MS + 1))
    def find_a_timestamp(self, time):
        assert self.log.offset_for_timestamp(time) == self.model.offset_for_timestamp(time)

    @invariant()
    def log_and_model_are_equal(self):
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        assert (log.start_offset, log.end_offset) == (model.start, model.end)
        assert log.start_offset <= log.end_offset
        assert log.recovery_point <= log.end_offset
        assert [segment.base_offset for segment in log.segments] == model.bases
        assert log.size == sum(batch.size for batch in model.batches)
        assert self.rows_of_the_log() == model.rows

    @invariant()
    def views_of_earlier_reads_are_unchanged(self):
        for view, content in getattr(self, "views", []):
            assert view == content

    def rows_of_the_log(self):
        rows, offset = [], self.log.start_offset
        while offset < self.log.end_offset:
            batches = list(split_batches(bytes(self.log.read(offset, 2000).view)))
            assert batches
            for batch in batches:
                batch.validate()
                rows += [
                    (row.offset, row.timestamp, row.value)
                    for row in batch.records()
                    if row.offset >= offset
                ]
            offset = batches[-1].next_offset
        return rows


def test_a_log_agrees_with_the_model():
    """Shrink failures in the deep profile only: that takes minutes."""
    profile = settings()
    is_deep = profile.max_examples >= 300
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=max(60, profile.max_examples),
            stateful_step_count=40,
            phases=profile.phases if is_deep else (Phase.explicit, Phase.generate),
        ),
    )
