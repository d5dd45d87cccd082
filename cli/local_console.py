"""The console beside local brokers: `--console` of `ottla broker start` and `ottla cluster up`.

It is an ordinary `ottla console` in a process of its own, so that it takes no time of a broker's
event loop. It ends with the process that started it, even if that one is killed: its stdin closes.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from .errors import Exit, Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from ottla.broker.config.broker_config import BrokerConfig

_HOST = "127.0.0.1"
_DEFAULT_PORT = 8080
_STOP_SECONDS = 10
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # not bound
_MODULES = ("fastapi", "jinja2", "uvicorn")


def console_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--console`, which may have a port."""
    return click.option(
        "--console",
        "console_port",
        metavar="[PORT]",
        type=click.IntRange(1, 65535),
        is_flag=False,
        flag_value=_DEFAULT_PORT,
        help=f"Also serve the web console, on {_HOST}:PORT.  [default port: {_DEFAULT_PORT}]",
    )(command)


def bootstrap_of(config: BrokerConfig) -> str:
    """Return the address at which a console without credentials reaches a broker.

    Raises Failure if there is none.
    """
    for listener in config.parsed_listeners:
        if listener.port and config.security_of(listener.name).protocol == "PLAINTEXT":
            return f"{_WILDCARDS.get(listener.host, listener.host)}:{listener.port}"
    raise Failure(
        "--console needs a PLAINTEXT listener with a fixed port; for others, run ottla console"
        " with --bootstrap and --command-config",
        Exit.USAGE,
    )


class LocalConsole:
    """The process of a console, while in context. Raises Failure if it could not start."""

    def __init__(self, port: int, bootstrap: str) -> None:
        self._port, self._bootstrap = port, bootstrap
        missing = [name for name in _MODULES if find_spec(name) is None]
        if missing:
            raise Failure(f'--console needs {", ".join(missing)}: pip install "ottla[console]"')
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError as error:
                raise Failure(
                    f"{_HOST}:{port}: {error.strerror}; use another port: --console PORT"
                ) from None

    def __enter__(self) -> Self:
        words = ("console", "--bootstrap", self._bootstrap, "--port", str(self._port))
        self._process = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-m", "ottla", *words, "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            # The output of the brokers' command is for programs; its log goes to stderr.
            stdout=2,
            # Ctrl-C reaches the brokers first.
            process_group=0,
        )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
