"""`/health` and `/ready`, for load balancers; neither needs a login."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from ottla.client import ClientError, KafkaError

from .models import Model
from .problems import Problem

router = APIRouter(tags=["probes"])

_TIMEOUT_SECONDS = 3.0


class Status(Model):
    """The state of the console."""

    status: str


@router.get("/health")
async def get_health() -> Status:
    """Answer: the console runs."""
    return Status(status="ok")


@router.get("/ready")
async def get_ready(request: Request) -> Status:
    """Answer if a broker of the cluster does."""
    shared = request.app.state.sessions.shared
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            if shared is not None:
                await shared.client.cluster()
            else:
                await _connect(request.app.state.config.bootstrap)
    except (OSError, TimeoutError, ClientError, KafkaError):
        raise Problem(503, "No broker answers") from None
    return Status(status="ready")


async def _connect(bootstrap: str) -> None:
    """Connect to any bootstrap server: without a user there are no credentials to ask with."""
    last: OSError | None = None
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError as error:
            last = error
        else:
            writer.close()
            return
    raise last or OSError("no bootstrap server")
