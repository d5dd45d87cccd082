"""ListGroups (key 16): list the groups that a broker coordinates.

Version 1 adds ThrottleTimeMs to the response.
Version 3 is the first flexible version.
Version 4 adds StatesFilter to the request, and GroupState to the response.
Version 5 adds TypesFilter to the request, and GroupType to the response.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LIST_GROUPS
from ..schema import Array, Int16, Int32, Message, String, field


class ListGroupsRequest(Message, api=LIST_GROUPS):
    states_filter: Sequence[str] = field(Array(String), since=4)  # only these states, empty = all
    types_filter: Sequence[str] = field(Array(String), since=5)  # only these group types


class ListedGroup(Message):
    group_id: str = field(String)
    protocol_type: str = field(String)  # "consumer", "connect", ...
    group_state: str = field(String, since=4, ignorable=True)
    group_type: str = field(String, since=5, ignorable=True)  # "classic" / "consumer" / ...


class ListGroupsResponse(Message, api=LIST_GROUPS):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16)
    groups: Sequence[ListedGroup] = field(Array(ListedGroup))
