"""Opening a log after a crash: what was whole is there, what was not is set aside or cut off."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.errors import StorageError
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
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
    "under the crc": range(21, 1000),
}


class QuickDisk(Disk):
    """Nobody cuts the power here."""

    def sync(self, fd, *, metadata=False):
        pass

    def sync_directory(self, path):
        pass


def value_of(offset, padding=0):
    return b"value %d" % offset + b"." * padding


def a_batch(number, *, padding=0, producer_id=PRODUCER):
    """The batch that comes at place `number` of a log made of such."""
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
    """The process is gone: what the operating system has is all there is."""
    for segment in log.segments:
        segment.close()


def reopen(directory, *, config=ONE_SEGMENT, recovery_point=0):
    return open_log(directory, config, OpenFiles(QuickDisk()), recovery_point=recovery_point)


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


def producers_of(log):
    return [(p.producer_id, p.last_sequence, p.last_offset) for p in log.producer_states]


def after(count):
    """What is known of the producer after so many batches."""
    return [(PRODUCER, count * RECORDS - 1, count * RECORDS - 1)] if count else []


def indexes_of(log):
    return [
        (bytes(s.indexes.offsets.entries), bytes(s.indexes.times.entries)) for s in log.segments
    ]


def damaged_files(directory):
    return {path.name: path.read_bytes() for path in directory.glob("*.damaged-*")}


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class Scene:
    """A log that crashed, and the places of its batches; every case gets a copy of it."""

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
        self.places = [
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
        at, start, stop = self.places[number]
        return self.bytes[at][start:stop]

    def copy(self, content=None, at=0):
        """Give a copy of the directory, one of whose segments has this content."""
        self.copies += 1
        target = self.folder / f"copy-{self.copies}"
        shutil.copytree(self.origin, target)
        if content is not None:
            (target / self.name(at)).write_bytes(content)
        return target

    def flipped(self, number, byte, bit):
        """Give a copy with one bit of a batch flipped, and the batch as it is there."""
        at, start, stop = self.places[number]
        content = bytearray(self.bytes[at])
        content[start + byte] ^= 1 << bit
        return self.copy(bytes(content), at), bytes(content[start:stop])

    def rows_but(self, *missing):
        numbers = [number for number in range(self.count) if number not in missing]
        return rows_of(*numbers, padding=self.padding)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path, 6)


@pytest.fixture
def sealed_scene(tmp_path):
    """Nine batches, three to a segment."""
    scene = Scene(tmp_path, 9, SMALL_SEGMENTS, padding=100)
    assert len(scene.bases) == 3
    return scene


def test_a_log_that_crashed_is_there_again(scene):
    log, report = reopen(scene.copy())

    assert contents(log) == scene.rows_but()
    assert producers_of(log) == after(6)
    assert indexes_of(log) == scene.indexes
    assert not report.was_clean
    assert not report.damaged_ranges


def test_a_log_cut_at_every_byte_of_its_last_three_batches_has_its_whole_batches(tmp_path):
    scene = Scene(tmp_path, 8)
    expected_indexes = [Scene(tmp_path / str(n), n).indexes for n in range(9)]
    for cut in range(scene.places[5][1], scene.sizes[0] + 1):
        whole = sum(stop <= cut for _, _, stop in scene.places)
        directory = scene.copy(scene.bytes[0][:cut])

        log, report = reopen(directory)

        assert contents(log) == rows_of(*range(whole)), cut
        assert producers_of(log) == after(whole), cut
        assert indexes_of(log) == expected_indexes[whole], cut
        assert log.end_offset == log.recovery_point == whole * RECORDS, cut
        torn = scene.bytes[0][scene.places[whole - 1][2] : cut]
        assert len(torn.rstrip(b"\0")) <= report.truncated_bytes <= len(torn), cut
        assert report.damaged_ranges == [], cut
        assert (directory / scene.name()).stat().st_size == scene.places[whole - 1][2], cut

        [again] = fill(log, [whole - 1])
        assert again.is_duplicate, cut
        fill(log, range(whole, 9))
        crash(log)
        log, _ = reopen(directory)
        assert contents(log) == rows_of(*range(9)), cut
        crash(log)


def test_a_torn_write_in_a_file_lengthened_by_zeros_never_touches_the_whole_batches(tmp_path):
    scene = Scene(tmp_path, 4)
    for cut in range(scene.places[3][1], scene.sizes[0]):
        torn = scene.bytes[0][scene.places[3][1] : cut]
        if not any(scene.bytes[0][cut:]):
            continue  # all that was lost was zeros
        directory = scene.copy(scene.bytes[0][:cut] + bytes(500))

        log, report = reopen(directory)

        assert contents(log) == rows_of(0, 1, 2), cut
        assert producers_of(log) == after(3), cut
        saved = list(damaged_files(directory).values())
        assert [damage.saved_as for damage in report.damaged_ranges] == list(
            damaged_files(directory)
        )
        assert not saved or saved[0].startswith(torn.rstrip(b"\0")), cut

        fill(log, [3, 4])
        crash(log)
        log, report = reopen(directory)
        assert contents(log) == rows_of(0, 1, 2, 3, 4), cut
        assert report.damaged_ranges == [], cut
        crash(log)


@pytest.mark.parametrize("zeros", [1, 11, 12, 60, 61, 4096, 64 * 1024, 3 * 1024 * 1024 + 7])
def test_zeros_that_a_crash_left_behind_the_end_are_cut_off(scene, zeros):
    directory = scene.copy(scene.bytes[0] + bytes(zeros))

    log, report = reopen(directory)

    assert contents(log) == scene.rows_but()
    assert report.truncated_bytes in (0, zeros)
    assert report.damaged_ranges == []
    assert (directory / scene.name()).stat().st_size == scene.sizes[0]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [0, 2, 4, 5], ids=["first", "middle", "last but one", "last"])
def test_every_flipped_bit_is_noticed_and_the_batch_set_aside(scene, number, field):
    for byte in range(FIELDS[field].start, min(FIELDS[field].stop, len(scene.batch(number)))):
        for bit in range(8):
            directory, damaged = scene.flipped(number, byte, bit)

            log, report = reopen(directory)

            case = f"bit {bit} of byte {byte}"
            assert contents(log) == scene.rows_but(number), case
            assert [damage.position for damage in report.damaged_ranges] == [
                scene.places[number][1]
            ], case
            assert [damage.size for damage in report.damaged_ranges] == [len(damaged)], case
            assert list(damaged_files(directory).values()) == [damaged], case
            crash(log)


@pytest.mark.parametrize("number", [0, 2, 5], ids=["first", "middle", "last"])
def test_a_flipped_bit_in_the_leader_epoch_goes_unnoticed(scene, number):
    for byte in EPOCH_BYTES:
        for bit in range(8):
            directory, damaged = scene.flipped(number, byte, bit)

            log, report = reopen(directory)

            assert contents(log) == scene.rows_but()
            assert report.damaged_ranges == []
            view = log.read(number * RECORDS, 1).view
            assert bytes(view) == damaged
            crash(log)


@pytest.mark.parametrize("number", [0, 2, 4, 5], ids=["first", "middle", "last but one", "last"])
def test_a_log_with_damage_set_aside_goes_on(scene, number):
    directory, _ = scene.flipped(number, 70, 0)
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
def test_a_second_recovery_after_damage_changes_nothing_more(scene, number):
    directory, _ = scene.flipped(number, 70, 0)
    log, first = reopen(directory)
    rows, indexes, producers = contents(log), indexes_of(log), producers_of(log)
    crash(log)
    files = files_of(directory)

    log, second = reopen(directory)

    assert contents(log) == rows
    assert indexes_of(log) == indexes
    assert producers_of(log) == producers
    assert len(first.damaged_ranges) == 1
    assert second.damaged_ranges == []
    assert second.truncated_bytes == 0
    assert files_of(directory) == files


def test_damage_at_a_place_where_there_was_damage_before_does_not_replace_what_was_saved(scene):
    directory, first = scene.flipped(5, 70, 0)
    log, _ = reopen(directory)
    log.append(a_batch(5, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)
    path = directory / scene.name()
    content = bytearray(path.read_bytes()[: log.active_segment.size])
    content[scene.places[5][1] + 70] ^= 2
    path.write_bytes(content)

    reopen(directory)

    saved = damaged_files(directory).values()
    assert sorted(saved) == sorted([first, bytes(content[scene.places[5][1] :])])


def test_a_last_batch_with_a_wrong_offset_is_noticed_though_there_was_damage_before(scene):
    directory, _ = scene.flipped(2, 70, 0)
    log, _ = reopen(directory)
    crash(log)
    path = directory / scene.name()
    content = bytearray(path.read_bytes())
    last = len(content) - len(scene.batch(5))
    content[last + 5] ^= 1
    path.write_bytes(content)

    log, report = reopen(directory)

    assert contents(log) == scene.rows_but(2, 5)
    assert len(report.damaged_ranges) == 1


def test_two_damaged_batches_are_set_aside_one_by_one(scene):
    content = bytearray(scene.bytes[0])
    for number in (1, 3):
        content[scene.places[number][1] + 65] ^= 0x10
    directory = scene.copy(bytes(content))

    log, report = reopen(directory)

    assert contents(log) == scene.rows_but(1, 3)
    assert [damage.position for damage in report.damaged_ranges] == [
        scene.places[1][1],
        scene.places[3][1],
    ]
    assert len(damaged_files(directory)) == 2


def test_a_log_of_nothing_but_damage_is_set_aside_whole_and_goes_on(scene):
    garbage = b"\xa5" * scene.sizes[0]
    directory = scene.copy(garbage)

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
def test_garbage_of_any_length_between_batches_is_set_aside(tmp_path_factory, garbage, before):
    scene = Scene(tmp_path_factory.mktemp("garbage"), 6)
    start = scene.places[before][1]
    directory = scene.copy(scene.bytes[0][:start] + garbage + scene.bytes[0][start:])

    log, report = reopen(directory)

    assert contents(log) == scene.rows_but()
    assert producers_of(log) == after(6)
    assert [(damage.position, damage.size) for damage in report.damaged_ranges] == [
        (start, len(garbage))
    ]
    assert list(damaged_files(directory).values()) == [garbage]
    crash(log)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_zeros_in_the_middle_are_set_aside_and_what_follows_is_kept(scene, number):
    _, start, stop = scene.places[number]
    for first in (start, start + 5, start + 30, start + 61):
        content = scene.bytes[0][:first] + bytes(stop - first) + scene.bytes[0][stop:]
        directory = scene.copy(content)

        log, report = reopen(directory)

        assert contents(log) == scene.rows_but(number)
        assert [damage.position for damage in report.damaged_ranges] == [start]
        assert list(damaged_files(directory).values()) == [content[start:stop]]
        crash(log)


def test_a_batch_larger_than_what_is_read_at_once_is_found_whole_and_found_damaged(tmp_path):
    config = LogConfig(segment_bytes=16 * 1024 * 1024, max_message_bytes=8 * 1024 * 1024)
    scene = Scene(tmp_path, 3, config, padding=1_200_000)

    log, report = reopen(scene.copy(), config=config)
    assert contents(log) == scene.rows_but()
    assert report.damaged_ranges == []

    directory, damaged = scene.flipped(1, 2_000_000, 0)
    log, report = reopen(directory, config=config)
    assert contents(log) == scene.rows_but(1)
    assert list(damaged_files(directory).values()) == [damaged]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5], ids=lambda n: f"batch {n} of 9")
def test_damage_in_a_sealed_segment_costs_the_damaged_batch_alone(sealed_scene, number):
    scene = sealed_scene
    directory, damaged = scene.flipped(number, 80, 3)

    log, report = reopen(directory, config=scene.config)

    assert contents(log) == scene.rows_but(number)
    assert producers_of(log) == after(9)
    assert log.end_offset == 18
    [damage] = report.damaged_ranges
    assert damage.segment == scene.name(scene.places[number][0])
    assert (directory / damage.saved_as).read_bytes() == damaged
    fill(log, [9], padding=100)
    assert contents(log)[-2:] == rows_of(9, padding=100)


def test_a_sealed_segment_that_is_garbage_is_set_aside_and_the_others_serve(sealed_scene):
    scene = sealed_scene
    garbage = b"\xff" * scene.sizes[1]
    directory = scene.copy(garbage, at=1)

    log, report = reopen(directory, config=scene.config)

    assert contents(log) == scene.rows_but(3, 4, 5)
    assert [damage.segment for damage in report.damaged_ranges] == [scene.name(1)]
    assert list(damaged_files(directory).values()) == [garbage]
    assert log.end_offset == 18


def test_a_sealed_segment_cut_short_loses_what_was_cut_and_no_more(sealed_scene):
    scene = sealed_scene
    directory = scene.copy(scene.bytes[0][:-10], at=0)

    log, report = reopen(directory, config=scene.config)

    assert contents(log) == scene.rows_but(2)
    torn = scene.bytes[0][scene.places[2][1] : -10]
    assert [saved.rstrip(b"\0") for saved in damaged_files(directory).values()] == [
        torn.rstrip(b"\0")
    ]
    assert len(report.damaged_ranges) == 1


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 37, bytes(800)])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes_that_a_crash_lost_or_spoiled_are_built_again(sealed_scene, suffix, content):
    scene = sealed_scene
    directory = scene.copy()
    for base in scene.bases:
        path = directory / f"{base:020d}{suffix}"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)

    log, _ = reopen(directory, config=scene.config)

    assert contents(log) == scene.rows_but()
    assert indexes_of(log) == scene.indexes
    for offset in range(18):
        assert log.offset_for_timestamp(NOW + offset).offset == offset


@pytest.mark.parametrize("config", [SMALL_SEGMENTS, SPARSE_INDEXES], ids=["dense", "sparse"])
@pytest.mark.parametrize("point", [None, 18], ids=["clean", "before the recovery point"])
def test_indexes_that_are_missing_are_built_where_nothing_is_scanned(tmp_path, config, point):
    scene = Scene(tmp_path, 9, config, padding=100)
    log, _ = reopen(scene.copy(), config=config)
    log.close()
    for path in [*log.directory.glob("*.index"), *log.directory.glob("*.timeindex")]:
        path.unlink()

    log, _ = reopen(log.directory, config=config, recovery_point=point)

    assert contents(log) == scene.rows_but()
    for offset in range(18):
        found = log.offset_for_timestamp(NOW + offset)
        assert found is not None, offset
        assert found.offset == offset


def test_recovery_does_not_read_what_is_before_the_recovery_point(sealed_scene):
    scene = sealed_scene
    directory, _ = scene.flipped(1, 80, 0)

    log, report = reopen(directory, config=scene.config, recovery_point=scene.bases[2])

    assert report.scanned_bytes == scene.sizes[2]
    assert report.damaged_ranges == []
    assert producers_of(log) == after(9)
    assert log.end_offset == 18


def test_a_recovery_point_inside_a_segment_has_that_segment_read_again(sealed_scene):
    scene = sealed_scene

    log, report = reopen(scene.copy(), config=scene.config, recovery_point=scene.bases[1] + RECORDS)

    assert report.scanned_bytes == scene.sizes[1] + scene.sizes[2]
    assert contents(log) == scene.rows_but()
    assert producers_of(log) == after(9)


def test_what_was_scanned_is_counted_once_damage_or_not(scene):
    directory, damaged = scene.flipped(3, 70, 0)

    _, report = reopen(directory)

    assert scene.sizes[0] - len(damaged) <= report.scanned_bytes <= scene.sizes[0]


def test_producers_are_found_again_from_batches_where_there_is_no_snapshot(sealed_scene):
    scene = sealed_scene
    for point in (0, scene.bases[1], scene.bases[2], 18):
        directory = scene.copy()
        for path in directory.glob("*.snapshot"):
            path.unlink()

        log, _ = reopen(directory, config=scene.config, recovery_point=point)

        assert producers_of(log) == after(9), point
        crash(log)


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"nonsense"])
def test_a_damaged_snapshot_falls_back_to_an_older_one_after_a_crash(sealed_scene, damage):
    scene = sealed_scene
    directory = scene.copy()
    max(directory.glob("*.snapshot")).write_bytes(damage)

    log, _ = reopen(directory, config=scene.config, recovery_point=scene.bases[2])

    assert producers_of(log) == after(9)


@pytest.mark.parametrize("which", ["the last", "all"])
def test_a_damaged_snapshot_is_made_up_for_after_a_clean_stop_too(sealed_scene, which):
    scene = sealed_scene
    log, _ = reopen(scene.copy(), config=scene.config)
    log.close()
    snapshots = sorted(log.directory.glob("*.snapshot"))
    for path in snapshots if which == "all" else snapshots[-1:]:
        path.write_bytes(b"")

    log, _ = reopen(log.directory, config=scene.config, recovery_point=None)

    assert producers_of(log) == after(9)


def test_a_log_that_was_closed_is_believed(sealed_scene):
    scene = sealed_scene
    log, _ = reopen(scene.copy(), config=scene.config)
    log.close()

    log, report = reopen(log.directory, config=scene.config, recovery_point=None)

    assert report.was_clean
    assert report.scanned_bytes == 0
    assert contents(log) == scene.rows_but()
    assert producers_of(log) == after(9)
    assert indexes_of(log)[:2] == scene.indexes[:2]
    fill(log, [9], padding=100)
    assert contents(log)[-2:] == rows_of(9, padding=100)


def test_a_log_opened_and_closed_again_and_again_stays_as_it_is(sealed_scene):
    scene = sealed_scene
    directory = scene.copy()
    reopen(directory, config=scene.config)[0].close()
    files = files_of(directory)

    for point in (None, None, 0, None, 9):
        log, report = reopen(directory, config=scene.config, recovery_point=point)
        assert contents(log) == scene.rows_but()
        assert report.damaged_ranges == []
        log.close()

    assert files_of(directory) == files


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("byte", FIELDS["length"])
def test_a_walk_over_damaged_bytes_that_were_believed_ends(scene, byte, bit):
    log, _ = reopen(scene.copy())
    content = bytearray(scene.bytes[0])
    content[scene.places[2][1] + byte] ^= 1 << bit
    (log.directory / scene.name()).write_bytes(content)

    try:
        walked = list(islice(log.active_segment.batches(), 100))
    except (OSError, StorageError):
        return
    assert len(walked) < 100


def test_a_log_that_cannot_be_opened_does_not_keep_the_others_from_serving(tmp_path):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=QuickDisk())
    logs.load({}, ONE_SEGMENT)
    for name in ("broken-0", "whole-0"):
        fill(logs.create(name, ONE_SEGMENT), range(3))
    logs.close()
    path = tmp_path / "data" / "broken-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-70])

    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=QuickDisk())
    logs.load({}, ONE_SEGMENT)

    assert contents(logs.logs["whole-0"]) == rows_of(0, 1, 2)
    assert "broken-0" in logs.failed
    logs.close()


def test_many_logs_are_recovered_at_once_with_few_files_open(tmp_path):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=QuickDisk())
    logs.load({}, ONE_SEGMENT)
    for number in range(60):
        log = logs.create(f"log-{number}", ONE_SEGMENT)
        fill(log, range(4), padding=number)
        crash(log)
    logs.logs.clear()
    logs.close()
    (tmp_path / "data" / "clean-shutdown").unlink()

    logs = LogDirectory(
        tmp_path / "data", cluster_id="c", broker_id=1, disk=QuickDisk(), max_open_segments=2
    )
    logs.load({}, ONE_SEGMENT)

    assert logs.failed == {}
    for number in range(60):
        assert logs.reports[f"log-{number}"].damaged_ranges == []
        assert contents(logs.logs[f"log-{number}"]) == rows_of(*range(4), padding=number)
    logs.close()


def data_directory(path):
    logs = LogDirectory(path, cluster_id="c", broker_id=1, disk=QuickDisk())
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


def test_the_recovery_point_of_a_deleted_log_is_not_that_of_a_new_one_by_its_name(tmp_path):
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


def test_what_is_appended_after_a_truncation_is_behind_the_recovery_point(tmp_path):
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


def test_epochs_are_found_again_in_the_batches(tmp_path):
    scene = Scene(tmp_path, 6, epochs={2: 3, 3: 3, 4: 7, 5: 7})
    directory = scene.copy()
    (directory / LEADER_EPOCH_CHECKPOINT).unlink()

    log, _ = reopen(directory)

    assert list(log.leader_epochs) == [(0, 0), (3, 4), (7, 8)]


def test_an_epochs_file_that_a_power_cut_emptied_is_made_up_for(tmp_path):
    scene = Scene(tmp_path, 6, epochs={2: 3, 3: 3, 4: 7, 5: 7})
    directory = scene.copy()
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(b"")

    log, _ = reopen(directory)

    assert contents(log) == scene.rows_but()
    assert list(log.leader_epochs) == [(0, 0), (3, 4), (7, 8)]


def test_epochs_of_what_was_cut_off_are_forgotten(tmp_path):
    scene = Scene(tmp_path, 6, epochs={4: 7, 5: 7})
    directory = scene.copy(scene.bytes[0][: scene.places[3][1] + 5])

    log, _ = reopen(directory)
    fill(log, [3], leader_epoch=7)

    assert list(log.leader_epochs) == [(0, 0), (7, 6)]


def test_what_is_appended_after_a_log_was_cut_before_its_start_is_not_lost(scene):
    log, _ = reopen(scene.copy())
    log.delete_records_before(10)
    crash(log)
    path = log.directory / scene.name()
    path.write_bytes(scene.bytes[0][: scene.places[2][2]])
    log, _ = reopen(log.directory)

    appended = log.append(a_batch(3, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)
    log, _ = reopen(log.directory)

    assert log.start_offset <= appended.base_offset
    assert log.end_offset == appended.last_offset + 1
    values = [value for offset, value in contents(log) if offset >= appended.base_offset]
    assert values == [value_of(6), value_of(7)]


def test_a_snapshot_of_what_was_truncated_is_not_believed(tmp_path):
    log, _ = reopen(tmp_path / "log", recovery_point=None)
    fill(log, [0, 1, 2])
    log.roll()
    fill(log, [3])
    log.truncate(2)
    for number in range(1, 5):
        log.append(a_batch(number, producer_id=-1), leader_epoch=0, now_ms=NOW)
    crash(log)

    log, _ = reopen(tmp_path / "log", recovery_point=10)

    assert producers_of(log) == after(1)


def test_producers_are_known_after_a_truncation_and_a_clean_stop(tmp_path):
    log, _ = reopen(tmp_path / "log", recovery_point=None)
    for number in range(4):
        fill(log, [number])
        log.roll()
    log.truncate(2)
    log.close()

    log, _ = reopen(tmp_path / "log", recovery_point=None)

    assert producers_of(log) == after(1)


def test_left_overs_of_a_crash_are_swept_up(scene):
    directory = scene.copy()
    leftovers = ["00000000000000000000.log.tmp", "00000000000000000009.log.deleted", "x.tmp"]
    for name in leftovers:
        (directory / name).write_bytes(b"left over")

    log, report = reopen(directory)

    assert contents(log) == scene.rows_but()
    assert report.damaged_ranges == []
    assert not [name for name in leftovers if (directory / name).exists()]


def test_a_directory_that_is_empty_or_new_gives_an_empty_log(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        log, report = reopen(tmp_path / name)

        assert isinstance(log, Log)
        assert (log.start_offset, log.end_offset) == (0, 0)
        assert contents(log) == []
        assert (report.scanned_bytes, report.truncated_bytes, report.damaged_ranges) == (0, 0, [])
        assert [path.name for path in log.directory.glob("*.log")] == [f"{0:020d}.log"]
