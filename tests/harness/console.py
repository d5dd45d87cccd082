"""The console as a process, and a small client of its REST API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from harness.daemon import free_port

TIMEOUT_SECONDS = 30


class Answer(NamedTuple):
    """The response to a request."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        """The document in it."""
        return json.loads(self.text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        return None


_open = urllib.request.build_opener(_NoRedirects).open


# The command line, with limits that have no options.
_START = (
    "-c",
    """
import json, sys
from functools import partial
from ottla.__main__ import main
from ottla.console import config
limits = config.Limits(**json.loads(sys.argv.pop(1)))
config.ConsoleConfig = partial(config.ConsoleConfig, limits=limits)
main()
""",
)


class Console:
    """`ottla console` for a cluster, with its log on stderr or in a file."""

    def __init__(
        self,
        bootstrap: str,
        *options: str,
        log: Path | None = None,
        limits: dict[str, float] | None = None,
    ) -> None:
        self.port = free_port()
        command = ["console", "--bootstrap", bootstrap, "--port", str(self.port), *options]
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._command = [sys.executable, *_START, json.dumps(limits or {}), *command]

    def __enter__(self) -> Self:
        environ = {name: one for name, one in os.environ.items() if not name.startswith("OTTLA_")}
        with ExitStack() as stack:
            stderr = None if self._log is None else stack.enter_context(self._log.open("ab"))
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=stderr, env=environ, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert self.address in line, line
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        assert self.stop() == 0

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.terminate()
        code = self._process.wait(TIMEOUT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; `content_type` is a header."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=data,
            headers={"content-type": "application/json", **named},
        )
        try:
            with _open(request, timeout=TIMEOUT_SECONDS) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())

    def api(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """Send a request to the REST API; return the document of the expected answer."""
        answer = self.request(method, f"/api/v1{path}", body)
        assert answer.status == status, answer.text
        return answer.json if answer.text else None
