"""What a group member does about an error code of its coordinator."""

from __future__ import annotations

from enum import Enum

from ottla.protocol.errors import ErrorCode, Retry


class ErrorAction(Enum):
    """What to do about a response of the group coordinator."""

    NONE = "no error"
    REJOIN = "rejoin as the same member, with the same partitions"
    RESET_GENERATION = "rejoin; the group rebalanced without this member, its partitions are lost"
    RESET_MEMBER_ID = "rejoin as a new member; partitions are lost"
    RETRY = "retry later"
    FIND_COORDINATOR = "look up the coordinator and retry later"
    FAIL = "give up"

    @property
    def loses_partitions(self) -> bool:
        """Whether other members may have this member's partitions already."""
        return self in (ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID)


_BY_CODE = {
    ErrorCode.NONE: ErrorAction.NONE,
    ErrorCode.REBALANCE_IN_PROGRESS: ErrorAction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: ErrorAction.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: ErrorAction.RESET_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorAction.RESET_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorAction.REJOIN,
}
_BY_RETRY = {
    Retry.LATER: ErrorAction.RETRY,
    Retry.REFRESHED: ErrorAction.FIND_COORDINATOR,
    Retry.NEVER: ErrorAction.FAIL,
}


def action_for(code: int) -> ErrorAction:
    """Return what to do about an error code of the coordinator."""
    error = ErrorCode.of(code)
    return _BY_CODE.get(error) or _BY_RETRY[error.retry]
