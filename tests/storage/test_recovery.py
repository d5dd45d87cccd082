"""Opening a log after a crash: complete batches stay, the rest is set aside or truncated."""

import shutil
import time
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.logs import NoSyncDisk
from ottla.protocol.batch import Record, RecordBatch, build_batch, split_batches
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfOrderSequenceError, StorageError
from ottla.storage.files import OpenFiles
from ottla.storage.gaps import truncate_at_first_gap
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
from ottla.storage.partition_metadata import PartitionMetadata
from ottla.storage.recovery import open_log

NOW = 1_700_000_000_000
ONE_SEGMENT = LogConfig(segment_bytes=1024 * 1024, index_interval_bytes=1)
SMALL_SEGMENTS = LogConfig(segment_bytes=1024, index_interval_bytes=1)
SPARSE_INDEXES = LogConfig(segment_bytes=1024)
PRODUCER = 7
RECORDS = 2

EPOCH_BYTES = range(12, 16)
FIELDS = {
    "base offset": range(8),
    "length": range(8, 12),
    "magic": range(16, 17),
    "crc": range(17, 21),
    "covered by the crc": range(21, 1000),
}


def value_of(offset, padding=0):
    return b"value %d" % offset + b"." * padding


def a_batch(number, *, padding=0, producer_id=PRODUCER):
    """The batch with index `number` of a log of such batches."""
    first = number * RECORDS
    rows = [
        Record(index, NOW + first + index, b"k", value_of(first + index, padding))
        for index in range(RECORDS)
    ]
    idempotent = {"producer_epoch": 0, "base_sequence": first} if producer_id >= 0 else {}
    return build_batch(rows, producer_id=producer_id, **idempotent)


def rows_of(*numbers, padding=0):
    offsets = [number * RECORDS + index for number in numbers for index in range(RECORDS)]
    return [(offset, value_of(offset, padding)) for offset in offsets]


def fill(log, numbers, *, padding=0, leader_epoch=0):
    return [
        log.append(a_batch(number, padding=padding), leader_epoch=leader_epoch, now_ms=NOW)
        for number in numbers
    ]


def crash(log):
    """Kill the process: only what the operating system has remains."""
    for segment in log.segments:
        segment.close()


def reopen(directory, *, config=ONE_SEGMENT, recovery_point=0):
    return open_log(directory, config, OpenFiles(NoSyncDisk()), recovery_point=recovery_point)


def contents(log):
    rows, offset = [], log.start_offset
    while offset < log.end_offset:
        batches = list(split_batches(bytes(log.read(offset, 1 << 20).view)))
        if not batches:
            break
        for batch in batches:
            batch.validate()
            rows += [(row.offset, row.value) for row in batch.records() if row.offset >= offset]
        offset = batches[-1].next_offset
    return rows


def producer_states_of(log):
    return [(p.producer_id, p.last_sequence, p.last_offset) for p in log.producer_states]


def states_after(count):
    """The producer states after so many batches."""
    return [(PRODUCER, count * RECORDS - 1, count * RECORDS - 1)] if count else []


def indexes_of(log):
    indexes = [segment.indexes for segment in log.segments]
    return [(bytes(pair.offsets.entries), bytes(pair.times.entries)) for pair in indexes]


def ranges_of(report):
    return [(damaged.position, damaged.size) for damaged in report.damaged_ranges]


def damaged_files(directory):
    return {path.name: path.read_bytes() for path in directory.glob("*.damaged-*")}


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class CrashedLog:
    """A crashed log and the positions of its batches; each case works on a copy."""

    def __init__(self, folder: Path, count: int, config=ONE_SEGMENT, *, padding=0, epochs=None):
        self.config = config
        self.padding = padding
        self.count = count
        self.origin = folder / "origin"
        self.folder = folder
        self.copies = 0
        log, _ = reopen(self.origin, config=config, recovery_point=None)
        for number in range(count):
            fill(log, [number], padding=padding, leader_epoch=(epochs or {}).get(number, 0))
        self.end_offset = log.end_offset
        self.bases = [segment.base_offset for segment in log.segments]
        self.sizes = [segment.size for segment in log.segments]
        self.positions = [
            (at, batch.position, batch.position + batch.size)
            for at, segment in enumerate(log.segments)
            for batch in segment.batches()
        ]
        self.indexes = indexes_of(log)
        crash(log)
        self.bytes = [
            (self.origin / f"{base:020d}.log").read_bytes()[:size]
            for base, size in zip(self.bases, self.sizes, strict=True)
        ]

    def name(self, at=0):
        return f"{self.bases[at]:020d}.log"

    def batch(self, number):
        at, start, stop = self.positions[number]
        return self.bytes[at][start:stop]

    def copy(self, content=None, at=0):
        """Return a copy of the directory, in which one segment has this content."""
        self.copies += 1
        target = self.folder / f"copy-{self.copies}"
        shutil.copytree(self.origin, target)
        if content is not None:
            (target / self.name(at)).write_bytes(content)
        return target

    def flipped(self, number, byte, bit):
        """Return a copy with one bit of a batch flipped, and the damaged batch."""
        at, start, stop = self.positions[number]
        content = bytearray(self.bytes[at])
        content[start + byte] ^= 1 << bit
        return self.copy(bytes(content), at), bytes(content[start:stop])

    def rows_except(self, *missing):
        numbers = [number for number in range(self.count) if number not in missing]
        return rows_of(*numbers, padding=self.padding)


