"""Errors as problem details (RFC 9457), with the broker's code where there is one."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from ottla.client import (
    AuthenticationError,
    ClientError,
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    PartialError,
    RecordTooLargeError,
    UnsupportedError,
)

MEDIA_TYPE = "application/problem+json"

_TITLES = {
    400: "Bad request",
    401: "Authentication required",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Content too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Invalid request",
    429: "Too many requests",
    500: "Internal error",
    501: "Not supported by the cluster",
    502: "Error of the cluster",
    503: "Cluster not available",
    504: "Timeout",
}
_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)
_CONFLICT = frozenset(
    {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
)
_UNSUPPORTED = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.SECURITY_DISABLED})
_FAILURES = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR})


class Problem(Exception):  # noqa: N818  # RFC 9457's name
    """A request that fails with a status, and what to do about it."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.body(), self.status, media_type=MEDIA_TYPE)

    def body(self) -> dict[str, Any]:
        """Return the members of the problem details."""
        return {
            "type": "about:blank",
            "title": _TITLES.get(self.status, "Error"),
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }


def problem_of(error: Exception) -> Problem | None:
    """Return the problem to answer an exception of the SDK with; None if it is a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, KafkaError):
        detail = error.detail or error.code.message
        return Problem(_status_of(error), detail, code=error.code.name)
    if isinstance(error, PartialError):
        problems = {str(item): problem_of(one) for item, one in error.failed.items()}
        failed = {item: one for item, one in problems.items() if one is not None}
        status = max((one.status for one in failed.values()), default=502)
        errors = [{"item": item, "detail": one.detail} for item, one in failed.items()]
        return Problem(status, str(error)[:2000], errors=errors[:100])
    if isinstance(error, ClientError):
        return _client_problem(error)
    if isinstance(error, TimeoutError):
        return Problem(504, "The cluster did not answer in time")
    return None


def _client_problem(error: ClientError) -> Problem:
    if isinstance(error, DeadlineError) and isinstance(error.__cause__, ConnectionLostError):
        return Problem(503, str(error.__cause__))
    if isinstance(error, ConnectionLostError):
        return Problem(503, str(error))
    if isinstance(error, DeadlineError):
        return Problem(504, str(error))
    if isinstance(error, AuthenticationError):
        return Problem(502, str(error))
    if isinstance(error, UnsupportedError):
        return Problem(501, str(error))
    if isinstance(error, RecordTooLargeError):
        return Problem(413, str(error))
    return Problem(502, str(error))


def _status_of(error: KafkaError) -> int:
    code = error.code
    if code in _NOT_FOUND:
        return 404
    if code in _CONFLICT:
        return 409
    if code in _UNSUPPORTED:
        return 501
    if code.name.endswith("AUTHORIZATION_FAILED"):
        return 403
    if code in _FAILURES:
        return 502
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return 413
    return 503 if error.retriable else 422
