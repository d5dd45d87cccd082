"""Following the controller: a broker fetches the journal of the controller, and does what it says.

Each connection begins with the whole journal, of which only the last record of each key counts:
what was deleted long ago has left no trace in it, and is found by its absence. From then on it
fetches what is new, all the time, which tells the controller that this broker is up and how far it
has come. In return it asks who else is.

A controller that has less than this broker took over before has lost something. It is not followed:
its topics would take the place of those that are here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.client.config import RetryConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.client.fetch_request import PartitionFetch, fetch_request
from ottla.coord.metadata_image import METADATA_TOPIC, KeyValue
from ottla.protocol.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.api.fetch import FetchResponse
from ottla.protocol.batch import split_batches
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.errors import DataDirectoryError, StorageError

from ..observability.logging import log_limited
from ..requests.errors import ApiError
from .forwarding import client_config
from .metadata_log import read_key_values

if TYPE_CHECKING:
    from ..partitions.topics import Topics
    from .membership import ClusterMembership

logger = logging.getLogger(__name__)

#: How long a fetch waits for news. A broker is heard of as often.
_WAIT_MS = 500
_FETCH_BYTES = 8 * 1024 * 1024
_ANSWER_SECONDS = 5.0
_RETRY = RetryConfig(backoff=0.05, max_backoff=1.0)


class MetadataFollower:
    """Follows the controller until it is stopped."""

    def __init__(self, cluster: ClusterMembership) -> None:
        self._cluster = cluster
        self._config = client_config(cluster.broker_id)
        self._task: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._refusal: DataDirectoryError | None = None

    async def find_cluster_id(self) -> str:
        """Ask the controller of which cluster this is, until it answers."""
        tries = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    return (await self._describe(connection)).cluster_id
                finally:
                    connection.close()
            except (ClientError, KafkaError, ApiError) as error:
                level = logging.DEBUG if tries else logging.WARNING
                logger.log(level, "waiting for the controller", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY.delay(tries, random.random()))  # noqa: S311
                tries += 1

    async def start(self, topics: Topics, cluster_id: str, seconds: float) -> None:
        """Begin, and wait until all that is new has been taken over, for so long at most.

        Raises DataDirectoryError if this broker and the controller do not belong together.
        """
        self._task = asyncio.get_running_loop().create_task(self._run(topics, cluster_id))
        waiting = asyncio.get_running_loop().create_task(self._caught_up.wait())
        await asyncio.wait(
            (self._task, waiting), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if self._refusal is not None:
            raise self._refusal
        if not self._caught_up.is_set():
            logger.warning(
                "the controller does not answer: this broker serves what it knew last",
                extra={"controller": self._cluster.controller_id},
            )

    async def stop(self) -> None:
        """End; what is being taken over is so to the end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._adopting is not None:
            await asyncio.gather(self._adopting, return_exceptions=True)

    async def _run(self, topics: Topics, cluster_id: str) -> None:
        tries = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._check(connection, cluster_id)
                    offset = await self._take_all(connection, topics)
                    self._caught_up.set()
                    tries = 0
                    logger.info("following the controller", extra={"at": connection.address})
                    await self._follow(connection, topics, offset)
                finally:
                    connection.close()
            except DataDirectoryError as error:
                self._refusal = error
                self._caught_up.set()
                log_limited(logger, "the controller is not followed", extra={"reason": str(error)})
            except (ClientError, KafkaError, ApiError, StorageError) as error:
                self._cluster.controller_unreachable()
                level = logging.DEBUG if tries else logging.WARNING  # not over and over
                logger.log(level, "the controller cannot be followed", extra={"reason": str(error)})
            except Exception:  # whatever it is, this broker is not to be left behind for good
                logger.exception("following the controller failed")
            await asyncio.sleep(_RETRY.delay(tries, random.random()))  # noqa: S311
            tries += 1

    async def _connect(self) -> BrokerConnection:
        address = self._cluster.controller_endpoint
        return await BrokerConnection.open(address.host, address.port, self._config)

    async def _describe(self, connection: BrokerConnection) -> DescribeClusterResponse:
        answer = await connection.send(
            DescribeClusterRequest(), DescribeClusterResponse, timeout=_ANSWER_SECONDS
        )
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), answer.error_message)
        return answer

    async def _check(self, connection: BrokerConnection, cluster_id: str) -> None:
        answer = await self._describe(connection)
        if answer.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"the data directory is of the cluster {cluster_id}, and the controller at"
                f" {connection.address} of {answer.cluster_id}"
            )
        self._cluster.update_alive([broker.broker_id for broker in answer.brokers])

    async def _take_all(self, connection: BrokerConnection, topics: Topics) -> int:
        """Take over the whole journal; give where it ends."""
        latest: dict[bytes, bytes | None] = {}
        offset = 0
        while True:
            records, next_offset, end = await self._fetch(connection, offset, 0)
            if end < topics.image.controller_offset:
                raise DataDirectoryError(
                    f"the controller at {connection.address} has metadata up to {end}, and this"
                    f" broker has seen them up to {topics.image.controller_offset}: the controller"
                    " has lost its data, or was given older ones"
                )
            latest.update(records)
            if next_offset is None or next_offset >= end:
                break
            offset = next_offset
        there_is = dict(topics.image.records())
        news: list[KeyValue] = [(key, None) for key in there_is if latest.get(key) is None]
        news += [
            (key, value)
            for key, value in latest.items()
            if value is not None and there_is.get(key) != value
        ]
        if news or end != topics.image.controller_offset:
            await asyncio.shield(self._adopt(topics, news, end))
        return end

    async def _follow(self, connection: BrokerConnection, topics: Topics, offset: int) -> None:
        while True:
            records, next_offset, _end = await self._fetch(connection, offset, _WAIT_MS)
            if next_offset is not None:
                adopting = self._adopt(topics, records, next_offset)
                # To make thousands of logs takes longer than one may be silent.
                while not (await asyncio.wait((adopting,), timeout=_WAIT_MS / 1000))[0]:
                    with suppress(ClientError, KafkaError, ApiError):
                        await self._fetch(connection, offset, 0, most_bytes=1)
                        await self._hear(connection)
                await adopting
                offset = next_offset
            await self._hear(connection)

    async def _hear(self, connection: BrokerConnection) -> None:
        """Ask who is up."""
        answer = await self._describe(connection)
        self._cluster.update_alive([broker.broker_id for broker in answer.brokers])

    def _adopt(
        self, topics: Topics, records: Sequence[KeyValue], followed: int
    ) -> asyncio.Task[None]:
        """Take over records. A stop does not leave logs half made, in threads that go on."""
        adopting = topics.adopt(records, followed)
        self._adopting = asyncio.get_running_loop().create_task(adopting)
        return self._adopting

    async def _fetch(
        self,
        connection: BrokerConnection,
        offset: int,
        wait_ms: int,
        most_bytes: int = _FETCH_BYTES,
    ) -> tuple[Sequence[KeyValue], int | None, int]:
        """Give the records from an offset on, where they end, and where the journal does."""
        request = fetch_request(
            [PartitionFetch(METADATA_TOPIC, 0, offset, most_bytes)],
            replica_id=self._cluster.broker_id,
            max_wait_ms=wait_ms,
        )
        answer = await connection.send(request, FetchResponse, timeout=_ANSWER_SECONDS)
        (data,) = (one for topic in answer.responses for one in topic.partitions)
        if data.error_code:
            code = ErrorCode(data.error_code)
            reason = f"fetching {METADATA_TOPIC} from {offset}: {code.message}"
            if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                reason = (
                    f"{connection.address} does not know broker {self._cluster.broker_id}: all"
                    " brokers need the same list"
                )
            raise ApiError(code, reason)
        records: list[KeyValue] = []
        next_offset = None
        for batch in split_batches(data.records or b""):
            records += read_key_values(batch)
            next_offset = batch.next_offset
        return records, next_offset, data.high_watermark
