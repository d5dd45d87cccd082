"""A client that has no part in a fault, and must not notice it.

A bystander is a process of its own with one connection and one topic. It produces a record with
acks=1, without fsync, and fetches it again, all the time. `Bystanders` runs two: one on the broker
under attack, and a control on an idle broker on the same machine. The limit for the 99th percentile
of its round trips is 50 ms. With fewer than a hundred of them the percentile is the maximum.

A busy machine is not held against the broker: the limit is higher by the 99th percentile of the
control, and the time is not counted in which the bystander, or the event loop of the broker, was
ready to run and waited for a CPU, by Linux's schedstat. Time in which the event loop runs, sleeps,
or waits for the GIL or the disk is counted.

    with Bystanders(broker, folder) as bystanders:
        ...                                 # an attack on the broker
    bystanders.result().check_latency()     # raises AssertionError
    bystanders.result().check_restarts(broker.launches)

A request that fails, because the broker is down, is repeated until it succeeds: the time to the
first success after a restart is at most two seconds, plus the longest wait of the control, and the
time that the process waited for a CPU while it started.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from select import POLLIN, poll
from types import TracebackType
from typing import IO, NamedTuple, Self

from harness.daemon import Daemon, Launch, cpu_wait_seconds
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.waiting import wait_until
from harness.wire import (
    BlockingWireClient,
    batches_of,
    fetch_request,
    fetched_partitions,
    produce_request,
    produce_results,
)
from ottla.protocol.errors import ErrorCode

TOPIC = "bystander"
#: The limit for the 99th percentile, above that of the control.
LATENCY_SECONDS = 0.050
#: The limit for the time from the start of a broker's process to the first success.
RESTART_SECONDS = 2.0
PAUSE_SECONDS = 0.004
_SAMPLE = struct.Struct("=ddd?")
_TESTS = Path(__file__).resolve().parent.parent


class Sample(NamedTuple):
    """A round trip: when it began and ended, by the monotonic clock that all processes share."""

    began: float
    ended: float
    #: How long the bystander and the broker waited for a CPU.
    cpu_wait_seconds: float
    is_success: bool

    @property
    def seconds(self) -> float:
        """How long it took, without the time that both processes waited for a CPU."""
        return max(0.0, self.ended - self.began - self.cpu_wait_seconds)


@dataclass(frozen=True)
class Result:
    """The round trips of a bystander and of its control."""

    samples: Sequence[Sample]
    control: Sequence[Sample]

    @property
    def p99(self) -> float:
        """The 99th percentile of successful round trips, in seconds."""
        return percentile(self.samples)

    @property
    def control_p99(self) -> float:
        """The 99th percentile of the control."""
        return percentile(self.control)

    @property
    def longest_silence(self) -> float:
        """The longest time without a success, in seconds."""
        ended = [sample.ended for sample in self.samples if sample.is_success]
        gaps = [after - before for before, after in pairwise(ended)]
        return max(gaps, default=0.0)

    def check_latency(self) -> None:
        """Assert that others did not notice the attack: every request succeeded, in time."""
        failed = [sample for sample in self.samples if not sample.is_success]
        assert not failed, f"{len(failed)} requests of a bystander failed"
        limit = LATENCY_SECONDS + self.control_p99
        assert self.p99 < limit, (
            f"99th percentile of a bystander {self.p99 * 1000:.0f} ms, of the control "
            f"{self.control_p99 * 1000:.0f} ms, in {len(self.samples)} round trips"
        )

    def check_restarts(
        self, launches: Iterable[Launch], limit_seconds: float = RESTART_SECONDS
    ) -> float:
        """Assert that a broker serves in time after each start; return the longest time."""
        successes = [sample.ended for sample in self.samples if sample.is_success]
        longest = 0.0
        for launch in launches:
            if not successes or launch.at < successes[0]:
                continue
            after = bisect_left(successes, launch.at)
            assert after < len(successes), "a bystander was not served after a restart"
            seconds = successes[after] - launch.at
            window = [s.seconds for s in self.control if launch.at <= s.ended <= successes[after]]
            limit = limit_seconds + max(window, default=0.0) + launch.cpu_wait_seconds
            assert seconds < limit, (
                f"a bystander was served {seconds:.2f} s after a restart, limit {limit:.2f} s"
            )
            longest = max(longest, seconds)
        return longest


def percentile(samples: Iterable[Sample], share: float = 0.99) -> float:
    """Return a percentile of successful round trips, in seconds."""
    times = sorted(sample.seconds for sample in samples if sample.is_success)
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def _is_readable(file: IO[str], seconds: float) -> bool:
    """Wait until a pipe can be read. Unlike `select`, with any number of open files."""
    pipe = poll()
    pipe.register(file, POLLIN)
    return bool(pipe.poll(seconds * 1000))


class Bystander:
    """The process of a bystander. It is started once, and works for one broker after another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._file = Path()

    def start(self, broker: Daemon, file: Path) -> None:
        """Begin round trips; the topic exists."""
        if self._process is None:
            env = os.environ | {"PYTHONPATH": str(_TESTS)}
            command = [sys.executable, "-m", "harness.bystander"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        self._file = file
        file.unlink(missing_ok=True)
        self._send(f"{broker.address} {broker.pid} {file}")

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def wait_until_served(self) -> None:
        """Wait for the first success."""
        wait_until(lambda: any(s.is_success for s in self.samples()), "a bystander is served")

    def samples(self) -> list[Sample]:
        """Return the samples so far."""
        content = self._file.read_bytes() if self._file.exists() else b""
        whole = len(content) // _SAMPLE.size * _SAMPLE.size
        return [Sample(*fields) for fields in _SAMPLE.iter_unpack(content[:whole])]

    def stop(self) -> None:
        """Stop after the round trip in flight, or kill the process if that takes too long."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._send("stop")
            if _is_readable(self._process.stdout, 5):
                assert self._process.stdout.readline() == "stopped\n"
            else:
                self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes
                self._process = None


class Bystanders:
    """A bystander on a broker, and the control on an idle one.

    The idle broker and the processes are kept for the next test, until `Bystanders.close`.
    """

    _bystander = Bystander()
    _control = Bystander()
    _idle: Daemon | None = None

    def __init__(self, broker: Daemon, folder: Path, broker_id: int = 0) -> None:
        self._broker = broker
        self._broker_id = broker_id
        self._folder = folder

    def result(self, since: float = 0.0, until: float = math.inf) -> Result:
        """Return the round trips in a time in which both bystanders ran."""
        everything = self._bystander.samples(), self._control.samples()
        since = max(since, *(samples[0].ended for samples in everything if samples))
        both = [[s for s in each if s.ended > since and s.began < until] for each in everything]
        return Result(*both)

    def __enter__(self) -> Self:
        try:
            create_topic(self._broker, self._broker_id)
            self._bystander.start(self._broker, self._folder / "bystander.samples")
            self._control.start(self._idle_broker(), self._folder / "control.samples")
            self._bystander.wait_until_served()
            self._control.wait_until_served()
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def _idle_broker(cls) -> Daemon:
        if cls._idle is None:
            cls._idle = Daemon(Path(tempfile.mkdtemp(prefix="ottla-control-"))).start()
            create_topic(cls._idle, 0)
        return cls._idle

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._bystander.stop()
        self._control.stop()

    @classmethod
    def close(cls) -> None:
        """End the processes."""
        cls._bystander.close()
        cls._control.close()
        if cls._idle is not None:
            cls._idle.kill()
            shutil.rmtree(cls._idle.folder, ignore_errors=True)
            cls._idle = None


atexit.register(Bystanders.close)


def create_topic(broker: Daemon, broker_id: int) -> None:
    """Create the topic; acks=1 never waits for an fsync."""
    # Old records are deleted, so that a long run does not fill the disk.
    configs = {"durability": "page-cache", "retention_bytes": "8000000", "segment_bytes": "2000000"}
    request = create_topics_request(TOPIC, leaders=[broker_id], **configs)
    with BlockingWireClient(broker) as connection:
        (topic,) = connection.request(request, 5).topics
        # Tests that share a broker have one bystander after the other.
        assert topic.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), topic


class _Connection:
    """The bystander's connection, opened again after an error."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: BlockingWireClient | None = None

    def round_trip(self, batch: bytes) -> bool:
        """Produce a batch and fetch it; return whether both succeeded."""
        try:
            if self._client is None:
                self._client = BlockingWireClient(self._address)
            request = self._client.request
            (result,) = produce_results(request(produce_request(batch, topic=TOPIC), 9))
            if result.error_code:
                return False
            fetch = fetch_request(result.base_offset, topic=TOPIC, min_bytes=0)
            (data,) = fetched_partitions(request(fetch, 12))
            found = batches_of(data)
            return bool(found) and found[0].base_offset == result.base_offset
        except (OSError, EOFError):
            self.close()
            return False

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def main() -> None:
    """Work on one broker after another, until the standard input is closed."""
    batch = bytes(a_batch(time=int(time.time() * 1000)))
    for line in sys.stdin:
        address, pid, path = line.strip().split(" ", 2)
        connection = _Connection(address)
        with Path(path).open("ab", buffering=0) as file:
            while not _is_readable(sys.stdin, PAUSE_SECONDS):
                waited = cpu_wait_seconds("self") + cpu_wait_seconds(pid)
                began = time.monotonic()
                is_success = connection.round_trip(batch)
                ended = time.monotonic()
                # Less than before if the broker was restarted.
                waited = max(0.0, cpu_wait_seconds("self") + cpu_wait_seconds(pid) - waited)
                file.write(_SAMPLE.pack(began, ended, waited, is_success))
        connection.close()
        if not sys.stdin.readline():
            return
        print("stopped", flush=True)


if __name__ == "__main__":
    main()