@pytest.fixture
def crashed(tmp_path):
    return CrashedLog(tmp_path, 6)


@pytest.fixture
def crashed_segments(tmp_path):
    """Nine batches, three per segment."""
    crashed = CrashedLog(tmp_path, 9, SMALL_SEGMENTS, padding=100)
    assert len(crashed.bases) == 3
    return crashed


def test_a_crashed_log_is_recovered(crashed):
    log, report = reopen(crashed.copy())

    assert contents(log) == crashed.rows_except()
    assert producer_states_of(log) == states_after(6)
    assert indexes_of(log) == crashed.indexes
    assert not report.was_clean
    assert not report.damaged_ranges


@pytest.mark.exhaustive
def test_a_log_cut_at_any_byte_of_its_last_three_batches_keeps_complete_batches(tmp_path):
    crashed = CrashedLog(tmp_path, 8)
    expected_indexes = [CrashedLog(tmp_path / str(n), n).indexes for n in range(9)]
    for cut in range(crashed.positions[5][1], crashed.sizes[0] + 1):
        complete = sum(stop <= cut for _, _, stop in crashed.positions)
        directory = crashed.copy(crashed.bytes[0][:cut])

        log, report = reopen(directory)

        assert contents(log) == rows_of(*range(complete)), cut
        assert producer_states_of(log) == states_after(complete), cut
        assert indexes_of(log) == expected_indexes[complete], cut
        assert log.end_offset == log.recovery_point == complete * RECORDS, cut
        torn = crashed.bytes[0][crashed.positions[complete - 1][2] : cut]
        assert len(torn.rstrip(b"\0")) <= report.truncated_bytes <= len(torn), cut
        assert report.damaged_ranges == [], cut
        assert (directory / crashed.name()).stat().st_size == crashed.positions[complete - 1][2], (
            cut
        )

        [again] = fill(log, [complete - 1])
        assert again.is_duplicate, cut
        fill(log, range(complete, 9))
        crash(log)
        log, _ = reopen(directory)
        assert contents(log) == rows_of(*range(9)), cut
        crash(log)


@pytest.mark.exhaustive
def test_a_torn_write_in_a_file_extended_by_zeros_keeps_complete_batches(tmp_path):
    crashed = CrashedLog(tmp_path, 4)
    for cut in range(crashed.positions[3][1], crashed.sizes[0]):
        torn = crashed.bytes[0][crashed.positions[3][1] : cut]
        if not any(crashed.bytes[0][cut:]):
            continue  # Only zeros were lost.
        directory = crashed.copy(crashed.bytes[0][:cut] + bytes(500))

        log, report = reopen(directory)

        assert contents(log) == rows_of(0, 1, 2), cut
        assert producer_states_of(log) == states_after(3), cut
        saved = list(damaged_files(directory).values())
        names = [damaged.saved_as for damaged in report.damaged_ranges]
        assert names == list(damaged_files(directory))
        assert not saved or saved[0].startswith(torn.rstrip(b"\0")), cut

        fill(log, [3, 4])
        crash(log)
        log, report = reopen(directory)
        assert contents(log) == rows_of(0, 1, 2, 3, 4), cut
        assert report.damaged_ranges == [], cut
        crash(log)


@pytest.mark.parametrize("zeros", [1, 11, 12, 60, 61, 4096, 64 * 1024, 3 * 1024 * 1024 + 7])
def test_zeros_after_the_last_batch_are_truncated(crashed, zeros):
    directory = crashed.copy(crashed.bytes[0] + bytes(zeros))

    log, report = reopen(directory)

    assert contents(log) == crashed.rows_except()
    assert report.truncated_bytes in (0, zeros)
    assert report.damaged_ranges == []
    assert (directory / crashed.name()).stat().st_size == crashed.sizes[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [0, 2, 4, 5], ids=["first", "middle", "last but one", "last"])
def test_any_flipped_bit_is_detected_and_the_batch_set_aside(crashed, number, field):
    for byte in range(FIELDS[field].start, min(FIELDS[field].stop, len(crashed.batch(number)))):
        for bit in range(8):
            directory, damaged = crashed.flipped(number, byte, bit)

            log, report = reopen(directory)

            case = f"bit {bit} of byte {byte}"
            assert contents(log) == crashed.rows_except(number), case
            expected = [(crashed.positions[number][1], len(damaged))]
            assert ranges_of(report) == expected, case
            assert list(damaged_files(directory).values()) == [damaged], case
            crash(log)


