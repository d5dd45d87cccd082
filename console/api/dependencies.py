"""What endpoints share: the client of the user, paging, and the documentation of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, Path, Query

from ..access import current_session
from ..cluster_client import ClusterClient
from ..models import INT32_MAX, ProblemDetails
from ..problems import Problem

_PROBLEM = {"model": ProblemDetails, "content": {"application/problem+json": {}}}
#: Errors of every endpoint.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {**_PROBLEM, "description": "The request is malformed."},
    401: {**_PROBLEM, "description": "The console needs a token or credentials."},
    403: {**_PROBLEM, "description": "The console is read-only, or the cluster denies it."},
    404: {**_PROBLEM, "description": "There is no such thing."},
    409: {**_PROBLEM, "description": "It exists already, or is in use."},
    413: {**_PROBLEM, "description": "The request is too large."},
    422: {**_PROBLEM, "description": "A value is invalid, or the cluster rejects it."},
    429: {**_PROBLEM, "description": "Too many queries at a time."},
    501: {**_PROBLEM, "description": "The cluster does not support it."},
    502: {**_PROBLEM, "description": "The cluster failed."},
    503: {**_PROBLEM, "description": "Brokers are not available."},
    504: {**_PROBLEM, "description": "The cluster did not answer in time."},
}


def current_client() -> ClusterClient:
    """Return the client of the user."""
    return current_session.get().client


def require_writable() -> None:
    """Raise Problem if the console is read-only."""
    if current_client().config.read_only:
        raise Problem(403, "This console is read-only")


class Paging:
    """A page of a list."""

    def __init__(
        self,
        offset: Annotated[int, Query(ge=0, le=INT32_MAX, description="Items to skip.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000, description="Items to return.")] = 100,
    ) -> None:
        self.offset = offset
        self.limit = limit


ClientDep = Annotated[ClusterClient, Depends(current_client)]
PagingDep = Annotated[Paging, Depends()]
Writable = Depends(require_writable)
TopicPath = Annotated[
    str,
    Path(pattern=r"^[a-zA-Z0-9._-]+$", max_length=249, openapi_examples={"a": {"value": "orders"}}),
]
#: Anything, "/" included.
NamePath = Annotated[str, Path(min_length=1, max_length=1000)]
BrokerPath = Annotated[int, Path(ge=0, le=INT32_MAX)]


@contextmanager
def rejecting_values() -> Iterator[None]:
    """Answer the ValueError of an SDK call with 422: it is about the arguments."""
    try:
        yield
    except ValueError as error:
        raise Problem(422, str(error)) from None
