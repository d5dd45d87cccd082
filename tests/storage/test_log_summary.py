"""Starts after a clean shutdown: logs that nobody has touched are not read."""

from pathlib import Path

import pytest

from harness.logs import NOW, NoSyncDisk, a_batch, offsets
from ottla.storage.config import LogConfig
from ottla.storage.logdir import LogDirectory
from ottla.storage.read_mode import NO_WAITING
from ottla.storage.segment_indexes import INDEX_SUFFIXES

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


class ReadingDisk(NoSyncDisk):
    """A disk that lists the files of logs that were opened or read."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        if path.parent.name == "t-0":
            self.opened.append(path.name)
        return super().open(path, create=create, empty=empty)


def start(path: Path) -> LogDirectory:
    directory = LogDirectory(path, cluster_id="c", broker_id=1, disk=ReadingDisk())
    directory.load({}, CONFIG)
    return directory


def append(directory: LogDirectory, times: int, **batch: int) -> None:
    for _ in range(times):
        directory.logs["t-0"].append(a_batch(2, **batch), leader_epoch=3, now_ms=NOW)


def stopped(path: Path, times: int, **batch: int) -> list[str]:
    """Make a directory with one log, and stop it; return the names of the log's files."""
    directory = start(path)
    directory.create("t-0", CONFIG)
    append(directory, times, **batch)
    directory.close()
    return sorted(file.name for file in (path / "t-0").iterdir())


def read_files(directory: LogDirectory) -> list[str]:
    disk = directory.disk
    assert isinstance(disk, ReadingDisk)
    return disk.opened


def index_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "t-0").glob("*index")}


@pytest.mark.parametrize("times", [0, 1, 5, 60])
def test_of_an_untouched_log_only_the_indexes_that_appends_extend_are_read(tmp_path, times):
    stopped(tmp_path, times)

    again = start(tmp_path)

    log = again.logs["t-0"]
    active = log.segments.active
    names = [active.path(suffix).name for suffix in INDEX_SUFFIXES]
    assert read_files(again) == (names if active.indexes.entry_count else [])
    assert (log.start_offset, log.end_offset, log.recovery_point) == (0, 2 * times, 2 * times)
    assert offsets(log) == list(range(2 * times))
    assert log.leader_epochs.current == (3 if times else -1)
    assert log.is_unchanged()
    again.close()


@pytest.mark.parametrize("times", [1, 5, 60, 63])
def test_appends_continue_the_indexes(tmp_path, times):
    stopped(tmp_path / "once", times + 9)
    stopped(tmp_path / "again", times)

    for _ in range(3):
        again = start(tmp_path / "again")
        append(again, 3)
        again.close()

    assert index_files(tmp_path / "again") == index_files(tmp_path / "once")
    last = start(tmp_path / "again")
    assert offsets(last.logs["t-0"]) == list(range(2 * times + 18))
    last.close()


@pytest.mark.parametrize("times", [1, 5, 60])
def test_a_log_can_be_rolled_before_it_is_appended_to(tmp_path, times):
    stopped(tmp_path, times)

    again = start(tmp_path)
    again.logs["t-0"].roll()
    append(again, 1)
    assert again.logs["t-0"].offset_for_timestamp(NOW + 1).offset == 1
    again.close()

    last = start(tmp_path)
    assert offsets(last.logs["t-0"]) == list(range(2 * times + 2))
    assert last.logs["t-0"].offset_for_timestamp(NOW + 1).offset == 1
    last.close()


def test_producers_are_known_again(tmp_path):
    stopped(tmp_path, 1, producer_id=7, producer_epoch=0, base_sequence=0)

    again = start(tmp_path)

    (producer,) = again.logs["t-0"].producer_states
    assert (producer.producer_id, producer.last_sequence) == (7, 1)
    duplicate = a_batch(2, producer_id=7, producer_epoch=0, base_sequence=0)
    assert again.logs["t-0"].append(duplicate, leader_epoch=3, now_ms=NOW).is_duplicate
    again.close()


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite", "remove", "add", "rename"])
def test_a_log_that_was_touched_is_read(tmp_path, change):
    names = stopped(tmp_path, 5)
    log_file = tmp_path / "t-0" / next(name for name in names if name.endswith(".log"))
    content = log_file.read_bytes()
    match change:
        case "append":
            log_file.write_bytes(content + bytes(10))
        case "truncate":
            log_file.write_bytes(content[:-10])
        case "rewrite":
            log_file.write_bytes(content)
        case "remove":
            log_file.with_suffix(".index").unlink()
        case "add":
            (tmp_path / "t-0" / "00000000000000000100.log").touch()
        case "rename":
            log_file.rename(log_file.with_suffix(".away"))
            log_file.with_suffix(".away").rename(log_file)

    again = start(tmp_path)

    assert read_files(again) or "t-0" in again.failed
    again.close()


def test_a_log_whose_segments_are_gone_has_lost_records(tmp_path):
    stopped(tmp_path, 5)
    for file in (tmp_path / "t-0").glob("*.log"):
        file.unlink()

    again = start(tmp_path)

    assert again.reports["t-0"].has_lost_records
    again.close()


def test_files_to_be_removed_are_removed(tmp_path):
    stopped(tmp_path, 5)
    again = start(tmp_path)
    append(again, 1)
    (tmp_path / "t-0" / "00000000000000000000.log.cleaned").touch()
    again.close()

    last = start(tmp_path)

    assert not list((tmp_path / "t-0").glob("*.cleaned"))
    assert offsets(last.logs["t-0"]) == list(range(12))
    last.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version":1,"logs":{"t-0":[1]}}']
)
def test_without_usable_summaries_logs_are_read(tmp_path, content):
    stopped(tmp_path, 5)
    (tmp_path / "clean-shutdown").write_bytes(content)

    again = start(tmp_path)

    assert read_files(again)
    assert again.reports["t-0"].was_clean
    assert offsets(again.logs["t-0"]) == list(range(10))
    again.close()


def test_reads_before_the_first_append_need_no_disk_if_the_index_is_empty(tmp_path):
    stopped(tmp_path, 1)

    again = start(tmp_path)
    again.logs["t-0"].active_segment.load_into_page_cache(0, again.logs["t-0"].size)
    with NO_WAITING:
        assert len(again.logs["t-0"].read(0, 1000).view) == again.logs["t-0"].size
    again.close()