@pytest.mark.parametrize("number", [0, 2, 5], ids=["first", "middle", "last"])
def test_a_flipped_bit_in_the_leader_epoch_goes_unnoticed(crashed, number):
    for byte in EPOCH_BYTES:
        for bit in range(8):
            directory, damaged = crashed.flipped(number, byte, bit)

            log, report = reopen(directory)

            assert contents(log) == crashed.rows_except()
            assert report.damaged_ranges == []
            view = log.read(number * RECORDS, 1).view
            assert bytes(view) == damaged
            crash(log)


@pytest.mark.parametrize("number", [0, 2, 4, 5], ids=["first", "middle", "last but one", "last"])
def test_a_log_accepts_appends_after_damage_was_set_aside(crashed, number):
    directory, _ = crashed.flipped(number, 70, 0)
    log, _ = reopen(directory)
    next_number = log.end_offset // RECORDS
    resent = a_batch(next_number, producer_id=-1)

    appended = log.append(resent, leader_epoch=0, now_ms=NOW)

    assert appended.base_offset == next_number * RECORDS
    expected = contents(log)
    crash(log)
    log, report = reopen(directory)
    assert contents(log) == expected
    assert report.damaged_ranges == []


@pytest.mark.parametrize("number", range(6))
def test_a_second_recovery_after_damage_changes_nothing(crashed, number):
    directory, _ = crashed.flipped(number, 70, 0)
    log, first = reopen(directory)
    rows, indexes, states = contents(log), indexes_of(log), producer_states_of(log)
    crash(log)
    files = files_of(directory)

    log, second = reopen(directory)

    assert contents(log) == rows
    assert indexes_of(log) == indexes
    assert producer_states_of(log) == states
    assert len(first.damaged_ranges) == 1
    assert second.damaged_ranges == []
    assert second.truncated_bytes == 0
    assert files_of(directory) == files


