"""In-process brokers for tests.

async with broker_and_client(tmp_path) as (broker, client):
    response = await client.request(MetadataRequest(topics=None), 12)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from harness.wire import WireClient, connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.partitions.partition import Partition
from ottla.protocol.api.api_versions import ApiVersionsRequest

_LISTENER = "PLAINTEXT://127.0.0.1:0"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's event loop, and on uvloop, which the daemon uses."""

    @functools.wraps(test)
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**fixtures))

    signature = inspect.signature(test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), loop]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    factories = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop_factory", factories, ids=["asyncio", "uvloop"])(run)


@asynccontextmanager
async def a_broker(
    path: Path, topics: Mapping[str, int] | None = None, /, **configs: Any
) -> AsyncIterator[Broker]:
    """Run a broker on a free port, with topics of so many partitions."""
    config = BrokerConfig(log_dir=str(path), listeners=_LISTENER, **configs)
    async with Broker(config) as broker:
        for name, count in (topics or {"t": 2}).items():
            await add_topic(broker, name, count)
        yield broker


@asynccontextmanager
async def broker_and_client(
    path: Path, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Broker, WireClient]]:
    """Run a broker without topics, with configs by their dotted names, and connect to it."""
    base = {"log.dir": str(path), "listeners": _LISTENER}
    config = BrokerConfig.of({**base, **(configs or {})})
    async with Broker(config) as broker, connect(broker) as client:
        yield broker, client


async def add_topic(broker: Broker, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic without a request; `retention_ms="1"` sets its config retention.ms."""
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    topic = broker.controller.plan_topic(name, partitions, dotted)
    errors = await broker.controller.create_topics([topic])
    assert errors == [None]


def partition_of(broker: Broker, topic: str = "t", index: int = 0) -> Partition:
    return broker.topics.find(topic, index)


async def is_serving(broker: Broker) -> bool:
    """Whether a new connection is served."""
    async with connect(broker) as client:
        return (await client.request(ApiVersionsRequest(), 0)).error_code == 0
