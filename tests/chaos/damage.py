"""Rows 4 to 6: torn and corrupt logs.

A broker writes a log under load and is killed. Copies of that log are corrupted, one position at a
time, and opened: intact batches must be served, and corrupt ones set aside, not served or dropped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos.matrix import row
from chaos.testbed import TOPIC, Run, Testbed
from crash.writer import rows as rows_of
from harness.bombs import produce_error_code
from harness.load import Load
from harness.logs import a_batch
from harness.wire import BlockingWireClient, batches_of, fetch_request, fetched_partitions
from ottla.protocol.batch import LOG_OVERHEAD_BYTES, RecordBatch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.errors import StorageError
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
from ottla.storage.recovery import open_log
from ottla.storage.segment_recovery import RecoveryReport

LOG = f"{TOPIC}-0"
CONFIG = LogConfig(segment_bytes=16_384, index_interval_bytes=1024, retention_ms=-1)
TOPIC_CONFIG = {"segment_bytes": "16384", "durability": "page-cache"}
#: No checkpoint, so that recovery after a kill reads the whole log.
CONFIGS = {"log.flush.offset.checkpoint.interval.ms": "600000"}
#: The leader epoch, which the CRC does not cover: a flipped bit there is not detected.
NOT_IN_CRC = range(12, 16)
Rows = dict[int, bytes]


class UnsyncedDisk(Disk):
    """A disk without fsync, for speed."""

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@dataclass(frozen=True)
class StoredBatch:
    """A batch and its position in a segment."""

    path: Path
    position: int
    batch: RecordBatch

    @property
    def end(self) -> int:
        """The position of the next batch."""
        return self.position + self.batch.size

    @property
    def offsets(self) -> range:
        """The offsets of its records."""
        return range(self.batch.base_offset, self.batch.next_offset)


def batches_in(log: Path) -> list[StoredBatch]:
    """Read the batches of all segments of a log, in order."""
    found = []
    for path in sorted(log.glob("*.log")):
        content, position = path.read_bytes(), 0
        # The file of an active segment is preallocated with zeros.
        while length := int.from_bytes(content[position + 8 : position + 12]):
            batch = RecordBatch(content[position : position + LOG_OVERHEAD_BYTES + length])
            found.append(StoredBatch(path, position, batch))
            position += batch.size
    return found


def records_of(batches: list[StoredBatch]) -> Rows:
    return {record.offset: record.value for at in batches for record in at.batch.records()}


@contextmanager
def _written(run: Run, records: int) -> Iterator[Path]:
    """Write a log with a broker, kill it, and yield the data directory."""
    run.brokers = 1
    with run.testbed(CONFIGS, with_bystander=False, **TOPIC_CONFIG) as testbed:
        with testbed.load() as load:
            load.wait(lambda: load.acked >= records, f"{records} records")
        run.verify(testbed, load)
        testbed.victim.kill()
        yield testbed.victim.data


def _reopened(log: Path) -> tuple[Log, RecoveryReport]:
    return open_log(log, CONFIG, OpenFiles(UnsyncedDisk()), recovery_point=0)


def _close(log: Log) -> None:
    for segment in log.segments:
        segment.close()


@row(
    "4",
    "torn tail, at every byte",
    "positions",
    short=60,
    normal=2000,
    full=100_000,
    is_plain=True,
)
def tear(run: Run) -> None:
    with _written(run, 600) as data:
        origin, copy = data / LOG, run.folder / "copy"
        batches = batches_in(origin)
        last = [at for at in batches if at.path == batches[-1].path][-3:]
        content = last[0].path.read_bytes()
        positions = list(range(last[0].position, last[-1].end + 1))
        run.count = min(run.count, len(positions))
        positions = sorted(run.random.sample(positions, run.count))
        for cycle in run.cycles():
            position = positions[cycle]
            shutil.copytree(origin, copy)
            with_zeros = cycle % 2 == 0
            _cut(copy / last[0].path.name, position, with_zeros=with_zeros)
            # Zeros that replace zeros at the end of a batch do not change it.
            end = position
            while with_zeros and content[end : end + 1] == b"\0":
                end += 1
            whole = [at for at in batches if at.path != last[0].path or at.end <= end]

            log, _ = _reopened(copy)

            assert dict(rows_of(log)) == records_of(whole), f"cut at {position}"
            assert _producers(log) == _last_sequences(whole), f"cut at {position}"
            _close(log)
            shutil.rmtree(copy)


def _cut(path: Path, position: int, *, with_zeros: bool) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:position] + bytes(len(content) - position if with_zeros else 0))


def _producers(log: Log) -> dict[int, int]:
    return {state.producer_id: state.last_sequence for state in log.producer_states}


def _last_sequences(batches: list[StoredBatch]) -> dict[int, int]:
    return {at.batch.producer_id: at.batch.last_sequence for at in batches}


@row(
    "5",
    "bit flip, each bit of a batch and of each file",
    "bits",
    short=60,
    normal=3000,
    full=10**6,
    is_plain=True,
)
def flip(run: Run) -> None:
    with _written(run, 900) as data:
        origin = data / LOG
        batches = batches_in(origin)
        target = _middle_batch(batches)
        bits = [(target.path.name, bit) for bit in _bits(target.position, target.batch.size)]
        in_batch = len(bits)
        others = _clean_copy(data, run.folder / "clean")
        for path in sorted((others / LOG).iterdir()):
            if path.suffix != ".log":
                bits += [(path.name, bit) for bit in _bits(0, path.stat().st_size)]
        bits += [
            (f"../{name}", bit)
            for name in ("recovery-point", "meta.json")
            for bit in _bits(0, (others / name).stat().st_size)
        ]
        chosen = _sample(run, bits, in_batch)
        run.count = len(chosen)
        undetected = refused = 0
        for cycle in run.cycles():
            name, bit = chosen[cycle]
            if name == target.path.name:
                undetected += _flip_in_batch(run, origin, target, bit, records_of(batches))
            else:
                refused += _flip_in_file(run, others, name, bit, records_of(batches))
    run.note(f"{undetected} in leader epochs not detected; {refused} prevented opening the log")


def _middle_batch(batches: list[StoredBatch]) -> StoredBatch:
    """Return a small batch with others before and after it in its segment."""
    last = [at for at in batches if at.path == batches[-1].path]
    last = last if len(last) >= 3 else [at for at in batches if at.path == batches[0].path]
    return min(last[1:-1], key=lambda at: at.batch.size)


def _bits(position: int, size: int) -> list[tuple[int, int]]:
    return [(at, bit) for at in range(position, position + size) for bit in range(8)]


def _sample(
    run: Run, bits: list[tuple[str, tuple[int, int]]], in_batch: int
) -> list[tuple[str, tuple[int, int]]]:
    """Choose half of the bits from the batch, and the rest from the other files."""
    half = min(in_batch, run.count // 2)
    rest = min(len(bits) - in_batch, run.count - half)
    return run.random.sample(bits[:in_batch], half) + run.random.sample(bits[in_batch:], rest)


def _flip_bit(path: Path, where: tuple[int, int]) -> None:
    content = bytearray(path.read_bytes())
    content[where[0]] ^= 1 << where[1]
    path.write_bytes(content)


def _flip_in_batch(
    run: Run, origin: Path, target: StoredBatch, where: tuple[int, int], expected: Rows
) -> bool:
    """Flip a bit of a batch; return whether it is not detected."""
    copy = run.folder / "copy"
    shutil.copytree(origin, copy)
    _flip_bit(copy / target.path.name, where)
    damaged = (copy / target.path.name).read_bytes()[target.position : target.end]

    log, report = _reopened(copy)

    found = dict(rows_of(log))
    case = f"byte {where[0] - target.position}, bit {where[1]} of a batch"
    wrong = [offset for offset, value in found.items() if expected.get(offset) != value]
    assert not wrong, f"{case}: served: {wrong[:5]}"
    missing = expected.keys() - found.keys()
    assert missing <= set(target.offsets), (
        f"{case}: other records are missing: {sorted(missing)[:5]}"
    )
    if missing:
        kept = b"".join(path.read_bytes() for path in copy.glob("*.damaged-*"))
        assert damaged in kept, f"{case}: dropped"
        assert report.damaged_ranges, case
    else:
        assert where[0] - target.position in NOT_IN_CRC, f"{case}: not detected"
    _close(log)
    shutil.rmtree(copy)
    return not missing


def _clean_copy(data: Path, target: Path) -> Path:
    """Copy a data directory, and open and close it, so that it has all files of a clean stop."""
    others = [path.name for path in data.iterdir() if path.is_dir() and path.name != LOG]
    shutil.copytree(data, target, ignore=shutil.ignore_patterns(*others))
    logs = LogDirectory(target, broker_id=0)
    logs.load({}, CONFIG)
    logs.logs[LOG].roll()  # for the index of a sealed segment
    logs.close()
    return target


def _flip_in_file(
    run: Run, origin: Path, name: str, where: tuple[int, int], expected: Rows
) -> bool:
    """Flip a bit of another file; return whether the log cannot be opened.

    That is allowed, because no data is lost. Serving other records, or fewer, is not.
    """
    copy = run.folder / "copy"
    shutil.copytree(origin, copy)
    _flip_bit(copy / LOG / name, where)
    case = f"byte {where[0]}, bit {where[1]} of {name}"
    is_refused = False
    try:
        logs = LogDirectory(copy, broker_id=0, disk=UnsyncedDisk())
    except (StorageError, ValueError, UnicodeDecodeError):
        is_refused = True
    else:
        with suppress(StorageError):
            logs.load({}, CONFIG)
        is_refused = LOG in logs.failed
        if not is_refused:
            _check_reads(logs.logs[LOG], expected, run.random, case)
        logs.abandon()
    kept = batches_in(copy / LOG)
    assert records_of(kept) == expected, f"{case}: the log itself was changed"
    shutil.rmtree(copy)
    return is_refused


def _check_reads(log: Log, expected: Rows, random: Random, case: str) -> None:
    """Read from the start, and from random offsets."""
    assert log.start_offset == 0, f"{case}: start offset {log.start_offset}"
    assert log.end_offset == len(expected), f"{case}: end offset {log.end_offset}"
    for start in [0, *(random.randrange(len(expected)) for _ in range(5)), len(expected) - 1]:
        found: Rows = {}
        offset = start
        while offset < log.end_offset:
            batches = list(split_batches(bytes(log.read(offset, 2000).view)))
            assert batches, f"{case}: nothing to read at {offset}"
            for batch in batches:
                batch.validate()
                found |= {record.offset: record.value for record in batch.records()}
                offset = batch.next_offset
        tail = {at: value for at, value in expected.items() if at >= start}
        found = {at: value for at, value in found.items() if at >= start}
        assert found == tail, f"{case}: from {start} on: {_difference(found, tail)}"


def _difference(found: Rows, expected: Rows) -> str:
    missing = sorted(expected.keys() - found.keys())
    return f"{len(missing)} missing, the first {missing[:1]}"


@row("5n", "bit flip in a batch with batches in its value", "flips", short=1, normal=30, full=300)
def flip_outer_batch(run: Run) -> None:
    """Recovery serves neither the damaged batch nor the batches that its value contains."""
    with run.testbed(CONFIGS) as testbed:
        broker = testbed.victim
        with testbed.load() as load:
            for cycle in run.cycles():
                topic = f"nested{cycle}"
                testbed.create_topic(topic, 1, on_victim=True, durability="page-cache")
                value = run.random.choice(_nested_values(cycle))
                with BlockingWireClient(broker) as connection:
                    for content in (b"first", value, b"third", b"fourth"):
                        batch = bytes(a_batch(value=content))
                        assert produce_error_code(connection, topic, batch) == 0
                load.wait_for_acks()
                broker.kill()
                log = broker.data / f"{topic}-0"
                outer = batches_in(log)[1]
                byte = run.random.choice(
                    [byte for byte in range(outer.batch.size) if byte not in NOT_IN_CRC]
                )
                _flip_bit(outer.path, (outer.position + byte, run.random.randrange(8)))
                damaged = outer.path.read_bytes()[outer.position : outer.end]
                broker.start()
                with BlockingWireClient(broker) as connection:
                    request = fetch_request(0, topic=topic)
                    (data,) = fetched_partitions(connection.request(request, 12))
                found = {r.offset: r.value for batch in batches_of(data) for r in batch.records()}
                expected = {0: b"first", 2: b"third", 3: b"fourth"}
                assert found == expected, f"byte {byte} of the outer batch: {found}"
                kept = b"".join(path.read_bytes() for path in log.glob("*.damaged-*"))
                assert damaged in kept, f"byte {byte} of the outer batch: dropped"
            load.wait_for_acks()
        run.verify(testbed, load, may_log=True)


def _nested_values(seed: int) -> list[bytes]:
    """Return values that are, or contain, batches with possible and impossible offsets."""
    batches = []
    for offset in (0, 1, 2, 3, 4_000_000_000):
        batch = a_batch(value=b"nested %d" % seed)
        RecordBatch(memoryview(batch)).assign(offset, 0)
        batches.append(bytes(batch))
    return [*batches, b"".join(batches), b"x" * 300 + batches[2] + batches[3] + bytes(100)]


@row("6", "bit flip in a sealed segment", "flips", short=1, normal=20, full=100)
def flip_under_load(run: Run) -> None:
    deleted: set[tuple[int, int]] = set()
    with run.testbed(CONFIGS, **TOPIC_CONFIG) as testbed:
        with testbed.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                _wait_for_segments(testbed, load)
                testbed.victim.kill()
                partition = run.random.choice(testbed.led_by_victim)
                log = testbed.victim.data / f"{TOPIC}-{partition}"
                at = run.random.choice(_sealed_batches(log))
                # Only where it is detected: see row 5.
                byte = run.random.choice(
                    [byte for byte in range(at.batch.size) if byte not in NOT_IN_CRC]
                )
                _flip_bit(at.path, (at.position + byte, run.random.randrange(8)))
                deleted |= {(partition, offset) for offset in at.offsets}
                testbed.victim.start()
                assert list(log.glob("*.damaged-*")), f"byte {byte} of a batch: not detected"
            load.wait_for_acks()
        run.verify(testbed, load, deleted=deleted, may_log=True)


def _sealed_batches(log: Path) -> list[StoredBatch]:
    """Return the batches of the last sealed segments, but for the last one of each producer.

    Without that one, the producer's next batch would be out of order.
    """
    paths, batches = sorted(log.glob("*.log")), batches_in(log)
    last = {at.batch.producer_id: at for at in batches}
    return [
        at for at in batches if at.path in paths[-4:-1] and at is not last[at.batch.producer_id]
    ]


def _wait_for_segments(testbed: Testbed, load: Load) -> None:
    """Wait until every partition has sealed segments."""
    logs = [testbed.victim.data / f"{TOPIC}-{number}" for number in testbed.led_by_victim]
    load.wait(lambda: all(len(list(log.glob("*.log"))) >= 3 for log in logs), "segments")
