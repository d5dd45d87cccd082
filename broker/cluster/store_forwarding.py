"""Forwarding to the controller of a cluster with a metadata store, which may change meanwhile.

While there is no controller, a request waits for the next one, about as long as an election takes.
A request that was sent to a controller that is then replaced has an unknown outcome: the client
gets REQUEST_TIMED_OUT, and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Message

from ..requests.errors import ApiError
from .forwarding import ControllerChannel, request_timeout_seconds, send_for

if TYPE_CHECKING:
    from ..requests.dispatch import RequestContext
    from .membership import ClusterMembership
    from .store_follower import StoreFollower

M = TypeVar("M", bound=Message)

#: Added to the session timeout: the time of an election after a session has ended.
_ELECTION_SECONDS = 3.0
_RETRY_SECONDS = 0.1


class StoreControllerChannel(ControllerChannel):
    """A connection to whichever broker is the controller."""

    def __init__(self, cluster: ClusterMembership, follower: StoreFollower) -> None:
        super().__init__(cluster)
        self._follower = follower

    async def send(
        self,
        request: Message,
        response: type[M],
        *,
        version: int | None = None,
        client: RequestContext | None = None,
    ) -> M:
        """Send a request and return the response. Raises ApiError if there is no controller."""
        loop = asyncio.get_running_loop()
        timeout_seconds = request_timeout_seconds(request)
        deadline = loop.time() + min(
            timeout_seconds, self._cluster.session_seconds + _ELECTION_SECONDS
        )
        while True:
            error: Exception
            controller_id = self._cluster.controller_id
            try:
                connection = await self._connected()
            except (ClientError, KafkaError, ApiError) as failure:
                error = self._unavailable(failure)
            else:
                sending = loop.create_task(send_for(connection, client, request, response, version))
                try:
                    result = await self._unless_replaced(sending, controller_id)
                except (ClientError, KafkaError) as failure:
                    raise ApiError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"The controller, broker {controller_id}, did not answer: {failure}",
                    ) from failure
                if not _is_not_controller(result):
                    return result
                error = ApiError(
                    ErrorCode.NOT_CONTROLLER, f"Broker {controller_id} is no longer the controller"
                )
            if loop.time() > deadline:
                raise error
            await asyncio.sleep(_RETRY_SECONDS)

    async def _unless_replaced(self, sending: asyncio.Task[M], controller_id: int) -> M:
        """Return the response. Raises ApiError if another broker becomes the controller first."""
        try:
            while not sending.done():
                next_revision = self._follower.revision + 1
                change = asyncio.ensure_future(self._follower.wait_for_revision(next_revision))
                await asyncio.wait((sending, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if not sending.done() and self._cluster.controller_id != controller_id:
                    # A moment for a response that is on its way.
                    await asyncio.wait((sending,), timeout=_RETRY_SECONDS)
                    if not sending.done():
                        raise ApiError(
                            ErrorCode.REQUEST_TIMED_OUT,
                            f"The controller, broker {controller_id}, was replaced",
                        )
            return sending.result()
        finally:
            sending.cancel()


def _is_not_controller(response: Message) -> bool:
    """Whether every part of a response says that the broker is not the controller."""
    codes = [code for parts in _parts(response) for one in parts for code in _error_codes(one)]
    if not codes:
        codes = [getattr(response, "error_code", ErrorCode.NONE)]
    return all(code == ErrorCode.NOT_CONTROLLER for code in codes)


def _error_codes(part: Message) -> Iterator[int]:
    """Yield the error codes of the parts of a response that have no parts themselves."""
    if "error_code" in part.fields:
        yield part.error_code  # type: ignore[attr-defined]
    else:
        for parts in _parts(part):
            for one in parts:
                yield from _error_codes(one)


def _parts(message: Message) -> Iterator[list[Message]]:
    for name in message.fields:
        value = getattr(message, name)
        if isinstance(value, list) and value and isinstance(value[0], Message):
            yield value
