"""Heartbeats to the controller of a cluster with a metadata store.

After each change that this broker has applied, it reports the revision to the controller, whose
response to the client waits for it: a client that creates a topic then finds it on every broker.
A heartbeat that is lost only delays that response.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

from ..requests.errors import ApiError

if TYPE_CHECKING:
    from .broker_channels import BrokerChannels
    from .membership import ClusterMembership
    from .store_follower import StoreFollower
    from .store_registration import StoreRegistration

logger = logging.getLogger(__name__)


class StoreHeartbeat:
    """Reports revisions to the controller until it is stopped."""

    def __init__(
        self,
        cluster: ClusterMembership,
        follower: StoreFollower,
        registration: StoreRegistration,
        channels: BrokerChannels,
    ) -> None:
        self._cluster = cluster
        self._follower = follower
        self._registration = registration
        self._channels = channels
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        reported: tuple[int, int] = (-1, -1)
        while True:
            current = (self._cluster.controller_id, self._follower.revision)
            if current == reported or current[0] < 0 or self._registration.broker_epoch < 0:
                await self._follower.wait_for_revision(current[1] + 1)
                continue
            reported = current
            if not self._cluster.is_controller:
                try:
                    await self._report(*current)
                except ApiError as error:
                    logger.debug("heartbeat failed", extra={"reason": str(error)})
                except Exception:
                    logger.exception("heartbeat failed")

    async def _report(self, controller_id: int, revision: int) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=self._cluster.broker_id,
            broker_epoch=self._registration.broker_epoch,
            current_metadata_offset=revision,
        )
        await self._channels.send(controller_id, request, BrokerHeartbeatResponse, 0)
