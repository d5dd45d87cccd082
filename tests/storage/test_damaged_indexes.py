"""Indexes are hints: with any bit flipped, reads are complete and nothing is deleted early."""

import shutil
import subprocess
import sys

import pytest

from harness.logs import NOW, NoSyncDisk, a_batch, offsets
from ottla.protocol.batch import Record, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

RECORDS = 60
HOUR_MS = 3_600_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=600, retention_ms=HOUR_MS)


def opened(path):
    return open_log(path, CONFIG, OpenFiles(NoSyncDisk()))[0]


@pytest.fixture
def origin(tmp_path):
    """A cleanly closed log: two sealed segments with some entries each, and an active one."""
    log = opened(tmp_path / "origin" / "t-0")
    for number in range(RECORDS):
        log.append(a_batch(time=NOW + number), leader_epoch=0, now_ms=NOW)
    assert len(log.segments) == 3
    log.close()
    return log.directory


def flips(origin, tmp_path, suffix):
    """Yield a log for each flipped bit of each index with this suffix."""
    for path in sorted(origin.glob(f"*{suffix}")):
        content = path.read_bytes()
        assert content, path
        for at in range(len(content) * 8):
            copy = tmp_path / "copy" / "t-0"
            shutil.copytree(origin, copy)
            damaged = bytearray(content)
            damaged[at // 8] ^= 1 << at % 8
            (copy / path.name).write_bytes(damaged)
            log = opened(copy)
            yield f"bit {at} of {path.name}", log
            for segment in log.segments:
                segment.close()
            shutil.rmtree(copy)


@pytest.mark.exhaustive
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_record_is_read_from_any_offset(origin, tmp_path, suffix):
    for case, log in flips(origin, tmp_path, suffix):
        assert log.end_offset == RECORDS, case
        for start in (0, 7, 13, 20, 26, 33, 47, RECORDS - 1):
            assert offsets(log, start) == list(range(start, RECORDS)), f"{case}, from {start}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_record_is_found_by_its_timestamp(origin, tmp_path, suffix):
    for case, log in flips(origin, tmp_path, suffix):
        for number in (0, 5, 12, 24, 31, 48, RECORDS - 1):
            record = log.offset_for_timestamp(NOW + number)
            assert record is not None, f"{case}, timestamp {number}"
            assert record.offset == number, f"{case}, timestamp {number}"


@pytest.mark.exhaustive
def test_nothing_is_deleted_before_retention_ms(origin, tmp_path):
    for case, log in flips(origin, tmp_path, ".timeindex"):
        assert log.apply_retention(NOW + HOUR_MS) == 0, case
        assert log.start_offset == 0, case


def test_a_rebuilt_index_is_saved(origin, caplog):
    path = origin / "00000000000000000000.index"
    content = path.read_bytes()
    path.write_bytes(bytes([*content[:-1], content[-1] ^ 1]))
    log = opened(origin)
    last = log.segments[0].next_offset - 1  # Found through the last entry.

    assert offsets(log, last) == list(range(last, RECORDS))

    assert caplog.messages == [f"t-0/{path.name} is damaged, rebuilding it"]
    log.close()
    caplog.clear()
    log = opened(origin)
    assert offsets(log, last) == list(range(last, RECORDS))
    assert caplog.messages == []
    log.close()


READ_AFTER_TRUNCATION = """
import os, sys
from pathlib import Path
from ottla.protocol.batch import Record, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

directory = Path(sys.argv[1])
log, _ = open_log(directory, LogConfig(segment_bytes=8192, index_interval_bytes=1), OpenFiles())
def read_all():
    for offset in range(log.end_offset):
        log.read(offset, 100)
        log.offset_for_timestamp(offset)
read_all()
for suffix in ("index", "timeindex"):
    for path in directory.glob("*." + suffix):
        os.truncate(path, 0)
read_all()
print("alive")
"""


def test_a_truncated_index_of_a_sealed_segment_does_not_kill_the_process(tmp_path):
    log, _ = open_log(
        tmp_path / "t-0", LogConfig(segment_bytes=8192, index_interval_bytes=1), OpenFiles()
    )
    for number in range(400):
        batch = build_batch([Record(0, number + 1, None, b"x" * 20)])
        log.append(batch, leader_epoch=0, now_ms=1)
    log.close()

    command = [sys.executable, "-c", READ_AFTER_TRUNCATION, str(tmp_path / "t-0")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.stdout == "alive\n", (result.returncode, result.stderr)


def test_the_number_of_open_segments_is_limited_by_the_maps_of_a_process():
    disk = Disk()
    disk.descriptor_limit = lambda: 10**9
    disk.map_limit = lambda: 65_530

    assert OpenFiles(disk).limit <= 65_530 // 4
