"""The consumer: records of topics or partitions, alone or as a member of a group.

    async with Consumer("localhost:9092", "orders", group="billing") as consumer:
        async for record in consumer:
            ...

Records are prefetched in the background, and delivered in order within each partition. Delivery is
at least once: a record counts as consumed when the next one is asked for, and only consumed offsets
are committed automatically, so that the records that were being processed when the application
crashed are delivered again. `commit()` commits everything that was delivered so far.

A rebalance waits for the application to process what it was given: partitions are revoked when it
asks for more, or after `GroupConfig.processing_timeout`.

A consumer is read by one task at a time. Anything that waits can be cancelled without losing
records.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import (
    AsyncIterator,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING

from ..cluster import Cluster
from ..config import ClientConfig
from ..errors import ClientError, ConsumerError, DeadlineError, KafkaError
from ..offsets import fetch_committed_offsets, list_offsets, values_or_raise
from ..types import (
    EARLIEST,
    LATEST,
    ConsumerGroupMetadata,
    ConsumerRecord,
    Deserializer,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from .assignment import Assignment, Callbacks, RebalanceCallback
from .assignors import ASSIGNORS
from .committer import Committer
from .config import FetchConfig, GroupConfig, ReadConfig
from .consumer_protocol_member import ConsumerProtocolMember
from .delivery import SLICE_RECORDS, Delivery
from .fetcher import Fetcher
from .group_member import GroupMember
from .lifecycle import Lifecycle
from .poller import BadRecordHandler, Poller, Stream
from .positions import FetchState, Positions
from .subscription import Subscription

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrow.decoder import ArrowDecoder
    from ..security import SecurityConfig

logger = logging.getLogger(__name__)

_RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_GROUP_PROTOCOLS = ("auto", "classic", "consumer")
_DEFAULT_ASSIGNORS = ("range", "roundrobin")
#: The finalized feature of brokers that offer the consumer protocol.
_GROUP_FEATURE = "group.version"
_ISOLATIONS = {"read_uncommitted": False, "read_committed": True}
# How long `close` waits for a rebalance to end, in order to commit.
_CLOSE_SECONDS = 5.0


class Consumer(Lifecycle):
    """Reads topics, or the partitions that `assign` names.

    With a group, partitions are shared with the other members, and offsets are committed. Without
    one, the consumer reads all partitions of its topics.

    `group_protocol` is "classic", "consumer" (KIP-848, in which the coordinator assigns
    partitions), or "auto": consumer if the broker offers it, unless `assignors` or timeouts are
    given that only the classic protocol has, or an `instance_id`: in the classic protocol a static
    member that was killed is back at once, in the other it waits for the session of the dead one.
    `auto_offset_reset` is where to start when there is no committed offset, or the log does not
    have it any more: "earliest" (the default), "latest" or "none". "latest" silently skips what was
    written before the first commit, and to a new partition before it was discovered.
    `auto_commit` is the number of seconds between commits, or None: the application commits.
    `on_bad_record` is called with each record that cannot be deserialized, which is then skipped.
    Without it BadRecordError is raised, and the next call continues after the record.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *topics: str,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        auto_offset_reset: str = "earliest",
        isolation: str = "read_uncommitted",
        auto_commit: float | None = 5.0,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_bad_record: BadRecordHandler | None = None,
        group_protocol: str = "auto",
        assignors: Sequence[str] | None = None,
        instance_id: str | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        fetch: FetchConfig | None = None,
        group_config: GroupConfig | None = None,
        client: ClientConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        _check_choice("auto_offset_reset", auto_offset_reset, _RESETS)
        _check_choice("isolation", isolation, _ISOLATIONS)
        _check_choice("group_protocol", group_protocol, _GROUP_PROTOCOLS)
        for name in assignors or ():
            _check_choice("assignors", name, ASSIGNORS)
        if assignors is not None and not assignors:
            raise ValueError("Invalid assignors: a group needs at least one")
        if assignors is not None and group_protocol == "consumer":
            raise ValueError(
                "Invalid assignors: with group_protocol 'consumer' the coordinator assigns"
            )
        if instance_id is not None and group is None:
            raise ValueError(f"instance_id {instance_id!r} requires a group")
        self.group = group
        self._read_config = ReadConfig(group, _RESETS[auto_offset_reset], _ISOLATIONS[isolation])
        self._positions = Positions()
        self._delivery = Delivery(
            self._positions, key_deserializer, value_deserializer, self._wake_fetcher
        )
        super().__init__(Cluster(bootstrap, client, security), self._delivery.arrived)
        self._fetcher = Fetcher(
            self._cluster,
            self._positions,
            self._delivery,
            fetch or FetchConfig(),
            self._read_config,
        )
        self._poller = Poller(self._delivery, self._fetcher, on_bad_record, self._check_readable)
        self._committer: Committer | None = None
        if group is not None:
            self._committer = Committer(
                self._cluster, group, self._positions, self._delivery, auto_commit
            )
        # Without on_lost, lost partitions are reported as revoked.
        callbacks = Callbacks(on_assigned, on_revoked, on_lost or on_revoked)
        self._assignment = Assignment(
            self._cluster,
            self._positions,
            self._delivery,
            self._fetcher,
            self._committer,
            callbacks,
        )
        # It joins the group when topics are subscribed to.
        self._member: GroupMember | ConsumerProtocolMember | None = None
        # Whether the protocol is chosen when it is known what the broker offers.
        self._group_config, self._instance_id = group_config or GroupConfig(), instance_id
        self._is_protocol_open = (
            group_protocol == "auto"
            and assignors is None
            and instance_id is None
            and self._group_config.is_any_protocol
        )
        if group is not None and group_protocol == "consumer":
            self._member = self._consumer_protocol_member(group)
        elif group is not None:
            self._member = GroupMember(
                self._cluster,
                group,
                self._assignment,
                [ASSIGNORS[name] for name in assignors or _DEFAULT_ASSIGNORS],
                self._group_config,
                instance_id,
            )
        if topics or pattern is not None:
            self.subscribe(*topics, pattern=pattern)

    def __repr__(self) -> str:
        what = self._assignment.subscription or sorted(self.assignment)
        return f"<Consumer of {what}{f' in group {self.group}' if self.group else ''}>"

    # Start and close.

    async def _start(self) -> None:
        if self.group is not None and self._is_protocol_open:
            await self._choose_protocol(self.group)
        self._is_started = True
        self._tasks.start("fetcher", self._fetcher.run())
        if self._committer is not None:
            self._tasks.start("committer", self._committer.run())
        if self._assignment.subscription is not None:
            if self._assignment.member is None:
                await self._cluster.retry(self._assignment.refresh, what="looking up topics")
            self._start_subscription()
        # "latest" is the end of the log at this moment, not at a later one.
        await self._fetcher.find_positions([one for one in self._positions if not one.error])

    async def _choose_protocol(self, group: str) -> None:
        """Use the consumer protocol if the brokers offer it: the first one that answers."""
        for node in list(self._cluster.metadata.nodes):
            try:
                connection = await self._cluster.connect(node)
            except (KafkaError, ClientError):
                continue
            if connection.features.get(_GROUP_FEATURE, 0) >= 1:
                self._member = self._consumer_protocol_member(group)
                if self._assignment.member is not None:
                    self._use_member()
            return

    def _consumer_protocol_member(self, group: str) -> ConsumerProtocolMember:
        return ConsumerProtocolMember(
            self._cluster, group, self._assignment, self._group_config, self._instance_id
        )

    def _use_member(self) -> None:
        assert self._committer is not None
        self._assignment.member = self._committer.member = self._member

    async def close(self) -> None:
        """Commit consumed offsets if auto-commit is enabled, leave the group, and disconnect.

        Records that are being processed are not committed: the application may have failed to
        process them. (A block of `async with` that ends without an error has processed them.)
        """
        if self._assignment.is_in_callback:
            # A callback cannot wait for itself.
            self._tasks.start("close", self._close(include_processing=False))
        else:
            await self._close(include_processing=False)

    async def _end(self, *, include_processing: bool) -> None:
        try:
            await self._tasks.stop("committer")
            await self._leave_group(include_processing=include_processing)
        finally:
            self._assignment.assign(())

    async def _leave_group(self, *, include_processing: bool) -> None:
        """Commit, revoke and leave within the request timeout; errors are logged."""
        timeout = self._cluster.config.timeouts.request
        try:
            if self._is_started:
                async with asyncio.timeout(timeout):
                    await self._commit_and_leave(
                        include_processing=include_processing,
                        commit_timeout=min(timeout, _CLOSE_SECONDS),
                    )
        except (KafkaError, ClientError, TimeoutError) as error:
            logger.warning("%r could not leave its group cleanly: %s", self, error)

    async def _commit_and_leave(self, *, include_processing: bool, commit_timeout: float) -> None:
        await self._tasks.stop("metadata")
        # Before leaving, so that a rebalance can end first.
        if self._committer is not None:
            await self._committer.commit_consumed(
                None, include_processing=include_processing, timeout=commit_timeout
            )
        await self._tasks.stop("member")
        if self._assignment.member is not None:
            await self._assignment.revoke(self.assignment)
            await self._assignment.member.leave()

    def _wake_fetcher(self) -> None:
        self._fetcher.wake()

    # Subscription and assignment.

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned."""
        return self._positions.assigned

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(one.tp for one in self._positions if one.is_paused)

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics; of a pattern, those that match."""
        return frozenset(self._assignment.subscribed_topics())

    def subscribe(self, *topics: str, pattern: str | re.Pattern[str] | None = None) -> None:
        """Subscribe to topics, or to all present and future ones whose name matches a pattern."""
        self._check_open()
        if self._assignment.subscription is None and self.assignment:
            raise ConsumerError("Cannot subscribe: partitions were assigned with assign()")
        is_first = self._assignment.subscription is None
        self._assignment.subscribe(Subscription.of(topics, pattern))
        if self._committer is not None:
            self._use_member()
            self._committer.is_group_managed = True
        if self._is_started and is_first:
            self._start_subscription()

    async def unsubscribe(self) -> None:
        """Commit consumed offsets if auto-commit is enabled, leave the group, and read nothing.

        Afterwards topics can be subscribed to, or partitions assigned.
        """
        self._check_open()
        if self._assignment.is_in_callback:
            raise ConsumerError("Cannot unsubscribe in a callback: the rebalance waits for it")
        try:
            if self._assignment.subscription is not None:
                await self._leave_group(include_processing=False)
        finally:
            self._assignment.unsubscribe()
            if self._committer is not None:
                self._committer.member = None
            await self._tasks.stop("metadata", "member")
            # A reader that waits gets an error: there is nothing to read.
            self._delivery.arrived.set()

    def _start_subscription(self) -> None:
        self._tasks.start("metadata", self._assignment.watch())
        if self._assignment.member is not None:
            self._tasks.start("member", self._assignment.run_member())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, without joining a group."""
        self._check_open()
        if self._assignment.subscription is not None:
            raise ConsumerError("Cannot assign partitions: topics were subscribed to")
        self._assignment.assign({TopicPartition(*tp) for tp in partitions})

    # Records.

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # Buffered records cost no more than this.
        for record in self._delivery.iterator:
            return record
        return await self._unless_closed(self._next_record)

    async def getone(self, timeout: float | None = None) -> ConsumerRecord | None:
        """Return the next record, or None if there is none within `timeout` seconds."""
        for record in self._delivery.iterator:
            return record
        ready = await self._poller.poll(SLICE_RECORDS, timeout)
        if ready is None:
            return None
        self._delivery.deliver_one_by_one(ready)
        return next(self._delivery.iterator)

    async def getmany(
        self, timeout: float | None = None, max_records: int = SLICE_RECORDS
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Wait for records, and return all that are buffered, up to `max_records`, by partition.

        The result is empty if there are none within `timeout` seconds.
        """
        _check_max_records(max_records)
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        ready = await self._poller.poll(max_records, timeout)
        remaining = max_records
        while ready is not None and ready.error is None:
            ready = self._delivery.limit(ready, remaining)
            self._delivery.deliver(ready)
            records.setdefault(ready.partition.tp, []).extend(ready.records)
            remaining -= len(ready.records)
            if remaining <= 0:
                break
            try:
                ready = self._delivery.take(remaining)
            except Exception as error:  # noqa: BLE001  # raised by the next call
                self._delivery.report(error)
                break
        return records

    def batches(self, max_records: int = SLICE_RECORDS) -> AsyncIterator[list[ConsumerRecord]]:
        """Iterate over lists of records, each of one partition."""
        _check_max_records(max_records)

        async def next_batch() -> list[ConsumerRecord]:
            ready = await self._poller.poll(max_records)
            assert ready is not None
            ready = self._delivery.limit(ready, max_records)
            self._delivery.deliver(ready)
            return ready.records

        return Stream(lambda: self._unless_closed(next_batch))

    def arrow_batches(self, decoder: ArrowDecoder | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches, each of one partition. Requires pyarrow.

        The columns are those of `ArrowDecoder`, with headers unless a decoder is given. Keys and
        values are bytes: deserializers are not applied.
        """
        from ..arrow.stream import ArrowStream  # noqa: PLC0415  # pyarrow is optional

        tables = ArrowStream(self._delivery, decoder)

        async def next_table() -> pa.RecordBatch:
            return await self._poller.poll_table(tables)

        return Stream(lambda: self._unless_closed(next_table))

    async def _next_record(self) -> ConsumerRecord:
        record = await self.getone()
        assert record is not None
        return record

    def _check_readable(self) -> None:
        super()._check_readable()
        if self._assignment.subscription is None and not self._positions:
            raise ConsumerError("Nothing to read: subscribe to topics, or assign partitions")

    # Positions.

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset."""
        if offset < 0:
            raise ValueError(f"Invalid offset {offset} for {partition}: must not be negative")
        assigned = self._positions[partition]
        self._delivery.forget([assigned])
        assigned.start_at(offset)
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the beginning of each of these partitions."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of each of these partitions."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, reset_to: int, tps: Collection[TopicPartition]) -> None:
        partitions = self._positions.select(tps)
        self._delivery.forget(partitions)
        for partition in partitions:
            partition.await_position(FetchState.AWAIT_RESET, reset_to)
            partition.lowest_position = 0  # any offset may be committed after this seek
        self._fetcher.wake()

    def seek_to_committed(self) -> None:
        """Continue at the committed offsets: what was delivered since is delivered again.

        For the time after a transaction was aborted. A partition without a committed offset
        continues where it was started.
        """
        committer = self._require_group()
        partitions = list(self._positions)
        self._delivery.forget(partitions)
        committer.rewind()
        for partition in partitions:
            if partition.committed is not None or not partition.has_position:
                partition.await_position(FetchState.AWAIT_COMMITTED)
            else:
                partition.start_at(partition.started_at)
        self._fetcher.wake()

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the record that is delivered next, once it is known."""
        assigned = self._positions[partition]
        self._assignment.start_reading([assigned])
        loop, config, failures = asyncio.get_running_loop(), self._cluster.config, 0
        deadline = loop.time() + config.timeouts.operation
        while not assigned.has_position:
            await self._fetcher.find_positions([assigned])
            if assigned.error is not None:
                error, assigned.error = assigned.error, None
                raise error
            if not self._positions.is_current(assigned):
                raise ConsumerError(f"{partition} is not assigned to this consumer any more")
            if not assigned.has_position:
                if loop.time() > deadline:
                    raise DeadlineError(
                        f"Could not find the position of {partition}"
                        f" within {config.timeouts.operation:g} s"
                    )
                await asyncio.sleep(config.retry.delay(failures, 0.5))
                failures += 1
        self._delivery.update_position()
        return assigned.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver no records of these partitions until they are resumed."""
        selected = self._positions.select(partitions)
        for partition in selected:
            partition.is_paused = True
        self._delivery.take_back(selected)

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver records of these partitions again."""
        for partition in self._positions.select(partitions):
            partition.is_paused = False
            self._delivery.enqueue(partition)
        self._fetcher.wake()

    # Committed offsets.

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit all that was delivered, or these offsets: each is that of the next record.

        Raises KafkaError if the partitions were assigned to another member. A member of a group
        cannot commit a partition that is not assigned to it, nor an offset before the one at which
        it was assigned the partition, unless it seeks there first: other members may have committed
        later offsets meanwhile.
        """
        committer = self._require_group()
        if offsets is None:
            await committer.commit(None)
            return
        await committer.commit(
            {
                tp: offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
                for tp, offset in offsets.items()
            }
        )

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of these partitions, or of all that are assigned."""
        group = self._require_group().group
        tps = partitions or tuple(self.assignment)

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            return values_or_raise(await fetch_committed_offsets(self._cluster, group, tps))

        return await self._cluster.retry(attempt, what="looking up committed offsets")

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it, for `Producer.commit_offsets` with explicit offsets.

        Raises KafkaError if the consumer is not a member at the moment.
        """
        return self._require_group().group_metadata()

    def transaction_offsets(
        self,
    ) -> tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return what a transaction commits (internal: see `Producer.commit_offsets`)."""
        return self._require_group().transaction_offsets()

    def mark_transaction_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Record that a transaction has committed offsets (internal)."""
        self._require_group().mark_transaction_committed(offsets)

    def _require_group(self) -> Committer:
        if self._committer is None:
            raise ConsumerError("Offsets can be committed with a group only")
        return self._committer

    # Offsets of the log.

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the earliest offset of these partitions, or of all that are assigned."""
        return await self._offsets_at(EARLIEST, partitions)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the offset after the last record of these partitions, or of all assigned ones."""
        return await self._offsets_at(LATEST, partitions)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after a time in milliseconds; None if there is none."""
        for tp, time in times.items():
            if time < 0:
                raise ValueError(
                    f"Invalid time {time} for {tp}: expected milliseconds since 1970, not negative"
                )
        offsets = await self._list_offsets(times)
        return {tp: found if found.offset >= 0 else None for tp, found in offsets.items()}

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the offsets between position and log end, of these partitions or of all."""
        ends = await self.end_offsets(*partitions)
        return {tp: max(0, end - await self.position(tp)) for tp, end in ends.items()}

    async def _offsets_at(
        self, timestamp: int, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        offsets = await self._list_offsets(dict.fromkeys(tps or self.assignment, timestamp))
        return {tp: found.offset for tp, found in offsets.items()}

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        read_committed = self._read_config.read_committed

        async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
            return values_or_raise(
                await list_offsets(self._cluster, times, read_committed=read_committed)
            )

        return await self._cluster.retry(attempt, what="looking up offsets")


def _check_max_records(max_records: int) -> None:
    if max_records < 1:
        raise ValueError(f"Invalid max_records {max_records}: must be at least 1")


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"Invalid {name} {value!r}: must be one of {', '.join(choices)}")
