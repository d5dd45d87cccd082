"""The command line, run in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from ottla.__main__ import ottla


class Command:
    """`ottla`, for one cluster."""

    def __init__(self, address: str, home: str) -> None:
        self.address = address
        self.environ = {"OTTLA_BOOTSTRAP": address, "XDG_CONFIG_HOME": home, "OTTLA_PROFILE": None}

    def run(self, *arguments: str, stdin: str | bytes | None = None, **environ: str) -> Result:
        """Run a command and return its result."""
        return CliRunner().invoke(
            ottla,
            list(arguments),
            input=stdin,
            env={**self.environ, **environ},
            prog_name="ottla",
        )

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """Run a command that must succeed; return its stdout."""
        done = self.run(*arguments, stdin=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def rows(self, *arguments: str, stdin: str | bytes | None = None) -> list[Any]:
        """Return the JSON lines that a command prints."""
        return list(map(json.loads, self(*arguments, "--json", stdin=stdin).splitlines()))

    def fails(self, code: int, *arguments: str, stdin: str | bytes | None = None) -> str:
        """Run a command that must fail with an exit code and print nothing; return its stderr."""
        done = self.run(*arguments, stdin=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        assert not done.stdout, done.stdout
        return done.stderr
