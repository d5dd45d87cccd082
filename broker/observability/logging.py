"""How the broker logs: one line for each event, as text or as JSON, with fields for what varies.

    log = logging.getLogger(__name__)
    log.info("listening", extra={"listener": "PLAINTEXT", "address": "127.0.0.1:9092"})

    2026-11-16T12:00:00.123Z INFO  broker.server  listening  listener=PLAINTEXT address=…

A field may not be called like an attribute of a log record (`name`, `args`, `module` and such):
logging refuses it. What a peer can provoke at will is logged through `log_limited`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

# Attributes that every record has: all others are fields.
_STANDARD = {*logging.makeLogRecord({}).__dict__, "asctime", "message", "taskName"}


def configure_logging(level: str, format: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Send what is logged to a stream, stderr unless told otherwise; a second call replaces."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name("ottla")
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [other for other in root.handlers if other.name == "ottla"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


class TextFormatter(logging.Formatter):
    """Lines for people. Nothing that a peer sent can start a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line, and a traceback below it."""
        facts = _facts(record)
        moment, level, name, message = (facts.pop(key) for key in _HEAD)
        problem = str(facts.pop("exception", "")).splitlines()
        fields = " ".join(f"{key}={_plain(value)}" for key, value in facts.items())
        line = f"{moment} {level:<5} {name}  {_escaped(message)}" + (fields and f"  {fields}")
        return "\n    ".join([line, *problem])


class JsonFormatter(logging.Formatter):
    """Lines for programs: an object each."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        return json.dumps(_facts(record), default=str)


class RateLimiter:
    """Lets at most so many of a kind pass in a while, and counts the others."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._windows: dict[object, tuple[float, int]] = {}

    def take(self, kind: object, now: float) -> int | None:
        """Give how many were left out before this one, or None if this one is to be left out."""
        end, count = self._windows.get(kind, (now, 0))
        if now < end:
            self._windows[kind] = end, count + 1
            return 0 if count < self._most else None
        self._windows[kind] = now + self._seconds, 1
        return max(count - self._most, 0)


_RATION = RateLimiter(10, seconds=10)


def log_limited(
    logger: logging.Logger,
    message: str,
    *,
    extra: Mapping[str, Any],
    level: int = logging.WARNING,
    exc_info: BaseException | None = None,
) -> None:
    """Log what a peer can provoke at will: ten lines in ten seconds with the same message.

    The next line says how many were left out. The message is a constant of the program, never
    something that a peer chose: the number of kinds has no other bound.
    """
    if not logger.isEnabledFor(level):
        return
    left_out = _RATION.take((logger.name, message), time.monotonic())
    if left_out is not None:
        more = {"left_out": left_out} if left_out else {}
        logger.log(level, message, extra={**extra, **more}, exc_info=exc_info)


_HEAD = ("time", "level", "logger", "message")


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Give what a line says, the head first."""
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    facts: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name.removeprefix("ottla."),
        "message": record.getMessage(),
    }
    for key, value in record.__dict__.items():
        if key not in _STANDARD:
            facts.setdefault(key, value)
    if record.exc_info:
        facts["exception"] = logging.Formatter().formatException(record.exc_info)
    return facts


def _plain(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())


def _escaped(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)
