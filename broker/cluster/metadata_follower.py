"""The metadata follower: fetches the controller's metadata log and replays it on this broker.

Each connection starts with a registration (see `registration`), and with the whole log, of which
only the last record of each key counts. Compaction may have removed the tombstones of old
deletions, so a key that is missing from the log is removed here too; the data of a topic, however,
is deleted only if the log has the deletion of its id. After that the follower fetches new records
all the time. Its fetches are this broker's heartbeats, and their offset is its metadata offset;
between them it asks the controller which brokers are alive.

A controller with another metadata log is not followed: the broker serves what it has, as if the
controller were down. Another process with the id of this broker ends this one.
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
from ottla.coord.metadata_image import METADATA_TOPIC, KeyValue, MetadataPosition
from ottla.protocol.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES, FetchResponse
from ottla.protocol.batch import split_batches
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.errors import DataDirectoryError, StorageError

from ..observability.outage import Outage
from ..requests.errors import ApiError
from .forwarding import client_config
from .metadata_log import read_key_values
from .registration import BrokerRegistrar, DuplicateBrokerError, OtherMetadataLogError

if TYPE_CHECKING:
    from ottla.protocol.api.broker_registration import BrokerRegistrationResponse

    from ..partitions.topics import Topics
    from .membership import ClusterMembership

logger = logging.getLogger(__name__)

#: Maximum wait of a fetch, and so the heartbeat interval.
_FETCH_WAIT_MS = 500
_FETCH_MAX_BYTES = 8 * 1024 * 1024
_REQUEST_SECONDS = 5.0
_RETRY = RetryConfig(backoff=0.05, max_backoff=1.0)


class MetadataFollower:
    """Follows the controller's metadata log until it is stopped."""

    def __init__(self, cluster: ClusterMembership) -> None:
        self._cluster = cluster
        self._config = client_config(cluster.config)
        self._task: asyncio.Task[None] | None = None
        self._commit_task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        #: Completed with the error if this broker must not run.
        self.failed: asyncio.Future[DataDirectoryError] = asyncio.get_running_loop().create_future()
        self._topics: Topics
        self._registrar: BrokerRegistrar
        self._registration: BrokerRegistrationResponse
        self._first_refusal: float | None = None
        self._last_error = ""

    async def find_cluster_id(self) -> str:
        """Return the cluster id of the controller; retry until it answers."""
        outage = Outage(logger, "waiting for the controller")
        while True:
            try:
                connection = await self._connect()
                try:
                    return (await self._describe_cluster(connection)).cluster_id
                finally:
                    connection.close()
            except (ClientError, KafkaError, ApiError) as error:
                outage.failed(reason=str(error))
                await asyncio.sleep(_RETRY.delay(outage.failures - 1, random.random()))  # noqa: S311

    async def start(
        self, topics: Topics, registrar: BrokerRegistrar, cluster_id: str, timeout_seconds: float
    ) -> None:
        """Start, and wait until this broker has caught up, or for the timeout.

        Raises DataDirectoryError if the controller belongs to another cluster, or another process
        has the id of this broker.
        """
        self._topics, self._registrar = topics, registrar
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(cluster_id))
        caught_up = loop.create_task(self._caught_up.wait())
        deadline = loop.time() + timeout_seconds
        while True:
            # Another process may have this broker's id: do not serve before that is known.
            wait_seconds = max(deadline - loop.time(), 0) if self._first_refusal is None else None
            done, _pending = await asyncio.wait(
                (self._task, caught_up, self.failed),
                timeout=wait_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done or self._first_refusal is None:
                break
        caught_up.cancel()
        if self.failed.done():
            raise self.failed.result()
        if not self._caught_up.is_set():
            logger.warning(
                "controller does not answer: serving the last known metadata",
                extra={"controller": self._cluster.controller_id},
            )

    async def stop(self) -> None:
        """Stop; a commit under way completes first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._commit_task is not None:
            await asyncio.gather(self._commit_task, return_exceptions=True)

    async def _run(self, cluster_id: str) -> None:
        failures, outage = 0, Outage(logger, "controller is unreachable")
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._check_cluster_id(connection, cluster_id)
                    self._registration = await self._registrar.register(connection)
                    self._first_refusal = None
                    self._record_controller(connection)
                    offset = await self._catch_up(connection)
                    self._caught_up.set()
                    failures, self._last_error = 0, ""
                    outage.ended()
                    logger.info(
                        "following the controller",
                        extra={"controller": connection.address, "offset": offset},
                    )
                    await self._follow(connection, offset)
                finally:
                    connection.close()
            except OtherMetadataLogError as error:
                self._cluster.controller_unreachable()
                self._log_error("not following the controller", str(error))
                self._caught_up.set()
            except DuplicateBrokerError as error:
                self._cluster.controller_unreachable()
                self._refused_as_duplicate(error)
            except DataDirectoryError as error:
                self._fail(str(error))
            except (ClientError, KafkaError, ApiError, StorageError) as error:
                self._cluster.controller_unreachable()
                outage.failed(reason=str(error))
                self._check_metadata_log()
            except Exception:
                # Keep following after a bug: the broker's metadata would stay stale for good.
                logger.exception("following the controller failed")
            await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311
            failures += 1

    def _check_metadata_log(self) -> None:
        """Fail if the metadata log is offline: clients would get stale metadata until a restart."""
        log = self._topics.metadata_log.partition.log
        if log.offline_reason is not None:
            self._fail(f"{log.directory} is offline: {log.offline_reason}")

    def _log_error(self, message: str, reason: str) -> None:
        """Log an error once, and not for each attempt."""
        if message != self._last_error:
            self._last_error = message
            logger.error(message, extra={"reason": reason})

    def _refused_as_duplicate(self, error: DuplicateBrokerError) -> None:
        """Fail, unless the other process may be one that just ended."""
        now = asyncio.get_running_loop().time()
        if self._first_refusal is None:
            self._first_refusal = now
        is_final = now - self._first_refusal > 2 * self._cluster.session_seconds
        if self._registrar.was_registered or is_final:
            self._fail(str(error))
        else:
            logger.log(
                logging.WARNING if self._first_refusal == now else logging.DEBUG,
                "waiting for the session of another process with this broker id to end",
                extra={"reason": str(error)},
            )

    def _fail(self, reason: str) -> None:
        self._log_error("this broker cannot run", reason)
        if not self.failed.done():
            self.failed.set_result(DataDirectoryError(reason))

    async def _connect(self) -> BrokerConnection:
        endpoint = self._cluster.controller_endpoint
        return await BrokerConnection.open(endpoint.host, endpoint.port, self._config)

    async def _describe_cluster(self, connection: BrokerConnection) -> DescribeClusterResponse:
        response = await connection.send(
            DescribeClusterRequest(), DescribeClusterResponse, timeout=_REQUEST_SECONDS
        )
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code), response.error_message)
        return response

    async def _check_cluster_id(self, connection: BrokerConnection, cluster_id: str) -> None:
        response = await self._describe_cluster(connection)
        if response.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"The data directory belongs to cluster {cluster_id}, but the controller at"
                f" {connection.address} to cluster {response.cluster_id}"
            )
        self._update_alive(response)

    async def _refresh_alive(self, connection: BrokerConnection) -> None:
        self._update_alive(await self._describe_cluster(connection))

    def _update_alive(self, response: DescribeClusterResponse) -> None:
        self._cluster.update_alive([broker.broker_id for broker in response.brokers])

    async def _catch_up(self, connection: BrokerConnection) -> int:
        """Commit what differs between the controller's whole log and the image.

        Returns the end offset of the controller's log.
        """
        topics = self._topics
        latest: dict[bytes, bytes | None] = {}
        offset = 0
        while True:
            records, next_offset, end_offset = await self._fetch(connection, offset, 0)
            latest.update(records)
            if next_offset is None or next_offset >= end_offset:
                break
            offset = next_offset
        current = dict(topics.image.records())
        changes: list[KeyValue] = [(key, None) for key in current if latest.get(key) is None]
        changes += [
            (key, value)
            for key, value in latest.items()
            if value is not None and current.get(key) != value
        ]
        if changes or topics.image.position != self._position(end_offset):
            is_lost = self._registration.is_directory_lost
            await asyncio.shield(self._commit(changes, end_offset, is_directory_lost=is_lost))
        return end_offset

    async def _follow(self, connection: BrokerConnection, offset: int) -> None:
        while True:
            records, next_offset, _end_offset = await self._fetch(
                connection, offset, _FETCH_WAIT_MS, self._registration.metadata_epoch
            )
            if next_offset is not None:
                commit = self._commit(records, next_offset)
                # Creating thousands of logs takes longer than a session: send heartbeats meanwhile.
                while not (await asyncio.wait((commit,), timeout=_FETCH_WAIT_MS / 1000))[0]:
                    with suppress(ClientError, KafkaError, ApiError):
                        await self._fetch(connection, offset, 0, max_bytes=1)
                        await self._refresh_alive(connection)
                await commit
                offset = next_offset
            await self._refresh_alive(connection)
            self._record_controller(connection)

    def _record_controller(self, connection: BrokerConnection) -> None:
        """Record which process is the controller: it may not have announced itself here yet."""
        epoch_id = self._registration.metadata_epoch_id
        with suppress(ApiError):  # The controller hears of it when it announces itself.
            self._cluster.incarnations.record(
                self._cluster.controller_id, epoch_id, connection.address, connection
            )

    def _position(self, offset: int) -> MetadataPosition:
        epoch, epoch_id = self._registration.metadata_epoch, self._registration.metadata_epoch_id
        return MetadataPosition(epoch, epoch_id, offset)

    def _commit(
        self, records: Sequence[KeyValue], offset: int, *, is_directory_lost: bool = False
    ) -> asyncio.Task[None]:
        """Commit records in a task of its own: a cancelled one would leave threads behind."""
        commit = self._topics.commit_from_controller(
            records,
            self._position(offset),
            self._registrar.directory,
            is_directory_lost=is_directory_lost,
        )
        self._commit_task = asyncio.get_running_loop().create_task(commit)
        return self._commit_task

    async def _fetch(
        self,
        connection: BrokerConnection,
        offset: int,
        max_wait_ms: int,
        last_fetched_epoch: int = -1,
        max_bytes: int = _FETCH_MAX_BYTES,
    ) -> tuple[Sequence[KeyValue], int | None, int]:
        """Fetch records of the metadata log from an offset.

        Returns the records, the offset after them (None if there are none), and the log's end.
        """
        request = fetch_request(
            [
                PartitionFetch(
                    METADATA_TOPIC, 0, offset, max_bytes, last_fetched_epoch=last_fetched_epoch
                )
            ],
            replica_id=self._cluster.broker_id,
            max_wait_ms=max_wait_ms,
        )
        response = await connection.send(
            request,
            FetchResponse,
            max_version=LAST_VERSION_WITH_TOPIC_NAMES,
            timeout=_REQUEST_SECONDS,
        )
        (data,) = (data for topic in response.responses for data in topic.partitions)
        if data.error_code:
            code = ErrorCode(data.error_code)
            reason = f"Fetch of {METADATA_TOPIC} at offset {offset} failed: {code.message}"
            raise ApiError(code, reason)
        if data.diverging_epoch.epoch >= 0:
            raise OtherMetadataLogError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"The metadata log of the controller at {connection.address} diverges at offset"
                f" {data.diverging_epoch.end_offset}, before {offset}",
            )
        records: list[KeyValue] = []
        next_offset = None
        for batch in split_batches(data.records or b""):
            records += read_key_values(batch)
            next_offset = batch.next_offset
        return records, next_offset, data.high_watermark
