"""Topics and partitions: list, describe, create, delete, add partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from ottla.protocol.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import DESCRIBE_TOPIC_PARTITIONS

from ..cluster import TopicInfo
from ..errors import error_of
from ..types import TopicPartition
from .requests import AdminRequests, Outcome, outcome

# The last version with a plain list of topic names.
_NAMES_VERSION = 5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 is the default of the broker."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    #: The replicas of each partition, the leader first; replaces the two numbers.
    assignment: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created or validated; -1 where an old broker does not return a number."""

    name: str
    id: UUID
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The leader and replicas of a partition; the leader is -1 if there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    #: The eligible leader replicas (KIP-966); `describe_topics` returns them, not `list_topics`.
    elr: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are missing from the ISR."""
        return len(self.isr) < len(self.replicas)

    @property
    def is_offline(self) -> bool:
        """Whether the partition has no leader."""
        return self.leader < 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        """The largest number of replicas of a partition."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions as TopicPartition."""
        return tuple(TopicPartition(self.name, one.partition) for one in self.partitions)


class TopicsAdmin(AdminRequests):
    """Admin requests about topics."""

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """Return all topics by name, internal ones only if `internal` is set."""

        async def attempt() -> list[TopicDescription]:
            metadata = await self._cluster.refresh(None)
            return [_described(info) for _name, info in sorted(metadata.topics.items())]

        topics = await self._cluster.retry(attempt, what="listing topics")
        return [topic for topic in topics if internal or not topic.is_internal]

    async def describe_topics(self, *names: str) -> dict[str, TopicDescription]:
        """Return topics with their partitions, by name."""

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[TopicDescription]]:
            described = {
                name: _topic_error(info) or _described(info)
                for name, info in (await self._look_up(pending)).items()
            }
            # Others have no eligible leaders besides their ISR, and are most.
            partial = [
                name
                for name, topic in described.items()
                if isinstance(topic, TopicDescription)
                and any(one.is_under_replicated for one in topic.partitions)
            ]
            elrs = await self._eligible_leaders(partial)
            return {
                name: _with_elrs(topic, elrs) if isinstance(topic, TopicDescription) else topic
                for name, topic in described.items()
            }

        return await self._each(names, attempt, "describing topics")

    async def _eligible_leaders(self, names: Sequence[str]) -> dict[TopicPartition, Sequence[int]]:
        """Return the ELR of each partition of topics; nothing if the broker does not know it."""
        elrs: dict[TopicPartition, Sequence[int]] = {}
        if not names:
            return elrs
        # Listing topics does not need it.
        from ottla.protocol.api.describe_topic_partitions import (  # noqa: PLC0415
            DescribeTopicPartitionsRequest,
            DescribeTopicPartitionsResponse,
            TopicRequest,
        )

        connection = await self._cluster.connect(-1)
        if DESCRIBE_TOPIC_PARTITIONS.key not in connection.versions:
            return elrs
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in names])
        while True:
            response = await self._cluster.send_to_any(request, DescribeTopicPartitionsResponse)
            for topic in response.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name or "", partition.partition_index)
                    elrs[tp] = partition.eligible_leader_replicas or ()
            if response.next_cursor is None:
                return elrs
            request = DescribeTopicPartitionsRequest(
                topics=request.topics, cursor=response.next_cursor
            )

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic; -1 is the default of the broker."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        return (await self.create_topics(topic, validate_only=validate_only))[name]

    async def create_topics(
        self, *topics: NewTopic, validate_only: bool = False
    ) -> dict[str, CreatedTopic]:
        """Create topics, or only validate the requests.

        If the connection was lost meanwhile, TOPIC_ALREADY_EXISTS may be about a topic that this
        call created.
        """
        by_name = {topic.name: topic for topic in topics}
        if len(by_name) < len(topics):
            raise ValueError("Duplicate topic name in create_topics")

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[CreatedTopic]]:
            request = CreateTopicsRequest(
                topics=[_creatable(by_name[name]) for name in pending],
                timeout_ms=self._timeout_ms,
                validate_only=validate_only,
            )
            response = await self._cluster.send_to_controller(request, CreateTopicsResponse)
            return {
                topic.name: outcome(
                    topic.error_code,
                    topic.error_message,
                    CreatedTopic(
                        topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor
                    ),
                )
                for topic in response.topics
            }

        return await self._each(by_name, attempt, "creating topics")

    async def delete_topics(self, *names: str) -> None:
        """Delete topics with all their records."""

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            request = DeleteTopicsRequest(topic_names=pending, timeout_ms=self._timeout_ms)
            response = await self._cluster.send_to_controller(
                request, DeleteTopicsResponse, max_version=_NAMES_VERSION
            )
            return {
                topic.name or "": outcome(topic.error_code, topic.error_message, None)
                for topic in response.responses
            }

        await self._each(names, attempt, "deleting topics")

    async def create_partitions(
        self, topic: str, total: int, *, validate_only: bool = False
    ) -> None:
        """Increase the number of partitions of a topic to `total`.

        Existing records stay where they are: new records of a key may go to another partition.
        """

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name=name, count=total, assignments=None)
                    for name in pending
                ],
                timeout_ms=self._timeout_ms,
                validate_only=validate_only,
            )
            response = await self._cluster.send_to_controller(request, CreatePartitionsResponse)
            return {
                result.name: outcome(result.error_code, result.error_message, None)
                for result in response.results
            }

        await self._each([topic], attempt, f"adding partitions to {topic}")

    async def _look_up(self, names: list[str]) -> dict[str, TopicInfo]:
        topics = (await self._cluster.refresh(names)).topics
        return {name: topics[name] for name in names if name in topics}


def _topic_error(info: TopicInfo) -> KafkaError | None:
    # Partitions without a leader are described as they are.
    if info.error == ErrorCode.LEADER_NOT_AVAILABLE and info.partitions:
        return None
    return error_of(info.error, f"topic {info.name!r}: {info.error.message}")


def _described(info: TopicInfo) -> TopicDescription:
    return TopicDescription(
        info.name,
        info.id,
        info.is_internal,
        tuple(
            PartitionDescription(index, one.leader, one.leader_epoch, one.replicas, one.isr)
            for index, one in enumerate(info.partitions)
        ),
    )


def _with_elrs(
    topic: TopicDescription, elrs: Mapping[TopicPartition, Sequence[int]]
) -> TopicDescription:
    return replace(
        topic,
        partitions=tuple(
            replace(partition, elr=tuple(elrs.get(tp, ())))
            for tp, partition in zip(topic.topic_partitions, topic.partitions, strict=True)
        ),
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    is_assigned = bool(topic.assignment)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if is_assigned else topic.partitions,
        replication_factor=-1 if is_assigned else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(topic.assignment)
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )
