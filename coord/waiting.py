"""The waiting requests of a member: each token is answered exactly once."""

from __future__ import annotations

from typing import Any

from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.errors import ErrorCode

from .effects import Effect, Reply
from .member import Member
from .responses import join_error


def wait_in_join(member: Member, token: Any) -> list[Effect]:
    """Let a join wait. It replaces earlier requests, which the client has given up on."""
    effects = refuse_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.waiting_join = token
    return effects


def refuse_sync(member: Member, code: ErrorCode) -> list[Effect]:
    """Answer a member's waiting sync with an error."""
    token, member.waiting_sync = member.waiting_sync, None
    return [] if token is None else [Reply(token, SyncGroupResponse(error_code=code))]


def refuse_waiting(member: Member, code: ErrorCode) -> list[Effect]:
    """Answer all waiting requests of a member with an error."""
    effects = refuse_sync(member, code)
    token, member.waiting_join = member.waiting_join, None
    return effects if token is None else [*effects, Reply(token, join_error(code, member.id))]
