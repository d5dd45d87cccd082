"""The gaps that damage has left in a log: batches that recovery has set aside.

A replica with a gap lacks records that the others may have. Before it follows a leader, it
truncates its log at the first gap, and copies what comes after it again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .segment_recovery import GAPS_FILE, read_gaps

if TYPE_CHECKING:
    from .log import Log


def truncate_at_first_gap(log: Log) -> int | None:
    """Truncate a log at its first gap; return the offset, or None if it has no gap.

    Meant for a thread.
    """
    gaps = read_gaps(log.directory)
    offsets = [expected for expected, _found in gaps if expected < log.end_offset]
    if not offsets:
        return None
    offset = max(min(offsets), log.start_offset)
    log.truncate(offset)
    kept = [gap for gap in gaps if gap[0] < offset]
    log.disk.replace_file(log.directory / GAPS_FILE, json.dumps(kept).encode())
    return offset
