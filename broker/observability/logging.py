"""Structured logging: one line per event, as text or JSON, with the variable parts as fields.

    logger = logging.getLogger(__name__)
    logger.info("listening", extra={"listener": "PLAINTEXT", "address": "127.0.0.1:9092"})

    2026-11-16T12:00:00.123Z INFO  broker.server  listening  listener=PLAINTEXT address=…

A field cannot have the name of a log record's attribute (`name`, `args`, `module` …): logging
raises KeyError. Events that a peer can trigger at will are logged with `log_limited`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

# The attributes of every log record; all others are fields.
_STANDARD_ATTRIBUTES = {*logging.makeLogRecord({}).__dict__, "asctime", "message", "taskName"}


def configure_logging(level: str, format: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Log to a stream, by default stderr. A second call replaces the first one's handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name("ottla")
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [other for other in root.handlers if other.name == "ottla"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


class TextFormatter(logging.Formatter):
    """Formats lines for people. Values are escaped: a peer cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback below it."""
        fields = _fields(record)
        time_text, level, name, message = (fields.pop(key) for key in _HEADER)
        traceback = str(fields.pop("exception", "")).splitlines()
        pairs = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        line = f"{time_text} {level:<5} {name}  {_escaped(message)}" + (pairs and f"  {pairs}")
        return "\n    ".join([line, *traceback])


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(_fields(record), default=str)


class RateLimiter:
    """Lets at most `max_events` of a kind pass per window, and counts the others."""

    def __init__(self, max_events: int, window_seconds: float) -> None:
        self._max_events = max_events
        self._window_seconds = window_seconds
        self._windows: dict[object, tuple[float, int]] = {}

    def acquire(self, kind: object, now: float) -> int | None:
        """Return how many events were suppressed before this one; None to suppress this one."""
        end, count = self._windows.get(kind, (now, 0))
        if now < end:
            self._windows[kind] = end, count + 1
            return 0 if count < self._max_events else None
        self._windows[kind] = now + self._window_seconds, 1
        return max(count - self._max_events, 0)


_RATE_LIMITER = RateLimiter(10, window_seconds=10)


def log_limited(
    logger: logging.Logger,
    message: str,
    *,
    extra: Mapping[str, Any],
    level: int = logging.WARNING,
    exc_info: BaseException | None = None,
) -> None:
    """Log an event that a peer can trigger at will: at most ten per message in ten seconds.

    The next line has the number of suppressed ones. The message must be a constant, never a peer's
    data: the limiter keeps a window for each message.
    """
    if not logger.isEnabledFor(level):
        return
    suppressed = _RATE_LIMITER.acquire((logger.name, message), time.monotonic())
    if suppressed is not None:
        fields = {**extra, "suppressed": suppressed} if suppressed else extra
        logger.log(level, message, extra=fields, exc_info=exc_info)


#: Characters of a message or a field: peers choose client ids, group ids and more.
_MAX_VALUE_LENGTH = 2000
_HEADER = ("time", "level", "logger", "message")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line, the header first."""
    time_text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {
        "time": time_text.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name.removeprefix("ottla."),
        "message": _truncated(record.getMessage()),
    }
    for key, value in record.__dict__.items():
        if key not in _STANDARD_ATTRIBUTES:
            fields.setdefault(key, _truncated(value) if isinstance(value, str) else value)
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "…"


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())


def _escaped(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)
