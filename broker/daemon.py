"""The broker process: one broker on a uvloop event loop, with signal handling."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import uvloop

from .broker import Broker
from .config.broker_config import BrokerConfig, ConfigError
from .config.security_configs import PLAINTEXT
from .net.listeners import format_host, is_loopback
from .observability.logging import configure_logging

logger = logging.getLogger(__name__)

#: A full garbage collection follows so many younger ones; Python's default is 10.
_YOUNG_COLLECTIONS_PER_FULL = 1000


def run(config: BrokerConfig, warnings: Iterable[str] = ()) -> int:
    """Run a broker until SIGTERM or SIGINT and return the exit code.

    The warnings, of loading its config, are logged first. Raises what `Broker.start` does.
    """
    check_listeners(config)
    configure_logging(config.log_level, config.log_format)
    for warning in warnings:
        logger.warning(warning)
    _raise_descriptor_limit()
    return uvloop.run(_serve(config))


def check_listeners(config: BrokerConfig) -> None:
    """Raise ConfigError if other machines can reach a listener that authenticates nobody."""
    if config.allow_insecure_listeners:
        return
    for listener in config.parsed_listeners:
        if is_loopback(listener.host) or not config.security_of(listener.name).trusts_everybody:
            continue
        raise ConfigError(
            f"Listener {listener.name}://{format_host(listener.host)}:{listener.port} is reachable"
            " from other hosts, and does not authenticate clients. Use SASL_SSL, without"
            " sasl.oauthbearer.unsecured.tokens; or SSL with ssl.client.auth=required; or listen on"
            " 127.0.0.1; or, in a trusted network, set allow.insecure.listeners=true"
        )


async def _serve(config: BrokerConfig) -> int:
    started = time.perf_counter()
    # Until the broker serves, a signal ends the process at once. The event loop would handle it
    # only after all logs are open, and then cancel the broker instead of stopping it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _exit_by_signal(number))
    broker = Broker(config, on_config_change=_set_log_level)
    # What a start allocates stays: looking for garbage among the objects of all logs, again and
    # again, takes a third of its time.
    gc.disable()
    await broker.start(_ProgressLogger())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _handle_stop_signal, stop)
    if broker.server.security is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload_certificates, broker)
    for listener, address, advertised in zip(
        config.parsed_listeners, broker.server.addresses, broker.server.advertised, strict=True
    ):
        security = config.security_of(listener.name)
        fields = {"listener": listener.name, "address": address, "advertised": advertised}
        if security.protocol != PLAINTEXT:
            fields["security_protocol"] = security.protocol
        logger.info("listening", extra=fields)
        if not is_loopback(listener.host) and security.trusts_everybody:
            logger.warning(
                "listener is reachable from other hosts, without encryption or authentication"
                if not security.uses_tls
                else "listener is reachable from other hosts, without authentication",
                extra={"listener": listener.name, "address": address},
            )
    logger.info(
        "ready",
        extra={
            "broker_id": broker.id,
            "cluster_id": broker.cluster_id,
            "log_dir": config.log_dir,
            "topics": len(broker.topics.image.topics),
            "duration_ms": round((time.perf_counter() - started) * 1000),
        },
    )
    # Exclude everything allocated so far, which stays, from garbage collection.
    gc.freeze()
    gc.enable()
    # Requests leave no cyclic garbage, and looking for it among the objects of a large request
    # would hold up all others: leave out most of the full collections.
    gc.set_threshold(*gc.get_threshold()[:2], _YOUNG_COLLECTIONS_PER_FULL)
    if broker.failed is not None:
        broker.failed.add_done_callback(lambda _failed: stop.set())
    await stop.wait()
    logger.info("stopping")
    started = time.perf_counter()
    await broker.stop()
    logger.info("stopped", extra={"duration_ms": round((time.perf_counter() - started) * 1000)})
    return 0 if broker.failed is None or not broker.failed.done() else 1


def _reload_certificates(broker: Broker) -> None:
    assert broker.server.security is not None
    broker.start_task(broker.server.security.reload())


def _set_log_level(config: BrokerConfig) -> None:
    logging.getLogger().setLevel(config.log_level)


def _handle_stop_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        # The second signal. The next start recovers the logs.
        logger.warning("second signal: exiting without flushing")
        sys.stderr.flush()
        _exit_by_signal(signal.SIGKILL)
    stop.set()


def _exit_by_signal(number: int) -> NoReturn:
    """End the process as an unhandled signal does."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    # PID 1 of a container ignores unhandled signals.
    os._exit(128 + number)


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of open files: the default is low, and each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports no hard limit, but has one.
    limit = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 1_048_576)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class _ProgressLogger:
    """Logs once per second how many logs are open."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def __call__(self, opened: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            logger.info("opening logs", extra={"opened": opened, "total": total})
