"""What the Python drive scripts share: steps that may fail, and names that do not collide.

A drive script makes one client use as much of Kafka as it can. An error is material too: a step
that fails is reported, and the next one begins.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

#: Whom the SASL listener lets in (see the module `record`).
SASL_USER = SASL_PASSWORD = "golden"

logger = logging.getLogger("drive")


@dataclass(frozen=True)
class Addresses:
    """Where the recording proxy listens; `sasl` only if Kafka has such a listener."""

    plain: str
    sasl: str | None


def addresses() -> Addresses:
    """Read the command line: BOOTSTRAP [SASL_BOOTSTRAP]."""
    logging.basicConfig(level=logging.CRITICAL, format="%(message)s", stream=sys.stdout)
    logger.setLevel(logging.INFO)
    plain, *sasl = sys.argv[1:]
    return Addresses(plain, sasl[0] if sasl else None)


def run(*steps: Callable[[], Any]) -> None:
    """Run steps one after the other."""
    for step in steps:
        try:
            _report(step.__name__, step())
        except Exception as error:  # noqa: BLE001  # whatever it is, the next step does not mind
            _report(step.__name__, error)


async def arun(*steps: Callable[[], Awaitable[Any]], timeout: float = 20) -> None:
    """Run steps one after the other."""
    for step in steps:
        try:
            _report(step.__name__, await asyncio.wait_for(step(), timeout))
        except Exception as error:  # noqa: BLE001  # whatever it is, the next step does not mind
            _report(step.__name__, error)


def _report(name: str, result: object) -> None:
    if isinstance(result, Exception):
        logger.info("  %s: %s: %s", name, type(result).__name__, result)
    else:
        logger.info("  %s", name)
