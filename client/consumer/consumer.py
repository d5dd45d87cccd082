"""Reading: records of topics or partitions, alone or as a member of a group.

    async with Consumer("localhost:9092", "orders", group="billing") as consumer:
        async for record in consumer:
            ...

Records are fetched ahead in the background, and handed out in order within each partition. Every
record is delivered at least once: it counts as consumed when the next one is asked for, and only
what was consumed is committed automatically, so that what the application had in its hands when it
crashed is delivered again. `commit()` says that everything is done that was delivered so far.

When a group rebalances, the application may finish what it has in its hands: partitions are given
up when it asks for more, or after `GroupConfig.processing_timeout`.

A consumer is read by one task at a time. Anything that waits may be cancelled, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..cluster import Cluster
from ..config import ClientConfig
from ..errors import ClientError, ClosedError, ConsumerError, DeadlineError, KafkaError
from ..offsets import fetch_committed_offsets, list_offsets, values_or_raise
from ..types import (
    EARLIEST,
    LATEST,
    ConsumerRecord,
    Deserializer,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from .assignment import Assignment, Callbacks, RebalanceCallback
from .assignors import ASSIGNORS
from .committer import Committer
from .delivery import SLICE_RECORDS, Delivery, Taken
from .fetched_data import BadRecordError
from .fetcher import FetchConfig, Fetcher, Reading
from .group_member import GroupConfig, GroupMember
from .positions import Phase, Positions
from .subscription import Subscription

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrow.decoder import ArrowDecoder
    from ..arrow.stream import Tables

__all__ = ["BadRecordError", "Consumer", "FetchConfig", "GroupConfig", "RebalanceCallback"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Given a record as it was stored, and what a deserializer raised; it may be a coroutine function.
BadRecordHandler = Callable[[ConsumerRecord, Exception], Awaitable[None] | None]

_RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_ISOLATIONS = {"read_uncommitted": False, "read_committed": True}
# For so long records are handed out before the event loop gets its turn.
_TURN_SECONDS = 0.002
# For so long closing waits for a rebalance to end, in order to commit.
_CLOSE_SECONDS = 5.0


def _raise_bad_record(record: ConsumerRecord, error: Exception) -> None:
    raise BadRecordError(record, error) from error


class Consumer:
    """A reader of topics, or of partitions if `assign` names them.

    With a group, partitions are shared with its other members, and offsets are committed. Without
    one, it reads all partitions of its topics.

    `auto_offset_reset` says where to start when nothing is committed, or when what was is not there
    any more. It is "earliest" unless told otherwise: "latest" skips, without a word, whatever was
    written before the first commit, and whatever goes to a new partition before it is noticed.
    `auto_commit` is the number of seconds between commits, or None: the application commits.
    `on_bad_record` is given what a deserializer did not understand, and the stream goes on behind
    it; unless it is given, BadRecordError is raised, and the stream goes on when asked again.
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
        assignors: Sequence[str] = ("range", "roundrobin"),
        instance_id: str | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        fetch: FetchConfig | None = None,
        group_config: GroupConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        _check("auto_offset_reset", auto_offset_reset, _RESETS)
        _check("isolation", isolation, _ISOLATIONS)
        for name in assignors:
            _check("assignors", name, ASSIGNORS)
        if not assignors:
            raise ValueError("assignors is empty: a group needs one to share out its partitions")
        if instance_id is not None and group is None:
            raise ValueError(f"instance_id is {instance_id!r}, and there is no group")
        self.group = group
        self._reading = Reading(group, _RESETS[auto_offset_reset], _ISOLATIONS[isolation])
        self._cluster = Cluster(bootstrap, client)
        self._positions = Positions()
        self._delivery = Delivery(
            self._positions, key_deserializer, value_deserializer, self._wake_fetcher
        )
        self._fetcher = Fetcher(
            self._cluster, self._positions, self._delivery, fetch or FetchConfig(), self._reading
        )
        self._committer: Committer | None = None
        if group is not None:
            self._committer = Committer(
                self._cluster, group, self._positions, self._delivery, auto_commit
            )
        # Without another word, what is lost is revoked.
        callbacks = Callbacks(on_assigned, on_revoked, on_lost or on_revoked)
        self._ownership = Assignment(
            self._cluster,
            self._positions,
            self._delivery,
            self._fetcher,
            self._committer,
            callbacks,
        )
        # It takes part in the group once topics are subscribed to.
        self._member: GroupMember | None = None
        if group is not None:
            self._member = GroupMember(
                self._cluster,
                group,
                self._ownership,
                [ASSIGNORS[name] for name in assignors],
                group_config or GroupConfig(),
                instance_id,
            )
        self._on_bad_record = on_bad_record or _raise_bad_record
        # The stream of tables that was read from last.
        self._tables: Tables | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: What ended the consumer.
        self._failure: BaseException | None = None
        self._is_started = False
        self._is_closed = False
        self._has_ended = asyncio.Event()
        self._turn_ends = 0.0
        if topics or pattern is not None:
            self.subscribe(*topics, pattern=pattern)

    def __repr__(self) -> str:
        what = self._ownership.subscription or sorted(self.assignment)
        return f"<Consumer of {what}{f' for {self.group}' if self.group else ''}>"

    # From start to end.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Who leaves without an error is done with what it was given.
        await self._close(with_hands=kind is None)

    async def start(self) -> None:
        """Connect, and begin to read. Raises ClientError and KafkaError."""
        self._check_open()
        if self._is_started:
            return
        try:
            await self._cluster.retry(lambda: self._cluster.refresh([]), what="connecting")
            self._is_started = True
            self._run("fetching", self._fetcher.run())
            if self._committer is not None:
                self._run("committing", self._committer.run())
            if self._ownership.subscription is not None:
                if self._ownership.member is None:
                    await self._cluster.retry(self._ownership.look, what="looking for topics")
                self._follow_subscription()
            # What is read from the end is read from this end, not from a later one.
            await self._fetcher.find_positions([one for one in self._positions if not one.error])
        except BaseException:
            await self._close(with_hands=False)
            raise

    async def close(self) -> None:
        """Commit what was consumed, if that is automatic; leave the group; close connections.

        What is in the application's hands is not committed: it may have failed to deal with it.
        (A block of `async with` that ends without an error has dealt with it.)
        """
        if self._ownership.is_telling:
            # A callback does not wait for itself.
            self._tasks["closing"] = asyncio.create_task(self._close(with_hands=False))
        else:
            await self._close(with_hands=False)

    async def _close(self, *, with_hands: bool) -> None:
        if self._is_closed:
            # Somebody else is at it: who leaves now might end the program before that is done.
            await self._has_ended.wait()
            return
        self._is_closed = True
        self._delivery.arrived.set()
        try:
            await self._stop("committing")
            await self._leave(with_hands=with_hands)
        finally:
            self._ownership.assign(())
            try:
                await self._stop(*self._tasks)
            finally:
                self._has_ended.set()
                await self._cluster.close()

    async def _leave(self, *, with_hands: bool) -> None:
        """Leave the group, if there is one, in good order and in time; or not so."""
        seconds = self._cluster.config.timeouts.request
        try:
            if self._is_started:
                async with asyncio.timeout(seconds):
                    await self._say_goodbye(
                        with_hands=with_hands, patience=min(seconds, _CLOSE_SECONDS)
                    )
        except (KafkaError, ClientError, TimeoutError) as error:
            logger.warning("%r leaves its group: %s", self, error)

    async def _say_goodbye(self, *, with_hands: bool, patience: float) -> None:
        await self._stop("watching")
        # While it is a member still, so that a rebalance can come to its end first.
        if self._committer is not None:
            await self._committer.commit_done(None, with_hands=with_hands, patience=patience)
        await self._stop("membership")
        if self._ownership.member is not None:
            await self._ownership.give_up(self.assignment)
            await self._ownership.member.leave()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on in the background until the consumer is closed."""
        task = self._tasks[name] = asyncio.create_task(work, name=f"consumer {name}")
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if not self._is_closed:
            logger.error("%s failed: %r", task.get_name(), error)
            self._failure = error
            self._delivery.arrived.set()

    def _wake_fetcher(self) -> None:
        self._fetcher.wake()

    async def _stop(self, *names: str) -> None:
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What is read.

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return self._positions.places

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is delivered for now."""
        return frozenset(one.place for one in self._positions if one.is_paused)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to; of a pattern, those that were found."""
        return frozenset(self._ownership.wanted_topics())

    def subscribe(self, *topics: str, pattern: str | re.Pattern[str] | None = None) -> None:
        """Read topics, or those whose whole name matches a pattern, now and when they are made."""
        self._check_open()
        if self._ownership.subscription is None and self.assignment:
            raise ConsumerError("partitions were assigned by hand: topics cannot be subscribed to")
        is_first = self._ownership.subscription is None
        self._ownership.subscribe(Subscription.of(topics, pattern))
        if self._committer is not None:
            self._ownership.member = self._committer.member = self._member
        if self._is_started and is_first:
            self._follow_subscription()

    async def unsubscribe(self) -> None:
        """Read nothing more: commit what was consumed, if that is automatic, and leave the group.

        Then topics can be subscribed to again, or partitions be assigned.
        """
        self._check_open()
        if self._ownership.is_telling:
            raise ConsumerError("a callback cannot unsubscribe: the rebalance would wait for it")
        try:
            if self._ownership.subscription is not None:
                await self._leave(with_hands=False)
        finally:
            self._ownership.unsubscribe()
            if self._committer is not None:
                self._committer.member = None
            await self._stop("watching", "membership")
            # Whoever waits for records is told that there will be none.
            self._delivery.arrived.set()

    def _follow_subscription(self) -> None:
        self._run("watching", self._ownership.watch())
        if self._ownership.member is not None:
            self._run("membership", self._ownership.take_part())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, without sharing them with a group."""
        self._check_open()
        if self._ownership.subscription is not None:
            raise ConsumerError("topics were subscribed to: partitions cannot be assigned by hand")
        self._ownership.assign({TopicPartition(*place) for place in partitions})

    # Reading.

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # What is at hand costs no more than this.
        for record in self._delivery.iterator:
            return record
        return await self._unless_closed(self._next_record)

    async def getone(self, timeout: float | None = None) -> ConsumerRecord | None:
        """Give the next record, or None if there is none in so many seconds."""
        for record in self._delivery.iterator:
            return record
        taken = await self._ask(SLICE_RECORDS, timeout)
        if taken is None:
            return None
        self._delivery.hand_out(taken)
        return next(self._delivery.iterator)

    async def getmany(
        self, timeout: float | None = None, max_records: int = SLICE_RECORDS
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Wait for records, and give all that are there; nothing if there are none in time."""
        _check_count(max_records)
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        taken = await self._ask(max_records, timeout)
        left = max_records
        while taken is not None and taken.bad is None:
            taken = self._delivery.cut(taken, left)
            self._delivery.give(taken)
            found.setdefault(taken.partition.place, []).extend(taken.records)
            left -= len(taken.records)
            if left <= 0:
                break
            try:
                taken = self._delivery.take(left)
            except Exception as error:  # noqa: BLE001  # what was found is given first
                self._delivery.report(error)
                break
        return found

    def batches(self, max_records: int = SLICE_RECORDS) -> AsyncIterator[list[ConsumerRecord]]:
        """Give records in lists, each of one partition."""
        _check_count(max_records)

        async def next_batch() -> list[ConsumerRecord]:
            taken = await self._ask(max_records)
            assert taken is not None
            taken = self._delivery.cut(taken, max_records)
            self._delivery.give(taken)
            return taken.records

        return _Stream(lambda: self._unless_closed(next_batch))

    def arrow_batches(self, decoder: ArrowDecoder | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Give records as Arrow record batches, each of one partition. It needs pyarrow.

        The columns are those of `ArrowDecoder`, with headers unless a decoder is given. Keys and
        values are bytes: deserializers are not asked.
        """
        from ..arrow.stream import Tables  # noqa: PLC0415  # pyarrow need not be there

        tables = Tables(self._delivery, decoder)

        async def next_table() -> pa.RecordBatch:
            self._read_by(tables)
            return await self._wait_for(tables.take)

        return _Stream(lambda: self._unless_closed(next_table))

    def _read_by(self, tables: Tables | None) -> None:
        """Take back what another stream of tables has left of a chunk, if it was given up."""
        if self._tables is not tables:
            if self._tables is not None:
                self._tables.leave()
                self._fetcher.wake()
            self._tables = tables

    async def _next_record(self) -> ConsumerRecord:
        record = await self.getone()
        assert record is not None
        return record

    async def _ask(self, most: int, timeout: float | None = None) -> Taken | None:
        """Give the next records, if they come in time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self._read_by(None)
        while True:
            taken = await self._wait_for(lambda: self._delivery.take(most), deadline)
            if taken is None or taken.bad is None:
                return taken
            await self._deal_with(taken, taken.bad)

    async def _wait_for(
        self, take: Callable[[], T | None], deadline: float | None = None
    ) -> T | None:
        """Take note that the application wants more, and give what can be taken, in time."""
        loop = asyncio.get_running_loop()
        self._delivery.put_down()
        if loop.time() > self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = loop.time() + _TURN_SECONDS
        while True:
            self._check_readable()
            taken = take()
            if taken is not None:
                return taken
            try:
                async with asyncio.timeout_at(deadline):
                    await self._delivery.arrived.wait()
            except TimeoutError:
                return None
            self._turn_ends = loop.time() + _TURN_SECONDS

    async def _deal_with(self, taken: Taken, error: Exception) -> None:
        """Hand a record that was not understood to whoever wants it, and go on behind it."""
        is_dealt_with = True
        try:
            result = self._on_bad_record(taken.records[0], error)
            if isawaitable(result):
                await result
        except asyncio.CancelledError:
            is_dealt_with = False
            raise
        finally:
            if is_dealt_with:
                self._delivery.skip(taken)

    async def _unless_closed(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except ClosedError:
            if not self._is_closed:
                raise  # it is something else that was closed
            raise StopAsyncIteration from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the consumer has been closed")

    def _check_readable(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise self._failure
        if not self._is_started:
            raise ConsumerError("the consumer has not been started: use `async with`, or `start`")
        if self._ownership.subscription is None and not self._positions:
            raise ConsumerError("nothing to read: subscribe to topics, or assign partitions")

    # Where reading goes on.

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset."""
        if offset < 0:
            raise ValueError(f"offset {offset} of {partition}: there is none below 0")
        found = self._positions[partition]
        self._delivery.forget([found])
        found.start_at(offset)
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the first record that there is, in each of these partitions."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on behind the last record that there is, in each of these partitions."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, end: int, places: Collection[TopicPartition]) -> None:
        partitions = self._positions.select(places)
        self._delivery.forget(partitions)
        for partition in partitions:
            partition.look_up(Phase.RESET, end)
        self._fetcher.wake()

    async def position(self, partition: TopicPartition) -> int:
        """Give the offset of the record that is delivered next, once that is known."""
        found = self._positions[partition]
        self._ownership.begin([found])
        loop, config, tries = asyncio.get_running_loop(), self._cluster.config, 0
        deadline = loop.time() + config.timeouts.operation
        while not found.is_ready:
            await self._fetcher.find_positions([found])
            if found.error is not None:
                error, found.error = found.error, None
                raise error
            if not self._positions.has(found):
                raise ConsumerError(f"{partition} is not assigned to this consumer any more")
            if not found.is_ready:
                if loop.time() > deadline:
                    raise DeadlineError(
                        f"the position in {partition} was not found"
                        f" in {config.timeouts.operation:g} s"
                    )
                await asyncio.sleep(config.retry.delay(tries, 0.5))
                tries += 1
        self._delivery.settle()
        return found.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver nothing of these partitions until they are resumed."""
        selected = self._positions.select(partitions)
        for partition in selected:
            partition.is_paused = True
        self._delivery.interrupt(selected)

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver records of these partitions again."""
        for partition in self._positions.select(partitions):
            partition.is_paused = False
            self._delivery.offer(partition)
        self._fetcher.wake()

    # What the group knows.

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit all that was delivered, or these offsets: each is that of the next record.

        Raises KafkaError if the group has given the partitions to somebody else.
        """
        committer = self._in_group()
        if offsets is None:
            await committer.commit(None)
            return
        await committer.commit(
            {
                place: offset
                if isinstance(offset, OffsetAndMetadata)
                else OffsetAndMetadata(offset)
                for place, offset in offsets.items()
            }
        )

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Look up what the group has committed, in these partitions or in all that are assigned."""
        group = self._in_group().group
        places = partitions or tuple(self.assignment)

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            return values_or_raise(await fetch_committed_offsets(self._cluster, group, places))

        return await self._cluster.retry(attempt, what="looking up what is committed")

    def _in_group(self) -> Committer:
        if self._committer is None:
            raise ConsumerError("there are no commits without a group")
        return self._committer

    # What the partitions have.

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Look up the offsets of the first records, in these partitions or in all."""
        return await self._ends(EARLIEST, partitions)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Look up the offsets behind the last records, in these partitions or in all."""
        return await self._ends(LATEST, partitions)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first records that are not older than times in milliseconds."""
        for place, time in times.items():
            if time < 0:
                raise ValueError(f"{time} of {place} is no time: milliseconds since 1970 are")
        found = await self._list_offsets(times)
        return {place: one if one.offset >= 0 else None for place, one in found.items()}

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Count what is there to be read, in these partitions or in all."""
        ends = await self.end_offsets(*partitions)
        return {place: max(0, end - await self.position(place)) for place, end in ends.items()}

    async def _ends(
        self, end: int, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(places or self.assignment, end))
        return {place: one.offset for place, one in found.items()}

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        is_committed = self._reading.is_committed

        async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
            return values_or_raise(
                await list_offsets(self._cluster, times, read_committed=is_committed)
            )

        return await self._cluster.retry(attempt, what="looking up offsets")


class _Stream(Generic[T]):
    """An iterator that asks; unlike a generator, it can be asked again after a cancellation."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._ask()


def _check_count(max_records: int) -> None:
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}: at least 1 is needed")


def _check(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
