"""The dead letter topic: where records go that could not be processed.

A record is rejected when the dead letter topic has it, not before. If the consumer is killed in
between, the record is delivered again, and goes there twice. The headers say where it comes from.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

from ..cluster import Cluster
from ..config import ClientConfig
from ..errors import ClientError, ErrorCode, KafkaError
from ..producer.producer import Producer
from ..types import AcknowledgeType, ConsumerRecord
from .config import DeadLetterConfig
from .partition import SharePartition

logger = logging.getLogger(__name__)

_GROUP_RESOURCE = 32
_LIMIT_CONFIG = "share.delivery.count.limit"
_DEFAULT_LIMIT = 5
#: Deliveries in reserve for consumers that are killed.
_RESERVE = 2
_PREFIX = "__dlq.errors."


class DeadLetters:
    """Sends records to the dead letter topic."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: DeadLetterConfig,
        group: str,
        client: ClientConfig,
        on_sent: Callable[[], None],
        on_failure: Callable[[SharePartition, Exception], None],
    ) -> None:
        self.max_deliveries = config.max_deliveries or _DEFAULT_LIMIT - _RESERVE
        self._config = config
        self._group = group
        self._on_sent = on_sent
        self._on_failure = on_failure
        self._producer: Producer = Producer(bootstrap, client=client)
        self._retry = client.retry
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, cluster: Cluster) -> None:
        """Connect. Raises KafkaError if the topic does not exist."""
        if self._config.max_deliveries is None:
            limit = await cluster.retry(lambda: self._limit(cluster), what="looking up configs")
            self.max_deliveries = max(1, limit - _RESERVE)
        await self._producer.start()
        topic = self._config.topic
        metadata = await cluster.retry(
            lambda: cluster.refresh([topic], may_create=False), what="looking up topics"
        )
        info = metadata.topics.get(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
        if code:
            raise KafkaError(code, f"dead letter topic {topic!r}: {code.message}")

    def is_due(self, kind: AcknowledgeType, delivery_count: int) -> bool:
        """Whether a record goes to the dead letter topic if it is acknowledged like this."""
        if kind is AcknowledgeType.REJECT:
            return self._config.include_rejected
        return kind is AcknowledgeType.RELEASE and delivery_count >= self.max_deliveries

    def send(
        self, partition: SharePartition, record: ConsumerRecord, delivery_count: int, reason: str
    ) -> None:
        """Send a record that is held, and then reject it."""
        partition.dead.add(record.offset)
        partition.pending.pop(record.offset, None)
        task = asyncio.create_task(self._send(partition, record, delivery_count, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout: float) -> None:
        """Wait for the records that are being sent, and disconnect."""
        if self._tasks:
            _done, unfinished = await asyncio.wait(self._tasks, timeout=timeout)
            for task in unfinished:
                task.cancel()
        with suppress(KafkaError, ClientError):
            await self._producer.close()

    async def _send(
        self, partition: SharePartition, record: ConsumerRecord, delivery_count: int, reason: str
    ) -> None:
        headers = [
            *record.headers,
            (_PREFIX + "topic", record.topic.encode()),
            (_PREFIX + "partition", str(record.partition).encode()),
            (_PREFIX + "offset", str(record.offset).encode()),
            (_PREFIX + "group", self._group.encode()),
            (_PREFIX + "delivery.count", str(delivery_count).encode()),
            (_PREFIX + "message", reason.encode()),
        ]
        kind, failures = AcknowledgeType.REJECT, 0
        # Its lock is renewed meanwhile. Once that is lost, the record is delivered again.
        while record.offset in partition.dead:
            try:
                await self._producer.send(
                    self._config.topic,
                    record.value,
                    key=record.key,
                    headers=headers,
                    timestamp=record.timestamp,
                )
                break
            except (KafkaError, ClientError) as error:
                log = logger.debug if failures else logger.warning
                log("cannot send to dead letter topic %s: %s", self._config.topic, error)
                if not error.retriable:
                    kind = AcknowledgeType.RELEASE
                    self._on_failure(partition, error)
                    break
                await asyncio.sleep(self._retry.delay(failures, random.random()))  # noqa: S311
                failures += 1
        if record.offset in partition.dead:
            partition.dead.discard(record.offset)
            partition.acknowledge(record.offset, kind)
            self._on_sent()

    async def _limit(self, cluster: Cluster) -> int:
        """Return the delivery limit of the group."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=_GROUP_RESOURCE,
                    resource_name=self._group,
                    configuration_keys=[_LIMIT_CONFIG],
                )
            ]
        )
        response = await cluster.send_to_any(request, DescribeConfigsResponse)
        for result in response.results:
            for config in result.configs:
                if config.name == _LIMIT_CONFIG and config.value is not None:
                    return int(config.value)
        return _DEFAULT_LIMIT
