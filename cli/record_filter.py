"""Filters of `ottla consume`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ottla.client.types import ConsumerRecord


@dataclass(frozen=True, slots=True)
class Filter:
    """Regular expressions; a record must match all of them."""

    key: re.Pattern[bytes] | None = None
    value: re.Pattern[bytes] | None = None
    headers: tuple[tuple[str, re.Pattern[bytes]], ...] = ()

    @classmethod
    def of(cls, key: str | None, value: str | None, headers: Iterable[str]) -> Filter:
        """Parse the options --key, --value and --header."""
        pairs = (text.partition("=") for text in headers)
        return cls(
            _compiled(key, "--key"),
            _compiled(value, "--value"),
            tuple((name, _compiled(regex, "--header") or _ANYTHING) for name, _, regex in pairs),
        )

    def matches(self, record: ConsumerRecord) -> bool:
        """Whether a record matches."""
        return (
            (self.key is None or self.key.search(record.key or b"") is not None)
            and (self.value is None or self.value.search(record.value or b"") is not None)
            and all(
                any(name == key and regex.search(value or b"") for key, value in record.headers)
                for name, regex in self.headers
            )
        )


_ANYTHING = re.compile(b"")


def _compiled(text: str | None, option: str) -> re.Pattern[bytes] | None:
    if not text:
        return None
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise click.BadParameter(
            f"invalid regular expression {text!r}: {error}", param_hint=option
        ) from error
