"""Plans for new committed offsets of a group, which a dry run shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ottla.client import TopicPartition

from .browse import Start
from .cluster_client import ClusterClient
from .problems import Problem

Target = Literal["start", "end", "offset", "time", "shift"]


class NewOffset(NamedTuple):
    """The committed offset of a partition, before and after a reset."""

    tp: TopicPartition
    before: int | None
    after: int


async def plan(
    client: ClusterClient,
    group: str,
    *,
    is_share: bool,
    to: Target,
    value: str | None,
    topics: list[str],
    partitions: list[TopicPartition],
) -> list[NewOffset]:
    """Return the offsets that a reset would commit, clamped to the logs. Raises Problem."""
    committed = await _committed(client, group, is_share)
    chosen = await _partitions(client, topics, partitions) or sorted(committed)
    if not chosen:
        raise Problem(422, f"Group {group!r} has no committed offsets: name topics to reset")
    available = {
        tp: (start, end)
        for tp, (start, end) in (await client.offsets(chosen)).items()
        if start is not None and end is not None
    }
    missing = [str(tp) for tp in chosen if tp not in available]
    if missing:
        raise Problem(503, f"No leader, or no such partition: {', '.join(missing[:20])}")
    after = await _targets(client, to, value, committed, available)
    return [
        NewOffset(tp, committed.get(tp), min(max(after[tp], available[tp][0]), available[tp][1]))
        for tp in chosen
        if tp in after
    ]


async def _committed(
    client: ClusterClient, group: str, is_share: bool
) -> dict[TopicPartition, int]:
    """Return the offsets that a reset replaces: of a share group, its start offsets."""
    if not is_share:
        offsets = await client.admin.list_group_offsets(group)
        return {tp: one.offset for tp, one in offsets.items()}
    starts = await client.admin.list_share_group_offsets(group)
    return {tp: one.start_offset for tp, one in starts.items() if one.start_offset is not None}


async def _partitions(
    client: ClusterClient, topics: list[str], partitions: list[TopicPartition]
) -> list[TopicPartition]:
    chosen = list(partitions)
    if topics:
        described = await client.admin.describe_topics(*topics)
        chosen += [tp for topic in topics for tp in described[topic].topic_partitions]
    return sorted(set(chosen))


async def _targets(
    client: ClusterClient,
    to: Target,
    value: str | None,
    committed: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, int]:
    if to == "start":
        return {tp: start for tp, (start, _) in available.items()}
    if to == "end":
        return {tp: end for tp, (_, end) in available.items()}
    if not value:
        raise Problem(422, f"A reset to {to!r} needs a value")
    if to == "time":
        start = Start.parse(value)
        if start.kind != "time":
            raise Problem(422, f"Invalid time {value!r}: use ISO 8601, or @MILLISECONDS")
        found = await client.admin.offsets_for_times(dict.fromkeys(available, start.number))
        return {tp: available[tp][1] if one is None else one.offset for tp, one in found.items()}
    try:
        number = int(value)
    except ValueError:
        raise Problem(422, f"Invalid number {value!r}") from None
    if abs(number) >= 2**63:
        raise Problem(422, f"Invalid number {value}: it does not fit 64 bits")
    if to == "offset":
        return dict.fromkeys(available, number)
    return {tp: committed[tp] + number for tp in available if tp in committed}
