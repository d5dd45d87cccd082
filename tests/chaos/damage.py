"""Rows 4 to 6: logs that were torn or damaged while nobody looked.

A real broker writes a log under load and is killed. Then copies of that log are damaged, one place
at a time, and opened: what is whole must be there, and what is not neither served nor thrown away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos.matrix import row
from chaos.stage import TOPIC, Run, Stage
from crash.writer import rows as rows_of
from harness.load import Load
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
#: No checkpoint comes in between: a start after a kill reads all of a log.
SETTINGS = {"log.flush.offset.checkpoint.interval.ms": "600000"}
#: Bytes of a batch that nothing covers: the leader epoch. A flipped bit there goes unnoticed.
UNCOVERED = range(12, 16)
Rows = dict[int, bytes]


class QuickDisk(Disk):
    """Nobody cuts the power here."""

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@dataclass(frozen=True)
class At:
    """A batch, and where it is in its file."""

    path: Path
    position: int
    batch: RecordBatch

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.position + self.batch.size

    @property
    def offsets(self) -> range:
        """The offsets that it has."""
        return range(self.batch.base_offset, self.batch.next_offset)


def batches_in(log: Path) -> list[At]:
    """Read the batches of all segments of a log, in order."""
    found = []
    for path in sorted(log.glob("*.log")):
        content, position = path.read_bytes(), 0
        # An active segment's file is longer than its content: the rest is zeros.
        while length := int.from_bytes(content[position + 8 : position + 12]):
            batch = RecordBatch(content[position : position + LOG_OVERHEAD_BYTES + length])
            found.append(At(path, position, batch))
            position += batch.size
    return found


def records_of(batches: list[At]) -> Rows:
    return {record.offset: record.value for at in batches for record in at.batch.records()}


@contextmanager
def _written(run: Run, records: int) -> Iterator[Path]:
    """Let a broker write a log, end it, and give the data directory."""
    run.brokers = 1
    with run.stage(SETTINGS, **TOPIC_CONFIG) as stage:
        with stage.load() as load:
            load.wait(lambda: load.acked >= records, f"{records} records")
        run.judge(stage, load)
        stage.victim.kill()
        yield stage.victim.data


def _reopened(log: Path) -> tuple[Log, RecoveryReport]:
    return open_log(log, CONFIG, OpenFiles(QuickDisk()), recovery_point=0)


def _close(log: Log) -> None:
    for segment in log.segments:
        segment.close()


@row("4", "torn tail, at every byte", "places", short=100, normal=2000, full=100_000)
def tear(run: Run) -> None:
    with _written(run, 600) as data:
        origin, copy = data / LOG, run.folder / "copy"
        batches = batches_in(origin)
        last = [at for at in batches if at.path == batches[-1].path][-3:]
        content = last[0].path.read_bytes()
        places = list(range(last[0].position, last[-1].end + 1))
        run.count = min(run.count, len(places))
        places = sorted(run.chance.sample(places, run.count))
        for cycle in run.cycles():
            place = places[cycle]
            shutil.copytree(origin, copy)
            with_zeros = cycle % 2 == 0
            _cut(copy / last[0].path.name, place, with_zeros=with_zeros)
            # A batch that ends in zeros is whole if nothing but those became zeros.
            end = place
            while with_zeros and content[end : end + 1] == b"\0":
                end += 1
            whole = [at for at in batches if at.path != last[0].path or at.end <= end]

            log, _ = _reopened(copy)

            assert dict(rows_of(log)) == records_of(whole), f"cut at {place}"
            assert _producers(log) == _last_sequences(whole), f"cut at {place}"
            _close(log)
            shutil.rmtree(copy)


def _cut(path: Path, place: int, *, with_zeros: bool) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes(len(content) - place if with_zeros else 0))


def _producers(log: Log) -> dict[int, int]:
    return {state.producer_id: state.last_sequence for state in log.producer_states}


def _last_sequences(batches: list[At]) -> dict[int, int]:
    return {at.batch.producer_id: at.batch.last_sequence for at in batches}


@row(
    "5",
    "bit flip, each bit of a batch and of each file",
    "bits",
    short=100,
    normal=3000,
    full=10**6,
)
def flip(run: Run) -> None:
    with _written(run, 900) as data:
        origin = data / LOG
        batches = batches_in(origin)
        target = _in_the_middle(batches)
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
        unnoticed = refused = 0
        for cycle in run.cycles():
            name, bit = chosen[cycle]
            if name == target.path.name:
                unnoticed += _flip_in_batch(run, origin, target, bit, records_of(batches))
            else:
                refused += _flip_in_file(run, others, name, bit, records_of(batches))
    run.note(f"{unnoticed} in leader epochs unnoticed; {refused} kept a log from being opened")


def _in_the_middle(batches: list[At]) -> At:
    """Choose one with others before and behind it in its file, that is not too long."""
    last = [at for at in batches if at.path == batches[-1].path]
    last = last if len(last) >= 3 else [at for at in batches if at.path == batches[0].path]
    return min(last[1:-1], key=lambda at: at.batch.size)


def _bits(position: int, size: int) -> list[tuple[int, int]]:
    return [(at, bit) for at in range(position, position + size) for bit in range(8)]


def _sample(
    run: Run, bits: list[tuple[str, tuple[int, int]]], in_batch: int
) -> list[tuple[str, tuple[int, int]]]:
    """Take half of what there is time for from the batch, and the rest from the other files."""
    half = min(in_batch, run.count // 2)
    rest = min(len(bits) - in_batch, run.count - half)
    return run.chance.sample(bits[:in_batch], half) + run.chance.sample(bits[in_batch:], rest)


def _flip_bit(path: Path, where: tuple[int, int]) -> None:
    content = bytearray(path.read_bytes())
    content[where[0]] ^= 1 << where[1]
    path.write_bytes(content)


def _flip_in_batch(
    run: Run, origin: Path, target: At, where: tuple[int, int], wanted: Rows
) -> bool:
    """Flip a bit of a batch, and give whether that goes unnoticed."""
    copy = run.folder / "copy"
    shutil.copytree(origin, copy)
    _flip_bit(copy / target.path.name, where)
    damaged = (copy / target.path.name).read_bytes()[target.position : target.end]

    log, report = _reopened(copy)

    found = dict(rows_of(log))
    case = f"byte {where[0] - target.position}, bit {where[1]} of a batch"
    wrong = [offset for offset, value in found.items() if wanted.get(offset) != value]
    assert not wrong, f"{case}: served: {wrong[:5]}"
    missing = wanted.keys() - found.keys()
    assert missing <= set(target.offsets), f"{case}: took others with it: {sorted(missing)[:5]}"
    if missing:
        kept = b"".join(path.read_bytes() for path in copy.glob("*.damaged-*"))
        assert damaged in kept, f"{case}: thrown away"
        assert report.damaged_ranges, case
    else:
        assert where[0] - target.position in UNCOVERED, f"{case}: unnoticed"
    _close(log)
    shutil.rmtree(copy)
    return not missing


def _clean_copy(data: Path, target: Path) -> Path:
    """Make a copy of a data directory, as after a clean stop, with all the files of one."""
    others = [path.name for path in data.iterdir() if path.is_dir() and path.name != LOG]
    shutil.copytree(data, target, ignore=shutil.ignore_patterns(*others))
    logs = LogDirectory(target, broker_id=0)
    logs.load({}, CONFIG)
    logs.logs[LOG].roll()  # for an index of a segment that nobody reads in full
    logs.close()
    return target


def _flip_in_file(run: Run, origin: Path, name: str, where: tuple[int, int], wanted: Rows) -> bool:
    """Flip a bit of another file, and give whether its log cannot be opened any more.

    That is not nice, but all is there. What may not be is that something else is served, or less.
    """
    copy = run.folder / "copy"
    shutil.copytree(origin, copy)
    _flip_bit(copy / LOG / name, where)
    case = f"byte {where[0]}, bit {where[1]} of {name}"
    is_refused = False
    try:
        logs = LogDirectory(copy, broker_id=0, disk=QuickDisk())
    except (StorageError, ValueError, UnicodeDecodeError):
        is_refused = True
    else:
        with suppress(StorageError):
            logs.load({}, CONFIG)
        is_refused = LOG in logs.failed
        if not is_refused:
            _see(logs.logs[LOG], wanted, run.chance, case)
        logs.abandon()
    kept = batches_in(copy / LOG)
    assert records_of(kept) == wanted, f"{case}: the log itself was changed"
    shutil.rmtree(copy)
    return is_refused


def _see(log: Log, wanted: Rows, chance: Random, case: str) -> None:
    """Read from the start, and from some places in between."""
    assert log.start_offset == 0, f"{case}: it starts at {log.start_offset}"
    assert log.end_offset == len(wanted), f"{case}: it ends at {log.end_offset}"
    for start in [0, *(chance.randrange(len(wanted)) for _ in range(5)), len(wanted) - 1]:
        found: Rows = {}
        offset = start
        while offset < log.end_offset:
            batches = list(split_batches(bytes(log.read(offset, 2000).view)))
            assert batches, f"{case}: nothing to read at {offset}"
            for batch in batches:
                batch.validate()
                found |= {record.offset: record.value for record in batch.records()}
                offset = batch.next_offset
        tail = {at: value for at, value in wanted.items() if at >= start}
        found = {at: value for at, value in found.items() if at >= start}
        assert found == tail, f"{case}: from {start} on: {_difference(found, tail)}"


def _difference(found: Rows, wanted: Rows) -> str:
    missing = sorted(wanted.keys() - found.keys())
    return f"{len(missing)} missing, the first {missing[:1]}"


@row("6", "bit flip in a sealed segment, data behind", "flips", short=2, normal=20, full=100)
def flip_under_load(run: Run) -> None:
    deleted: set[tuple[int, int]] = set()
    with run.stage(SETTINGS, **TOPIC_CONFIG) as stage:
        with stage.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                _wait_for_segments(stage, load)
                stage.victim.kill()
                partition = run.chance.choice(stage.owned)
                log = stage.victim.data / f"{TOPIC}-{partition}"
                paths = sorted(log.glob("*.log"))
                at = run.chance.choice(
                    [at for at in batches_in(log) if at.path in paths[-4:-1]][:-1]
                )
                # Not where nothing covers it: see row 5.
                place = run.chance.choice(
                    [place for place in range(at.batch.size) if place not in UNCOVERED]
                )
                _flip_bit(at.path, (at.position + place, run.chance.randrange(8)))
                deleted |= {(partition, offset) for offset in at.offsets}
                stage.victim.start()
                assert list(log.glob("*.damaged-*")), f"byte {place} of a batch: unnoticed"
            load.wait_for_acks()
        run.judge(stage, load, deleted=deleted, may_log=True)


def _wait_for_segments(stage: Stage, load: Load) -> None:
    """Wait until every partition has some that are sealed."""
    logs = [stage.victim.data / f"{TOPIC}-{number}" for number in stage.owned]
    load.wait(lambda: all(len(list(log.glob("*.log"))) >= 3 for log in logs), "segments")
