"""Log concentrator: many log files into one topic, and from there into a few files.

    a.log, b.log, … ──ship──▶ lines (keyed by file) ──write──▶ all.log, error.log, warning.log, …

`ship` runs on the machines that log, `write` on the one that collects. It demonstrates:

- Keys: the lines of a file go to one partition and stay in order. Lines of different files are only
  ordered by time.
- Backpressure: `send_many` waits when more than `BatchConfig.buffer_bytes` are unacknowledged, and
  no file is read meanwhile; `write` prefetches at most `FetchConfig.prefetch_bytes`.
- A source that resumes: the position in each file is kept in a compacted topic.
- Files that are rotated (renamed and created again) or truncated while they are read.

Lines are shipped and written at least once: after a kill the last ones may be repeated. Both
commands end when all lines are processed, but not before `--seconds`; with `--seconds inf` never.

    python examples/log_concentrator.py --seconds inf ship /var/log/*.log
    python examples/log_concentrator.py write logs
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import click

from ottla.client import (
    Admin,
    BatchConfig,
    ClientError,
    Consumer,
    ErrorCode,
    FetchConfig,
    KafkaError,
    Producer,
    ProducerRecord,
    TopicPartition,
)
from ottla.client.serializers import deserialize_json, serialize_json

CHUNK_BYTES = 64 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
POLL_SECONDS = 0.1
SEVERITY = re.compile(rb"\b(ERROR|WARNING|INFO|DEBUG)\b")


class Tail:
    """A growing file that may be rotated or truncated."""

    def __init__(self, path: Path, inode: int = 0, position: int = 0) -> None:
        self.path, self.inode, self.position = path, inode, position
        self._file: BinaryIO | None = None

    def read(self) -> list[bytes]:
        """Return the next complete lines, or none at the end of the file."""
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        # Checked before the read: if the file was replaced, nothing is appended after it.
        is_replaced = self._is_replaced()
        lines = self._file.readlines(CHUNK_BYTES)
        if lines and not lines[-1].endswith(b"\n") and not is_replaced:
            self._file.seek(-len(lines.pop()), os.SEEK_CUR)  # read the incomplete line again
        self.position = self._file.tell()
        if is_replaced and not lines:
            self.close()
            self.inode = 0
        return lines

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = self.path.open("rb")
        except FileNotFoundError:
            return False
        status = os.fstat(self._file.fileno())
        if status.st_ino != self.inode or status.st_size < self.position:
            self.inode, self.position = status.st_ino, 0
        self._file.seek(self.position)
        return True

    def _is_replaced(self) -> bool:
        """Whether the file was truncated, or another file with its name has data."""
        assert self._file is not None
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        is_other = status.st_ino != self.inode
        return status.st_size > 0 if is_other else status.st_size < self.position


async def ship_file(producer: Producer, prefix: str, tail: Tail, until: float) -> None:
    """Send the lines of a file as it grows."""
    source, count = str(tail.path).encode(), 0
    while (lines := await asyncio.to_thread(tail.read)) or loop_time() < until:
        if not lines:
            await asyncio.sleep(POLL_SECONDS)
            continue
        records = (ProducerRecord(line.rstrip(b"\r\n"), key=source) for line in lines)
        await producer.send_many(f"{prefix}.lines", records)
        position = serialize_json([tail.inode, tail.position])
        await producer.send(f"{prefix}.positions", position, key=source)
        count += len(lines)
    tail.close()
    click.echo(f"{count:8} lines from {tail.path}")


async def create_topics(bootstrap: str, prefix: str) -> None:
    """Create the topics if they do not exist."""
    async with Admin(bootstrap) as admin:
        for name, partitions, policy in (("lines", 4, "delete"), ("positions", 1, "compact")):
            configs = {"cleanup.policy": policy}
            try:
                await admin.create_topic(f"{prefix}.{name}", partitions=partitions, configs=configs)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


async def find_positions(bootstrap: str, prefix: str) -> dict[str, list[int]]:
    """Return the position up to which each file was shipped."""
    tp = TopicPartition(f"{prefix}.positions", 0)
    positions = {}
    async with Consumer(bootstrap, value_deserializer=deserialize_json) as consumer:
        consumer.assign([tp])
        end = (await consumer.end_offsets())[tp]
        while await consumer.position(tp) < end:
            for record in (await consumer.getmany(1.0)).get(tp, []):
                positions[record.key.decode()] = record.value
    return positions


async def ship_all(bootstrap: str, prefix: str, seconds: float, paths: Iterable[Path]) -> None:
    """Ship all files concurrently."""
    until = loop_time() + seconds
    await create_topics(bootstrap, prefix)
    positions = await find_positions(bootstrap, prefix)
    batch = BatchConfig(buffer_bytes=BUFFER_BYTES)
    async with Producer(bootstrap, batch=batch) as producer, asyncio.TaskGroup() as tasks:
        for path in paths:
            tail = Tail(path, *positions.get(str(path), ()))
            tasks.create_task(ship_file(producer, prefix, tail, until))


async def write_all(bootstrap: str, prefix: str, seconds: float, directory: Path) -> None:
    """Append all lines to one file, and those of each severity to another."""
    until = loop_time() + seconds
    await create_topics(bootstrap, prefix)
    directory.mkdir(parents=True, exist_ok=True)
    counts: Counter[Path] = Counter()
    async with Consumer(
        bootstrap,
        f"{prefix}.lines",
        group=f"{prefix}.writer",
        auto_commit=None,
        fetch=FetchConfig(prefetch_bytes=BUFFER_BYTES),
    ) as consumer:
        while True:
            fetched = await consumer.getmany(POLL_SECONDS)
            lines = defaultdict(list)
            # Merge the lines of all partitions by time.
            for record in sorted(chain(*fetched.values()), key=attrgetter("timestamp")):
                severity = SEVERITY.search(record.value)
                time = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat()
                line = b"%s %s %s\n" % (time.encode(), record.key, record.value)
                lines["all"].append(line)
                lines[severity[1].decode().lower() if severity else "other"].append(line)
            for name, batch in lines.items():
                path = directory / f"{name}.log"
                with path.open("ab") as file:
                    file.writelines(batch)
                counts[path] += len(batch)
            await consumer.commit()
            is_idle = not fetched and loop_time() >= until and consumer.assignment
            if is_idle and not any((await consumer.lag()).values()):
                break
    for path, count in counts.items():
        click.echo(f"{count:8} lines to {path}")


def run(command: Coroutine[Any, Any, None]) -> None:
    """Run a command; report Kafka errors in one line."""
    try:
        asyncio.run(command)
    except* (ClientError, KafkaError) as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None


def loop_time() -> float:
    """Return the clock of `until`."""
    return asyncio.get_running_loop().time()


@click.group(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="Bootstrap servers.")
@click.option("--prefix", default="logs", show_default=True, help="Prefix of topics and group.")
@click.option("--seconds", default=5.0, show_default=True, help="Minimum running time.")
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """Store the common options."""
    context.obj = options


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_obj
def ship(options: dict[str, Any], files: tuple[Path, ...]) -> None:
    """Send the lines of log files, and those appended to them, to a topic."""
    run(ship_all(**options, paths=files))


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.pass_obj
def write(options: dict[str, Any], directory: Path) -> None:
    """Write lines from the topic to files in a directory, with their time and source."""
    run(write_all(**options, directory=directory))


if __name__ == "__main__":
    main()
