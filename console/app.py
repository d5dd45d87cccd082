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
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ottla import __version__
from ottla.client import ClientError, KafkaError

from . import api, pages, probes
from .access import Access
from .config import ConsoleConfig
from .pages.rendering import FOLDER, render_problem
from .problems import Problem, problem_of
from .sessions import Sessions
from .warm_up import warm_up

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
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming_up = asyncio.create_task(warm_up(app))
        yield
        warming_up.cancel()
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
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=FOLDER / "static"))
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for kind in (Problem, KafkaError, ClientError, TimeoutError):
        app.add_exception_handler(kind, _on_problem)
    app.add_exception_handler(Exception, _on_bug)
    return app


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    config = ConsoleConfig(bootstrap="localhost:9092")
    return create_routes(config, Sessions(config)).openapi()


async def _on_problem(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    assert problem is not None
    return _respond(request, problem)


def _respond(request: Request, problem: Problem) -> Response:
    """Return a document to programs, and a page to people."""
    is_program = request.url.path.startswith(("/api/", "/health", "/ready"))
    return problem.response() if is_program else render_problem(request, problem)


async def _on_bug(request: Request, _error: Exception) -> Response:
    # It is raised again, and logged by the middleware.
    return _respond(request, Problem(500, "An error of the console; its log has the details"))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [_where(one) for one in error.errors()[:20]]
    detail = "; ".join(f"{one['location']}: {one['detail']}" for one in errors)
    return _respond(request, Problem(422, detail[:2000], errors=errors))


def _where(error: Any) -> dict[str, str]:
    location = ".".join(str(part) for part in error["loc"])
    return {"location": location, "detail": str(error["msg"])}


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Problem):  # raised when FastAPI read the body
        return _respond(request, error.__cause__)
    detail = f"There is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    response = _respond(request, Problem(error.status_code, detail))
    response.headers.update(error.headers or {})
    return response
