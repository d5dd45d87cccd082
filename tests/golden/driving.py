"""Shared code of the Python drive scripts.

A drive script makes one client use as many of its features as possible, in steps. Errors are worth
recording, too: a step that fails is reported, and the next one starts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

#: The credentials of the SASL listener; see `record`.
SASL_USER = SASL_PASSWORD = "golden"

logger = logging.getLogger("drive")


@dataclass(frozen=True)
class Addresses:
    """The addresses of the recording proxy; `sasl` is None if Kafka has no SASL listener."""

    plain: str
    sasl: str | None


def addresses() -> Addresses:
    """Parse the command line: BOOTSTRAP [SASL_BOOTSTRAP]."""
    logging.basicConfig(level=logging.CRITICAL, format="%(message)s", stream=sys.stdout)
    logger.setLevel(logging.INFO)
    plain, *sasl = sys.argv[1:]
    return Addresses(plain, sasl[0] if sasl else None)


def run(*steps: Callable[[], Any]) -> None:
    """Run steps in order."""
    for step in steps:
        try:
            _report(step.__name__, step())
        except Exception as error:  # noqa: BLE001  # the next step runs anyway
            _report(step.__name__, error)


async def arun(*steps: Callable[[], Awaitable[Any]], timeout: float = 20) -> None:
    """Run asynchronous steps in order, each with a timeout in seconds."""
    for step in steps:
        try:
            _report(step.__name__, await asyncio.wait_for(step(), timeout))
        except Exception as error:  # noqa: BLE001  # the next step runs anyway
            _report(step.__name__, error)


def _report(name: str, result: object) -> None:
    if isinstance(result, Exception):
        logger.info("  %s: %s: %s", name, type(result).__name__, result)
    else:
        logger.info("  %s", name)
