"""Handling of failed requests per partition: retry later, or raise to the application."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from .delivery import Delivery
from .positions import AssignedPartition

logger = logging.getLogger(__name__)

# After this many failures it is not just a leader that moves.
_FAILURES_TO_WARN = 3


class PartitionRetries:
    """Schedules retries with backoff, and logs each problem once."""

    def __init__(self, cluster: Cluster, delivery: Delivery) -> None:
        self._cluster = cluster
        self._delivery = delivery

    def handle(self, partition: AssignedPartition, error: KafkaError | ClientError) -> None:
        """Retry later if the error is retriable; raise it to the application otherwise."""
        if error.retriable:
            self.log_if_persistent(partition, str(error))
            self.retry_later(partition)
        else:
            self.fail(partition, error)

    def retry_later(self, partition: AssignedPartition) -> None:
        """Leave the partition alone for the retry backoff."""
        delay = self._cluster.config.retry.delay(partition.failures, random.random())  # noqa: S311
        partition.failures += 1
        partition.retry_at = asyncio.get_running_loop().time() + delay

    def fail(self, partition: AssignedPartition, error: Exception | None) -> None:
        """Raise an error to the application; the partition is retried after that."""
        self.retry_later(partition)
        partition.error = error
        self._delivery.enqueue(partition)

    def log_first(self, partitions: Iterable[AssignedPartition], reason: str) -> None:
        """Log a problem of several partitions: as a warning the first time only."""
        is_first = any(partition.failures == 0 for partition in partitions)
        logger.log(logging.WARNING if is_first else logging.DEBUG, "%s", reason)

    def log_if_persistent(self, partition: AssignedPartition, reason: str) -> None:
        """Log a problem of one partition: as a warning once, when it persists."""
        is_persistent = partition.failures == _FAILURES_TO_WARN
        logger.log(logging.WARNING if is_persistent else logging.DEBUG, "%s", reason)
