"""The share consumer: records of topics as from a queue, shared record by record (KIP-932).

    async with ShareConsumer("localhost:9092", "orders", group="workers") as consumer:
        async for record in consumer:
            if not await process(record):
                consumer.release(record)

Any number of consumers of a group read the same partitions. A record is acquired by one of them,
for the lock duration of the group, and delivered again, to any, unless it is accepted or rejected
by then; up to the delivery limit of the group.

With implicit acknowledgement, a record is accepted when the next one is asked for, unless it was
acknowledged otherwise. With explicit acknowledgement nothing is accepted by itself, so that records
can be processed concurrently, in any order.

Acknowledgements are sent with the next fetch. `commit()` waits until the broker has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Literal

from ottla.protocol.registry import SHARE_FETCH

from ..cluster import Cluster
from ..config import ClientConfig
from ..consumer.fetched_data import BadRecordError, deserialize
from ..consumer.lifecycle import Lifecycle
from ..errors import AcknowledgeError, ClientError, DeadlineError, KafkaError
from ..types import (
    AcknowledgeType,
    ConsumerRecord,
    Deserializer,
    ShareRecord,
    TopicPartition,
)
from .config import DeadLetterConfig, ShareConfig
from .dead_letters import DeadLetters
from .fetcher import AcknowledgedCallback, ShareFetcher
from .member import ShareGroupMember
from .partition import SLICE_RECORDS, AcquiredSlice, SharePartition

if TYPE_CHECKING:
    from ..security import SecurityConfig

logger = logging.getLogger(__name__)

# How long `close` waits for brokers.
_CLOSE_SECONDS = 5.0
# Records are delivered for this long before the event loop gets its turn.
_TURN_SECONDS = 0.002
# The records that are delivered at once should not take longer than this.
_SLICE_SECONDS = 0.1


class ShareConsumer(Lifecycle):
    """Reads topics as a member of a share group.

    `acknowledgement` is "implicit" or "explicit"; see above. `on_acknowledged` is called with a
    partition, the offsets that were acknowledged, and None, or the error: they are delivered again.

    `dead_letter` names a topic for records that were delivered too often, or were rejected: a
    record is in there before it is rejected. The topic must exist.

    The group's configs say where it starts to read (`share.auto.offset.reset`: by default at the
    end), how long records are locked, and how often they are delivered.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *topics: str,
        group: str,
        acknowledgement: Literal["implicit", "explicit"] = "implicit",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_acknowledged: AcknowledgedCallback | None = None,
        dead_letter: str | DeadLetterConfig | None = None,
        share: ShareConfig | None = None,
        client: ClientConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        if acknowledgement not in ("implicit", "explicit"):
            raise ValueError(
                f"Invalid acknowledgement {acknowledgement!r}: must be implicit or explicit"
            )
        if not topics:
            raise ValueError("A share consumer needs at least one topic")
        self.group = group
        self._is_implicit = acknowledgement == "implicit"
        self._key, self._value = key_deserializer, value_deserializer
        self._on_acknowledged = on_acknowledged
        self._config = share or ShareConfig()
        cluster = Cluster(bootstrap, client, security)
        super().__init__(cluster, asyncio.Event())
        self._fetcher = ShareFetcher(
            cluster,
            group,
            self._config,
            self._enqueue,
            self._report_acknowledged,
            isolates=dead_letter is not None,
        )
        self._member = ShareGroupMember(cluster, group, frozenset(topics), self._fetcher.assign)
        self._fetcher.member_id = self._member.member_id
        self._dead_letters: DeadLetters | None = None
        if dead_letter is not None:
            config = DeadLetterConfig(dead_letter) if isinstance(dead_letter, str) else dead_letter
            self._dead_letters = DeadLetters(
                bootstrap, config, group, cluster.config, self._fetcher.wake, self._fail
            )
        self._topics = frozenset(topics)
        # Partitions with something to deliver, in turns.
        self._queue: deque[SharePartition] = deque()
        # The records that are delivered one by one, and those that are being processed.
        self._iterator: Iterator[ShareRecord] = iter(())
        self._iterated: tuple[SharePartition, AcquiredSlice, list[ShareRecord]] | None = None
        self._processing: list[tuple[SharePartition, list[ShareRecord]]] = []
        self._turn_end = 0.0
        # Records that are delivered at once; fewer, the longer the application takes for them.
        self._slice_records = 1

    def __repr__(self) -> str:
        return f"<ShareConsumer of {', '.join(sorted(self._topics))} in group {self.group}>"

    # Start and close.

    async def _start(self) -> None:
        # Brokers without share groups are told apart at once, by the first one that answers.
        for node in list(self._cluster.metadata.nodes):
            try:
                connection = await self._cluster.connect(node)
            except (KafkaError, ClientError):
                continue
            connection.version_for(SHARE_FETCH)
            break
        if self._dead_letters is not None:
            await self._dead_letters.start(self._cluster)
        self._is_started = True
        self._tasks.start("fetcher", self._fetcher.run())
        self._tasks.start("member", self._member.run())

    async def close(self) -> None:
        """Send acknowledgements, release all other records, leave the group, and disconnect.

        The record that is being processed is released. (A block of `async with` that ends without
        an error has processed it: with implicit acknowledgement, it is accepted.)
        """
        await self._close(include_processing=False)

    async def _end(self, *, include_processing: bool) -> None:
        self._fetcher.stop()
        self._settle(include_processing=include_processing)
        if self._dead_letters is not None:
            await self._dead_letters.close(self._config.close_timeout)
        seconds = min(self._cluster.config.timeouts.request, _CLOSE_SECONDS)
        try:
            if self._is_started:
                async with asyncio.timeout(seconds):
                    await self._fetcher.close()
                    await self._tasks.stop("member")
                    await self._member.leave()
        except (KafkaError, ClientError, TimeoutError) as error:
            logger.warning("%r could not leave its group cleanly: %s", self, error)

    def _settle(self, *, include_processing: bool) -> None:
        """Acknowledge what was delivered, as the consumer is closed."""
        accept = AcknowledgeType.ACCEPT
        if self._is_implicit:
            if self._iterated is not None:
                partition, _taken, records = self._iterated
                delivered = len(records) - length_hint(self._iterator)
                consumed = delivered if include_processing else delivered - 1
                partition.acknowledge_rest(records[: max(0, consumed)], accept)
                self._release(partition, records[max(0, consumed) : delivered])
                partition.acknowledge_rest(records[delivered:], AcknowledgeType.RELEASE)
            for partition, records in self._processing:
                if include_processing:
                    partition.acknowledge_rest(records, accept)
                else:
                    self._release(partition, records)
        self._iterated, self._processing, self._iterator = None, [], iter(())
        for partition in self._fetcher.partitions:
            partition.release_buffer()

    def _release(self, partition: SharePartition, records: Iterable[ShareRecord]) -> None:
        for record in records:
            if record.offset not in partition.pending:
                self.release(record, "the consumer was closed while it was processed")

    # Subscription.

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._topics

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer fetches from; others may have them, too."""
        return self._fetcher.assigned

    @property
    def lock_duration(self) -> float | None:
        """How many seconds records are acquired for; None before the first fetch."""
        return self._fetcher.lock_seconds

    def subscribe(self, *topics: str) -> None:
        """Replace the topics."""
        self._check_open()
        if not topics:
            raise ValueError("A share consumer needs at least one topic")
        self._topics = frozenset(topics)
        self._member.subscribe(self._topics)

    # Records.

    def __aiter__(self) -> AsyncIterator[ShareRecord]:
        return self

    async def __anext__(self) -> ShareRecord:
        for record in self._iterator:
            return record
        return await self._unless_closed(self._next_record)

    async def getone(self, timeout: float | None = None) -> ShareRecord | None:
        """Return the next record, or None if there is none within `timeout` seconds."""
        for record in self._iterator:
            return record
        ready = await self._poll(timeout)
        if ready is None:
            return None
        self._iterated = ready
        self._iterator = iter(ready[2])
        return next(self._iterator)

    async def getmany(
        self, timeout: float | None = None, max_records: int = SLICE_RECORDS
    ) -> dict[TopicPartition, list[ShareRecord]]:
        """Wait for records, and return all that are buffered, up to `max_records`, by partition.

        The result is empty if there are none within `timeout` seconds.
        """
        if max_records < 1:
            raise ValueError(f"Invalid max_records {max_records}: must be at least 1")
        result: dict[TopicPartition, list[ShareRecord]] = {}
        ready = await self._poll(timeout)
        remaining = max_records
        while ready is not None:
            partition, taken, records = ready
            if len(records) > remaining:
                partition.put_back(taken._replace(records=taken.records[remaining:]))
                self._enqueue(partition)
                records = records[:remaining]
            self._processing.append((partition, records))
            result.setdefault(partition.tp, []).extend(records)
            remaining -= len(records)
            if remaining <= 0 or (self._queue and self._queue[0].error is not None):
                break
            ready = self._take()
        return result

    async def _next_record(self) -> ShareRecord:
        record = await self.getone()
        assert record is not None
        return record

    async def _poll(
        self, timeout: float | None
    ) -> tuple[SharePartition, AcquiredSlice, list[ShareRecord]] | None:
        """Return the next records, or None if there are none within `timeout`."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self._accept_delivered()
        self._adapt_slices(loop.time() - self._fetcher.asked_at)
        if loop.time() > self._turn_end:
            await asyncio.sleep(0)
            self._turn_end = loop.time() + _TURN_SECONDS
        while True:
            self._check_readable()
            self._fetcher.asked_at = loop.time()
            taken = self._take()
            if taken is not None:
                return taken
            self._fetcher.ask()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return None
            finally:
                self._fetcher.is_asked = False

    def _adapt_slices(self, seconds: float) -> None:
        """Deliver more or fewer records at once: only those in the buffer are renewed."""
        if seconds > _SLICE_SECONDS:
            self._slice_records = max(1, self._slice_records // 4)
        else:
            self._slice_records = min(SLICE_RECORDS, self._slice_records * 2)

    def _accept_delivered(self) -> None:
        """Accept what was delivered, if that is implicit: the application asks for more."""
        if self._iterated is not None:
            partition, taken, records = self._iterated
            undelivered = length_hint(self._iterator)
            delivered = len(records) - undelivered
            partition.put_back(taken._replace(records=taken.records[delivered:]))
            self._processing.append((partition, records[:delivered]))
            self._iterated, self._iterator = None, iter(())
            self._enqueue(partition)
        if self._is_implicit and self._processing:
            for partition, records in self._processing:
                partition.acknowledge_rest(records, AcknowledgeType.ACCEPT)
            self._fetcher.wake()
        self._processing.clear()

    def _take(self) -> tuple[SharePartition, AcquiredSlice, list[ShareRecord]] | None:
        """Return the next records, if there are any. Raises errors of partitions."""
        now = asyncio.get_running_loop().time()
        while self._queue:
            partition = self._queue[0]
            if partition.error is not None:
                error, partition.error = partition.error, None
                self._fetcher.wake()
                raise error
            taken = partition.take(now)
            if taken is None:
                partition.is_queued = False
                self._queue.popleft()
                self._fetcher.wake()
                continue
            if len(taken.records) > self._slice_records:
                rest = taken.records[self._slice_records :]
                partition.put_back(taken._replace(records=rest))
                taken = taken._replace(records=taken.records[: self._slice_records])
            self._queue.rotate(-1)
            if not self._is_dead(partition, taken):
                return self._deserialized(partition, taken)
        self._arrived.clear()
        return None

    def _is_dead(self, partition: SharePartition, taken: AcquiredSlice) -> bool:
        """Whether records were delivered too often: they go to the dead letter topic."""
        dead_letters = self._dead_letters
        if dead_letters is None or taken.delivery_count <= dead_letters.max_deliveries:
            return False
        reason = f"not accepted in {dead_letters.max_deliveries} deliveries"
        for record in taken.records:
            dead_letters.send(partition, record, taken.delivery_count, reason)
        return True

    def _deserialized(
        self, partition: SharePartition, taken: AcquiredSlice
    ) -> tuple[SharePartition, AcquiredSlice, list[ShareRecord]]:
        records, error = taken.records, None
        if self._key is not None or self._value is not None:
            records, error = deserialize(taken.records, self._key, self._value)
            if self._dead_letters is not None:
                partition.raw.update((one.offset, one) for one in taken.records)
        if error is not None and not records:
            bad = taken.records[0]
            partition.put_back(taken._replace(records=taken.records[1:]))
            self._enqueue(partition)
            partition.acknowledge(bad.offset, AcknowledgeType.RELEASE)
            raise BadRecordError(bad, error) from error
        if error is not None:
            # Raised when the application has those before it.
            partition.put_back(taken._replace(records=taken.records[len(records) :]))
            self._enqueue(partition)
            taken = taken._replace(records=taken.records[: len(records)])
        count, new = taken.delivery_count, tuple.__new__
        return partition, taken, [new(ShareRecord, (*one, count)) for one in records]

    def _enqueue(self, partition: SharePartition) -> None:
        if not partition.is_queued and partition.has_something:
            partition.is_queued = True
            self._queue.append(partition)
            self._arrived.set()

    def _fail(self, partition: SharePartition, error: Exception) -> None:
        partition.error = error
        self._enqueue(partition)

    # Acknowledgements.

    def accept(self, record: ShareRecord | ConsumerRecord) -> bool:
        """Accept a record: it was processed.

        False if it is not acquired any more, because its lock has ended or the leader has changed:
        it is delivered again. The same is true of the other methods.
        """
        return self._acknowledge(record, AcknowledgeType.ACCEPT, "")

    def release(self, record: ShareRecord | ConsumerRecord, reason: str = "") -> bool:
        """Have a record delivered again. The reason is for the dead letter topic."""
        return self._acknowledge(record, AcknowledgeType.RELEASE, reason or "released")

    def reject(self, record: ShareRecord | ConsumerRecord, reason: str = "") -> bool:
        """Reject a record: it is not delivered again."""
        return self._acknowledge(record, AcknowledgeType.REJECT, reason or "rejected")

    def renew(self, record: ShareRecord | ConsumerRecord) -> bool:
        """Start the lock of a record anew: it takes longer to process."""
        return self._acknowledge(record, AcknowledgeType.RENEW, "")

    async def commit(self) -> None:
        """Send all acknowledgements, and wait until the brokers have them.

        With implicit acknowledgement, everything that was delivered is accepted. Raises
        AcknowledgeError if some failed: those records are delivered again.
        """
        self._check_readable()
        if self._is_implicit:
            processing = list(self._processing)
            if self._iterated is not None:
                partition, _taken, records = self._iterated
                processing.append((partition, records[: -length_hint(self._iterator) or None]))
            for partition, records in processing:
                partition.acknowledge_rest(records, AcknowledgeType.ACCEPT)
        seconds = self._cluster.config.timeouts.operation
        try:
            failed = await self._fetcher.flush(seconds)
        except TimeoutError as error:
            raise DeadlineError(f"No answer to acknowledgements within {seconds:g} s") from error
        if failed:
            raise AcknowledgeError(failed)

    def _acknowledge(
        self, record: ShareRecord | ConsumerRecord, kind: AcknowledgeType, reason: str
    ) -> bool:
        partition = self._fetcher.partition(record.topic, record.partition)
        now = asyncio.get_running_loop().time()
        if partition is None or not partition.is_held(record.offset, now):
            return False
        count = record.delivery_count if isinstance(record, ShareRecord) else 1
        if kind is AcknowledgeType.RENEW:
            partition.renewals.add(record.offset)
        elif self._dead_letters is not None and self._dead_letters.is_due(kind, count):
            raw = partition.raw.get(record.offset) or ConsumerRecord(*record[:8])
            self._dead_letters.send(partition, raw, count, reason)
        else:
            partition.acknowledge(record.offset, kind)
        self._fetcher.wake()
        return True

    def _report_acknowledged(
        self, tp: TopicPartition, offsets: list[int], error: Exception | None
    ) -> None:
        if error is not None:
            logger.info("%d records of %s are delivered again: %s", len(offsets), tp, error)
        if self._on_acknowledged is not None:
            try:
                self._on_acknowledged(tp, offsets, error)
            except Exception:  # a bug in the callback must not stop the consumer
                logger.exception("on_acknowledged failed for %s", tp)
