"""DeleteGroups: delete groups without members, and their committed offsets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ottla.coord.effects import Reply
from ottla.protocol.api.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DELETE, DENIED, GROUP, allows

if TYPE_CHECKING:
    from ottla.coord.group_shard import GroupShard

    from ...broker import Broker
    from ...coordinators.shard_runtime import Event, ShardRuntime
    from ..dispatch import RequestContext

#: The result of each group.
_GroupErrors = dict[str, ErrorCode]


def handle(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> Coroutine[Any, Any, DeleteGroupsResponse]:
    """Handle DeleteGroups: submit the groups of each shard, then wait for all of them."""
    codes: _GroupErrors = {}
    by_shard: defaultdict[ShardRuntime[GroupShard], list[str]] = defaultdict(list)
    for group_id in request.groups_names:
        if not allows(broker, context, DELETE, GROUP, group_id):
            codes[group_id] = DENIED[GROUP]
            continue
        runtime = broker.groups.shard_of(group_id)
        if runtime is not None:
            by_shard[runtime].append(group_id)
        elif code := broker.groups.check_existence(group_id):
            codes[group_id] = code
        else:
            codes[group_id] = (
                ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
            )
    results = [runtime.submit(_deletion(group_ids)) for runtime, group_ids in by_shard.items()]
    return _respond(codes, results)


def _deletion(group_ids: Sequence[str]) -> Event[GroupShard, _GroupErrors]:
    return lambda shard, token, _now: shard.delete_groups(
        group_ids, lambda codes: Reply(token, codes)
    )


async def _respond(
    codes: _GroupErrors, results: Sequence[_GroupErrors | asyncio.Future[_GroupErrors]]
) -> DeleteGroupsResponse:
    for result in results:
        codes |= await result if isinstance(result, asyncio.Future) else result
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=code)
            for group_id, code in codes.items()
        ]
    )