def test_damage_at_the_same_position_does_not_overwrite_the_saved_bytes(crashed):
    directory, first = crashed.flipped(5, 70, 0)
    log, _ = reopen(directory)
    log.append(a_batch(5, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)
    path = directory / crashed.name()
    content = bytearray(path.read_bytes()[: log.active_segment.size])
    content[crashed.positions[5][1] + 70] ^= 2
    path.write_bytes(content)

    reopen(directory)

    saved = damaged_files(directory).values()
    assert sorted(saved) == sorted([first, bytes(content[crashed.positions[5][1] :])])


def test_a_wrong_offset_in_the_last_batch_is_detected_despite_earlier_damage(crashed):
    directory, _ = crashed.flipped(2, 70, 0)
    log, _ = reopen(directory)
    crash(log)
    path = directory / crashed.name()
    content = bytearray(path.read_bytes())
    last = len(content) - len(crashed.batch(5))
    content[last + 5] ^= 1
    path.write_bytes(content)

    log, report = reopen(directory)

    assert contents(log) == crashed.rows_except(2, 5)
    assert len(report.damaged_ranges) == 1


def test_two_damaged_batches_are_set_aside_separately(crashed):
    content = bytearray(crashed.bytes[0])
    for number in (1, 3):
        content[crashed.positions[number][1] + 65] ^= 0x10
    directory = crashed.copy(bytes(content))

    log, report = reopen(directory)

    assert contents(log) == crashed.rows_except(1, 3)
    starts = [position for position, _size in ranges_of(report)]
    assert starts == [crashed.positions[1][1], crashed.positions[3][1]]
    assert len(damaged_files(directory)) == 2


@pytest.mark.parametrize("number", [0, 2])
def test_batches_behind_two_with_damaged_lengths_are_kept(crashed, number):
    data = bytearray(crashed.bytes[0])
    for damaged in (number, number + 1):
        _, start, _ = crashed.positions[damaged]
        for byte in (9, 61, 62):  # Of the batch, and of its first record.
            data[start + byte] ^= 0x10

    log, _report = reopen(crashed.copy(bytes(data) + bytes(4096)))

    assert contents(log) == crashed.rows_except(number, number + 1)
    crash(log)


@pytest.mark.parametrize("number", range(5))
def test_batches_behind_one_with_a_damaged_length_and_record_are_kept(crashed, number):
    """Another length that differs in a few bits may lead to the end of the log by chance."""
    _, start, _ = crashed.positions[number]
    for bit in range(12):
        data = bytearray(crashed.bytes[0])
        data[start + 11 - bit // 8] ^= 1 << bit % 8
        data[start + 67] ^= 0x10

        log, _report = reopen(crashed.copy(bytes(data) + bytes(4096)))

        assert contents(log) == crashed.rows_except(number), bit
        crash(log)


def test_a_batch_behind_one_with_two_damaged_counts_is_kept(crashed):
    data = bytearray(crashed.bytes[0])
    _, start, _ = crashed.positions[4]
    for byte, bits in ((26, 0x04), (60, 0x18)):  # Last offset delta and number of records.
        data[start + byte] ^= bits

    log, _report = reopen(crashed.copy(bytes(data) + bytes(4096)))

    assert contents(log) == crashed.rows_except(4)


def test_a_batch_between_zeros_and_a_torn_write_is_kept(crashed):
    data = bytearray(crashed.bytes[0])
    start, stop = crashed.positions[1][1], crashed.positions[3][2]
    data[start:stop] = bytes(stop - start)

    log, _report = reopen(crashed.copy(bytes(data[:-1])))

    assert contents(log) == crashed.rows_except(1, 2, 3, 5)


def test_a_log_of_garbage_is_set_aside_and_accepts_appends(crashed):
    garbage = b"\xa5" * crashed.sizes[0]
    directory = crashed.copy(garbage)

    log, report = reopen(directory)

    assert contents(log) == []
    assert [damage.size for damage in report.damaged_ranges] == [len(garbage)]
    assert list(damaged_files(directory).values()) == [garbage]
    log.append(a_batch(0, producer_id=-1), leader_epoch=0, now_ms=NOW)
    assert contents(log) == rows_of(0)


@given(
    garbage=st.binary(min_size=1, max_size=400) | st.integers(1, 9000).map(lambda n: b"\x02" * n),
    before=st.integers(0, 5),
)
@settings(max_examples=60)
def test_garbage_between_batches_is_set_aside(tmp_path_factory, garbage, before):
    crashed = CrashedLog(tmp_path_factory.mktemp("garbage"), 6)
    start = crashed.positions[before][1]
    directory = crashed.copy(crashed.bytes[0][:start] + garbage + crashed.bytes[0][start:])

    log, report = reopen(directory)

    assert contents(log) == crashed.rows_except()
    assert producer_states_of(log) == states_after(6)
    assert ranges_of(report) == [(start, len(garbage))]
    assert list(damaged_files(directory).values()) == [garbage]
    crash(log)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_zeros_between_batches_are_set_aside_and_later_batches_kept(crashed, number):
    _, start, stop = crashed.positions[number]
    for first in (start, start + 5, start + 30, start + 61):
        content = crashed.bytes[0][:first] + bytes(stop - first) + crashed.bytes[0][stop:]
        directory = crashed.copy(content)

        log, report = reopen(directory)

        assert contents(log) == crashed.rows_except(number)
        assert [damage.position for damage in report.damaged_ranges] == [start]
        assert list(damaged_files(directory).values()) == [content[start:stop]]
        crash(log)


def test_a_batch_larger_than_the_read_buffer_is_verified(tmp_path):
    config = LogConfig(segment_bytes=16 * 1024 * 1024, max_message_bytes=8 * 1024 * 1024)
    crashed = CrashedLog(tmp_path, 3, config, padding=1_200_000)

    log, report = reopen(crashed.copy(), config=config)
    assert contents(log) == crashed.rows_except()
    assert report.damaged_ranges == []

    directory, damaged = crashed.flipped(1, 2_000_000, 0)
    log, report = reopen(directory, config=config)
    assert contents(log) == crashed.rows_except(1)
    assert list(damaged_files(directory).values()) == [damaged]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5], ids=lambda n: f"batch {n} of 9")
def test_damage_in_a_sealed_segment_loses_only_the_damaged_batch(crashed_segments, number):
    crashed = crashed_segments
    directory, damaged = crashed.flipped(number, 80, 3)

    log, report = reopen(directory, config=crashed.config)

    assert contents(log) == crashed.rows_except(number)
    assert producer_states_of(log) == states_after(9)
    assert log.end_offset == 18
    [damaged_range] = report.damaged_ranges
    assert damaged_range.segment == crashed.name(crashed.positions[number][0])
    assert (directory / damaged_range.saved_as).read_bytes() == damaged
    fill(log, [9], padding=100)
    assert contents(log)[-2:] == rows_of(9, padding=100)


def test_a_sealed_segment_of_garbage_is_set_aside_and_the_others_stay(crashed_segments):
    crashed = crashed_segments
    garbage = b"\xff" * crashed.sizes[1]
    directory = crashed.copy(garbage, at=1)

    log, report = reopen(directory, config=crashed.config)

    assert contents(log) == crashed.rows_except(3, 4, 5)
    assert [damage.segment for damage in report.damaged_ranges] == [crashed.name(1)]
    assert list(damaged_files(directory).values()) == [garbage]
    assert log.end_offset == 18


