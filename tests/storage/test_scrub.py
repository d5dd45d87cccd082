"""Verification of segments: every kind of damage is found, and a sound log has none."""

import os

import pytest

from harness.logs import NOW, a_log, append, compact
from ottla.protocol.batch import HEADER_BYTES, RecordBatch
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log
from ottla.storage.scrub import list_segments, verify_segment


@pytest.fixture
def directory(tmp_path):
    """The directory of a closed log with sealed segments."""
    log = a_log(tmp_path)
    append(log, 3, times=60)
    log.close()
    return log.directory


def verify(directory, **options):
    return [
        one
        for segment in list_segments(directory)
        for one in verify_segment(segment, Disk(), **options)
    ]


def batches_of(path):
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        batch = RecordBatch(memoryview(data)[position:])
        found.append((position, batch.size, batch.base_offset, batch.last_offset))
        position += batch.size
    return found


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def sealed(directory):
    return list_segments(directory)[1].path


def test_a_sound_log_has_no_damage(directory):
    assert len(list_segments(directory)) > 2
    assert verify(directory) == []


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_flipped_bit_is_found_with_its_position_and_offsets(directory, number):
    path = sealed(directory)
    position, size, first, last = batches_of(path)[number]
    overwrite(path, position + HEADER_BYTES + 5, b"\xff")
    [damage] = verify(directory)
    assert (damage.path, damage.position, damage.size) == (path, position, size)
    assert (damage.first_offset, damage.last_offset) == (first, last)
    assert damage.reason == "wrong CRC"
    assert "recovery" in damage.advice


def test_a_wrong_length_costs_no_more_than_the_index_allows(directory):
    path = sealed(directory)
    batches = batches_of(path)
    position, _size, first, _last = batches[0]
    overwrite(path, position + 8, b"\x7f\xff\xff\xff")
    [damage] = verify(directory)
    assert (damage.position, damage.first_offset) == (position, first)
    assert damage.reason == "no record batch"
    # The index has an entry for every few batches.
    following = {start: base for start, _size, base, _last in batches[1:5]}
    assert damage.last_offset == following[damage.position + damage.size] - 1


@pytest.mark.parametrize("shift", [-3, 3, 2**40])
def test_a_wrong_base_offset_is_found(directory, shift):
    # The CRC does not cover it.
    path = sealed(directory)
    position, _size, first, _last = batches_of(path)[2]
    overwrite(path, position, (first + shift).to_bytes(8))
    [damage] = verify(directory)
    assert (damage.position, damage.first_offset) == (position, first)
    assert "offset" in damage.reason


def test_a_segment_under_a_wrong_name_is_found(directory):
    first, second, *_ = list_segments(directory)
    second.path.rename(second.path.with_name(f"{second.base_offset - 2:020d}.log"))
    reasons = {one.reason for one in verify(directory)}
    assert f"base offset {second.base_offset} does not match the file name" in reasons
    assert first.path.exists()


def test_a_truncated_sealed_segment_is_found(directory):
    path = sealed(directory)
    position, _size, first, _last = batches_of(path)[-1]
    os.truncate(path, position + 20)
    [damage] = verify(directory)
    assert (damage.position, damage.size, damage.first_offset) == (position, 20, first)
    assert damage.last_offset == list_segments(directory)[2].base_offset - 1


def test_a_torn_write_at_the_end_of_the_log_is_no_damage(directory):
    active = list_segments(directory)[-1].path
    content = active.read_bytes()
    active.write_bytes(content + content[:30] + b"\0" * 5000)
    assert verify(directory) == []


def test_damage_before_the_end_of_the_active_segment_is_found(tmp_path):
    log = a_log(tmp_path)
    append(log, times=3)
    log.close()
    active = list_segments(log.directory)[-1].path
    position = batches_of(active)[1][0]
    overwrite(active, position + HEADER_BYTES + 3, b"\xff")
    [damage] = verify(log.directory)
    assert damage.position == position


@pytest.mark.parametrize(("suffix", "position"), [(".index", 12), (".timeindex", 7)])
def test_a_wrong_index_entry_is_found(directory, suffix, position):
    index = sealed(directory).with_suffix(suffix)
    overwrite(index, position, b"\x55")
    [damage] = verify(directory)
    assert damage.path == index
    assert damage.position == (8 if suffix == ".index" else 0)
    assert "rebuilds" in damage.advice
    assert verify(directory, with_indexes=False) == []


def test_a_cut_index_entry_is_found(directory):
    index = sealed(directory).with_suffix(".index")
    with index.open("ab") as file:
        file.write(b"abc")
    [damage] = verify(directory)
    assert damage.reason == "3 bytes after the last entry"


def test_a_compacted_log_has_no_damage(tmp_path):
    log = a_log(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    append(log, 3, times=60)
    log.flush()
    assert compact(log, NOW).records_dropped > 0
    append(log, 3, times=60)
    log.close()
    assert verify(log.directory) == []


def test_a_gap_of_damage_that_was_set_aside_is_no_damage(directory):
    path = sealed(directory)
    position = batches_of(path)[0][0]
    overwrite(path, position + HEADER_BYTES + 5, b"\xff")
    assert len(verify(directory)) == 1
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    log, report = open_log(directory, config, OpenFiles(), recovery_point=0)
    assert len(report.damaged_ranges) == 1
    log.close()
    assert verify(directory) == []


def test_a_segment_that_is_deleted_meanwhile_is_no_damage(directory):
    segment = list_segments(directory)[1]
    overwrite(segment.path, HEADER_BYTES + 5, b"\xff")
    assert verify_segment(segment, Disk(), spend=lambda _size: segment.path.unlink()) == []
    with pytest.raises(FileNotFoundError):
        verify_segment(segment, Disk())


def test_an_unreadable_part_is_damage(directory):
    class BadDisk(Disk):
        def read(self, fd, size, position):
            raise OSError(5, "Input/output error")

    segment = list_segments(directory)[1]
    [damage] = verify_segment(segment, BadDisk(), with_indexes=False)
    assert damage.reason == "cannot be read: Input/output error"
    assert damage.size == segment.path.stat().st_size


def test_only_pages_that_were_not_cached_are_dropped_from_the_page_cache(directory):
    class RecordingDisk(Disk):
        cached = False
        dropped = 0

        def is_cached(self, fd, position):
            return self.cached

        def drop_from_page_cache(self, fd, position, size):
            super().drop_from_page_cache(fd, position, size)
            self.dropped += size

    segment, disk = list_segments(directory)[1], RecordingDisk()
    disk.cached = True
    verify_segment(segment, disk)
    assert disk.dropped == 0
    disk.cached = False
    verify_segment(segment, disk)
    assert disk.dropped == segment.path.stat().st_size
