"""The scrubber: verifies all sealed segments, slowly, to find damage before consumers do.

A pass goes through the logs by name, and through the segments of each by offset. A thread of its
own reads them, at most log.scrub.bytes.per.second. The file `scrub` in the data directory has the
scrubber's place after each segment, the damage found so far, and the time of the last complete
pass: a restart continues there, and damage is logged once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.storage.disk import read_json
from ottla.storage.scrub import Damage, SegmentFile, verify_segment
from ottla.storage.segment_recovery import read_gaps
from ottla.storage.throttled_reader import Throttler

if TYPE_CHECKING:
    from ottla.storage.log import Log

    from ..broker import Broker

logger = logging.getLogger(__name__)

STATE_FILE = "scrub"
#: Damaged ranges that are remembered, and so logged, at most.
_MAX_DAMAGES = 1000


class Scrubber:
    """Verifies the logs of a broker. Raises CompactionStoppedError once `stop` is set."""

    def __init__(self, broker: Broker, stop: threading.Event) -> None:
        self._broker = broker
        self._stop = stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrubber")
        self._is_loaded = False
        # When the last pass started, and the last log and base offset that it has verified; None
        # if it is complete.
        self._started_ms = 0
        self._place: tuple[str, int] | None = None
        # Positions by log and base offset of their segment.
        self._damaged: dict[tuple[str, int], set[int]] = {}
        #: When the last complete pass ended; 0 before the first.
        self.last_pass_ms = 0
        self.verified_bytes = 0

    @property
    def damage_count(self) -> int:
        """The damaged ranges that are known."""
        return sum(map(len, list(self._damaged.values())))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def run_if_due(self) -> None:
        """Run a pass, or continue one, if log.scrub.interval.ms have passed since it started."""
        if not self._is_loaded:
            self._load()
        interval_ms = self._broker.config.log_scrub_interval_ms
        now_ms = self._broker.now_ms()
        if not interval_ms:
            return
        if self._place is None:
            # A clock that was set back does not delay the next pass by more than an interval.
            if self._started_ms <= now_ms < self._started_ms + interval_ms:
                return
            self._started_ms, self._place = now_ms, ("", -1)
        await self._run()

    async def _run(self) -> None:
        assert self._place is not None
        logs = self._broker.logs.logs
        for name in sorted(logs):
            log = logs.get(name)
            if name < self._place[0] or log is None:
                continue
            after = self._place[1] if name == self._place[0] else -1
            for segment in await asyncio.to_thread(_sealed_segments, log):
                if segment.base_offset > after:
                    if not self._broker.config.log_scrub_interval_ms:
                        return
                    await self._verify(name, segment)
        self._forget_deleted()
        self._place, self.last_pass_ms = None, self._broker.now_ms()
        self._save()

    async def _verify(self, name: str, segment: SegmentFile) -> None:
        throttler = Throttler(self._broker.config.log_scrub_bytes_per_second, self._stop)
        loop = asyncio.get_running_loop()
        throttler.spend(0)  # Raises if the broker stops, and with it the thread.

        def spend(size: int) -> None:
            throttler.spend(size)
            self.verified_bytes += size

        verify = partial(
            verify_segment, segment, self._broker.logs.disk, with_indexes=False, spend=spend
        )
        key = (name, segment.base_offset)
        try:
            damages = await loop.run_in_executor(self._thread, verify)
        except FileNotFoundError:
            damages = []  # Deleted meanwhile.
        self._report(key, damages)
        self._place = key
        await asyncio.to_thread(self._save)

    def _report(self, key: tuple[str, int], damages: list[Damage]) -> None:
        """Log damage that was not known, and remember it."""
        known = self._damaged.pop(key, set())
        found: set[int] = set()
        for damage in damages:
            if damage.position not in known:
                if self.damage_count + len(found) >= _MAX_DAMAGES:
                    break
                logger.error("a sealed segment is damaged", extra=_log_fields(key[0], damage))
            found.add(damage.position)
        if found:
            self._damaged[key] = found

    def _forget_deleted(self) -> None:
        for name, base_offset in list(self._damaged):
            log = self._broker.logs.logs.get(name)
            if log is None or base_offset not in log.segments.base_offsets:
                del self._damaged[name, base_offset]

    def _load(self) -> None:
        self._is_loaded = True
        try:
            state = read_json(self._path)
            if state is not None:
                place = state["place"]
                damaged = {(name, base): set(found) for name, base, found in state["damaged"]}
                self._started_ms, self.last_pass_ms = state["started_ms"], state["last_pass_ms"]
                self._place = None if place is None else (place[0], place[1])
                self._damaged = damaged
        except (ValueError, KeyError, TypeError, OSError) as error:
            logger.warning("the scrubber starts over", extra={"reason": repr(error)})

    def _save(self) -> None:
        state: dict[str, Any] = {
            "started_ms": self._started_ms,
            "last_pass_ms": self.last_pass_ms,
            "place": self._place,
            "damaged": [(*key, sorted(found)) for key, found in self._damaged.items()],
        }
        try:
            self._broker.logs.disk.replace_file(
                self._path, json.dumps(state).encode(), durable=False
            )
        except OSError as error:
            # Without it, a restart verifies again what was verified.
            logger.debug("the scrubber's place was not saved: %s", error)

    @property
    def _path(self) -> Path:
        return self._broker.logs.path / STATE_FILE


def _sealed_segments(log: Log) -> list[SegmentFile]:
    """Return the sealed segments of a log that its broker uses."""
    gaps = read_gaps(log.directory)
    segments = list(log.segments)
    return [
        SegmentFile(segment.path(".log"), following.base_offset, log.config.compacts, gaps)
        for segment, following in pairwise(segments)
    ]


def _log_fields(name: str, damage: Damage) -> dict[str, Any]:
    return {
        "log": name,
        "file": str(damage.path),
        "position": damage.position,
        "size": damage.size,
        "first_offset": damage.first_offset,
        "last_offset": damage.last_offset,
        "reason": damage.reason,
        "advice": damage.advice,
    }
