"""The client's process: it takes commands, one JSON line each, and answers with a line each.

A command is a function of a module in this folder, which is imported when it is first asked for. A
process ends when its input does.
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
    """A command did not do what it should."""


class Driver:
    """The process, as the benchmark sees it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Do something."""
        self.begin(command, **arguments)
        return self.end()

    def begin(self, command: str, **arguments: Any) -> None:
        """Start to do something."""
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

    def end(self) -> dict[str, Any]:
        """Wait until it is done."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        late = threading.Timer(CALL_SECONDS, process.kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        if not line:
            # Another one takes its place.
            self.stop()
            raise DriverError(f"the client died, or was not done in {CALL_SECONDS} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Do what is asked."""
    for line in sys.stdin:
        command, arguments = json.loads(line)
        module, _, function = command.rpartition(".")
        try:
            answer = getattr(import_module(module), function)(**arguments)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the benchmark is told
            answer = {"error": f"{command}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
