"""Where a share group starts in a partition of which nothing was delivered yet.

`earliest`, `latest`, or `by_duration:` with an ISO 8601 duration of days, hours, minutes and
seconds, as Java writes them: PnDTnHnMn.nS.
"""

from __future__ import annotations

import re

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def check_offset_reset(text: str) -> None:
    """Raise ValueError if a value of share.auto.offset.reset is invalid."""
    if text not in ("earliest", "latest"):
        duration_ms_of(text)


def duration_ms_of(text: str) -> int:
    """Return the milliseconds of `by_duration:DURATION`. Raises ValueError."""
    match = _DURATION.fullmatch(text.removeprefix(_BY_DURATION))
    if not text.startswith(_BY_DURATION) or match is None or not any(match.groups()):
        raise ValueError("expected earliest, latest or by_duration:PnDTnHnMn.nS")
    return int(sum(float(match.group(name) or 0) * unit_ms for name, unit_ms in _UNITS_MS.items()))
