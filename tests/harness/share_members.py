"""A member of a share group over a raw connection, with its share session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from harness.wire import WireClient
from ottla.protocol.api.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from ottla.protocol.api.share_fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareFetchRequest,
)
from ottla.protocol.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.batch import split_batches
from ottla.protocol.errors import ErrorCode

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
#: Partition, first and last offset, and acknowledgement types.
Ack = tuple[int, int, int, list[int]]


class Got(NamedTuple):
    """What a fetch returned of a partition: acquired ranges, errors, and the values of records."""

    acquired: list[tuple[int, int, int]]
    error: str
    acknowledge_error: str
    values: list[bytes]


@dataclass
class ShareMember:
    """One member, which fetches partitions of one topic."""

    client: WireClient
    topic_id: UUID
    member_id: str
    group_id: str = "g"
    epoch: int = 0
    member_epoch: int = 0
    added: set[int] = field(default_factory=set)

    async def beat(self, *topics: str, epoch: int | None = None) -> Any:
        response = await self.client.request(
            ShareGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.member_epoch if epoch is None else epoch,
                subscribed_topic_names=topics or None,
            )
        )
        if not response.error_code:
            self.member_epoch = max(response.member_epoch, 0)
        return response

    async def fetch(
        self,
        *partitions: int,
        acks: Sequence[Ack] = (),
        max_records: int = 100,
        max_wait_ms: int = 0,
        epoch: int | None = None,
        version: int = 2,
        forgotten: Sequence[int] = (),
        **fields: Any,
    ) -> Any:
        """Send ShareFetch; return its error, or what it got by partition."""
        by_partition: dict[int, list[AcknowledgementBatch]] = {index: [] for index in partitions}
        for index, first, last, types in acks:
            batch = AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=types
            )
            by_partition.setdefault(index, []).append(batch)
        used = self.epoch if epoch is None else epoch
        response = await self.client.request(
            ShareFetchRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=used,
                max_wait_ms=max_wait_ms,
                max_records=max_records,
                topics=[
                    FetchTopic(
                        topic_id=self.topic_id,
                        partitions=[
                            FetchPartition(partition_index=index, acknowledgement_batches=batches)
                            for index, batches in by_partition.items()
                        ],
                    )
                ],
                forgotten_topics_data=[
                    ForgottenTopic(topic_id=self.topic_id, partitions=list(forgotten))
                ]
                if forgotten
                else [],
                **fields,
            ),
            version,
        )
        if response.error_code:
            return ErrorCode.of(response.error_code).name
        self.epoch = used + 1
        return {
            partition.partition_index: Got(
                [
                    (one.first_offset, one.last_offset, one.delivery_count)
                    for one in partition.acquired_records
                ],
                ErrorCode.of(partition.error_code).name,
                ErrorCode.of(partition.acknowledge_error_code).name,
                [
                    bytes(record.value or b"")
                    for batch in split_batches(partition.records or b"")
                    if not batch.is_control
                    for record in batch.records()
                ],
            )
            for topic in response.responses
            for partition in topic.partitions
        }

    async def acquire(self, index: int = 0, **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch a partition, and return what was acquired."""
        fields.setdefault("max_wait_ms", 5000)
        got = await self.fetch(index, **fields)
        assert isinstance(got, dict), got
        return got[index].acquired if index in got else []

    async def acknowledge(
        self, *acks: Ack, epoch: int | None = None, version: int = 2, is_renew_ack: bool = False
    ) -> Any:
        """Send ShareAcknowledge; return its error, or the errors by partition."""
        by_partition: dict[int, list[AcknowledgementBatch]] = {}
        for index, first, last, types in acks:
            batch = AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=types
            )
            by_partition.setdefault(index, []).append(batch)
        used = self.epoch if epoch is None else epoch
        response = await self.client.request(
            ShareAcknowledgeRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=used,
                is_renew_ack=is_renew_ack,
                topics=[
                    AcknowledgeTopic(
                        topic_id=self.topic_id,
                        partitions=[
                            AcknowledgePartition(
                                partition_index=index, acknowledgement_batches=batches
                            )
                            for index, batches in by_partition.items()
                        ],
                    )
                ],
            ),
            version,
        )
        if response.error_code:
            return ErrorCode.of(response.error_code).name
        self.epoch = used + 1
        return {
            partition.partition_index: ErrorCode.of(partition.error_code).name
            for topic in response.responses
            for partition in topic.partitions
        }
