"""A data directory: lock, identity, logs, clean and unclean shutdown."""

import os
import shutil
from dataclasses import replace

import pytest

from harness.logs import NOW, a_batch, count_flushes, offsets
from ottla.storage import logdir
from ottla.storage.config import LogConfig
from ottla.storage.errors import DataDirectoryError, StorageError
from ottla.storage.gaps import truncate_at_first_gap
from ottla.storage.logdir import LogDirectory, read_cluster_id
from ottla.storage.segment_recovery import GAPS_FILE, read_gaps

MAGIC_AT = 16
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def a_directory(path, **identity):
    directory = LogDirectory(path, **({"cluster_id": "c", "broker_id": 1} | identity))
    directory.load({}, CONFIG)
    return directory


def fill(directory, *names, times=30):
    for name in names:
        log = directory.create(name, CONFIG)
        for _ in range(times):
            log.append(a_batch(2), leader_epoch=0, now_ms=NOW)


def test_logs_are_loaded_after_a_clean_shutdown(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1", "b.c_d-0")
    directory.close()

    progress = []
    again = LogDirectory(tmp_path, cluster_id="c", broker_id=1)
    again.load({}, CONFIG, lambda done, total: progress.append((done, total)))

    assert sorted(again.logs) == ["a-0", "a-1", "b.c_d-0"]
    assert all(report.was_clean for report in again.reports.values())
    assert all(offsets(log) == list(range(60)) for log in again.logs.values())
    assert progress == [(1, 3), (2, 3), (3, 3)]
    again.close()


def test_the_clean_shutdown_marker_is_removed_while_logs_are_in_use(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0")
    directory.close()
    assert (tmp_path / "clean-shutdown").exists()

    again = a_directory(tmp_path)

    assert not (tmp_path / "clean-shutdown").exists()
    again.close()


def test_without_the_marker_logs_are_recovered_from_the_recovery_point(tmp_path):
    directory = a_directory(tmp_path / "data")
    fill(directory, "a-0", times=60)
    directory.checkpoint_recovery_points()
    fill(directory, "a-0", times=5)
    directory.logs["a-0"].complete_rolls()  # A thread may be doing that.
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    directory.close()

    again = a_directory(tmp_path / "crashed")

    report = again.reports["a-0"]
    assert not report.was_clean
    assert 0 < report.scanned_bytes < again.logs["a-0"].size
    assert offsets(again.logs["a-0"]) == list(range(130))
    again.close()


def test_a_damaged_recovery_point_file_loses_no_records(tmp_path):
    directory = a_directory(tmp_path / "data")
    fill(directory, "a-0")
    directory.checkpoint_recovery_points()
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    (tmp_path / "crashed" / "recovery-point").write_bytes(b'{"a-0": 6')

    again = a_directory(tmp_path / "crashed")

    assert offsets(again.logs["a-0"]) == list(range(60))
    again.close()


def test_two_processes_cannot_share_a_directory(tmp_path):
    directory = a_directory(tmp_path)

    with pytest.raises(DataDirectoryError, match="in use by another process"):
        a_directory(tmp_path)

    directory.close()
    a_directory(tmp_path).close()


@pytest.mark.parametrize("other", [{"cluster_id": "d"}, {"broker_id": 2}])
def test_a_directory_of_another_cluster_or_broker_is_rejected(tmp_path, other):
    a_directory(tmp_path).close()

    with pytest.raises(DataDirectoryError, match=f"{next(iter(other)).replace('_', ' ')}"):
        a_directory(tmp_path, **other)

    a_directory(tmp_path).close()


def test_a_directory_of_another_format_version_is_rejected(tmp_path):
    a_directory(tmp_path).close()
    meta = tmp_path / "meta.json"
    meta.write_text(meta.read_text().replace('"format_version": 2', '"format_version": 3'))

    with pytest.raises(DataDirectoryError, match="format version 3, not 2"):
        a_directory(tmp_path)


def test_a_directory_of_an_older_format_version_is_upgraded(tmp_path):
    a_directory(tmp_path).close()
    meta = tmp_path / "meta.json"
    content = meta.read_text()
    meta.write_text(content.replace('"format_version": 2', '"format_version": 1'))

    a_directory(tmp_path).close()

    assert meta.read_text() == content


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"c"', b'{"cluster_ie": "c"}', b"\xff"])
@pytest.mark.parametrize("cluster_id", ["c", None])
def test_a_directory_with_a_damaged_meta_file_is_rejected(tmp_path, content, cluster_id):
    a_directory(tmp_path).close()
    (tmp_path / "meta.json").write_bytes(content)

    with pytest.raises(DataDirectoryError, match=r"meta\.json is damaged"):
        a_directory(tmp_path, cluster_id=cluster_id)
    with pytest.raises(DataDirectoryError, match=r"meta\.json is damaged"):
        read_cluster_id(tmp_path)

    assert (tmp_path / "meta.json").read_bytes() == content


def test_a_log_that_cannot_be_opened_does_not_stop_the_others(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1")
    directory.close()
    active = max((tmp_path / "a-0").glob("*.log"))
    active.unlink()
    active.mkdir()

    again = a_directory(tmp_path)

    assert list(again.failed) == ["a-0"]
    assert offsets(again.logs["a-1"]) == list(range(60))
    with pytest.raises(StorageError, match="a-0 could not be opened"):
        again.create("a-0", CONFIG)
    again.close()
    assert not (tmp_path / "clean-shutdown").exists()


def test_a_log_with_invalid_batches_does_not_stop_the_others(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1")
    directory.close()
    for snapshot in (tmp_path / "a-0").glob("*.snapshot"):
        snapshot.unlink()  # So that producer states have to be rebuilt from the log.
    first = min((tmp_path / "a-0").glob("*.log"))
    content = bytearray(first.read_bytes())
    content[MAGIC_AT] = 1
    first.write_bytes(content)

    again = a_directory(tmp_path)

    assert list(again.failed) == ["a-0"]
    assert len(again.files) == 0, "files of a failed log stay open"
    assert offsets(again.logs["a-1"]) == list(range(60))
    again.close()


@pytest.mark.parametrize(
    "name", ["../x-0", "a/b-0", "a", "", "a-b", "a-0.deleted", "x" * 250 + "-0"]
)
def test_an_invalid_log_name_is_rejected(tmp_path, name):
    directory = a_directory(tmp_path / "data")

    with pytest.raises(StorageError, match="Invalid log name"):
        directory.create(name, CONFIG)

    directory.close()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_the_name_of_a_deleted_log_can_be_used_again(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1")

    directory.delete("a-0")

    assert not list(tmp_path.glob("a-0*"))
    fill(directory, "a-0", times=1)
    assert directory.logs["a-0"].end_offset == 2
    directory.close()


def test_deleted_and_stray_logs_are_forgotten(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1", "b-0")

    directory.delete("a-0")
    directory.set_aside("a-1")

    assert set(directory.logs) == set(directory.reports) == {"b-0"}
    directory.close()


def test_an_interrupted_deletion_is_finished_at_start(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0", "a-1")
    directory.close()
    (tmp_path / "a-0").rename(tmp_path / "a-0.deleted")

    again = a_directory(tmp_path)

    assert list(again.logs) == ["a-1"]
    assert again.has_deleted
    again.close()
    now = LogDirectory(tmp_path, broker_id=1)
    now.load({}, LogConfig(file_delete_delay_ms=0))
    assert now.purge_deleted() == 0
    assert not list(tmp_path.glob("a-0*"))
    now.close()


def test_requested_flushes_are_finished_before_close_returns(tmp_path):
    directory = a_directory(tmp_path)
    fill(directory, "a-0")
    log = directory.logs["a-0"]
    flushes = count_flushes(log)

    futures = [directory.flusher.flush(log) for _ in range(50)]
    directory.close()

    assert {future.result(timeout=0) for future in futures} == {60}
    assert len(flushes) < 50
    with pytest.raises(RuntimeError):
        directory.flusher.flush(log)


def test_a_new_directory_gets_a_cluster_id_and_keeps_it(tmp_path):
    first = LogDirectory(tmp_path, broker_id=0)
    first.load({}, LogConfig())
    first.close()

    second = LogDirectory(tmp_path, broker_id=0)

    assert len(first.cluster_id) == 22
    assert second.cluster_id == first.cluster_id
    second.abandon()


def test_a_log_with_the_longest_name_can_be_deleted(tmp_path):
    logs = LogDirectory(tmp_path, broker_id=0)
    logs.load({}, LogConfig())
    name = "x" * 249 + "-0"

    logs.create(name, LogConfig(file_delete_delay_ms=0))
    logs.delete(name)
    assert logs.purge_deleted() == 0

    assert not any(path.is_dir() for path in tmp_path.iterdir())
    logs.close()


def test_logs_are_created_all_or_none(tmp_path):
    logs = LogDirectory(tmp_path, broker_id=0)
    logs.load({}, LogConfig())
    (tmp_path / "t-2").write_text("not a directory")

    with pytest.raises((OSError, StorageError)):
        logs.create_all({f"t-{index}": LogConfig() for index in range(4)})

    assert logs.logs == {}
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    logs.close()


def test_a_log_is_not_created_in_an_existing_directory(tmp_path):
    logs = LogDirectory(tmp_path, broker_id=0)
    logs.load({}, LogConfig())
    (tmp_path / "t-0").mkdir()

    with pytest.raises(StorageError, match="left by a deletion"):
        logs.create("t-0", LogConfig())
    logs.close()


def test_a_stray_log_is_set_aside_with_all_its_files(tmp_path):
    logs = LogDirectory(tmp_path, broker_id=0)
    logs.load({}, LogConfig())
    logs.create("t-0", LogConfig())

    stray = logs.set_aside("t-0")
    logs.close()

    assert sorted(path.suffix for path in stray.iterdir()) == [
        ".index",
        ".log",
        ".snapshot",
        ".timeindex",
    ]
    again = LogDirectory(tmp_path, broker_id=0)
    again.load({}, LogConfig())
    assert again.logs == {}
    again.close()


def test_load_first_opens_a_log_before_all_others(tmp_path):
    logs = LogDirectory(tmp_path, broker_id=0)
    first = logs.load_first("first-0", LogConfig())
    logs.load({}, LogConfig())

    assert logs.logs == {"first-0": first}
    logs.close()


def test_losses_are_known_until_they_are_forgotten(tmp_path, monkeypatch):
    boot = tmp_path / "boot"
    boot.write_text("first")
    monkeypatch.setattr(logdir, "_SYSTEM_BOOT_ID", boot)
    path = tmp_path / "data"

    def killed(*, forgets: bool = False) -> bool:
        """Use the directory, and end without a clean shutdown."""
        logs = LogDirectory(path, cluster_id=None, broker_id=0)
        logs.load({}, CONFIG)
        logs.create("t-0", CONFIG)
        is_lossy = logs.may_have_lost_records
        if forgets:
            logs.forget_losses()
        logs.abandon()
        return is_lossy

    assert not killed()
    assert not killed()
    boot.write_text("second")
    assert killed()
    assert killed(), "the next start found the boot noted, and nobody had been told"
    assert killed(forgets=True)
    assert not killed()


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_log_is_truncated_where_a_power_cut_has_emptied_segments(tmp_path, policy):
    config = replace(CONFIG, cleanup_policy=policy)
    directory = a_directory(tmp_path / "data")
    log = directory.create("t-0", config)
    for _ in range(60):
        log.append(a_batch(2), leader_epoch=0, now_ms=NOW)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) == 3
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    for base_offset in bases[1:]:
        os.truncate(tmp_path / "crashed" / "t-0" / f"{base_offset:020}.log", 0)

    again = LogDirectory(tmp_path / "crashed", cluster_id="c", broker_id=1)
    again.load({"t": config}, config)
    log = again.logs["t-0"]

    # Not all of what is missing is at the end.
    assert log.end_offset == bases[-1]
    assert truncate_at_first_gap(log) == bases[1]
    assert log.end_offset == bases[1]
    assert offsets(log) == list(range(bases[1]))
    again.close()


def test_a_log_is_truncated_at_the_first_gap_that_damage_has_left(tmp_path):
    directory = LogDirectory(tmp_path, cluster_id=None, broker_id=0)
    directory.load({}, CONFIG)
    log = directory.create("t-0", CONFIG)
    for _ in range(10):
        log.append(a_batch(2), leader_epoch=0, now_ms=NOW)
    assert truncate_at_first_gap(log) is None
    (log.directory / GAPS_FILE).write_text("[[6, 8], [12, 14]]")

    assert truncate_at_first_gap(log) == 6

    assert log.end_offset == 6
    assert read_gaps(log.directory) == []
    assert truncate_at_first_gap(log) is None
    directory.close()
