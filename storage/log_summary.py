"""What a clean shutdown notes of each log, so that the next start need not read its files.

The summaries are the content of the clean-shutdown marker, and so trusted like it; but only for a
log whose directory and segment files have not been touched since. A file that is created, renamed,
replaced or removed changes the directory. Everything else is opened from its files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from .leader_epochs import LeaderEpochs
from .log import Log
from .partition_metadata import PartitionMetadata
from .segment import Segment, SegmentState
from .segments import LEFTOVER_SUFFIXES

logger = logging.getLogger(__name__)

_VERSION = 1


class LogSummary(NamedTuple):
    """The state of a closed log."""

    #: Of the directory, and of the file of each segment; see `Disk.fingerprint`.
    fingerprints: list[int]
    segments: list[SegmentState]
    start_offset: int
    validated_from: int | None
    epochs: list[tuple[int, int]]
    snapshots: list[int]
    has_producers: bool
    topic_id: str | None
    log_lost: bool


def summarize(log: Log) -> LogSummary | None:
    """Return the summary of a log that was closed; None if its files have to be read again.

    That is so if there are aborted transactions, or files to be removed.
    """
    names = log.disk.names(log.directory)
    if any(name.endswith(LEFTOVER_SUFFIXES) for name in names) or any(
        segment.holes or segment.transactions.count for segment in log.segments
    ):
        return None
    return LogSummary(
        _fingerprints(log, log.segments),
        [segment.state() for segment in log.segments],
        log.start_offset,
        log.validated_from,
        list(log.leader_epochs),
        log.producer_snapshots.offsets,
        len(log.producer_states) > 0,
        None if log.topic_id is None else log.topic_id.hex,
        not log.producer_states.accepts_unknown_sequences,
    )


def restore(log: Log, summary: LogSummary) -> bool:
    """Open a log as its summary says; return False if its files were touched since.

    Then the log is not to be used.
    """
    try:
        states = [SegmentState(*state) for state in summary.segments]
        segments = [Segment(log.directory, state.base_offset, log.files) for state in states]
        if _fingerprints(log, segments) != summary.fingerprints:
            return False
        for segment, state in zip(segments, states, strict=True):
            segment.restore(state, is_active=segment is segments[-1])
            log.segments.add(segment)
        log.start_offset, log.validated_from = summary.start_offset, summary.validated_from
        log.leader_epochs = LeaderEpochs((epoch, offset) for epoch, offset in summary.epochs)
        topic_id = None if summary.topic_id is None else UUID(summary.topic_id)
        log.set_metadata(PartitionMetadata(topic_id, summary.log_lost))
        log.producer_snapshots.offsets = summary.snapshots
        log.recovery_point = log.end_offset
        if summary.has_producers:
            log.restore_producer_states(log.end_offset, log.segments)
    except (FileNotFoundError, IndexError, TypeError, ValueError):
        return False
    log.mark_unchanged()
    return True


def encode_marker(summaries: dict[str, LogSummary]) -> bytes:
    """Encode the content of the marker."""
    return json.dumps({"version": _VERSION, "logs": summaries}, separators=(",", ":")).encode()


def decode_marker(path: Path, content: bytes) -> dict[str, LogSummary]:
    """Decode the content of the marker; no summaries if it has none that can be used."""
    if not content:
        return {}
    try:
        decoded: Any = json.loads(content)
        if decoded["version"] != _VERSION:
            return {}
        return {name: LogSummary(*summary) for name, summary in decoded["logs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s is damaged, reading all logs: %s", path, error)
        return {}


def _fingerprints(log: Log, segments: Iterable[Segment]) -> list[int]:
    found = [*log.disk.fingerprint(log.directory)]
    for segment in segments:
        found += log.disk.fingerprint(segment.path(".log"))
    return found
