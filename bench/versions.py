"""Compare the broker of several checkouts of this repository: CPU time for the same requests.

Each checkout needs a virtual environment of its own (`make core-venv` in a git worktree). All
brokers run at once, and take turns every few hundred milliseconds with the same frames, so that the
drifting speed of the machine cancels out: the figure is the median of the ratios within the rounds.

    git worktree add ../before COMMIT && make -C ../before core-venv
    python bench/versions.py ../before .

The driver keeps five requests in flight, as librdkafka does, unless noted; it decodes no response.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmark import KIB, command_line, data_directory, print_table, progress
from metrics import cpu_seconds
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.batch import Record, build_batch
from servers import Ottla
from wire import Connection, encode

#: Versions that every checkout serves.
PRODUCE_VERSION = 9
FETCH_VERSION = 12
CREATE_TOPICS_VERSION = 5

PARTITIONS = 12
IN_FLIGHT = 5
FETCH_MAX_BYTES = 1024 * KIB
BATCH_BYTES = 64 * KIB


class Load(NamedTuple):
    """What one request produces or fetches."""

    topic: str
    size: int
    acks: int | None
    records: int
    in_flight: int = IN_FLIGHT


class Version(Ottla):
    """The broker of a checkout."""

    def __init__(self, directory: Path, checkout: Path) -> None:
        super().__init__(directory)
        self.checkout = checkout

    def prepare(self) -> None:
        """Create the data directory; the first rounds, which compile bytecode, are not counted."""
        self.data.mkdir(parents=True, exist_ok=True)
        # Without it, python -m imports from the current directory: every broker would be this one.
        self.environment = {"PYTHONSAFEPATH": "1"}

    def command(self) -> list[str]:
        """Return the command line, with the interpreter of the checkout."""
        python = self.checkout / ".venv/bin/python"
        return [str(python), *super().command()[1:]]


def loads() -> dict[str, Load]:
    """Return the loads by name; a consumer reads what the producers before it wrote."""
    found = {}
    for size in (100, KIB):
        for acks, name in ((1, "acks=1"), (-1, "acks=all, fsync")):
            topic = f"size-{size}{'-fsync' if acks < 0 else ''}"
            records = BATCH_BYTES // size
            found[f"produce {size} B, {name}"] = Load(topic, size, acks, records)
        found[f"fetch {size} B"] = Load(f"size-{size}", size, None, FETCH_MAX_BYTES // size)
    for in_flight in (1, 5, 1000):
        found[f"produce one record, {in_flight:,} in flight"] = Load("single", 100, 1, 1, in_flight)
    return found


def produce_frame(load: Load, partition: int) -> bytes:
    """Encode a Produce request with one batch."""
    assert load.acks is not None
    rows = [Record(n, int(time.time() * 1000), None, bytes(load.size)) for n in range(load.records)]
    data = PartitionProduceData(index=partition, records=build_batch(rows))
    topic = TopicProduceData(name=load.topic, partition_data=[data])
    request = ProduceRequest(acks=load.acks, timeout_ms=30_000, topic_data=[topic])
    return encode(request, PRODUCE_VERSION)


def fetch_frame(load: Load, partition: int) -> bytes:
    """Encode a Fetch request for the start of a partition."""
    wanted = FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=FETCH_MAX_BYTES
    )
    topic = FetchTopic(topic=load.topic, partitions=[wanted])
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=FETCH_MAX_BYTES, session_epoch=-1, topics=[topic]
    )
    return encode(request, FETCH_VERSION)


def exchange(connection: Connection, frames: list[bytes], count: int, in_flight: int) -> None:
    """Send frames in turn until `count` are answered, with `in_flight` of them unanswered.

    Many of them are sent together, at most as many as fit into the buffers of the sockets.
    """
    sent = answered = 0
    while answered < count:
        together = min(count, answered + in_flight) - sent
        if together:
            connection.socket.sendall(
                b"".join(frames[number % len(frames)] for number in range(sent, sent + together))
            )
            sent += together
        answered += connection.skip()


def main() -> None:
    """Measure each load with each checkout."""
    parser = command_line(__doc__, quick="fewer rounds", disk="8 GB")
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--only", help="only the loads whose name contains this")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--slice-seconds", type=float, default=0.25)
    options = parser.parse_args()
    rounds = 6 if options.quick else options.rounds
    rows = []
    with data_directory(options) as directory, ExitStack() as stack:
        servers, connections = [], []
        for number, checkout in enumerate(options.checkouts):
            server = Version(directory / str(number), checkout.resolve())
            server.start()
            stack.callback(server.stop)
            connection = Connection(server.port)
            stack.callback(connection.close)
            for topic in sorted({load.topic for load in loads().values()}):
                new = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
                connection.exchange(
                    encode(
                        CreateTopicsRequest(topics=[new], timeout_ms=10_000), CREATE_TOPICS_VERSION
                    )
                )
            servers.append(server)
            connections.append(connection)
        for name, load in loads().items():
            if options.only and options.only not in name:
                continue
            progress(name)
            build = fetch_frame if load.acks is None else produce_frame
            frames = [build(load, partition) for partition in range(PARTITIONS)]
            runs = [
                _measured(server.pid, connection, frames, load.in_flight)
                for server, connection in zip(servers, connections, strict=True)
            ]
            rows.append([name, *compare(runs, load.records, rounds, options.slice_seconds)])
        progress("")
    header = [
        "CPU µs per record; ratio to the first",
        *(c.resolve().name for c in options.checkouts),
    ]
    print_table("Broker CPU time by checkout", header, rows)


Measured = Callable[[int], float]


def _measured(pid: int, connection: Connection, frames: list[bytes], in_flight: int) -> Measured:
    """Return a function that exchanges requests, and returns the CPU seconds of the broker."""

    def run(count: int) -> float:
        start = cpu_seconds(pid)
        exchange(connection, frames, count, in_flight)
        return cpu_seconds(pid) - start

    return run


def compare(runs: list[Measured], records: int, rounds: int, slice_seconds: float) -> list[str]:
    """Let the brokers take turns; return the median cost of each, and its ratio to the first."""
    count = PARTITIONS
    while True:
        start = time.perf_counter()
        for run in runs:
            run(count)  # also warms up
        if time.perf_counter() - start > slice_seconds * len(runs):
            break
        count *= 2
    costs: list[list[float]] = []
    for number in range(rounds):
        order = list(range(len(runs)))
        if number % 2:
            order.reverse()
        found = [0.0] * len(runs)
        for index in order:
            found[index] = runs[index](count) / count / records * 1e6
        costs.append(found)
    cells = []
    for index in range(len(runs)):
        cost = statistics.median(found[index] for found in costs)
        ratios = [found[index] / found[0] for found in costs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(
            f"{cost:.3f}" if not index else f"{cost:.3f} ×{middle:.3f} ({low:.2f}–{high:.2f})"
        )
    return cells


if __name__ == "__main__":
    main()
