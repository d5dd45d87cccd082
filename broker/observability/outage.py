"""Logs attempts to reach a peer that fail.

Brokers start and stop one after another, so a peer that cannot be reached for a moment needs no
look. One that stays away does.
"""

from __future__ import annotations

import logging
import time
from typing import Any

#: After this long it is a warning: longer than a restart.
GRACE_SECONDS = 10.0


class Outage:
    """Failures to reach one peer: the first is logged at INFO, one that lasts at WARNING, once."""

    def __init__(
        self, logger: logging.Logger, message: str, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._logger = logger
        self._message = message
        self._grace_seconds = grace_seconds
        #: The number of failures since the peer was reached.
        self.failures = 0
        self._since = 0.0
        self._has_warned = False

    def failed(self, **fields: Any) -> None:
        """Log a failure."""
        now = time.monotonic()
        level = logging.DEBUG
        if not self.failures:
            self._since, self._has_warned, level = now, False, logging.INFO
        elif not self._has_warned and now - self._since >= self._grace_seconds:
            self._has_warned, level = True, logging.WARNING
        self.failures += 1
        self._logger.log(level, self._message, extra=fields)

    def ended(self) -> None:
        """Note that the peer was reached."""
        self.failures = 0
