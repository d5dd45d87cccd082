"""DeleteTopics (key 20): delete topics.

Version 1 adds ThrottleTimeMs to the response.
Version 3 may return TOPIC_DELETION_DISABLED.
Version 4 is the first flexible version.
Version 5 adds ErrorMessage to the response.
Version 6 adds TopicId, and allows topics to be deleted by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import DELETE_TOPICS
from ..schema import Array, Int16, Int32, Message, String, Uuid, field


class DeleteTopicState(Message):
    name: str | None = field(String, nullable=6, default=None)  # null when deleting by id
    topic_id: UUID = field(Uuid)


class DeleteTopicsRequest(Message, api=DELETE_TOPICS):
    topics: Sequence[DeleteTopicState] = field(Array(DeleteTopicState), since=6)
    topic_names: Sequence[str] = field(Array(String), until=5, ignorable=True)
    timeout_ms: int = field(Int32)


class DeletableTopicResult(Message):
    name: str | None = field(String, nullable=6)  # null if the id is unknown
    topic_id: UUID = field(Uuid, since=6, ignorable=True)
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)


class DeleteTopicsResponse(Message, api=DELETE_TOPICS):
    throttle_time_ms: int = field(Int32)
    responses: Sequence[DeletableTopicResult] = field(Array(DeletableTopicResult))
