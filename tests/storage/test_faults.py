"""A failing disk: one error for the caller, no acknowledged record lost, no false success."""

import errno
import os
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from harness.logs import NoSyncDisk, count_flushes
from harness.mounts import private_mounts
from ottla.protocol.batch import HEADER_BYTES, Record, build_batch, split_batches
from ottla.storage import logdir
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOfflineError, StorageError
from ottla.storage.files import OpenFiles
from ottla.storage.flusher import Flusher
from ottla.storage.logdir import LogDirectory
from ottla.storage.recovery import open_log
from ottla.storage.segment_recovery import GAPS_FILE

NOW = 1_700_000_000_000
HOUR_MS = 60 * 60 * 1000
CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=128, retention_ms=HOUR_MS)
SHORT_WRITE = "short write"


class FaultyDisk(NoSyncDisk):
    """Fails the next calls of a method as planned, or the n-th call of any method."""

    METHODS = (
        "open",
        "size",
        "write",
        "read",
        "read_into",
        "map",
        "resize",
        "sync",
        "sync_directory",
        "rename",
        "unlink",
        "names",
    )

    def __init__(self, *, fail_at=None, permanently=False, error=errno.EIO):
        self.calls = 0
        self.fail_at = fail_at
        self.permanently = permanently
        self.error = error
        self.failed = ""
        self._plans = {}

    def fail(self, method, *outcomes):
        """Plan the next calls of a method: an errno, SHORT_WRITE, or None for success."""
        self._plans[method] = list(outcomes)

    def heal(self):
        self.fail_at, self.permanently, self._plans = None, False, {}

    def _call(self, method, *args, **options):
        number, self.calls = self.calls, self.calls + 1
        plan = self._plans.get(method)
        outcome = plan.pop(0) if plan else None
        if number == self.fail_at or (self.permanently and number >= self.fail_at):
            outcome, self.failed = self.error, self.failed or method
        real = getattr(super(), method)
        if outcome is None:
            return real(*args, **options)
        if outcome == SHORT_WRITE:
            fd, data, position = args
            return real(fd, data[: len(data) // 2], position)
        raise OSError(outcome, os.strerror(outcome))


def _faulty(method):
    return lambda self, *args, **options: self._call(method, *args, **options)


for _name in FaultyDisk.METHODS:
    setattr(FaultyDisk, _name, _faulty(_name))


class GatedDisk(NoSyncDisk):
    """A sync by the flusher waits for the gate to open; then it succeeds or fails."""

    def __init__(self, error=None):
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.error = error

    def sync(self, fd, *, metadata=False):
        if threading.current_thread() is threading.main_thread():
            return
        self.entered.set()
        assert self.gate.wait(10)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        os.fstat(fd)


class GatheringDisk(NoSyncDisk):
    """A sync by the flusher lasts until all workers wait for a flush."""

    def __init__(self, workers):
        self.workers = workers
        self.waiting = 0
        self._changed = threading.Condition()

    def sync(self, fd, *, metadata=False):
        if threading.current_thread().name == "flusher":
            with self._changed:
                assert self._changed.wait_for(lambda: self.waiting >= self.workers, 30)

    def change(self, *, waiting=0, workers=0):
        with self._changed:
            self.waiting += waiting
            self.workers += workers
            self._changed.notify_all()


def a_batch(value=b"value", *, sequence=None, time_ms=NOW):
    header = {}
    if sequence is not None:
        header = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    return build_batch([Record(0, time_ms, b"key", value)], **header)


def append(log, value=b"value", *, leader_epoch=0, **batch):
    return log.append(a_batch(value, **batch), leader_epoch=leader_epoch, now_ms=NOW)


def a_log(path, disk):
    return open_log(path, CONFIG, OpenFiles(disk))[0]


def crash(log):
    for segment in log.segments:
        segment.close()


def reopen(path, *, recovery_point=0, config=CONFIG):
    return open_log(path, config, OpenFiles(NoSyncDisk()), recovery_point=recovery_point)


def rows(log, start=None):
    found, offset = [], log.start_offset if start is None else start
    while offset < log.end_offset:
        batches = list(split_batches(bytes(log.read(offset, 1 << 20).view)))
        if not batches:
            break
        for batch in batches:
            batch.validate()
            found += [(row.offset, row.value) for row in batch.records()]
        offset = batches[-1].next_offset
    return found


def values(log):
    return [value for _, value in rows(log)]


def log_bytes(log):
    """The content of the file of the active segment."""
    return log.active_segment.path(".log").read_bytes()


@pytest.fixture
def disk():
    return FaultyDisk()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    "plan",
    [
        lambda error: {"write": [error]},
        lambda error: {"write": [SHORT_WRITE, error]},
        lambda error: {"write": [SHORT_WRITE, SHORT_WRITE, error]},
        lambda error: {"resize": [error]},
    ],
    ids=["at once", "after a short write", "after two short writes", "extending the file"],
)
def test_a_failed_append_is_an_error_and_leaves_no_trace(tmp_path, disk, plan, error):
    log = a_log(tmp_path / "log", disk)
    if "resize" not in plan(error):
        append(log, b"before", sequence=0)
    before, end = rows(log), log.end_offset
    for method, outcomes in plan(error).items():
        disk.fail(method, *outcomes)

    with pytest.raises(OSError, match=os.strerror(error)):
        append(log, b"lost " * 50, sequence=end)

    assert log.offline_reason is None
    assert log.end_offset == end
    assert rows(log) == before
    assert b"lost" not in log_bytes(log)

    appended = append(log, b"after", sequence=end)

    assert appended.base_offset == end
    assert rows(log) == [*before, (end, b"after")]
    crash(log)
    log, report = reopen(tmp_path / "log")
    assert rows(log) == [*before, (end, b"after")]
    assert report.damaged_ranges == []


def test_a_short_write_is_continued(tmp_path, disk):
    log = a_log(tmp_path / "log", disk)
    disk.fail("write", SHORT_WRITE, SHORT_WRITE)

    append(log, b"in three parts")

    assert values(log) == [b"in three parts"]


def test_a_write_that_cannot_be_undone_takes_only_its_log_offline(tmp_path, disk):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=disk)
    logs.load({}, CONFIG)
    bad, good = logs.create("bad-0", CONFIG), logs.create("good-0", CONFIG)
    append(bad, b"acked")
    append(good, b"acked")
    disk.fail("write", SHORT_WRITE, errno.ENOSPC)
    disk.fail("resize", errno.EIO)

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        append(bad, b"torn " * 50)

    for attempt in (lambda: append(bad), bad.flush, lambda: bad.truncate(0)):
        with pytest.raises(LogOfflineError):
            attempt()
    assert values(bad) == [b"acked"]
    append(good, b"more")
    assert good.flush() == 2
    logs.checkpoint_recovery_points()
    logs.close()
    assert not (tmp_path / "data" / "clean-shutdown").exists()

    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=NoSyncDisk())
    logs.load({}, CONFIG)
    assert values(logs.logs["bad-0"]) == [b"acked"]
    assert values(logs.logs["good-0"]) == [b"acked", b"more"]
    append(logs.logs["bad-0"], b"again")
    logs.close()


@pytest.mark.parametrize("method", ["sync", "sync_directory"])
def test_a_failed_flush_never_succeeds_later(tmp_path, disk, method):
    log = a_log(tmp_path / "log", disk)
    append(log, b"one")
    append(log, b"two")
    disk.fail(method, errno.EIO)

    with pytest.raises(LogOfflineError):
        log.flush()

    for _ in range(3):
        with pytest.raises(LogOfflineError):
            log.flush()
        with pytest.raises(LogOfflineError):
            append(log, b"three")
    assert log.recovery_point == 0
    assert values(log) == [b"one", b"two"]
    log.close()
    log, _ = reopen(tmp_path / "log", recovery_point=log.recovery_point)
    assert values(log) == [b"one", b"two"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_nothing_is_appended_without_space_for_its_leader_epoch(tmp_path, disk, error):
    log, _ = open_log(tmp_path / "log", CONFIG, OpenFiles(disk))
    append(log, b"one", leader_epoch=2)
    for _ in range(2):
        disk.fail("open", error)
        with pytest.raises(OSError, match=os.strerror(error)):
            append(log, b"two", leader_epoch=3)

    # An idempotent producer sends what failed as a new batch: it must not be in the log.
    assert values(log) == [b"one"]
    assert list(log.leader_epochs) == [(2, 0)]
    append(log, b"two", leader_epoch=3)
    assert log.flush() == 2
    assert list(log.leader_epochs) == [(2, 0), (3, 1)]
    crash(log)
    log, _ = reopen(tmp_path / "log", recovery_point=2)
    assert values(log) == [b"one", b"two"]
    assert list(log.leader_epochs) == [(2, 0), (3, 1)]
    log.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_flush_without_space_for_the_leader_epochs_can_be_retried(tmp_path, disk, error):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=disk)
    logs.load({}, CONFIG)
    log, other = logs.create("t-0", CONFIG), logs.create("u-0", CONFIG)
    append(other)
    other.flush()
    append(other)
    append(log, b"one", leader_epoch=3)

    for _ in range(2):
        disk.fail("open", error)
        with pytest.raises(OSError, match=os.strerror(error)):
            log.flush()
    disk.fail("open", error)
    logs.checkpoint_recovery_points()

    assert log.offline_reason is None
    assert (log.recovery_point, other.recovery_point) == (0, 2)
    append(log, b"two", leader_epoch=3)
    assert log.flush() == 2
    crash(log)
    log, _ = reopen(tmp_path / "data" / "t-0", recovery_point=2)
    assert list(log.leader_epochs) == [(3, 0)]
    assert values(log) == [b"one", b"two"]
    logs.close()


class NoSpaceForSmallFiles(NoSyncDisk):
    """A disk that is so full, on request, that records fit and no file can be replaced."""

    is_full = False

    def write_file(self, path, content, *, durable):
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_file(path, content, durable=durable)


def test_records_that_were_appended_are_flushed_without_space(tmp_path):
    # Their producer would be told that they failed, and might send them as new ones.
    disk = NoSpaceForSmallFiles()
    log, _ = open_log(tmp_path / "log", CONFIG, OpenFiles(disk))
    append(log, b"epoch", leader_epoch=3)
    disk.is_full = True
    assert log.flush() == 1
    while len(log.segments) == 1:
        append(log, b"rolls " * 60, leader_epoch=3)

    assert log.flush() == log.end_offset
    # The indexes of the sealed segment are not written yet.
    assert log.checkpointed_recovery_point == 0
    before = rows(log)
    crash(log)
    log, _ = reopen(tmp_path / "log", recovery_point=0)
    assert rows(log) == before
    assert list(log.leader_epochs) == [(3, 0)]

    log.close()


def test_a_failed_flush_is_raised_for_all_present_and_later_requests(tmp_path):
    disk = GatedDisk(errno.EIO)
    bad = a_log(tmp_path / "bad", disk)
    good = a_log(tmp_path / "good", NoSyncDisk())
    flusher = Flusher()
    append(bad)
    first = flusher.flush(bad)
    assert disk.entered.wait(10)
    append(bad)
    append(good)
    waiting = [flusher.flush(bad) for _ in range(20)]
    other = flusher.flush(good)

    disk.gate.set()

    for future in [first, *waiting, flusher.flush(bad)]:
        with pytest.raises(LogOfflineError):
            future.result(10)
    assert other.result(10) == 1
    assert bad.recovery_point == 0
    assert values(bad) == [b"value", b"value"]
    flusher.stop()


def test_a_failed_flush_does_not_advance_the_recovery_point(tmp_path, disk):
    logs = LogDirectory(tmp_path / "data", cluster_id="c", broker_id=1, disk=disk)
    logs.load({}, CONFIG)
    log = logs.create("t-0", CONFIG)
    append(log)
    logs.checkpoint_recovery_points()
    append(log)
    disk.fail("sync", errno.EIO)
    with pytest.raises(LogOfflineError):
        log.flush()

    logs.checkpoint_recovery_points()
    logs.close()

    assert (tmp_path / "data" / "recovery-point").read_bytes() == b'{"t-0": 1}'


def test_a_cancelled_flush_request_does_not_affect_the_others(tmp_path):
    disk = GatedDisk()
    log = a_log(tmp_path / "log", disk)
    flusher = Flusher()
    append(log)
    first = flusher.flush(log)
    assert disk.entered.wait(10)
    cancelled = flusher.flush(log)
    append(log)
    waiting = flusher.flush(log)

    assert cancelled.cancel()
    disk.gate.set()

    assert first.result(10) >= 1
    assert waiting.result(5) == 2
    assert flusher.flush(log).result(5) == 2
    flusher.stop()


def test_many_requests_are_served_by_few_flushes(tmp_path):
    disk = GatheringDisk(workers=32)
    log = a_log(tmp_path / "log", disk)
    flusher = Flusher()
    one_at_a_time = threading.Lock()
    flushes = count_flushes(log)

    def produce(number):
        for _ in range(10):
            with one_at_a_time:
                appended = append(log, b"%d" % number)
            future = flusher.flush(log)
            disk.change(waiting=1)
            future.add_done_callback(lambda _: disk.change(waiting=-1))
            assert future.result(60) > appended.last_offset
        disk.change(workers=-1)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(produce, range(32)))

    flusher.stop()
    assert log.end_offset == log.recovery_point == 320
    assert len(flushes) <= 320 / 8


def test_appends_do_not_wait_for_a_flush(tmp_path):
    disk = GatedDisk()
    log = a_log(tmp_path / "log", disk)
    flusher = Flusher()
    append(log)
    future = flusher.flush(log)
    assert disk.entered.wait(10)

    for _ in range(100):
        append(log)

    assert not future.done()
    assert log.end_offset == 101
    disk.gate.set()
    assert future.result(10) >= 1
    assert flusher.flush(log).result(10) == 101
    flusher.stop()


def test_a_truncation_during_a_flush_does_not_take_the_log_offline(tmp_path):
    disk = GatedDisk()
    lower_descriptor = os.open(tmp_path, os.O_RDONLY)
    log = a_log(tmp_path / "log", disk)
    flusher = Flusher()
    for _ in range(10):
        append(log, b"old")
    future = flusher.flush(log)
    assert disk.entered.wait(10)
    os.close(lower_descriptor)

    log.truncate(5)
    disk.gate.set()
    for _ in range(3):
        append(log, b"new")

    future.exception(10)
    assert log.offline_reason is None
    assert log.recovery_point <= log.end_offset
    assert flusher.flush(log).result(10) == 8
    assert values(log) == [b"old"] * 5 + [b"new"] * 3
    flusher.stop()


def test_a_flush_before_a_truncation_does_not_cover_later_appends(tmp_path):
    disk = FaultyDisk()
    log = a_log(tmp_path / "log", disk)
    for _ in range(10):
        append(log, b"old")
    changes = [5]

    def sync_while_the_log_changes(fd, *, metadata=False):
        while changes:
            log.truncate(changes.pop())
            for _ in range(8):
                append(log, b"new")

    disk.sync = sync_while_the_log_changes

    log.flush()

    assert log.end_offset == 13
    assert log.recovery_point <= 5


@pytest.mark.parametrize("number", range(4))
def test_a_leader_epoch_that_starts_during_a_flush_does_not_take_the_log_offline(tmp_path, number):
    disk = FaultyDisk()
    log = a_log(tmp_path / "log", disk)
    syncs = []

    def append_in_a_new_epoch():
        append(log, b"%d" % log.end_offset, leader_epoch=log.leader_epochs.current + 1)

    def sync_while_an_epoch_starts(fd, *, metadata=False):
        syncs.append(fd)
        if len(syncs) == number + 1:
            append_in_a_new_epoch()

    disk.sync = sync_while_an_epoch_starts

    for _ in range(3):
        append_in_a_new_epoch()
        log.flush()

    expected = [(offset, offset) for offset in range(log.end_offset)]
    assert list(log.leader_epochs) == expected
    crash(log)
    log, _ = reopen(tmp_path / "log", recovery_point=log.recovery_point)
    assert list(log.leader_epochs) == expected


def test_a_deletion_during_a_flush_does_not_take_the_log_offline(tmp_path):
    disk = GatedDisk()
    log = a_log(tmp_path / "log", disk)
    flusher = Flusher()
    for _ in range(100):
        append(log, b"value" * 20)
    future = flusher.flush(log)
    assert disk.entered.wait(10)

    log.delete_records_before(90)
    disk.gate.set()

    assert future.result(10) == 100
    assert log.offline_reason is None
    assert rows(log)[-1][0] == 99
    flusher.stop()


@pytest.mark.parametrize("method", ["read", "map", "open"])
def test_a_read_error_is_raised_for_the_reader_only(tmp_path, disk, method):
    log = a_log(tmp_path / "log", disk)
    for number in range(60):
        append(log, b"%d" % number * 20)
    expected = rows(log)
    log.close()
    log = a_log(tmp_path / "log", disk)
    disk.fail(method, errno.EIO)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        rows(log, 0)

    assert log.offline_reason is None
    assert rows(log) == expected
    append(log, b"more")
    assert values(log)[-1] == b"more"


def test_a_read_error_in_a_timestamp_lookup_is_raised_for_the_reader_only(tmp_path, disk):
    log = a_log(tmp_path / "log", disk)
    for number in range(60):
        append(log, time_ms=NOW + number)
    disk.fail("read", errno.EIO)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.offset_for_timestamp(NOW + 30)

    assert log.offset_for_timestamp(NOW + 30).offset == 30


def full_segment(path, disk, limit):
    """A log whose next append rolls, and another one that competes for open files."""
    files = OpenFiles(disk, limit=limit)
    log = open_log(path / "log", CONFIG, files)[0]
    other = open_log(path / "other", CONFIG, files)[0]
    while log.active_segment.size + 400 < CONFIG.segment_bytes:
        append(log, b"first " * 50)
    log.flush()
    assert len(log.segments) == 1
    return log, other


def calls_of_a_roll(folder):
    disk = FaultyDisk()
    log, _ = full_segment(folder, disk, 2000)
    before = disk.calls
    append(log, b"rolls " * 60)
    assert len(log.segments) == 2
    return disk.calls - before


