"""Filters of records: text, a regular expression, or a comparison with a JSON path.

text     the key, value or a header contains it, in any case
regex    matches a part of them; runs in another process, with a time limit
json     $.user.name == "ann", $.items[0].price > 10, or $.user.email: it exists
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from ottla.client import ConsumerRecord

from .problems import Problem

FilterKind = Literal["text", "regex", "json"]
FilterField = Literal["any", "key", "value", "headers"]

MAX_FILTER_CHARACTERS = 1000
# Of each field, what a regular expression searches.
_SEARCHED_BYTES = 256 * 1024
_EARNED = 0.1
_WORKER = Path(__file__).with_name("regex_worker.py")
_EXPRESSION = re.compile(r"(?P<path>\$[^=!<>~\s]*)(\s*(?P<op>==|!=|<=|>=|<|>|~)\s*(?P<value>.+))?")
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>-?[0-9]+)\]|\[\"(?P<quoted>[^\"]+)\"\]")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda found, wanted: str(wanted).casefold() in str(found).casefold(),
}


class RecordFilter(Protocol):
    """Selects records; closed when the query ends."""

    #: Whether there are records that it does not select.
    is_selective: bool

    async def select(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that match. Raises Problem."""

    async def close(self) -> None:
        """Free resources."""


class Everything:
    """No filter."""

    is_selective = False

    async def select(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return all records."""
        return list(records)

    async def close(self) -> None:
        """Nothing to free."""


class Matching(Everything):
    """A function of a record, in a thread: a large value takes a while to parse."""

    is_selective = True

    def __init__(self, matches: Callable[[ConsumerRecord], bool]) -> None:
        self._matches = matches

    async def select(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that match."""
        return await asyncio.to_thread(lambda: [one for one in records if self._matches(one)])


class Regex:
    """A regular expression, in a process that is killed when its time is up.

    A tenth of the time that passes is given back: a live tail searches for as long as it lives.
    """

    is_selective = True

    def __init__(self, pattern: str, field: FilterField, seconds: float) -> None:
        self._pattern, self._field = pattern, field
        self._seconds = self._remaining = seconds
        self._ended = time.monotonic()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self) -> None:
        """Raise Problem if it is invalid; in a thread, because compiling it can take a second."""
        try:
            await asyncio.to_thread(re.compile, self._pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise Problem(422, f"Invalid regular expression: {error}") from None

    async def select(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that match. Raises Problem when the time is up."""
        if not records:
            return []
        texts = await asyncio.to_thread(
            lambda: json.dumps([_texts(one, self._field) for one in records])
        )
        process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        started = time.monotonic()
        earned = (started - self._ended) * _EARNED
        self._remaining = min(self._seconds, self._remaining + earned)
        try:
            async with asyncio.timeout(max(0.0, self._remaining)):
                process.stdin.write(f"{texts}\n".encode())
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except (TimeoutError, ConnectionError):
            answer = b""
        if not answer:
            raise Problem(
                422, "The regular expression takes too long: use a simpler one, or fewer records"
            )
        self._ended = time.monotonic()
        self._remaining -= self._ended - started
        return [records[number] for number in json.loads(answer)]

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_WORKER), str(math.ceil(self._seconds) + 1)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=1024 * 1024,
            )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._pattern).encode() + b"\n")
        return self._process

    async def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def filter_of(
    text: str | None, kind: FilterKind, field: FilterField, regex_seconds: float
) -> RecordFilter:
    """Return the filter of a query. Raises Problem."""
    if not text:
        return Everything()
    if len(text) > MAX_FILTER_CHARACTERS:
        raise Problem(422, f"The filter is longer than {MAX_FILTER_CHARACTERS} characters")
    if kind == "regex":
        regex = Regex(text, field, regex_seconds)
        await regex.check()
        return regex
    if kind == "json":
        return Matching(json_condition(text, field))
    return Matching(_contains(text.casefold(), field))


def _contains(wanted: str, field: FilterField) -> Callable[[ConsumerRecord], bool]:
    if wanted.isascii():  # several times as fast
        data = wanted.encode()
        return lambda one: any(data in part.lower() for part in _parts(one, field))
    return lambda one: any(
        wanted in part.decode(errors="replace").casefold() for part in _parts(one, field)
    )


def json_condition(text: str, field: FilterField) -> Callable[[ConsumerRecord], bool]:
    """Return the condition that an expression such as `$.a[0].b >= 5` is. Raises Problem."""
    match = _EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise Problem(422, f'Invalid JSON filter {text!r}: expected $.path or $.path == "value"')
    steps = _steps(match["path"])
    compare = _OPERATORS[match["op"]] if match["op"] else None
    wanted = _literal(match["value"]) if match["op"] else None

    def matches(record: ConsumerRecord) -> bool:
        for part in _parts(record, "value" if field == "any" else field):
            try:
                found = _follow(json.loads(part), steps)
            except (ValueError, RecursionError, LookupError, TypeError):
                continue
            if compare is None:
                return True
            with suppress(TypeError, RecursionError):  # 5 < "a"; deeply nested
                if compare(found, wanted):
                    return True
        return False

    return matches


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise Problem(422, f"Invalid JSON path {path!r}: expected $.name[0].name")
        position = match.end()
        index = match["index"]
        steps.append(int(index) if index else match["name"] or match["quoted"])
    return steps


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _follow(document: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int) != isinstance(document, list):
            raise LookupError(step)
        document = document[step]
    return document


def _parts(record: ConsumerRecord, field: FilterField) -> list[bytes]:
    parts: list[bytes | None] = []
    if field in ("any", "key"):
        parts.append(record.key)
    if field in ("any", "value"):
        parts.append(record.value)
    if field in ("any", "headers"):
        for name, value in record.headers:
            parts += [name.encode(), value]
    return [part for part in parts if part]


def _texts(record: ConsumerRecord, field: FilterField) -> list[str]:
    return [part[:_SEARCHED_BYTES].decode(errors="replace") for part in _parts(record, field)]
