"""Commands on several names: each name succeeds or fails on its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from . import output
from .errors import Failure, exit_code_of, failure_of

V = TypeVar("V")


class Outcomes:
    """The outcome of each name, to be printed in the order in which the names were given."""

    def __init__(self, noun: str, names: Collection[str]) -> None:
        self._noun = noun
        self.names = list(dict.fromkeys(names))
        self._done: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._failed: dict[str, Failure] = {}

    def attempt(
        self, call: Callable[..., Mapping[str, V] | None], names: Collection[str] | None = None
    ) -> dict[str, V | None]:
        """Call an admin method with names; return the results of those that succeed."""
        from ottla.client.admin import PartialError
        from ottla.client.errors import KafkaError

        items = self.names if names is None else list(names)
        if not items:
            return {}
        try:
            results = call(*items) or {}
        except PartialError as error:
            self._failed |= {
                name: failure_of(reason) or Failure(str(reason))
                for name, reason in error.failed.items()
            }
            results = error.done
            return {name: results.get(name) for name in items if name not in self._failed}
        except KafkaError as error:
            failure = failure_of(error)
            assert failure is not None
            self._failed |= dict.fromkeys(items, failure)
            return {}
        return {name: results.get(name) for name in items}

    def succeed(self, name: str, text: str, **fields: Any) -> None:
        """Record a success: its text, and its fields for JSON."""
        self._done[name] = (text, fields)

    def print(self, *, as_json: bool) -> None:
        """Print the outcomes; failures go to stderr. Exit with an error unless all succeeded."""
        if as_json:
            output.print_json([self._json(name) for name in self.names])
        else:
            for name in self.names:
                if name in self._done:
                    click.echo(f"{name}: {self._done[name][0]}")
        self.finish()

    def finish(self) -> None:
        """Print the failures to stderr, and exit with an error if there are any."""
        for name, failure in self._failed.items():
            click.echo(f"error: {name}: {failure.message}", err=True)
        if self._failed:
            is_partial = len(self._failed) < len(self.names)
            raise click.exceptions.Exit(exit_code_of(self._failed.values(), is_partial=is_partial))

    def _json(self, name: str) -> dict[str, Any]:
        if name in self._failed:
            return {self._noun: name, "error": self._failed[name].message}
        return {self._noun: name, **self._done[name][1], "error": None}
