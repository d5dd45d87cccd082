"""The state of a member of a group."""

from __future__ import annotations

from enum import Enum


class MemberState(Enum):
    """Whether a consumer is a member of its group."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