def test_a_truncated_sealed_segment_loses_only_the_torn_batch(crashed_segments):
    crashed = crashed_segments
    directory = crashed.copy(crashed.bytes[0][:-10], at=0)

    log, report = reopen(directory, config=crashed.config)

    assert contents(log) == crashed.rows_except(2)
    torn = crashed.bytes[0][crashed.positions[2][1] : -10]
    assert [saved.rstrip(b"\0") for saved in damaged_files(directory).values()] == [
        torn.rstrip(b"\0")
    ]
    assert len(report.damaged_ranges) == 1
    assert truncate_at_first_gap(log) == 4


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_sealed_segment_that_ends_early_is_noticed(crashed_segments, is_empty, caplog):
    """A power cut may leave the segment after it whole, and no damaged bytes."""
    crashed = crashed_segments
    end = 0 if is_empty else crashed.positions[4][1]
    directory = crashed.copy(crashed.bytes[1][:end], at=1)
    missing = (3, 4, 5) if is_empty else (4, 5)

    log, report = reopen(directory, config=crashed.config)

    assert contents(log) == crashed.rows_except(*missing)
    assert report.has_lost_records
    assert f"offsets {missing[0] * RECORDS} to 11 are missing" in caplog.text
    crash(log)
    log, report = reopen(directory, config=crashed.config)
    assert not report.has_lost_records, "It is remembered"
    # A replica copies what is missing from its leader.
    assert truncate_at_first_gap(log) == missing[0] * RECORDS
    assert contents(log) == crashed.rows_except(*range(missing[0], 9))


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 37, bytes(800)])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_or_damaged_indexes_are_rebuilt_by_recovery(crashed_segments, suffix, content):
    crashed = crashed_segments
    directory = crashed.copy()
    for base in crashed.bases:
        path = directory / f"{base:020d}{suffix}"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)

    log, _ = reopen(directory, config=crashed.config)

    assert contents(log) == crashed.rows_except()
    assert indexes_of(log) == crashed.indexes
    for offset in range(18):
        assert log.offset_for_timestamp(NOW + offset).offset == offset


@pytest.mark.parametrize("config", [SMALL_SEGMENTS, SPARSE_INDEXES], ids=["dense", "sparse"])
@pytest.mark.parametrize("point", [None, 18], ids=["clean", "before the recovery point"])
def test_missing_indexes_are_rebuilt_where_nothing_is_recovered(tmp_path, config, point):
    crashed = CrashedLog(tmp_path, 9, config, padding=100)
    log, _ = reopen(crashed.copy(), config=config)
    log.close()
    for path in [*log.directory.glob("*.index"), *log.directory.glob("*.timeindex")]:
        path.unlink()

    log, _ = reopen(log.directory, config=config, recovery_point=point)

    assert contents(log) == crashed.rows_except()
    for offset in range(18):
        record = log.offset_for_timestamp(NOW + offset)
        assert record is not None, offset
        assert record.offset == offset


def test_recovery_does_not_scan_segments_before_the_recovery_point(crashed_segments):
    crashed = crashed_segments
    directory, _ = crashed.flipped(1, 80, 0)

    log, report = reopen(directory, config=crashed.config, recovery_point=crashed.bases[2])

    assert report.scanned_bytes == crashed.sizes[2]
    assert report.damaged_ranges == []
    assert producer_states_of(log) == states_after(9)
    assert log.end_offset == 18


def test_recovery_scans_the_segment_that_contains_the_recovery_point(crashed_segments):
    crashed = crashed_segments

    log, report = reopen(
        crashed.copy(), config=crashed.config, recovery_point=crashed.bases[1] + RECORDS
    )

    assert report.scanned_bytes == crashed.sizes[1] + crashed.sizes[2]
    assert contents(log) == crashed.rows_except()
    assert producer_states_of(log) == states_after(9)


def test_scanned_bytes_are_counted_once_despite_damage(crashed):
    directory, damaged = crashed.flipped(3, 70, 0)

    _, report = reopen(directory)

    assert crashed.sizes[0] - len(damaged) <= report.scanned_bytes <= crashed.sizes[0]


def test_producer_states_are_rebuilt_from_batches_without_a_snapshot(crashed_segments):
    crashed = crashed_segments
    for point in (0, crashed.bases[1], crashed.bases[2], 18):
        directory = crashed.copy()
        for path in directory.glob("*.snapshot"):
            path.unlink()

        log, _ = reopen(directory, config=crashed.config, recovery_point=point)

        assert producer_states_of(log) == states_after(9), point
        crash(log)


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"nonsense"])
def test_a_damaged_snapshot_falls_back_to_an_older_one_after_a_crash(crashed_segments, content):
    crashed = crashed_segments
    directory = crashed.copy()
    max(directory.glob("*.snapshot")).write_bytes(content)

    log, _ = reopen(directory, config=crashed.config, recovery_point=crashed.bases[2])

    assert producer_states_of(log) == states_after(9)


@pytest.mark.parametrize("which", ["the last", "all"])
def test_a_damaged_snapshot_is_replaced_after_a_clean_shutdown_too(crashed_segments, which):
    crashed = crashed_segments
    log, _ = reopen(crashed.copy(), config=crashed.config)
    log.close()
    snapshots = sorted(log.directory.glob("*.snapshot"))
    for path in snapshots if which == "all" else snapshots[-1:]:
        path.write_bytes(b"")

    log, _ = reopen(log.directory, config=crashed.config, recovery_point=None)

    assert producer_states_of(log) == states_after(9)


