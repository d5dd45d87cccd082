"""A process that appends to logs until it is killed.

Run as a script, it reads lines of JSON from stdin: a data directory, a file for acks, a mode and a
seed. For each it forks a process that writes, and prints its process id; at the next line it waits
for its end. A fork writes at once; a new interpreter would have to import first.

Each log has one idempotent producer, and a record's value contains its sequence number, which is
also its offset: lost, duplicate and wrong records are detected. An ack is a line in the file,
written after the append; in mode `fsync`, after the flush. There are random checkpoints, but not in
mode `unsynced`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory

NOW = 1_700_000_000_000
LOGS = ("a-0", "a-1", "b-0")
CONFIG = LogConfig(segment_bytes=8192, index_interval_bytes=256, retention_ms=-1)


def open_directory(path: Path) -> LogDirectory:
    logs = LogDirectory(path, cluster_id="c", broker_id=1)
    logs.load({}, CONFIG)
    return logs


def value_of(name: str, sequence: int) -> bytes:
    return f"{name} {sequence} ".encode() * (1 + sequence % 20)


def a_batch(name: str, sequence: int, count: int) -> bytearray:
    rows = [Record(n, NOW + sequence + n, None, value_of(name, sequence + n)) for n in range(count)]
    return build_batch(rows, producer_id=LOGS.index(name), producer_epoch=0, base_sequence=sequence)


def rows(log: Log) -> Iterator[tuple[int, bytes]]:
    """Yield all records up to the first gap."""
    offset = log.start_offset
    while batches := list(split_batches(bytes(log.read(offset, 1 << 20).view))):
        for batch in batches:
            batch.validate()
            offset = batch.next_offset
            for record in batch.records():
                yield record.offset, record.value


def resend_last(log: Log) -> None:
    """Append the last batch again, as a producer does without a response."""
    if log.end_offset:
        [batch] = split_batches(bytes(log.read(log.end_offset - 1, 1).view))
        again = log.append(bytes(batch.view), leader_epoch=0, now_ms=NOW)
        assert again.is_duplicate, batch
        assert again.base_offset == batch.base_offset, batch


def write(path: Path, acks: Path, mode: str, seed: int) -> None:
    rng = random.Random(seed)
    descriptor = os.open(acks, os.O_WRONLY | os.O_APPEND)
    logs = open_directory(path)
    for name in LOGS:
        resend_last(logs.create(name, CONFIG))
    while True:
        name, count = rng.choice(LOGS), rng.randint(1, 3)
        log = logs.logs[name]
        sequence = log.end_offset
        data = a_batch(name, sequence, count)
        appended = log.append(data, leader_epoch=0, now_ms=NOW)
        if mode == "fsync":
            logs.flusher.flush(log).result()
        os.write(descriptor, f"{name} {appended.base_offset} {sequence} {count}\n".encode())
        if mode != "unsynced" and rng.random() < 0.01:
            logs.checkpoint_recovery_points()


def main() -> None:
    for line in sys.stdin:
        path, acks, mode, seed = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                write(Path(path), Path(acks), mode, seed)
            finally:
                traceback.print_exc()
                os._exit(1)
        print(child, flush=True)
        sys.stdin.readline()
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
