"""Errors of the group coordinator."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode


class GroupError(Exception):
    """A request that is answered with this error code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        super().__init__(message or code.message)
