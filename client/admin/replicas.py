"""Replicas: move partitions to other brokers, and elect leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.protocol.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.api.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.errors import ErrorCode, KafkaError

from ..errors import error_of
from ..offsets import group_by_topic
from ..types import TopicPartition
from .requests import AdminRequests, Outcome, PartialError, outcome

_PREFERRED, _UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition that is being moved to other brokers."""

    #: All replicas, old and new ones, the new preferred leader first.
    replicas: tuple[int, ...]
    #: The replicas that are new, and copy the partition.
    adding: tuple[int, ...]
    #: The replicas that go when the new ones are in sync.
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition will have."""
        return tuple(one for one in self.replicas if one not in self.removing)


class ReplicasAdmin(AdminRequests):
    """Admin requests about replicas and leaders."""

    async def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move partitions to other replicas, the preferred leader first.

        None cancels the reassignment of a partition. Returns when the reassignments have begun:
        `list_partition_reassignments` has those that are not complete.
        """

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=self._timeout_ms,
                topics=[
                    ReassignableTopic(
                        name=topic,
                        partitions=[
                            ReassignablePartition(
                                partition_index=tp.partition, replicas=reassignments[tp]
                            )
                            for tp in some
                        ],
                    )
                    for topic, some in group_by_topic(pending)
                ],
            )
            response = await self._cluster.send_to_controller(
                request, AlterPartitionReassignmentsResponse
            )
            if error := error_of(response.error_code, response.error_message):
                raise error
            return {
                TopicPartition(topic.name, one.partition_index): outcome(
                    one.error_code, one.error_message, None
                )
                for topic in response.responses
                for one in topic.partitions
            }

        await self._each(reassignments, attempt, "reassigning partitions")

    async def list_partition_reassignments(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the partitions that are being moved: those of `partitions`, or all."""
        topics = None
        if partitions:
            topics = [
                ListPartitionReassignmentsTopics(
                    name=topic, partition_indexes=[tp.partition for tp in some]
                )
                for topic, some in group_by_topic(partitions)
            ]

        async def attempt() -> dict[TopicPartition, PartitionReassignment]:
            request = ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)
            response = await self._cluster.send_to_controller(
                request, ListPartitionReassignmentsResponse
            )
            if error := error_of(response.error_code, response.error_message):
                raise error
            return {
                TopicPartition(topic.name, one.partition_index): PartitionReassignment(
                    tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
                )
                for topic in response.topics
                for one in topic.partitions
            }

        return await self._cluster.retry(attempt, what="listing reassignments")

    async def elect_leaders(
        self, *partitions: TopicPartition, unclean: bool = False
    ) -> list[TopicPartition]:
        """Elect the preferred leaders of partitions, or of all; return those with a new leader.

        With `unclean`, elect any live replica of partitions without a leader. Records that only
        other replicas have are lost then.
        """

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[bool]]:
            return await self._elect(pending, unclean=unclean)

        if partitions:
            elected = await self._each(partitions, attempt, "electing leaders")
            return [tp for tp in elected if elected[tp]]

        async def all_at_once() -> dict[TopicPartition, Outcome[bool]]:
            return await self._elect(None, unclean=unclean)

        results = await self._cluster.retry(all_at_once, what="electing leaders")
        failed = {tp: one for tp, one in results.items() if not isinstance(one, bool)}
        done = [tp for tp, one in results.items() if one is True]
        if failed:
            raise PartialError(failed, dict.fromkeys(done, True))
        return done

    async def _elect(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, Outcome[bool]]:
        topics = None
        if partitions is not None:
            topics = [
                TopicPartitions(topic=topic, partitions=[tp.partition for tp in some])
                for topic, some in group_by_topic(list(partitions))
            ]
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=topics,
            timeout_ms=self._timeout_ms,
        )
        response = await self._cluster.send_to_controller(request, ElectLeadersResponse)
        if error := error_of(response.error_code, None):
            raise error
        return {
            TopicPartition(topic.topic, one.partition_id): _elected(
                one.error_code, one.error_message
            )
            for topic in response.replica_election_results
            for one in topic.partition_result
        }


def _elected(code: int, message: str | None) -> bool | KafkaError:
    """Return whether there is a new leader; none was needed if not."""
    if code == ErrorCode.ELECTION_NOT_NEEDED:
        return False
    return error_of(code, message) or True
