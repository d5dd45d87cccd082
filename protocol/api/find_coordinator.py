"""FindCoordinator (key 10): find the coordinator of groups or transactional ids.

Version 1 adds KeyType to the request, and ThrottleTimeMs and ErrorMessage to the response.
Version 2 is the same as version 1.
Version 3 is the first flexible version.
Version 4 replaces Key by CoordinatorKeys, for several keys in one request.
Version 5 may return TRANSACTION_ABORTABLE.
Version 6 adds the share group key type.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import FIND_COORDINATOR
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class FindCoordinatorRequest(Message, api=FIND_COORDINATOR):
    key: str = field(String, until=3)  # group or transactional id
    key_type: int = field(Int8, since=1)  # 0 group 1 transaction 2 share
    coordinator_keys: Sequence[str] = field(Array(String), since=4)  # group or transactional ids


class Coordinator(Message):
    key: str = field(String)  # group or transactional id
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=4)


class FindCoordinatorResponse(Message, api=FIND_COORDINATOR):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16, until=3)
    error_message: str | None = field(String, since=1, until=3, nullable=1, ignorable=True)
    node_id: int = field(Int32, until=3)
    host: str = field(String, until=3)
    port: int = field(Int32, until=3)
    coordinators: Sequence[Coordinator] = field(Array(Coordinator), since=4)  # one per key
