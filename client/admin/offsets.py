"""Offsets of partition logs: beginning, end, by timestamp; deletion of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.errors import ErrorCode, KafkaError, RefreshError

from ..errors import ClientError, error_of
from ..offsets import group_by_topic, kafka_error, list_offsets
from ..types import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from .requests import AdminRequests, Outcome, PartialError, V

_HIGH_WATERMARK = -1


class OffsetsAdmin(AdminRequests):
    """Admin requests about partition logs."""

    async def beginning_offsets(
        self, *partitions: str | TopicPartition
    ) -> dict[TopicPartition, int]:
        """Return the earliest offset of partitions, or of all partitions of topics."""
        return await self._offsets_at(partitions, EARLIEST)

    async def end_offsets(
        self,
        *partitions: str | TopicPartition,
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> dict[TopicPartition, int]:
        """Return the log end offset of partitions, or of all partitions of topics.

        With read_committed, the last stable offset: what such a consumer reads up to.
        """
        read_committed = isolation == "read_committed"
        return await self._offsets_at(partitions, LATEST, read_committed=read_committed)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after a time; None if there is none.

        A time is in milliseconds since 1970, or a datetime.
        """
        timestamps = {tp: as_milliseconds(time) for tp, time in times.items()}
        found = await self._list_offsets(timestamps)
        return {tp: one if one.offset >= 0 else None for tp, one in found.items()}

    async def delete_records(
        self, before: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, all of them for None; return the new beginnings."""

        async def send(
            node_id: int, led: list[TopicPartition]
        ) -> Mapping[TopicPartition, Outcome[int]]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(
                                partition_index=tp.partition, offset=_or_all(before[tp])
                            )
                            for tp in some
                        ],
                    )
                    for topic, some in group_by_topic(led)
                ],
                timeout_ms=self._timeout_ms,
            )
            response = await self._cluster.send(node_id, request, DeleteRecordsResponse)
            return {
                tp: self._from_leader(
                    tp, kafka_error(partition.error_code, str(tp)) or partition.low_watermark
                )
                for topic in response.topics
                for partition in topic.partitions
                for tp in [TopicPartition(topic.name, partition.partition_index)]
            }

        return await self._each_leader(before, send, "deleting records")

    async def _offsets_at(
        self,
        partitions: Iterable[str | TopicPartition],
        timestamp: int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicPartition, int]:
        tps = await self._expand_topics(partitions)
        found = await self._list_offsets(
            dict.fromkeys(tps, timestamp), read_committed=read_committed
        )
        return {tp: one.offset for tp, one in found.items()}

    async def _end_offsets_of_existing(
        self, tps: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
        """Return the end offsets of those partitions that exist, and the errors of others."""
        tps = list(tps)
        try:
            return await self._offsets_at(tps, LATEST), {}
        except PartialError as error:
            ends = {tp: one.offset for tp, one in error.done.items()}
            failed = error.failed
        except (KafkaError, ClientError) as error:
            ends, failed = {}, dict.fromkeys(tps, error)
        return ends, {tp: reason for tp, reason in failed.items() if not _is_unknown(reason)}

    async def _expand_topics(
        self, partitions: Iterable[str | TopicPartition]
    ) -> list[TopicPartition]:
        """Replace each topic name by all partitions of the topic."""
        partitions = list(partitions)
        names = [one for one in partitions if isinstance(one, str)]

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[int]]:
            topics = (await self._cluster.refresh(pending)).topics
            return {
                name: error_of(info.error, f"topic {name!r}: {info.error.message}")
                or len(info.partitions)
                for name, info in ((name, topics[name]) for name in pending if name in topics)
            }

        counts = await self._each(names, attempt, "looking up topics") if names else {}
        tps: list[TopicPartition] = []
        for one in partitions:
            if isinstance(one, TopicPartition):
                tps.append(one)
            else:
                tps += (TopicPartition(one, index) for index in range(counts[one]))
        return tps

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        async def attempt(
            pending: list[TopicPartition],
        ) -> Mapping[TopicPartition, Outcome[OffsetAndTimestamp]]:
            await self._cluster.refresh({tp.topic for tp in pending})
            some = {tp: timestamps[tp] for tp in pending}
            found = await list_offsets(self._cluster, some, read_committed=read_committed)
            return {tp: self._from_leader(tp, one) for tp, one in found.items()}

        return await self._each(timestamps, attempt, "looking up offsets")

    async def _each_leader(
        self,
        tps: Iterable[TopicPartition],
        send: Callable[[int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, Outcome[V]]]],
        what: str,
    ) -> dict[TopicPartition, V]:
        """Send requests to the current leaders of partitions."""

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[V]]:
            await self._cluster.refresh({tp.topic for tp in pending})
            return await self._by_node(await self._cluster.leaders_of(pending), send)

        return await self._each(tps, attempt, what)

    def _from_leader(self, tp: TopicPartition, result: Outcome[V]) -> Outcome[V]:
        """Make an unknown-partition error of the leader retriable: it may learn of it soon."""
        if not isinstance(result, Exception) or not _is_unknown(result):
            return result
        info = self._cluster.metadata.topics.get(tp.topic)
        if info is None or info.error or tp.partition >= len(info.partitions):
            return result
        return RefreshError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(result))


def as_milliseconds(time: int | datetime) -> int:
    """Return a time in milliseconds since 1970; a naive datetime is local time."""
    milliseconds = time if isinstance(time, int) else int(time.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError(f"Invalid time {time}: must not be before 1970")
    return milliseconds


def _or_all(offset: int | None) -> int:
    return _HIGH_WATERMARK if offset is None else offset


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
