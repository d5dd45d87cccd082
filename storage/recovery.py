"""Opening a log, after a clean shutdown and after a crash.

After a clean shutdown the files are trusted. After a crash everything from the recovery point on is
read again: each batch is verified, and indexes and producer states are rebuilt; see
segment_recovery.py for what happens to a torn write and to damaged batches.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from ottla.protocol.batch import RecordBatch

from .config import LogConfig
from .disk import NO_SPACE_ERRORS
from .errors import StorageError
from .files import OpenFiles
from .log import Log
from .producer_states import ProducerStates
from .segment import Segment
from .segment_recovery import RecoveryReport, SegmentRecovery, add_gap
from .segments import LEFTOVER_SUFFIXES
from .transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"(\d{20})\.(log|snapshot)")


def open_log(
    directory: Path, config: LogConfig, files: OpenFiles, *, recovery_point: int | None = None
) -> tuple[Log, RecoveryReport]:
    """Open a log, or create an empty one.

    `recovery_point` is the offset up to which everything is known to be durable; None if the log
    was closed cleanly.
    """
    files.disk.make_directory(directory)
    log = Log(directory, config, files)
    report = RecoveryReport(was_clean=recovery_point is None)
    try:
        _load(log, recovery_point, report)
    except BaseException:
        for segment in log.segments:
            segment.close()
        raise
    for damaged in report.damaged_ranges:
        logger.error(
            "Log %s: set aside %d damaged bytes at position %d of %s in %s",
            directory.name,
            damaged.size,
            damaged.position,
            damaged.segment,
            damaged.saved_as,
        )
    return log, report


def _load(log: Log, recovery_point: int | None, report: RecoveryReport) -> None:
    for base_offset in _list_files(log):
        log.segments.add(Segment(log.directory, base_offset, log.files))
    log.load_checkpoints()
    if recovery_point is None:
        _load_clean(log)
    else:
        _recover(log, recovery_point, report)
    if report.space_error is not None:
        log.take_offline(f"no space to set damaged bytes aside: {report.space_error}")
    _estimate_first_append(log)
    if not log.segments:
        log.segments.create(log.start_offset)
    log.leader_epochs.truncate(log.end_offset)
    log.recovery_point = log.end_offset
    if log.start_offset > log.end_offset:
        log.save_start_offset(log.end_offset)
    if report.was_clean and log.producer_snapshots.offsets[-1:] == [log.end_offset]:
        log.mark_unchanged()


def _list_files(log: Log) -> list[int]:
    """Remove leftovers of a crash, and return the base offsets of the segments."""
    base_offsets: list[int] = []
    snapshots = log.producer_snapshots.offsets
    for name in log.disk.names(log.directory):
        if name.endswith(LEFTOVER_SUFFIXES):
            log.disk.unlink(log.directory / name)
        elif match := _FILE_NAME.fullmatch(name):
            (base_offsets if match[2] == "log" else snapshots).append(int(match[1]))
    return base_offsets


def _load_clean(log: Log) -> None:
    for segment, following in zip_longest(log.segments, log.segments[1:]):
        next_offset = None if following is None else following.base_offset
        segment.load(_file_size(segment), next_offset, log.config.index_interval_bytes)
    _rebuild_transaction_indexes(log, log.segments)
    log.restore_producer_states(log.end_offset if log.segments else 0, log.segments)


def _recover(log: Log, recovery_point: int, report: RecoveryReport) -> None:
    segments = log.segments
    # The segment that contains the recovery point, and all after it, are read again.
    first = max((n for n, s in enumerate(segments) if s.base_offset <= recovery_point), default=0)
    for index, segment in enumerate(segments[:first]):
        if not _load_if_intact(log, segment, segments[index + 1].base_offset):
            first = index
            break
    _rebuild_transaction_indexes(log, segments[:first])
    if first and segments[first].base_offset == recovery_point:
        _check_last_transaction_index(log, segments[:first])
    expected_offset = segments[first].base_offset if segments else 0
    # From before the segments that are read again, so that their markers are replayed.
    snapshot = log.restore_producer_states(expected_offset, segments[:first])
    for index in range(first, len(segments)):
        segment = segments[index]
        following = segments[index + 1] if index + 1 < len(segments) else None
        SegmentRecovery(
            log, segment, following, expected_offset, snapshot, recovery_point, report
        ).run()
        expected_offset = segment.next_offset
        if following is not None:
            # What is above the recovery point is not compacted yet.
            may_be_lost = not log.config.compacts or following.base_offset > recovery_point
            is_gap = expected_offset < following.base_offset and may_be_lost
            if is_gap and report.space_error is None:
                _note_gap(log, segment, following.base_offset, recovery_point, report)
            expected_offset = max(expected_offset, following.base_offset)


def _note_gap(
    log: Log, segment: Segment, found: int, recovery_point: int, report: RecoveryReport
) -> None:
    """Remember that the end of a segment is missing: a replica copies it from its leader again."""
    expected = segment.next_offset
    try:
        if not add_gap(log, expected, found):
            return
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:
            raise
        report.space_error = error
        return
    if log.config.compacts:
        return  # A follower may have copied it from a leader that compacts.
    name = segment.path(".log").name
    if all(damaged.segment != name for damaged in report.damaged_ranges):
        report.has_lost_records = True
        logger.log(
            logging.ERROR if expected < recovery_point else logging.WARNING,
            "Log %s has lost records: offsets %d to %d are missing at the end of %s, and it was"
            " durable up to %d",
            log.directory.name,
            expected,
            found - 1,
            name,
            recovery_point,
        )


def _load_if_intact(log: Log, segment: Segment, next_offset: int) -> bool:
    """Load a segment that should be durable as a whole; return whether it is."""
    try:
        segment.load(_file_size(segment), next_offset, log.config.index_interval_bytes)
    except StorageError:
        return False
    return segment.has_valid_end()


def _rebuild_transaction_indexes(log: Log, segments: Sequence[Segment]) -> None:
    """Rebuild the transaction indexes of all segments if that of any of them does not fit."""
    if all(s.transactions.fits(s.base_offset, s.next_offset) for s in segments):
        return
    logger.warning("Log %s: a transaction index is damaged, rebuilding all", log.directory.name)
    states = ProducerStates()
    for segment in segments:
        segment.transactions.replace(_aborted_transactions(segment, states))
        segment.transactions.write()


def _check_last_transaction_index(log: Log, segments: Sequence[Segment]) -> None:
    """Compare the transaction index of the last of these segments with its markers.

    A segment that ends at the recovery point may have been sealed after that flush. Its other
    indexes are noticed when they are missing; a transaction index may be missing rightly.
    """
    segment = segments[-1]
    log.restore_producer_states(segment.base_offset, segments[:-1])
    aborted = _aborted_transactions(segment, log.producer_states)
    if aborted != segment.transactions.entries():
        segment.transactions.replace(aborted)
        segment.transactions.write()


def _aborted_transactions(segment: Segment, states: ProducerStates) -> list[AbortedTransaction]:
    """Apply the batches of a segment to producer states; return the transactions it aborts."""
    aborted = []
    for position in segment.batches():
        batch = RecordBatch(segment.read(position.position, position.size))
        if batch.producer_id >= 0:
            transaction = states.update(batch, batch.base_offset, -1)
            if transaction is not None:
                aborted.append(transaction)
    return aborted


def _estimate_first_append(log: Log) -> None:
    """Estimate when the active segment got its first record, for segment.ms."""
    first = next(log.active_segment.batches(), None) if log.segments else None
    if first is not None:
        modified_ms = int(log.active_segment.path(".log").stat().st_mtime * 1000)
        log.active_segment.first_append_ms = max(0, min(first.max_timestamp, modified_ms))


def _file_size(segment: Segment) -> int:
    return segment.path(".log").stat().st_size
