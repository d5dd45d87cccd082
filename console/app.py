"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ottla import __version__
from ottla.client import ClientError, KafkaError

from . import api, probes
from .access import Access
from .config import ConsoleConfig
from .problems import Problem, problem_of
from .sessions import Sessions

_DESCRIPTION = """\
Topics, records, groups, brokers, ACLs, users and quotas of a Kafka-compatible cluster.

Errors are problem details (RFC 9457), with the broker's error code in `code`. Lists are paged with
`offset` and `limit`, records with `cursor`.
"""


def create_app(config: ConsoleConfig) -> ASGIApp:
    """Return the application, within the middleware that protects it."""
    sessions = Sessions(config)
    return Access(create_routes(config, sessions), config, sessions)


def create_routes(config: ConsoleConfig, sessions: Sessions) -> FastAPI:
    """Return the application without protection."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close()

    app = FastAPI(
        title="ottla console",
        version=__version__,
        description=_DESCRIPTION,
        # Their pages load scripts from other sites; there is one of our own.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=lifespan,
    )
    app.state.config = config
    app.state.sessions = sessions
    app.state.queries = asyncio.Semaphore(config.limits.queries)
    app.state.tails = asyncio.Semaphore(config.limits.tails)
    app.include_router(api.router)
    app.include_router(probes.router)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for kind in (Problem, KafkaError, ClientError, TimeoutError):
        app.add_exception_handler(kind, _on_problem)
    app.add_exception_handler(Exception, _on_bug)
    return app


async def _on_problem(_request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    assert problem is not None
    return problem.response()


async def _on_bug(_request: Request, _error: Exception) -> Response:
    # It is raised again, and logged by the middleware.
    return Problem(500, "An error of the console; its log has the details").response()


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [_where(one) for one in error.errors()[:20]]
    detail = "; ".join(f"{one['location']}: {one['detail']}" for one in errors)
    return Problem(422, detail[:2000], errors=errors).response()


def _where(error: Any) -> dict[str, str]:
    location = ".".join(str(part) for part in error["loc"])
    return {"location": location, "detail": str(error["msg"])}


async def _on_http_exception(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = Problem(error.status_code, str(error.detail)).response()
    response.headers.update(error.headers or {})
    return response
