"""Announces this process to the other brokers of a static cluster: only one may have a broker id.

Before it serves, each other broker that can be reached has to agree; see `incarnations`. So has any
process at the address that the list has for this broker. After that it announces itself three times
per session timeout. A broker that was paused for longer may have been replaced in the meantime: it
handles no request before it has announced itself again. Nor does it while another process has its
id, and exits if that lasts. Brokers that are down or unreachable do not matter: a static cluster
starts in any order, and each broker serves while all others are down.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.errors import DataDirectoryError

from ..requests.errors import ApiError
from .forwarding import client_config

if TYPE_CHECKING:
    from .membership import ClusterMembership

logger = logging.getLogger(__name__)

_ROUNDS_PER_SESSION = 3
#: Maximum time that an unreachable broker delays a round.
_MAX_REQUEST_SECONDS = 1.0
_RETRY_SECONDS = 0.1
#: The objections of other brokers, the gravest first. With other errors they have no opinion: they
#: do not list this broker, or know nothing of announcements.
_OBJECTIONS = (
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    ErrorCode.INVALID_REGISTRATION,
)


class Announcer:
    """Announces this process until it is stopped. `failed` is completed if it must not run."""

    def __init__(
        self,
        cluster: ClusterMembership,
        cluster_id: str,
        failed: asyncio.Future[DataDirectoryError],
    ) -> None:
        self.failed = failed
        self._cluster = cluster
        self._cluster_id = cluster_id
        self._config = client_config(cluster.config)
        self._others = [number for number in cluster.broker_ids if number != cluster.broker_id]
        self._session_seconds = cluster.session_seconds
        self._round_seconds = cluster.session_seconds / _ROUNDS_PER_SESSION
        self._connections: dict[int, BrokerConnection] = {}
        # By the system's clock: that of the event loop stands still while it is busy or paused.
        self._confirmed_at = time.monotonic()
        self._round_wanted = asyncio.Event()
        self._round_completed = asyncio.Event()
        self._has_warned = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether no other process can have this broker's id, as far as others can be reached."""
        return time.monotonic() - self._confirmed_at <= self._session_seconds

    async def start(self) -> None:
        """Wait until no other process has this broker's id, and announce this one from then on.

        Raises DataDirectoryError after two sessions, and at once if another broker has another
        address for this one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * self._session_seconds
        # Ask all before any of them takes this process for the only one. At the address of this
        # broker nobody answers yet, unless it is another process.
        while error := await self._announce(is_check=True) or await self._announce():
            if error.code == ErrorCode.INVALID_REGISTRATION or loop.time() > deadline:
                self.close()
                raise DataDirectoryError(_advice(error))
            self._warn(error)
            await asyncio.sleep(_RETRY_SECONDS)
        self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop; another process may have the id from now on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    async def wait_until_confirmed(self) -> None:
        """Wait for a round, after a pause. Raises ApiError if this process must not serve."""
        while not self.is_confirmed:
            if self.failed.done() or self._task is None or self._task.done():
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker was replaced")
            self._round_wanted.set()
            await self._round_completed.wait()

    async def _run(self) -> None:
        refused_since: float | None = None
        while not self.failed.done():
            started = time.monotonic()
            try:
                error = await self._announce()
            except Exception:
                # A broker that was paused could not serve any longer.
                logger.exception("announcing this broker failed")
                error = None
            if error is None or error.code == ErrorCode.INVALID_REGISTRATION:
                self._confirmed_at, refused_since = started, None
            else:
                self._confirmed_at = -math.inf
                refused_since = refused_since or started
                is_final = started - refused_since > 2 * self._session_seconds
                if is_final or error.code == ErrorCode.STALE_BROKER_EPOCH:
                    self._fail(error)
            if error is None:
                self._has_warned = False
            else:
                self._warn(error)
            self._round_completed.set()
            self._round_completed.clear()
            self._round_wanted.clear()
            if refused_since is not None:
                await asyncio.sleep(_RETRY_SECONDS)  # All requests wait for the next round.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._round_wanted.wait(), self._round_seconds)

    def _fail(self, error: ApiError) -> None:
        reason = _advice(error)
        logger.error("this broker cannot run", extra={"reason": reason})
        if not self.failed.done():
            self.failed.set_result(DataDirectoryError(reason))

    def _warn(self, error: ApiError) -> None:
        """Log a refusal, once."""
        if not self._has_warned and not self.failed.done():
            self._has_warned = True
            logger.warning("another broker objects to this one", extra={"reason": _advice(error)})

    async def _announce(self, *, is_check: bool = False) -> ApiError | None:
        """Announce this process to all other brokers; return the gravest objection, if any."""
        asked = self._cluster.broker_ids if is_check else self._others
        responses = await asyncio.gather(*(self._send(broker_id, is_check) for broker_id in asked))
        errors = [
            ApiError(ErrorCode(response.error_code), response.error_message)
            for response in responses
            if response is not None and response.error_code in _OBJECTIONS
        ]
        return min(errors, key=lambda error: _OBJECTIONS.index(error.code), default=None)

    async def _send(self, broker_id: int, is_check: bool) -> BrokerHeartbeatResponse | None:
        cluster = self._cluster
        endpoint = cluster.endpoint_of(cluster.broker_id)
        request = BrokerHeartbeatRequest(
            broker_id=cluster.broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=cluster.incarnation,
            host=endpoint.host,
            port=endpoint.port,
            is_check=is_check,
        )
        connection = self._connections.get(broker_id)
        try:
            async with asyncio.timeout(min(_MAX_REQUEST_SECONDS, self._round_seconds)):
                if connection is None or not connection.is_open:
                    endpoint = cluster.endpoint_of(broker_id)
                    connection = await BrokerConnection.open(
                        endpoint.host, endpoint.port, self._config
                    )
                    self._connections[broker_id] = connection
                return await connection.send(request, BrokerHeartbeatResponse, version=0)
        except (ClientError, KafkaError, TimeoutError):
            if connection is not None:
                connection.close()
            return None


def _advice(error: ApiError) -> str:
    if error.code == ErrorCode.INVALID_REGISTRATION:
        return f"{error}: give all brokers the same list of brokers"
    return f"{error}. Stop one of the two, or give it an id of its own"
