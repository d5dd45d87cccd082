"""The share session with a leader: which partitions it knows, and the epoch of the next request.

An epoch of 0 opens a session, and each further request has the next one. Requests only name
partitions that are new to the session, are dropped from it, or have acknowledgements. No I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

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

from .config import RECORD_LIMIT, ShareConfig
from .partition import SharePartition

_OPEN_EPOCH = 0
_CLOSE_EPOCH = -1
_MAX_EPOCH = 2**31 - 1

#: What is acknowledged, by partition.
Acknowledgements = Mapping[SharePartition, Sequence[AcknowledgementBatch]]


class ShareSession:
    """A share session, from the first fetch on."""

    def __init__(self, group: str, member_id: str) -> None:
        self._group = group
        self._member_id = member_id
        self._epoch = _OPEN_EPOCH
        # By their ids: one that is assigned again is another object, and stays in the session.
        self._partitions: set[tuple[UUID, int]] = set()

    @property
    def is_open(self) -> bool:
        """Whether there is a session, so that acknowledgements can be sent."""
        return self._epoch != _OPEN_EPOCH

    def reset(self) -> None:
        """Open a new session with the next fetch."""
        self._epoch = _OPEN_EPOCH
        self._partitions = set()

    def fetch_request(
        self,
        partitions: Collection[SharePartition],
        acknowledgements: Acknowledgements,
        config: ShareConfig,
        max_records: int,
    ) -> ShareFetchRequest:
        """Return a fetch of these partitions; what was fetched before and is not among them ends.

        The session takes it for granted that the request succeeds: if not, it is to be reset.
        """
        assert self.is_open or not acknowledgements
        wanted = {one.id for one in partitions}
        named = {one: () for one in partitions if one.id not in self._partitions}
        topics = [
            FetchTopic(
                topic_id=topic_id,
                partitions=[
                    FetchPartition(partition_index=index, acknowledgement_batches=batches)
                    for index, batches in by_index
                ],
            )
            for topic_id, by_index in _by_topic({**named, **acknowledgements})
        ]
        dropped: defaultdict[UUID, list[int]] = defaultdict(list)
        for topic_id, index in self._partitions - wanted:
            dropped[topic_id].append(index)
        self._partitions = wanted
        mode = config.acquire_mode_id if max_records > 1 else RECORD_LIMIT
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._next_epoch(),
            max_wait_ms=int(config.max_wait * 1000),
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=mode,
            topics=topics,
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in dropped.items()
            ],
        )

    def acknowledge_request(
        self, acknowledgements: Acknowledgements, *, renews: bool = False, closes: bool = False
    ) -> ShareAcknowledgeRequest:
        """Return a request that only acknowledges, and may close the session."""
        assert self.is_open
        epoch = self._next_epoch()
        if closes:
            self.reset()
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_CLOSE_EPOCH if closes else epoch,
            is_renew_ack=renews,
            topics=[
                AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[
                        AcknowledgePartition(partition_index=index, acknowledgement_batches=batches)
                        for index, batches in by_index
                    ],
                )
                for topic_id, by_index in _by_topic(acknowledgements)
            ],
        )

    def _next_epoch(self) -> int:
        epoch = self._epoch
        self._epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return epoch


def _by_topic(
    partitions: Acknowledgements,
) -> Iterable[tuple[UUID, list[tuple[int, Sequence[AcknowledgementBatch]]]]]:
    topics: dict[UUID, list[tuple[int, Sequence[AcknowledgementBatch]]]] = {}
    for partition, batches in partitions.items():
        topics.setdefault(partition.topic_id, []).append((partition.tp.partition, batches))
    return topics.items()