def test_a_cleanly_closed_log_is_not_scanned(crashed_segments):
    crashed = crashed_segments
    log, _ = reopen(crashed.copy(), config=crashed.config)
    log.close()

    log, report = reopen(log.directory, config=crashed.config, recovery_point=None)

    assert report.was_clean
    assert report.scanned_bytes == 0
    assert contents(log) == crashed.rows_except()
    assert producer_states_of(log) == states_after(9)
    assert indexes_of(log)[:2] == crashed.indexes[:2]
    fill(log, [9], padding=100)
    assert contents(log)[-2:] == rows_of(9, padding=100)


def test_opening_and_closing_a_log_does_not_change_its_files(crashed_segments):
    crashed = crashed_segments
    directory = crashed.copy()
    reopen(directory, config=crashed.config)[0].close()
    files = files_of(directory)

    for point in (None, None, 0, None, 9):
        log, report = reopen(directory, config=crashed.config, recovery_point=point)
        assert contents(log) == crashed.rows_except()
        assert report.damaged_ranges == []
        log.close()

    assert files_of(directory) == files


@pytest.mark.exhaustive
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("byte", FIELDS["length"])
def test_a_scan_over_damaged_lengths_terminates(crashed, byte, bit):
    log, _ = reopen(crashed.copy())
    content = bytearray(crashed.bytes[0])
    content[crashed.positions[2][1] + byte] ^= 1 << bit
    (log.directory / crashed.name()).write_bytes(content)

    try:
        batches = list(islice(log.active_segment.batches(), 100))
    except (OSError, StorageError):
        return
    assert len(batches) < 100


def test_a_truncated_log_after_a_clean_shutdown_does_not_stop_the_others(tmp_path):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=NoSyncDisk())
    logs.load({}, ONE_SEGMENT)
    for name in ("damaged-0", "intact-0"):
        fill(logs.create(name, ONE_SEGMENT), range(3))
    logs.close()
    path = tmp_path / "data" / "damaged-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-70])

    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=NoSyncDisk())
    logs.load({}, ONE_SEGMENT)

    assert contents(logs.logs["intact-0"]) == rows_of(0, 1, 2)
    assert "damaged-0" in logs.failed
    logs.close()


def test_many_logs_are_recovered_with_few_open_files(tmp_path):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=NoSyncDisk())
    logs.load({}, ONE_SEGMENT)
    for number in range(60):
        log = logs.create(f"log-{number}", ONE_SEGMENT)
        fill(log, range(4), padding=number)
        crash(log)
    logs.logs.clear()
    logs.close()
    (tmp_path / "data" / "clean-shutdown").unlink()

    logs = LogDirectory(
        tmp_path / "data", cluster_id="c", broker_id=1, disk=NoSyncDisk(), max_open_segments=2
    )
    logs.load({}, ONE_SEGMENT)

    assert logs.failed == {}
    for number in range(60):
        assert logs.reports[f"log-{number}"].damaged_ranges == []
        assert contents(logs.logs[f"log-{number}"]) == rows_of(*range(4), padding=number)
    logs.close()


def data_directory(path):
    logs = LogDirectory(path, cluster_id="c", broker_id=1, disk=NoSyncDisk())
    logs.load({}, SMALL_SEGMENTS)
    return logs


def crash_all(logs):
    logs.flusher.stop()
    for log in logs.logs.values():
        crash(log)
    logs.disk.close(logs._lock)


def flip_a_bit_of_the_first_batch(directory):
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)


def test_a_new_log_does_not_inherit_the_recovery_point_of_a_deleted_one(tmp_path):
    logs = data_directory(tmp_path)
    fill(logs.create("t-0", SMALL_SEGMENTS), range(9), padding=100)
    logs.checkpoint_recovery_points()
    logs.delete("t-0")
    fill(logs.create("t-0", SMALL_SEGMENTS), range(9), padding=100)
    crash_all(logs)
    flip_a_bit_of_the_first_batch(tmp_path / "t-0")

    logs = data_directory(tmp_path)

    assert len(logs.reports["t-0"].damaged_ranges) == 1
    assert contents(logs.logs["t-0"]) == rows_of(*range(1, 9), padding=100)
    logs.close()


def test_batches_appended_after_a_truncation_are_recovered(tmp_path):
    logs = data_directory(tmp_path)
    log = logs.create("t-0", SMALL_SEGMENTS)
    fill(log, range(9), padding=100)
    logs.checkpoint_recovery_points()
    log.truncate(0)
    fill(log, range(9), padding=100)
    crash_all(logs)
    flip_a_bit_of_the_first_batch(tmp_path / "t-0")

    logs = data_directory(tmp_path)

    assert len(logs.reports["t-0"].damaged_ranges) == 1
    assert contents(logs.logs["t-0"]) == rows_of(*range(1, 9), padding=100)
    logs.close()


