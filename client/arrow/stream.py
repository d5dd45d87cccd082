"""Fetched data as Arrow record batches, without an object per record."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ottla.protocol.errors import BatchError

from ..consumer.delivery import Delivery
from ..consumer.fetched_data import FetchedData
from ..consumer.positions import AssignedPartition
from ..errors import KafkaError
from .decoder import ArrowDecoder, corrupt_batch_error


class ArrowStream:
    """Turns a consumer's fetched data into Arrow record batches."""

    def __init__(self, delivery: Delivery, decoder: ArrowDecoder | None) -> None:
        self._delivery = delivery
        self._decoder = decoder or ArrowDecoder(headers=True)
        self._partition: AssignedPartition | None = None
        self._fetch_epoch = -1
        self._fetched: FetchedData
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, or None. Raises KafkaError for a corrupt batch."""
        while True:
            batch = self._next_of_fetched()
            if batch is not None:
                return batch
            taken = self._delivery.take_fetched()
            if taken is None:
                return None
            self._partition, self._fetched = taken
            self._fetch_epoch = self._partition.fetch_epoch
            self._batches = self._decoder.decode(
                self._fetched.batches(),
                topic=self._fetched.tp.topic,
                partition=self._fetched.tp.partition,
                start_offset=self._fetched.fetch_offset,
            )

    def discard(self) -> None:
        """Discard the rest, which is fetched again: the application reads otherwise now."""
        partition, self._partition = self._partition, None
        if partition is not None and partition.fetch_epoch == self._fetch_epoch:
            partition.discard()

    def _next_of_fetched(self) -> pa.RecordBatch | None:
        """Return the next batch of the fetched data, which nearly always has only one."""
        partition = self._partition
        if partition is None:
            return None
        if partition.fetch_epoch != self._fetch_epoch or not partition.is_deliverable:
            # Sought, revoked or paused meanwhile. The rest is fetched again.
            if partition.fetch_epoch == self._fetch_epoch:
                partition.discard()
            self._partition = None
            return None
        try:
            batch = next(self._batches, None)
        except (KafkaError, BatchError) as error:
            self._partition = None
            partition.discard()
            if isinstance(error, BatchError):
                raise corrupt_batch_error(partition.tp, error) from error
            raise
        if batch is None:
            end = self._fetched.next_offset
            self._delivery.deliver_up_to(partition, end, self._fetched.leader_epoch)
            self._partition = None
            partition.mark_consumed()
            return None
        next_offset = batch.column("offset")[-1].as_py() + 1
        # At most too high: the log that it was fetched from has this epoch, too.
        self._delivery.deliver_up_to(partition, next_offset, self._fetched.leader_epoch)
        return batch
