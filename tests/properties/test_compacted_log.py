"""A compacted log against a model: it loses only records that compaction may remove."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from harness.logs import NOW, compact
from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

pytestmark = pytest.mark.exhaustive

CONFIG = LogConfig(
    cleanup_policy="compact,delete",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    retention_ms=100_000,
    segment_bytes=1024,
    index_interval_bytes=100,
)
PAIRS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=90)),
    min_size=1,
    max_size=4,
)


class CompactedLogMachine(RuleBasedStateMachine):
    """The model has every record appended and not truncated: offset → (key, value)."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "t-0"
        self.files = OpenFiles()
        self.log, _ = open_log(self.path, CONFIG, self.files)
        self.rows: dict[int, tuple[bytes, bytes | None]] = {}
        self.now = NOW
        self.compacted_offset = 0

    def teardown(self):
        for segment in self.log.segments:
            segment.close()
        self.folder.cleanup()

    @rule(pairs=PAIRS)
    def append(self, pairs):
        records = [Record(n, self.now, key, value) for n, (key, value) in enumerate(pairs)]
        base = self.log.append(build_batch(records), leader_epoch=0, now_ms=self.now).base_offset
        self.rows |= {base + n: pair for n, pair in enumerate(pairs)}

    @rule()
    def roll(self):
        self.log.roll()

    @rule(max_keys=st.sampled_from([1, 3, 100]))
    def compact(self, max_keys):
        self.log.roll()  # Otherwise there would rarely be anything to compact.
        self.log.flush()
        stats = compact(self.log, self.now, max_keys=max_keys)
        if stats is not None:
            self.compacted_offset = max(self.compacted_offset, stats.first_dirty_offset)

    @rule(time=st.sampled_from([1, 1000, 60_000]))
    def wait(self, time):
        self.now += time

    @rule()
    def retain(self):
        self.log.apply_retention(self.now)

    @rule(part=st.floats(0, 1))
    def delete_records_before(self, part):
        span = self.log.end_offset - self.log.start_offset
        self.log.delete_records_before(self.log.start_offset + int(span * part))

    @rule(part=st.floats(0, 1))
    def truncate(self, part):
        """Truncate, but not below what compaction has seen: it removed replaced records there."""
        low = max(self.compacted_offset, self.log.start_offset)
        offset = low + int((self.log.end_offset - low) * part)
        segment = self.log.segments[-1]
        offset = max(offset, segment.base_offset)
        self.log.truncate(offset)
        assert self.log.end_offset <= offset
        self.rows = {n: row for n, row in self.rows.items() if n < self.log.end_offset}

    @rule()
    def stop_and_start(self):
        self.log.close()
        self.log, report = open_log(self.path, CONFIG, self.files)
        assert report.was_clean

    @rule(from_the_start=st.booleans())
    def crash_and_start(self, from_the_start):
        point = 0 if from_the_start else self.log.recovery_point
        for segment in self.log.segments:
            segment.close()
        self.log, report = open_log(self.path, CONFIG, self.files, recovery_point=point)
        assert report.damaged_ranges == []

    @rule(part=st.floats(0, 1))
    def read(self, part):
        offset = self.log.start_offset + int((self.log.end_offset - self.log.start_offset) * part)
        batches = list(split_batches(bytes(self.log.read(offset, 1).view)))
        assert all(batch.last_offset >= offset for batch in batches)

    @invariant()
    def stored_records_were_appended_and_missing_ones_were_replaced(self):
        stored = self.stored()
        start = self.log.start_offset
        assert list(stored) == sorted(stored)
        assert all(self.rows[offset] == row for offset, row in stored.items())
        last = {key: offset for offset, (key, _value) in self.rows.items()}
        for offset, (key, value) in self.rows.items():
            is_needed = offset == last[key] and value is not None
            if offset >= start and (is_needed or offset >= self.compacted_offset):
                assert offset in stored

    def stored(self):
        rows, offset = {}, self.log.start_offset
        while offset < self.log.end_offset:
            batches = list(split_batches(bytes(self.log.read(offset, 500).view)))
            if not batches:
                break
            for batch in batches:
                batch.validate()
                for record in batch.records():
                    if record.offset >= offset:
                        rows[record.offset] = (record.key, record.value)
            offset = batches[-1].next_offset
        return rows


def test_a_compacted_log_agrees_with_the_model():
    profile = settings()
    is_deep = profile.max_examples >= 300
    run_state_machine_as_test(
        CompactedLogMachine,
        settings=settings(
            max_examples=max(60, profile.max_examples),
            stateful_step_count=40,
            phases=profile.phases if is_deep else (Phase.explicit, Phase.generate),
        ),
    )
