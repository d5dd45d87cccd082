"""Indexes are hints: whatever bit of one is flipped, readers get all, and nothing goes early."""

import shutil

import pytest

from harness.logs import NOW, a_batch, offsets
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

RECORDS = 60
HOUR_MS = 3_600_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=600, retention_ms=HOUR_MS)


class QuickDisk(Disk):
    """Nobody cuts the power here."""

    def sync(self, fd, *, metadata=False):
        pass

    def sync_directory(self, path):
        pass


def opened(path):
    return open_log(path, CONFIG, OpenFiles(QuickDisk()))[0]


@pytest.fixture
def origin(tmp_path):
    """A log after a clean stop: two sealed segments with some entries each, and an active one."""
    log = opened(tmp_path / "origin" / "t-0")
    for number in range(RECORDS):
        log.append(a_batch(time=NOW + number), leader_epoch=0, now_ms=NOW)
    assert len(log.segments) == 3
    log.close()
    return log.directory


def flips(origin, tmp_path, suffix):
    """Give a log for each bit of each index of a kind, flipped."""
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


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_record_is_found_from_everywhere(origin, tmp_path, suffix):
    for case, log in flips(origin, tmp_path, suffix):
        assert log.end_offset == RECORDS, case
        for start in (0, 7, 13, 20, 26, 33, 47, RECORDS - 1):
            assert offsets(log, start) == list(range(start, RECORDS)), f"{case}, from {start}"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_record_is_found_by_its_time(origin, tmp_path, suffix):
    for case, log in flips(origin, tmp_path, suffix):
        for number in (0, 5, 12, 24, 31, 48, RECORDS - 1):
            found = log.offset_for_timestamp(NOW + number)
            assert found is not None, f"{case}, time {number}"
            assert found.offset == number, f"{case}, time {number}"


def test_nothing_goes_before_its_time(origin, tmp_path):
    for case, log in flips(origin, tmp_path, ".timeindex"):
        assert log.apply_retention(NOW + HOUR_MS) == 0, case
        assert log.start_offset == 0, case


def test_what_was_mended_is_mended_for_good(origin, caplog):
    path = origin / "00000000000000000000.index"
    sound = path.read_bytes()
    path.write_bytes(bytes([*sound[:-1], sound[-1] ^ 1]))
    log = opened(origin)
    behind = log.segments[0].next_offset - 1  # found by way of the last entry

    assert offsets(log, behind) == list(range(behind, RECORDS))

    assert caplog.messages == [f"t-0/{path.name} is damaged, rebuilding it"]
    log.close()
    caplog.clear()
    log = opened(origin)
    assert offsets(log, behind) == list(range(behind, RECORDS))
    assert caplog.messages == []
    log.close()
