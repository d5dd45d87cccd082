"""The daemon: a broker, an event loop of uvloop's, and signals."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

import uvloop

from .broker import Broker
from .config.broker_config import BrokerConfig
from .observability.logging import configure_logging

logger = logging.getLogger(__name__)


def run(config: BrokerConfig) -> int:
    """Run a broker until SIGTERM or SIGINT; give the exit code.

    Raises what `Broker.start` does.
    """
    configure_logging(config.log_level, config.log_format)
    _raise_descriptor_limit()
    return uvloop.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    started = time.perf_counter()
    # Until it serves, a signal ends the process at once. The event loop would hear of it only when
    # all logs are open, and then cancel what serves instead of stopping it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _end_by(number))
    broker = Broker(config, obey=lambda altered: logging.getLogger().setLevel(altered.log_level))
    await broker.start(_Progress())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop)
    for listener, address, advertised in zip(
        config.parsed_listeners, broker.server.addresses, broker.server.advertised, strict=True
    ):
        logger.info(
            "listening",
            extra={"listener": listener.name, "on": address, "clients_are_told": advertised},
        )
        if not _is_loopback(listener.host):
            logger.warning(
                "anybody who can reach this address can read, write and delete everything",
                extra={"on": address},
            )
    logger.info(
        "ready",
        extra={
            "broker_id": broker.id,
            "cluster_id": broker.cluster_id,
            "data": config.log_dir,
            "topics": len(broker.topics.image.topics),
            "milliseconds": round((time.perf_counter() - started) * 1000),
        },
    )
    # What is there now stays: the collector need not look at it again and again.
    gc.freeze()
    await stop.wait()
    logger.info("stopping")
    started = time.perf_counter()
    await broker.stop()
    logger.info("stopped", extra={"milliseconds": round((time.perf_counter() - started) * 1000)})
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _ask_to_stop(stop: asyncio.Event) -> None:
    if stop.is_set():
        # The second time somebody means it. The next start will look at the logs.
        logger.warning("stopped at once, without flushing")
        sys.stderr.flush()
        _end_by(signal.SIGKILL)
    stop.set()


def _end_by(number: int) -> NoReturn:
    """End as a signal does that nobody handles."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    # The first process of a container is still here: such signals do nothing to it.
    os._exit(128 + number)


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as we may have: there are few at first, and a client needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says that there is no limit, and has one.
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 1_048_576)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Progress:
    """Says now and then how far opening the logs has come."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def __call__(self, done: int, of: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            logger.info("opening logs", extra={"done": done, "of": of})
