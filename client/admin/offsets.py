"""Where logs begin and end, which offset a time has, and records that are to go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime

from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.errors import ErrorCode, KafkaError, RefreshError

from ..errors import error_of
from ..offsets import group_by_topic, kafka_error, list_offsets
from ..types import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from .requests import AdminRequests, Outcome, PartialError, V

_HIGH_WATERMARK = -1


class OffsetsAdmin(AdminRequests):
    """What an admin can do with the logs of partitions."""

    async def beginning_offsets(self, *what: str | TopicPartition) -> dict[TopicPartition, int]:
        """Give the first offset of partitions, or of all partitions of topics."""
        return await self._ends(what, EARLIEST)

    async def end_offsets(self, *what: str | TopicPartition) -> dict[TopicPartition, int]:
        """Give the offset that the next record will have, as above."""
        return await self._ends(what, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Give the first record that is not older than a time; None where there is none.

        A time is in milliseconds since 1970, or a datetime.
        """
        wanted = {place: as_milliseconds(time) for place, time in times.items()}
        found = await self._list_offsets(wanted)
        return {place: one if one.offset >= 0 else None for place, one in found.items()}

    async def delete_records(
        self, before: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, all of them for None; give where logs begin now."""

        async def ask(
            node_id: int, its: list[TopicPartition]
        ) -> Mapping[TopicPartition, Outcome[int]]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(
                                partition_index=place.partition, offset=_or_all(before[place])
                            )
                            for place in some
                        ],
                    )
                    for topic, some in group_by_topic(its)
                ],
                timeout_ms=self._timeout_ms,
            )
            answer = await self._cluster.send(node_id, request, DeleteRecordsResponse)
            return {
                place: self._of_leader(
                    place, kafka_error(partition.error_code, str(place)) or partition.low_watermark
                )
                for topic in answer.topics
                for partition in topic.partitions
                for place in [TopicPartition(topic.name, partition.partition_index)]
            }

        return await self._of_leaders(before, ask, "deleting records")

    async def _ends(
        self, what: Iterable[str | TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        places = await self._places(what)
        found = await self._list_offsets(dict.fromkeys(places, which))
        return {place: one.offset for place, one in found.items()}

    async def _ends_where_known(
        self, places: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Give the ends of those partitions that are there."""
        wanted = list(places)
        try:
            return await self._ends(wanted, LATEST)
        except PartialError as error:
            for reason in error.failed.values():
                if not _is_unknown(reason):
                    raise reason from error
            return {place: one.offset for place, one in error.done.items()}
        except KafkaError as error:
            if not _is_unknown(error):
                raise
            return {}

    async def _places(self, what: Iterable[str | TopicPartition]) -> list[TopicPartition]:
        wanted = list(what)
        names = [one for one in wanted if isinstance(one, str)]

        async def attempt(left: list[str]) -> Mapping[str, Outcome[int]]:
            known = await self._cluster.refresh(left)
            return {
                name: error_of(info.error, f"topic {name!r}: {info.error.message}")
                or len(info.partitions)
                for name, info in (
                    (name, known.topics[name]) for name in left if name in known.topics
                )
            }

        counts = await self._each(names, attempt, "looking up topics") if names else {}
        found: list[TopicPartition] = []
        for one in wanted:
            if isinstance(one, TopicPartition):
                found.append(one)
            else:
                found += (TopicPartition(one, number) for number in range(counts[one]))
        return found

    async def _list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        async def attempt(
            left: list[TopicPartition],
        ) -> Mapping[TopicPartition, Outcome[OffsetAndTimestamp]]:
            await self._cluster.refresh({place.topic for place in left})
            times = {place: wanted[place] for place in left}
            found = await list_offsets(self._cluster, times, read_committed=False)
            return {place: self._of_leader(place, one) for place, one in found.items()}

        return await self._each(wanted, attempt, "looking up offsets")

    async def _of_leaders(
        self,
        places: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, Outcome[V]]]],
        what: str,
    ) -> dict[TopicPartition, V]:
        """Ask the leaders of partitions, those that they have by now."""

        async def attempt(left: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[V]]:
            await self._cluster.refresh({place.topic for place in left})
            return await self._by_node(await self._cluster.leaders_of(left), ask)

        return await self._each(places, attempt, what)

    def _of_leader(self, place: TopicPartition, answer: Outcome[V]) -> Outcome[V]:
        """Take a leader that does not know of its partition for one that will soon."""
        if not isinstance(answer, Exception) or not _is_unknown(answer):
            return answer
        info = self._cluster.metadata.topics.get(place.topic)
        if info is None or info.error or place.partition >= len(info.partitions):
            return answer
        return RefreshError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(answer))


def as_milliseconds(time: int | datetime) -> int:
    """Give a time in milliseconds since 1970; a datetime without a zone is local."""
    milliseconds = time if isinstance(time, int) else int(time.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError(f"{time} is before 1970")
    return milliseconds


def _or_all(offset: int | None) -> int:
    return _HIGH_WATERMARK if offset is None else offset


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