@pytest.mark.parametrize("limit", [1, 2000], ids=["few files", "many files"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_an_error_during_a_roll_fails_one_append_and_the_next_succeeds(tmp_path, error, limit):
    for number in range(calls_of_a_roll(tmp_path / "count")):
        folder = tmp_path / str(number)
        disk = FaultyDisk(error=error)
        log, other = full_segment(folder, disk, limit)
        before = rows(log)
        disk.fail_at = disk.calls + number

        acked = []
        for value in (b"rolls " * 60, b"small", b"large " * 60, b"small", b"large " * 60):
            try:
                acked.append((append(log, value).base_offset, value))
            except OSError:
                disk.heal()
            append(other, b"other")
            other.flush()
            if limit == 1:
                log.flush()

        assert len(acked) >= 4, f"{disk.failed} failed"
        assert rows(log) == [*before, *acked], f"{disk.failed} failed"
        crash(log)
        log, report = reopen(folder / "log")
        assert rows(log) == [*before, *acked], f"{disk.failed} failed"
        assert report.damaged_ranges == []
        crash(log)
        crash(other)


@pytest.mark.exhaustive
def test_a_batch_retried_until_acknowledged_is_stored_once(tmp_path):
    def produce(log):
        for sequence in range(20):
            for attempt in range(3):
                try:
                    append(log, b"%d" % sequence * 100, sequence=sequence, leader_epoch=sequence)
                    break
                except OSError:
                    assert attempt < 2

    healthy = FaultyDisk()
    log = a_log(tmp_path / "healthy", healthy)
    before = healthy.calls
    produce(log)
    calls = range(before, healthy.calls)
    expected = rows(log)
    for number in calls:
        disk = FaultyDisk(fail_at=number)
        log = a_log(tmp_path / str(number), disk)

        produce(log)

        assert rows(log) == expected, f"call {number}, {disk.failed}, failed"
        crash(log)
        log, _ = reopen(tmp_path / str(number))
        assert rows(log) == expected, f"call {number}, {disk.failed}, failed"
        crash(log)
        shutil.rmtree(tmp_path / str(number))


class Script:
    """Operations on a log, during which any disk call may fail, and what they acknowledged."""

    def __init__(self, path, disk):
        self.disk = disk
        self.log = a_log(path, disk)
        self.acknowledged = {}
        self.truncated = set()
        self.start = 0
        self.attempted = Counter()
        self.closed = False
        self.outcomes = []

    def run(self):
        for number in range(8):
            self.append(number, leader_epoch=number // 5)
        self.do(self.log.roll)
        for number in range(8, 16):
            self.append(number, leader_epoch=2)
        self.do(self.log.flush)
        self.truncate(11)
        for number in range(16, 20):
            self.append(number, leader_epoch=3)
        self.truncate(5)
        for number in range(20, 30):
            self.append(number, leader_epoch=4)
        self.delete_records_before(7)
        self.append(30, leader_epoch=4)
        self.retain()
        self.append(31, leader_epoch=4)
        self.do(self.log.flush)
        self.do(self.log.purge_deleted_segments)
        self.append(32, leader_epoch=4)
        self.closed = self.do(self.log.close)

    def do(self, action, *args, **options):
        try:
            action(*args, **options)
        except (OSError, StorageError) as error:
            self.outcomes.append(error)
            return False
        return True

    def append(self, number, leader_epoch):
        value = b"%d " % number * 150
        age = HOUR_MS * 2 if number < 24 else 0
        self.attempted[value] += 1
        data = a_batch(value, time_ms=NOW - age)
        end = self.log.end_offset
        try:
            appended = self.log.append(data, leader_epoch=leader_epoch, now_ms=NOW)
        except (OSError, StorageError) as error:
            self.outcomes.append(error)
            assert self.log.end_offset == end, (
                f"{self.disk.failed} failed, but the batch was appended"
            )
        else:
            self.acknowledged[appended.base_offset] = value

    def truncate(self, offset):
        removed = {at: value for at, value in self.acknowledged.items() if at >= offset}
        self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < offset}
        if self.do(self.log.truncate, offset):
            self.truncated |= set(removed.values())

    def delete_records_before(self, offset):
        self.forget_before(offset)
        if self.do(self.log.delete_records_before, offset):
            self.start = offset

    def retain(self):
        old = [at for at, value in self.acknowledged.items() if int(value.split()[0]) < 24]
        self.forget_before(max(old, default=-1) + 1)
        self.do(self.log.apply_retention, NOW)

    def forget_before(self, offset):
        self.acknowledged = {at: value for at, value in self.acknowledged.items() if at >= offset}

    def check(self, log, report, case):
        records = rows(log, log.start_offset)
        stored = dict(records)
        expected = self.acknowledged
        lost = {at: value[:4] for at, value in expected.items() if stored.get(at) != value}
        assert not lost, f"{case}: lost {lost} of {list(expected)}, have {sorted(stored)}"
        assert not self.truncated & set(stored.values()), f"{case}: truncated records reappeared"
        assert set(stored.values()) <= set(self.attempted), f"{case}: records never appended"
        offsets = [at for at, _ in records]
        assert offsets == list(range(log.end_offset - len(offsets), log.end_offset)), case
        assert log.start_offset >= self.start, case
        if self.log.offline_reason is None:
            assert report.damaged_ranges == [], case


def calls_of_the_script(path):
    disk = FaultyDisk()
    script = Script(path, disk)
    script.run()
    assert script.outcomes == []
    assert script.closed
    return disk.calls


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("permanently", [False, True], ids=["once", "permanently"])
def test_no_acknowledged_record_is_lost_whichever_disk_call_fails(tmp_path, permanently, error):
    total = calls_of_the_script(tmp_path / "count")
    opening = FaultyDisk()
    a_log(tmp_path / "open", opening)
    for number in range(opening.calls, total):
        path = tmp_path / str(number)
        disk = FaultyDisk(fail_at=number, permanently=permanently, error=error)
        script = Script(path, disk)

        script.run()

        case = f"call {number} of {total}, {disk.failed}, failed"
        crash(script.log)
        points = [script.log.recovery_point, 0]
        if script.closed and script.log.offline_reason is None:
            points.append(None)
        for point in points:
            copy = tmp_path / "copy"
            shutil.copytree(path, copy)
            log, report = reopen(copy, recovery_point=point)
            script.check(log, report, f"{case}, opened from {point}")
            append(log, b"more")
            assert values(log)[-1] == b"more"
            crash(log)
            shutil.rmtree(copy)
        shutil.rmtree(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("permanently", [False, True], ids=["once", "permanently"])
def test_an_error_while_opening_a_log_loses_no_records(tmp_path, permanently):
    log = a_log(tmp_path / "origin", NoSyncDisk())
    for number in range(30):
        append(log, b"%d " % number * 100, sequence=number)
    expected = rows(log)
    crash(log)
    path = log.active_segment.path(".log")
    content = bytearray(path.read_bytes()[: log.active_segment.size])
    content[70] ^= 1
    path.write_bytes(content[:-10] + bytes(1000))
    healthy = FaultyDisk()
    shutil.copytree(tmp_path / "origin", tmp_path / "healthy")
    log, _ = open_log(tmp_path / "healthy", CONFIG, OpenFiles(healthy), recovery_point=0)
    recovered = rows(log)
    total = healthy.calls
    assert set(recovered) < set(expected)
    for number in range(total):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "origin", copy)
        disk = FaultyDisk(fail_at=number, permanently=permanently)

        with suppress(OSError, StorageError):
            crash(open_log(copy, CONFIG, OpenFiles(disk), recovery_point=0)[0])

        log, _ = reopen(copy)
        assert rows(log) == recovered, f"call {number}, {disk.failed}, failed"
        assert len(list(copy.glob("*.damaged-*"))) >= 1
        crash(log)
        shutil.rmtree(copy)


def test_a_full_disk_fails_appends_until_there_is_space_and_tears_no_batch(tmp_path):
    with private_mounts(tmp_path) as mounts:
        mounts.mount_tmpfs("4m")
        config = LogConfig(segment_bytes=1024 * 1024, retention_ms=-1)
        logs = LogDirectory(mounts.path / "data", cluster_id="c", broker_id=1)
        logs.load({}, config)
        log = logs.create("t-0", config)
        ballast = mounts.path / "ballast"
        acked = []
        for cycle in range(10):
            ballast.write_bytes(bytes(1024 * 1024))
            failures = 0
            while failures < 5:
                value = b"%d %d " % (cycle, len(acked)) * 1000
                try:
                    acked.append((append(log, value).base_offset, value))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    failures += 1
            assert rows(log) == [row for row in acked if row[0] >= log.start_offset]

            ballast.unlink()

            value = b"%d again " % cycle * 100
            acked.append((append(log, value).base_offset, value))
            log.delete_records_before(max(log.start_offset, log.end_offset - 20))
            log.purge_deleted_segments()

        expected = [row for row in acked if row[0] >= log.start_offset]
        assert [offset for offset, _ in acked] == list(range(log.end_offset))
        crash(log)
        copied, report = reopen(mounts.path / "data" / "t-0", config=config)
        assert rows(copied) == expected
        assert report.damaged_ranges == []
        crash(copied)
        logs.close()


def test_a_full_disk_at_shutdown_leaves_no_clean_shutdown_marker(tmp_path):
    with private_mounts(tmp_path) as mounts:
        mounts.mount_tmpfs("1m")
        config = LogConfig(segment_bytes=256 * 1024)
        logs = LogDirectory(mounts.path / "data", cluster_id="c", broker_id=1)
        logs.load({}, config)
        log = logs.create("t-0", config)
        append(log, b"acked")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (mounts.path / "ballast").write_bytes(bytes(2 * 1024 * 1024))

        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            logs.close()

        assert not (mounts.path / "data" / "clean-shutdown").exists()
        (mounts.path / "ballast").unlink()
        logs = LogDirectory(mounts.path / "data", cluster_id="c", broker_id=1)
        logs.load({}, config)
        assert values(logs.logs["t-0"]) == [b"acked"]
        logs.close()


class ErrseqDisk(NoSyncDisk):
    """A disk whose writeback fails as on Linux: the error is reported once per open file.

    `lose_writes` makes the next fsync fail; every later one of any open file succeeds, although
    the data is gone. The first fsync lasts until `gate` is set, as on a busy device.
    """

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()
        self.sync_count = 0
        self._errors = {"sync": 0, "sync_directory": 0}
        self._lock = threading.Lock()

    def lose_writes(self, method):
        self._errors[method] = 1

    def sync(self, fd, *, metadata=False):
        os.fstat(fd)
        self._report("sync")

    def sync_directory(self, path):
        self._report("sync_directory")

    def _report(self, method):
        with self._lock:
            # The error is consumed when the fsync starts to look for it, before it returns.
            has_failed, self._errors[method] = self._errors[method], 0
            self.sync_count += 1
        if has_failed:
            self.entered.set()
            assert self.gate.wait(10)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def a_directory(path, disk, **options):
    logs = LogDirectory(path, cluster_id="c", broker_id=1, disk=disk, **options)
    logs.load({}, CONFIG)
    return logs


@pytest.mark.parametrize("method", ["sync", "sync_directory"])
def test_a_failed_fsync_of_the_checkpoint_is_not_acked_by_the_flusher(tmp_path, method):
    disk = ErrseqDisk()
    logs = a_directory(tmp_path / "data", disk)
    log = logs.create("t-0", CONFIG)
    log.flush()
    for number in range(200):
        append(log, b"%d" % number * 20)
    assert len(log.segments) > 1
    disk.lose_writes(method)
    with ThreadPoolExecutor(2) as pool:
        checkpoint = pool.submit(logs.checkpoint_recovery_points)
        assert disk.entered.wait(10)
        ack = logs.flusher.flush(log)
        beside = pool.submit(log.flush)
        with suppress(TimeoutError):
            # It would be done by now if it did not wait for the one before it.
            beside.exception(0.3)
        assert log.recovery_point == 0
        disk.gate.set()
        for future in (ack, beside):
            with pytest.raises(LogOfflineError):
                future.result(10)
        checkpoint.result(10)
    assert log.recovery_point == 0
    logs.close()
    assert not (tmp_path / "data" / "clean-shutdown").exists()


def test_no_record_is_acked_while_the_fsync_of_the_directory_after_a_roll_is_under_way(tmp_path):
    disk = NoSyncDisk()
    entered, gate, is_synced = threading.Event(), threading.Event(), threading.Event()
    log = a_log(tmp_path / "log", disk)
    append(log)
    log.flush()

    def slow_sync_directory(path):
        entered.set()
        assert gate.wait(10)
        is_synced.set()

    disk.sync_directory = slow_sync_directory
    append(log)
    log.roll()
    append(log)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(log.flush)
        assert entered.wait(10)
        append(log)
        second = pool.submit(lambda: (log.flush(), is_synced.is_set()))
        with suppress(TimeoutError):
            second.exception(0.3)
        assert log.recovery_point == 1
        gate.set()
        assert first.result(10) == 3
        assert second.result(10) == (4, True)


@pytest.mark.parametrize("method", ["sync", "sync_directory"])
def test_a_failed_fsync_of_a_checkpoint_file_takes_the_log_offline(tmp_path, disk, method):
    log = a_log(tmp_path / "log", disk)
    append(log)
    append(log)
    disk.fail(method, errno.EIO)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.delete_records_before(1)

    with pytest.raises(LogOfflineError):
        log.flush()


class DescriptorDisk(NoSyncDisk):
    """Notices a descriptor that is used after it was closed, or for another file."""

    def __init__(self):
        self.errors = []
        self._paths = {}
        self.during_sync = lambda: None

    def open(self, path, *, create=False, empty=False):
        fd = super().open(path, create=create, empty=empty)
        self._paths[fd] = path
        return fd

    def close(self, fd):
        self._paths.pop(fd, None)
        super().close(fd)

    def sync(self, fd, *, metadata=False):
        before = self._paths.get(fd)
        self.during_sync()
        if before is None or self._paths.get(fd) is not before:
            self.errors.append(before)


def test_a_descriptor_stays_open_while_it_is_synced(tmp_path):
    disk = DescriptorDisk()
    log = a_log(tmp_path / "log", disk)
    append(log)
    log.flush()
    for _ in range(3):
        append(log)
        log.roll()
    append(log)
    truncations = [0]
    disk.during_sync = lambda: log.truncate(truncations.pop()) if truncations else None

    log.flush()

    assert disk.errors == []
    assert log.offline_reason is None


def test_a_checkpoint_during_a_flush_does_not_let_the_file_be_closed(tmp_path):
    disk = DescriptorDisk()
    logs = a_directory(tmp_path / "data", disk, max_open_segments=4)
    log, *others = logs.create_all({f"t-{number}": CONFIG for number in range(20)})
    append(log)
    log.flush()
    entered, gate, calls = threading.Event(), threading.Event(), []

    def during_sync():
        calls.append(None)
        if len(calls) == 1:
            entered.set()
            assert gate.wait(10)

    append(log)
    disk.during_sync = during_sync
    flushed = logs.flusher.flush(log)
    assert entered.wait(10)
    with ThreadPoolExecutor(1) as pool:
        checkpoint = pool.submit(logs.checkpoint_recovery_points)
        with suppress(TimeoutError):
            checkpoint.exception(0.3)
        for other in others:
            append(other)  # Closes the files that were used least recently.
        gate.set()
        checkpoint.result(10)
    assert flushed.result(10) == 2
    assert disk.errors == []
    assert log.offline_reason is None
    logs.close()


def test_new_logs_leave_no_files_open(tmp_path):
    disk = DescriptorDisk()
    logs = a_directory(tmp_path / "data", disk)
    before = set(disk._paths)

    with ThreadPoolExecutor(1) as pool:  # Only the thread of the logs closes what is least used.
        created = pool.submit(logs.create_all, {f"t-{n}": CONFIG for n in range(50)}).result()

    assert set(disk._paths) == before
    for log in created:
        append(log)
    assert [log.end_offset for log in created] == [1] * 50
    logs.close()


def test_files_that_are_not_durable_are_flushed_when_too_many_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(logdir, "_CLOSING_FLUSH_SECONDS", 0)
    logs = a_directory(tmp_path / "data", NoSyncDisk(), max_open_segments=4)
    appended = logs.create_all({f"t-{number}": CONFIG for number in range(20)})
    for log in appended:
        append(log)
    deadline = time.monotonic() + 10
    while sum(log.recovery_point < log.end_offset for log in appended) > logs.files.limit:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    logs.create("new-0", CONFIG)

    assert len(logs.files) <= logs.files.limit + 1
    logs.close()


def test_files_are_closed_only_by_the_thread_that_uses_them(tmp_path):
    logs = a_directory(tmp_path / "data", NoSyncDisk(), max_open_segments=4)
    log = logs.create("first-0", CONFIG)
    append(log)
    log.flush()
    fd = log.active_segment._fd
    with ThreadPoolExecutor(1) as pool:
        pool.submit(logs.create_all, {f"t-{n}": CONFIG for n in range(20)}).result(10)

    assert os.fstat(fd).st_ino == log.active_segment.path(".log").stat().st_ino
    append(log)
    assert values(log) == [b"value", b"value"]
    logs.create("last-0", CONFIG)
    assert len(logs.files) < 20
    logs.close()


class FullDisk(NoSyncDisk):
    """A disk on which nothing can be written while it is full."""

    is_full = False

    def write(self, fd, data, position):
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data, position)


def test_a_log_opened_on_a_full_disk_is_read_at_once_and_written_when_there_is_space(tmp_path):
    disk = FullDisk()
    logs = a_directory(tmp_path / "data", disk)
    log = logs.create("t-0", CONFIG)
    expected = [b"%d" % number * 20 for number in range(100)]
    for value in expected:
        append(log, value)
    assert len(log.segments) > 2
    crash(log)
    logs.abandon()

    disk.is_full = True
    logs = a_directory(tmp_path / "data", disk)

    assert logs.failed == {}
    log = logs.logs["t-0"]
    assert values(log) == expected
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        append(log, b"no space")
    assert not list((tmp_path / "data" / "t-0").glob("*.tmp"))
    disk.is_full = False
    append(log, b"more")
    logs.flusher.flush(log).result(10)
    assert values(log) == [*expected, b"more"]
    logs.close()
    logs = a_directory(tmp_path / "data", disk)
    assert values(logs.logs["t-0"]) == [*expected, b"more"]
    logs.close()


def test_recovery_without_space_for_its_gaps_leaves_the_segment_for_the_next_attempt(tmp_path):
    disk = FullForGaps()
    logs = a_directory(tmp_path / "data", disk)
    log = logs.create("t-0", CONFIG)
    expected = [b"%d" % number * 20 for number in range(3)]
    for value in expected:
        append(log, value)
    path = log.active_segment.path(".log")
    damaged_at = log.active_segment.find(1).position + HEADER_BYTES
    crash(log)
    logs.abandon()
    with path.open("r+b") as file:
        file.seek(damaged_at)
        file.write(b"\xff")
    before = path.read_bytes()

    disk.is_full = True
    logs = a_directory(tmp_path / "data", disk)
    assert list(logs.failed) == ["t-0"]
    assert path.read_bytes() == before
    logs.abandon()
    disk.is_full = False
    logs = a_directory(tmp_path / "data", disk)

    assert values(logs.logs["t-0"]) == [expected[0], expected[2]]
    logs.close()


class FullForGaps(NoSyncDisk):
    """A disk with space for all files but the list of gaps."""

    is_full = False

    def replace_file(self, path, content, *, durable=True):
        if self.is_full and path.name == GAPS_FILE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace_file(path, content, durable=durable)
