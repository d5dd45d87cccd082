"""What a coordinator wants done. It does nothing itself; the broker does it, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ottla.protocol.schema import Message

from .metadata_image import KeyValue


class Reply(NamedTuple):
    """Answer a request, which is known by whatever the broker gave with it."""

    token: Any
    response: Message


class Append(NamedTuple):
    """Write records, and say whether they are written: that gives more effects.

    Nothing that depends on them has happened before.
    """

    group_id: str
    records: Sequence[KeyValue]
    stored: Callable[[Exception | None], list[Effect]]


Effect = Reply | Append
