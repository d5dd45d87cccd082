"""A log whose recovery has no space to set damaged bytes aside serves reads, and nothing else."""

import errno
import os

import pytest

from harness.logs import NOW, NoSyncDisk, a_batch, append, offsets
from ottla.protocol.batch import HEADER_BYTES
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOfflineError
from ottla.storage.logdir import LogDirectory

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)
COUNT = 30


class FullDisk(NoSyncDisk):
    """A disk without space for new files, when it is full."""

    is_full = False

    def open(self, path, *, create=False, empty=False):
        if self.is_full and create and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, empty=empty)


def a_directory(path, disk):
    logs = LogDirectory(path, cluster_id="c", broker_id=1, disk=disk)
    logs.load({}, CONFIG)
    return logs


@pytest.fixture
def crashed(tmp_path):
    """A data directory after a crash with a log of several segments, one record per batch."""
    logs = a_directory(tmp_path, NoSyncDisk())
    log = logs.create("t-0", CONFIG)
    for number in range(COUNT):
        append(log, value=bytes(80), time=NOW + number)
    assert len(log.segments) > 2
    logs.flusher.stop()
    for segment in log.segments:
        segment.close()
    logs.abandon()
    return tmp_path


def damage(path, numbers):
    """Flip a bit in the record of each of these batches."""
    logs = sorted((path / "t-0").glob("*.log"))
    size = len(a_batch(value=bytes(80)))
    per_segment = CONFIG.segment_bytes // size
    for number in numbers:
        with logs[number // per_segment].open("r+b") as file:
            file.seek(number % per_segment * size + HEADER_BYTES + 5)
            file.write(b"\xff")


FIRST, LAST_OF_FIRST, MIDDLE, LAST = 0, 9, 14, COUNT - 1


@pytest.mark.parametrize(
    "damaged",
    [[FIRST], [LAST_OF_FIRST], [3, 4], [2, 6], [MIDDLE], [LAST], [FIRST, MIDDLE, LAST - 1]],
)
def test_reads_skip_damaged_bytes_until_there_is_space(crashed, damaged):
    damage(crashed, damaged)
    before = {path.name: path.read_bytes() for path in (crashed / "t-0").glob("*.log")}
    disk = FullDisk()
    disk.is_full = True
    logs = a_directory(crashed, disk)
    expected = [number for number in range(COUNT) if number not in damaged]

    assert list(logs.failed) == logs.without_space == ["t-0"]
    log = logs.read_only["t-0"]
    for max_bytes in (1, 300, 700, 1 << 20):
        assert offsets(log, max_bytes=max_bytes) == expected
        for offset in range(log.end_offset):
            read = offsets(log, offset, max_bytes=max_bytes)
            assert read == [number for number in expected if number >= offset]
    found = log.offset_for_timestamp(NOW + 7)
    assert found.offset == min(number for number in expected if number >= 7)
    with pytest.raises(LogOfflineError, match="no space to set damaged bytes aside"):
        append(log)
    after = {path.name: path.read_bytes() for path in (crashed / "t-0").glob("*.log")}
    assert {name: content.rstrip(b"\0") for name, content in after.items()} == {
        name: content.rstrip(b"\0") for name, content in before.items()
    }
    with pytest.raises(OSError, match="No space"):
        logs.open_again("t-0", CONFIG)

    view = log.read(expected[0], 1).view
    disk.is_full = False
    logs.add_opened("t-0", *logs.open_again("t-0", CONFIG))

    assert (logs.failed, logs.read_only) == ({}, {})
    log = logs.logs["t-0"]
    assert offsets(log) == expected
    assert len(logs.reports["t-0"].damaged_ranges) == len(damaged)
    appended = append(log, value=b"more")
    assert offsets(log) == [*expected, appended.base_offset]
    assert int.from_bytes(view[:8]) == expected[0]
    del view
    logs.close()
