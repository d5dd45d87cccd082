"""A log with transactions against a model: what a read_committed consumer gets.

The consumer reads whole batches below the last stable offset, and drops those of transactions that
the log lists as aborted until their marker, as clients do. The model knows every record and how its
transaction ended.
"""

import tempfile
from dataclasses import dataclass
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

from harness.logs import NOW, NoSyncDisk, compact
from ottla.protocol.batch import Record, build_batch, parse_marker, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

pytestmark = pytest.mark.exhaustive

PRODUCERS = (1, 2, 3)
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class Batch:
    """A batch of the model; a marker has no rows."""

    base_offset: int
    last_offset: int
    producer_id: int
    #: The number of its transaction; None for a plain batch.
    transaction: int | None
    rows: list[tuple[int, bytes, bytes | None]]
    is_commit: bool = False


class TransactionalLogMachine(RuleBasedStateMachine):
    """The model has every batch appended and not truncated, and derives transactions from them."""

    @initialize(compacts=st.booleans(), is_fsynced=st.booleans())
    def start(self, compacts, is_fsynced):
        self.config = LogConfig(
            cleanup_policy="compact,delete" if compacts else "delete",
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=1000,
            retention_ms=100_000,
            segment_bytes=1024,
            index_interval_bytes=100,
            durability="fsync" if is_fsynced else "page-cache",
        )
        self.is_fsynced = is_fsynced
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "t-0"
        self.files = OpenFiles(NoSyncDisk())
        self.log, _ = open_log(self.path, self.config, self.files)
        self.batches: list[Batch] = []
        self.now = NOW
        self.transactions = 0
        self.compacted_offset = 0

    def teardown(self):
        if hasattr(self, "log"):
            for segment in self.log.segments:
                segment.close()
            self.folder.cleanup()

    # The model.

    def open_transactions(self):
        """Return the open transactions: producer → (number, first offset)."""
        found: dict[int, tuple[int, int]] = {}
        for batch in self.batches:
            if batch.transaction is None:
                continue
            if batch.rows:
                found.setdefault(batch.producer_id, (batch.transaction, batch.base_offset))
            else:
                found.pop(batch.producer_id, None)
        return found

    def outcomes(self):
        return {b.transaction: b.is_commit for b in self.batches if b.transaction and not b.rows}

    def high_watermark(self):
        return self.log.recovery_point if self.is_fsynced else self.log.end_offset

    def expected_stable_offset(self, batches):
        """Return the last stable offset of the log, if the transactions are those of `batches`."""
        log, high_watermark = self.log, self.high_watermark()
        firsts: dict[int, int] = {}
        for batch in batches:
            if batch.transaction is not None and batch.rows:
                firsts.setdefault(batch.transaction, batch.base_offset)
        for batch in self.batches:
            if batch.transaction is not None and not batch.rows:
                is_visible = batch.base_offset < high_watermark
                if is_visible:
                    firsts.pop(batch.transaction, None)
        first = min(firsts.values(), default=high_watermark)
        return min(high_watermark, max(first, log.start_offset))

    def last_stable_offset(self):
        unstable, high_watermark = self.log.first_unstable_offset, self.high_watermark()
        if unstable is None:
            return high_watermark
        return min(high_watermark, max(unstable, self.log.start_offset))

    def committed_rows(self):
        """Return what a read_committed consumer must get if nothing was compacted."""
        end, outcomes = self.last_stable_offset(), self.outcomes()
        return {
            row[0]: row[1:]
            for batch in self.batches
            for row in batch.rows
            if self.log.start_offset <= row[0] < end
            and (batch.transaction is None or outcomes.get(batch.transaction))
        }

    def next_sequence(self, producer_id):
        return sum(len(b.rows) for b in self.batches if b.producer_id == producer_id)

    # Appends.

    @rule(
        producer_id=st.sampled_from(PRODUCERS),
        pairs=st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=60)),
            min_size=1,
            max_size=3,
        ),
        transactional=st.booleans(),
    )
    def send(self, producer_id, pairs, transactional):
        is_open = self.open_transactions().get(producer_id)
        transactional = transactional or is_open is not None
        records = [Record(n, self.now, *pair) for n, pair in enumerate(pairs)]
        sequence = self.next_sequence(producer_id)
        data = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        appended = self.log.append(data, leader_epoch=0, now_ms=self.now)
        assert not appended.is_duplicate
        base = appended.base_offset
        number = None
        if transactional:
            if is_open is None:
                self.transactions += 1
            number = self.transactions if is_open is None else is_open[0]
        rows = [(base + n, *pair) for n, pair in enumerate(pairs)]
        self.batches.append(Batch(base, appended.last_offset, producer_id, number, rows))

    @rule(pairs=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.binary(max_size=60))))
    def send_without_a_producer(self, pairs):
        if pairs:
            records = [Record(n, self.now, *pair) for n, pair in enumerate(pairs)]
            appended = self.log.append(build_batch(records), leader_epoch=0, now_ms=self.now)
            base = appended.base_offset
            rows = [(base + n, *pair) for n, pair in enumerate(pairs)]
            self.batches.append(Batch(base, appended.last_offset, -1, None, rows))

    @rule(producer_id=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end(self, producer_id, commit):
        number, _first = self.open_transactions().get(producer_id, (0, 0))
        appended = self.log.append_marker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            is_commit=commit,
            transaction_version=1,
            leader_epoch=0,
            now_ms=self.now,
        )
        base = appended.base_offset
        self.batches.append(Batch(base, base, producer_id, number, [], commit))

    # Everything else that happens to a log.

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def flush(self):
        self.log.flush()

    @precondition(lambda self: self.config.compacts)
    @rule(max_keys=st.sampled_from([1, 3, 100]))
    def compact(self, max_keys):
        self.log.roll()
        self.log.flush()
        unstable = self.log.first_unstable_offset
        stats = compact(self.log, self.now, max_keys=max_keys)
        if stats is not None:
            assert unstable is None or stats.first_dirty_offset <= unstable
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
        self.log.truncate(offset)
        end = self.log.end_offset
        assert end <= offset
        self.batches = [batch for batch in self.batches if batch.last_offset < end]

    @rule()
    def stop_and_start(self):
        self.log.close()
        self.log, report = open_log(self.path, self.config, self.files)
        assert report.was_clean

    @rule(from_the_start=st.booleans(), torn=st.binary(max_size=16))
    def crash_and_start(self, from_the_start, torn):
        point = 0 if from_the_start else self.log.recovery_point
        active = self.log.active_segment
        for segment in self.log.segments:
            segment.close()
        with active.path(".log").open("r+b") as file:
            file.seek(active.size)
            file.write(torn)
        self.log, _report = open_log(self.path, self.config, self.files, recovery_point=point)

    @precondition(lambda self: list(self.path.glob("*.txnindex")))
    @rule(at=st.integers(0, 7), crashes=st.booleans())
    def damage_an_index(self, at, crashes):
        if crashes:
            for segment in self.log.segments:
                segment.close()
        else:
            self.log.close()
        paths = sorted(self.path.glob("*.txnindex"))
        if paths:
            path = paths[at % len(paths)]
            path.write_bytes(path.read_bytes()[:-1])
        point = self.log.recovery_point if crashes else None
        self.log, _ = open_log(self.path, self.config, self.files, recovery_point=point)

    # What must hold.

    @invariant()
    def the_last_stable_offset_is_that_of_the_model(self):
        if not hasattr(self, "log"):
            return
        # Recovery may not know of batches that were deleted.
        first = self.log.segments[0].base_offset
        remaining = [batch for batch in self.batches if batch.last_offset >= first]
        low = self.expected_stable_offset(self.batches)
        high = self.expected_stable_offset(remaining)
        assert low <= self.last_stable_offset() <= high

    @invariant()
    def a_read_committed_consumer_gets_the_committed_records(self):
        if not hasattr(self, "log"):
            return
        expected = self.committed_rows()
        for max_bytes in (1, 400, 100_000):
            got = self.consume(max_bytes)
            assert list(got) == sorted(got)
            assert all(expected.get(offset) == row for offset, row in got.items())
            last = {row[0]: offset for offset, row in expected.items()}
            for offset, (key, value) in expected.items():
                is_needed = last[key] == offset and value is not None
                if is_needed or offset >= self.compacted_offset:
                    assert offset in got

    @invariant()
    def producers_have_their_open_transactions(self):
        if not hasattr(self, "log"):
            return
        found = {
            state.producer_id: state.txn_start_offset
            for state in self.log.producer_states
            if state.txn_start_offset >= 0
        }
        start = self.log.segments[0].base_offset
        for producer_id, (number, first) in self.open_transactions().items():
            batches = [b.base_offset for b in self.batches if b.transaction == number]
            remaining = next((base for base in batches if base >= start), None)
            if remaining is None:
                assert found.pop(producer_id, first) == first
            else:
                assert first <= found.pop(producer_id) <= remaining
        assert found == {}

    def consume(self, max_bytes):
        """Read as a consumer with isolation level read_committed does."""
        log = self.log
        end, offset = self.last_stable_offset(), log.start_offset
        rows: dict[int, tuple[bytes, bytes | None]] = {}
        while offset < end:
            log_slice = log.read(offset, max_bytes, end)
            transactions = log.aborted_transactions_in(log_slice, offset)
            assert transactions == sorted(transactions, key=lambda t: t.first_offset)
            aborted: set[int] = set()
            batches = list(split_batches(bytes(log_slice.view)))
            if not batches:
                break
            for batch in batches:
                while transactions and transactions[0].first_offset <= batch.last_offset:
                    aborted.add(transactions.pop(0).producer_id)
                if batch.is_control:
                    if not parse_marker(batch).is_commit:
                        aborted.discard(batch.producer_id)
                elif not (batch.is_transactional and batch.producer_id in aborted):
                    for record in batch.records():
                        if record.offset >= offset:
                            rows[record.offset] = (record.key, record.value)
            offset = batches[-1].next_offset
        return rows


def test_a_read_committed_consumer_gets_what_the_model_has():
    profile = settings()
    is_deep = profile.max_examples >= 300
    run_state_machine_as_test(
        TransactionalLogMachine,
        settings=settings(
            max_examples=max(60, profile.max_examples),
            stateful_step_count=40,
            phases=profile.phases if is_deep else (Phase.explicit, Phase.generate),
        ),
    )
