"""Topics and partitions: list, describe, create, delete, add."""

from __future__ import annotations

from collections.abc import Mapping

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

from ..cluster import TopicInfo
from ..errors import error_of
from .requests import AdminRequests, Outcome, outcome
from .results import CreatedTopic, NewTopic, PartitionDescription, TopicDescription

# The last version in which topics are a list of names.
_LAST_WITH_NAMES = 5


class TopicsAdmin(AdminRequests):
    """What an admin can do with topics."""

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """Give all topics by name, those of the brokers' own only if asked for."""

        async def attempt() -> list[TopicDescription]:
            known = await self._cluster.refresh(None)
            return [_described(info) for _name, info in sorted(known.topics.items())]

        found = await self._cluster.retry(attempt, what="listing topics")
        return [topic for topic in found if internal or not topic.is_internal]

    async def describe_topics(self, *names: str) -> dict[str, TopicDescription]:
        """Give topics with their partitions, by name."""

        async def attempt(left: list[str]) -> Mapping[str, Outcome[TopicDescription]]:
            return {
                name: _missing(info) or _described(info)
                for name, info in (await self._look_up(left)).items()
            }

        return await self._each(names, attempt, "describing topics")

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Make a topic; -1 is what the broker has as its default."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        return (await self.create_topics(topic, validate_only=validate_only))[name]

    async def create_topics(
        self, *topics: NewTopic, validate_only: bool = False
    ) -> dict[str, CreatedTopic]:
        """Make topics, or only see whether they could be made.

        If the broker went away meanwhile, TOPIC_ALREADY_EXISTS may speak of what was made just now.
        """
        by_name = {topic.name: topic for topic in topics}
        if len(by_name) < len(topics):
            raise ValueError("a topic is named twice")

        async def attempt(left: list[str]) -> Mapping[str, Outcome[CreatedTopic]]:
            request = CreateTopicsRequest(
                topics=[_creatable(by_name[name]) for name in left],
                timeout_ms=self._timeout_ms,
                validate_only=validate_only,
            )
            answer = await self._cluster.send_to_controller(request, CreateTopicsResponse)
            return {
                topic.name: outcome(
                    topic.error_code,
                    topic.error_message,
                    CreatedTopic(
                        topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor
                    ),
                )
                for topic in answer.topics
            }

        return await self._each(by_name, attempt, "creating topics")

    async def delete_topics(self, *names: str) -> None:
        """Delete topics, with all their records."""

        async def attempt(left: list[str]) -> Mapping[str, Outcome[None]]:
            request = DeleteTopicsRequest(topic_names=left, timeout_ms=self._timeout_ms)
            answer = await self._cluster.send_to_controller(
                request, DeleteTopicsResponse, max_version=_LAST_WITH_NAMES
            )
            return {
                topic.name or "": outcome(topic.error_code, topic.error_message, None)
                for topic in answer.responses
            }

        await self._each(names, attempt, "deleting topics")

    async def create_partitions(
        self, topic: str, total: int, *, validate_only: bool = False
    ) -> None:
        """Give a topic more partitions, so that it has `total`.

        Records stay where they are: a key may be found in another partition from now on.
        """

        async def attempt(left: list[str]) -> Mapping[str, Outcome[None]]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name=name, count=total, assignments=None) for name in left
                ],
                timeout_ms=self._timeout_ms,
                validate_only=validate_only,
            )
            answer = await self._cluster.send_to_controller(request, CreatePartitionsResponse)
            return {
                result.name: outcome(result.error_code, result.error_message, None)
                for result in answer.results
            }

        await self._each([topic], attempt, f"adding partitions to {topic}")

    async def _look_up(self, names: list[str]) -> dict[str, TopicInfo]:
        known = await self._cluster.refresh(names)
        return {name: known.topics[name] for name in names if name in known.topics}


def _missing(info: TopicInfo) -> KafkaError | None:
    # Partitions without a leader are told as they are.
    if info.error == ErrorCode.LEADER_NOT_AVAILABLE and info.partitions:
        return None
    return error_of(info.error, f"topic {info.name!r}: {info.error.message}")


def _described(info: TopicInfo) -> TopicDescription:
    return TopicDescription(
        info.name,
        info.id,
        info.is_internal,
        tuple(
            PartitionDescription(number, one.leader, one.leader_epoch, one.replicas, one.isr)
            for number, one in enumerate(info.partitions)
        ),
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    is_assigned = bool(topic.assignment)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if is_assigned else topic.partitions,
        replication_factor=-1 if is_assigned else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in enumerate(topic.assignment)
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )
