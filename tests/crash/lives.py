"""Runs the writer process until it is killed, and verifies its logs afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crash.writer import LOGS, open_directory, rows, value_of

WRITER = Path(__file__).with_name("writer.py")
Acked = dict[str, int]
#: Longer than anything takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 60


class Writers:
    """Starts writer processes and kills them."""

    def __init__(self, folder: Path) -> None:
        self._acks = folder / "acks"
        self._errors = folder / "errors"
        with self._errors.open("ab") as errors:
            self._forker = subprocess.Popen(
                [sys.executable, str(WRITER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(
        self,
        path: Path,
        mode: str,
        *,
        seed: int,
        seconds: float,
        end: Callable[[], None] | None = None,
    ) -> Acked:
        """Let a process write for some seconds after its first ack, call `end`, then kill it.

        Returns the end offset of the acked records of each log. With `end`, acks after it do not
        count: when the power is cut, the running kernel may still report a successful fsync.
        """
        self._acks.write_bytes(b"")
        self._send(json.dumps([str(path), str(self._acks), mode, seed]))
        process = int(self._forker.stdout.readline())
        count = None
        try:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self._acks.stat().st_size == 0 and not self._errors.stat().st_size:
                assert time.monotonic() < deadline, f"No ack in {TIMEOUT_SECONDS} s"
                time.sleep(0.001)
            time.sleep(seconds)
            errors = self._errors.read_text()
            assert not errors, errors
            if end is not None:
                count = self._acks.stat().st_size
                end()
        finally:
            os.kill(process, signal.SIGKILL)
            self._send("")
            assert self._forker.stdout.readline() == "ended\n"
            self._errors.write_bytes(b"")
        acked: Acked = {}
        for line in self._acks.read_bytes()[:count].decode().splitlines(keepends=True):
            if line.endswith("\n"):
                name, base_offset, sequence, records = line.split()
                assert base_offset == sequence, (
                    "The log has more or fewer records than were appended"
                )
                acked[name] = int(sequence) + int(records)
        return acked

    def _send(self, line: str) -> None:
        self._forker.stdin.write(line + "\n")
        self._forker.stdin.flush()

    def close(self) -> None:
        self._forker.stdin.close()
        self._forker.wait(TIMEOUT_SECONDS)
        self._forker.stdout.close()


@contextmanager
def writers(folder: Path) -> Iterator[Writers]:
    started = Writers(folder)
    try:
        yield started
    finally:
        started.close()


def lost_records(path: Path, acked: Acked, *, clean: bool, may_have_gaps: bool = False) -> int:
    """Open the directory and verify each log; return the number of lost acked records."""
    logs = open_directory(path)
    assert logs.failed == {}
    lost = 0
    for name in LOGS:
        found = dict(rows(logs.logs[name])) if name in logs.logs else {}
        lost += len(set(range(acked.get(name, 0))) - set(found))
        assert found == {offset: value_of(name, offset) for offset in found}, name
        if found and not may_have_gaps:
            log = logs.logs[name]
            end = log.end_offset
            assert list(found) == list(range(end)), name
            assert [(p.last_sequence, p.last_offset) for p in log.producer_states] == [
                (end - 1, end - 1)
            ]
    logs.close()
    if not clean:
        (path / "clean-shutdown").unlink()
    return lost