def test_leader_epochs_are_rebuilt_from_batches(tmp_path):
    crashed = CrashedLog(tmp_path, 6, epochs={2: 3, 3: 3, 4: 7, 5: 7})
    directory = crashed.copy()
    (directory / LEADER_EPOCH_CHECKPOINT).unlink()

    log, _ = reopen(directory)

    assert list(log.leader_epochs) == [(0, 0), (3, 4), (7, 8)]


def test_an_empty_leader_epoch_checkpoint_is_rebuilt(tmp_path):
    crashed = CrashedLog(tmp_path, 6, epochs={2: 3, 3: 3, 4: 7, 5: 7})
    directory = crashed.copy()
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(b"")

    log, _ = reopen(directory)

    assert contents(log) == crashed.rows_except()
    assert list(log.leader_epochs) == [(0, 0), (3, 4), (7, 8)]


def test_leader_epochs_of_truncated_batches_are_forgotten(tmp_path):
    crashed = CrashedLog(tmp_path, 6, epochs={4: 7, 5: 7})
    directory = crashed.copy(crashed.bytes[0][: crashed.positions[3][1] + 5])

    log, _ = reopen(directory)
    fill(log, [3], leader_epoch=7)

    assert list(log.leader_epochs) == [(0, 0), (7, 6)]


