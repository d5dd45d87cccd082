"""The client process: it reads commands as JSON lines, and writes one JSON line for each.

A command is the name of a function of a module in this directory, which is imported on first use,
and its arguments. The process ends with its input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

CALL_SECONDS = 150


class DriverError(Exception):
    """A command failed, or the client process died."""


class Driver:
    """The client process, as seen by the benchmark; started by the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command, and return its result."""
        self.begin(command, **arguments)
        return self.end()

    def begin(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for its result."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """Wait for the result of the command."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        timeout = threading.Timer(CALL_SECONDS, process.kill)
        timeout.start()
        line = process.stdout.readline()
        timeout.cancel()
        if not line:
            self.stop()  # the next command starts a new process
            raise DriverError(f"the client process died or did not finish in {CALL_SECONDS} s")
        response = json.loads(line)
        if "error" in response:
            raise DriverError(response["error"])
        return response["result"]

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Run commands from stdin."""
    for line in sys.stdin:
        command, arguments = json.loads(line)
        module, _, function = command.rpartition(".")
        try:
            response = {"result": getattr(import_module(module), function)(**arguments)}
        except Exception as error:  # noqa: BLE001 - every error is reported to the benchmark
            response = {"error": f"{command}: {type(error).__name__}: {error}"}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