def test_appends_to_a_log_truncated_before_its_start_offset_are_kept(crashed):
    log, _ = reopen(crashed.copy())
    log.delete_records_before(10)
    crash(log)
    path = log.directory / crashed.name()
    path.write_bytes(crashed.bytes[0][: crashed.positions[2][2]])
    log, _ = reopen(log.directory)

    appended = log.append(a_batch(3, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)
    log, _ = reopen(log.directory)

    assert log.start_offset <= appended.base_offset
    assert log.end_offset == appended.last_offset + 1
    values = [value for offset, value in contents(log) if offset >= appended.base_offset]
    assert values == [value_of(6), value_of(7)]


def test_a_snapshot_of_truncated_batches_is_not_used(tmp_path):
    log, _ = reopen(tmp_path / "log", recovery_point=None)
    fill(log, [0, 1, 2])
    log.roll()
    fill(log, [3])
    log.truncate(2)
    for number in range(1, 5):
        log.append(a_batch(number, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)

    log, _ = reopen(tmp_path / "log", recovery_point=10)

    assert producer_states_of(log) == states_after(1)


def test_producer_states_survive_a_truncation_and_a_clean_shutdown(tmp_path):
    log, _ = reopen(tmp_path / "log", recovery_point=None)
    for number in range(4):
        fill(log, [number])
        log.roll()
    log.truncate(2)
    log.close()

    log, _ = reopen(tmp_path / "log", recovery_point=None)

    assert producer_states_of(log) == states_after(1)


def test_leftover_files_of_a_crash_are_removed(crashed):
    directory = crashed.copy()
    leftovers = ["00000000000000000000.log.tmp", "00000000000000000009.log.deleted", "x.tmp"]
    for name in leftovers:
        (directory / name).write_bytes(b"left over")

    log, report = reopen(directory)

    assert contents(log) == crashed.rows_except()
    assert report.damaged_ranges == []
    assert not [name for name in leftovers if (directory / name).exists()]


def test_an_empty_or_new_directory_becomes_an_empty_log(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        log, report = reopen(tmp_path / name)

        assert isinstance(log, Log)
        assert (log.start_offset, log.end_offset) == (0, 0)
        assert contents(log) == []
        assert (report.scanned_bytes, report.truncated_bytes, report.damaged_ranges) == (0, 0, [])
        assert [path.name for path in log.directory.glob("*.log")] == [f"{0:020d}.log"]


def a_nested_batch(offset, value=b"nested", **header):
    batch = build_batch([Record(0, NOW, None, value)], **header)
    RecordBatch(memoryview(batch)).assign(offset, 0)
    return bytes(batch)


def nested_values():
    """Values that are made of batches, with offsets that are possible and impossible."""
    offsets = (1, 2, 3, 4, 5, 4_000_000_000)
    yield from (a_nested_batch(offset) for offset in offsets)
    yield b"".join(a_nested_batch(offset) for offset in offsets)
    yield b"x" * 300 + a_nested_batch(2) + a_nested_batch(3) + b"\0" * 100


def log_with_a_nested_batch(directory, value, *, in_header, count_after=3):
    """Batches of one record at offsets 0 to 4, of which the one at offset 1 contains batches."""
    log, _ = open_log(directory, ONE_SEGMENT, OpenFiles(NoSyncDisk()))
    for offset in range(2 + count_after):
        record = Record(0, NOW, b"k", b"%d" % offset)
        if offset == 1:
            headers = [("h", value)] if in_header else []
            record = Record(0, NOW, b"k", b"1" if in_header else value, headers)
        log.append(build_batch([record]), leader_epoch=0, now_ms=NOW)
    batches = list(log.active_segment.batches())
    crash(log)
    return batches


@pytest.mark.parametrize("in_header", [False, True], ids=["in a value", "in a header"])
@pytest.mark.parametrize("count_after", [3, 0], ids=["before others", "at the end"])
@pytest.mark.parametrize("byte", [7, 9, 10, 16, 26, 60, 63, -1])
def test_a_batch_in_a_damaged_batch_does_not_become_a_record(
    tmp_path, byte, count_after, in_header
):
    for number, value in enumerate(nested_values()):
        directory = tmp_path / f"log-{number}"
        batches = log_with_a_nested_batch(
            directory, value, in_header=in_header, count_after=count_after
        )
        outer = batches[1]
        path = directory / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[outer.position + (byte if byte >= 0 else outer.size - 1)] ^= 1
        path.write_bytes(data)

        log, report = reopen(directory)

        offsets = [offset for offset, *_ in contents(log)]
        assert offsets == [0, *range(2, 2 + count_after)], number
        assert ranges_of(report) == [(outer.position, outer.size)]
        crash(log)


def test_recovery_skips_a_hole_quickly(tmp_path):
    log, _ = open_log(tmp_path / "log", ONE_SEGMENT, OpenFiles(NoSyncDisk()))
    fill(log, range(3))
    path, size = log.active_segment.path(".log"), log.active_segment.size
    crash(log)
    with path.open("r+b") as file:
        file.truncate(size + 4 * 2**30)

    started = time.process_time()
    log, report = reopen(tmp_path / "log")

    assert time.process_time() - started < 0.5
    assert contents(log) == rows_of(*range(3))
    assert report.damaged_ranges == []
    assert path.stat().st_size == size


@pytest.mark.parametrize("damage", ["length", "header", "length and records"])
def test_recovery_is_linear_in_headers_that_only_look_like_a_batch(tmp_path, damage):
    size = 2_000_000
    headers = bytearray()
    end = size - 200
    while len(headers) < end:
        # Each one claims to end where a header follows, near the end of the value.
        header = bytearray(a_nested_batch(2)[:61])
        header[8:12] = (end - len(headers) - 12).to_bytes(4, "big")
        headers += header
    value = bytes(headers[:end]) + a_nested_batch(3) + b"z" * 100
    directory = tmp_path / "log"
    config = LogConfig(max_message_bytes=4_000_000)
    log, _ = open_log(directory, config, OpenFiles(NoSyncDisk()))
    for payload in (b"0", value, b"2", b"3"):
        log.append(build_batch([Record(0, NOW, None, payload)]), leader_epoch=0, now_ms=NOW)
    outer = list(log.active_segment.batches())[1]
    path = log.active_segment.path(".log")
    crash(log)
    data = bytearray(path.read_bytes())
    if damage.startswith("length"):
        data[outer.position + 9] ^= 0x10
    if damage.endswith("records"):
        data[outer.position + 62] ^= 0xFF
    if damage == "header":
        data[outer.position : outer.position + 61] = b"\xaa" * 61
    path.write_bytes(data)

    started = time.process_time()
    log, _report = reopen(directory, config=config)

    assert time.process_time() - started < 2
    assert 3 in [offset for offset, *_ in contents(log)] or damage == "header"


def truncate(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("lost_files", "lose"), [("*.log", Path.unlink), ("*", Path.unlink), ("*.log", truncate)]
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_whose_files_are_lost_is_noticed(tmp_path, is_clean, lost_files, lose, caplog):
    metadata = PartitionMetadata(uuid4())
    logs = data_directory(tmp_path)
    logs.create_all({"t-0": SMALL_SEGMENTS}, {"t-0": metadata})
    fill(logs.logs["t-0"], range(9), padding=100)
    logs.checkpoint_recovery_points()
    if is_clean:
        logs.close()
    else:
        crash_all(logs)
    for path in list((tmp_path / "t-0").glob(lost_files)):
        lose(path)

    for _ in range(2):  # It is remembered.
        logs = data_directory(tmp_path)

        log = logs.logs["t-0"]
        assert contents(log) == []
        assert logs.may_have_lost_records
        with pytest.raises(OutOfOrderSequenceError, match="were lost with the partition's log"):
            log.append(
                build_batch(
                    [Record(0, NOW, b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=3
                ),
                leader_epoch=0,
                now_ms=NOW,
            )
        logs.close()
    assert caplog.text.count("Log t-0 has lost records (data loss): it ends at offset") == 1


def test_a_log_that_lost_its_last_segments_is_noticed(tmp_path, caplog):
    logs = data_directory(tmp_path)
    fill(logs.create("t-0", SMALL_SEGMENTS), range(9), padding=100)
    logs.close()
    last = max((tmp_path / "t-0").glob("*.log"))
    last.unlink()

    logs = data_directory(tmp_path)

    assert logs.reports["t-0"].has_lost_records
    assert f"it ends at offset {int(last.stem)}, and was durable up to 18" in caplog.text
    logs.close()
