"""Elections: which partitions need another state, as the registered brokers require.

The controller looks at all partitions after each change of the metadata. Nearly all of them need
nothing, which a comparison of sets tells; `coord/election.py` decides on the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ottla.coord.election import elect, elect_preferred, elect_unclean
from ottla.coord.metadata_image import MetadataImage, Topic
from ottla.coord.partition_state import PartitionState

logger = logging.getLogger(__name__)

#: Elections that are logged one by one; of more, only the number is.
_MAX_LOGGED = 10


@dataclass(frozen=True, slots=True)
class PlannedElection:
    """A partition, and its state before and after."""

    topic: Topic
    index: int
    before: PartitionState
    after: PartitionState


def plan_elections(
    image: MetadataImage,
    min_isr_of: Callable[[Topic], int],
    is_unclean_enabled: Callable[[Topic], bool],
) -> list[PlannedElection]:
    """Return the partitions whose state has to change because of who is registered."""
    registrations = image.registrations
    fenced = {one for one in registrations if registrations[one].state == "fenced"}
    lossy = {one for one in fenced if registrations[one].is_lossy}
    leaving = {one for one in registrations if registrations[one].state == "leaving"}
    # A fenced broker is unfenced right after the elections.
    alive = registrations.keys() - lossy
    settled = registrations.keys() - fenced - leaving
    planned = []
    for topic_id, states in image.partition_states.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        for index, state in states.items():
            if state.has_leader and settled >= set(state.isr) and lossy.isdisjoint(state.elr):
                continue
            after = elect(
                state,
                alive=alive,
                min_isr=min_isr_of(topic),
                leaving=leaving,
                lossy=lossy,
                restarted=fenced,
            )
            if not after.has_leader and is_unclean_enabled(topic):
                after = elect_unclean(after, alive)
            if after is not state:
                planned.append(PlannedElection(topic, index, state, after))
    return planned


def plan_preferred_elections(image: MetadataImage) -> list[PlannedElection]:
    """Return the partitions that their preferred leader can lead, and does not."""
    up = {one for one in image.registrations if image.registrations[one].state == "up"}
    planned = []
    for topic_id, states in image.partition_states.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            for index, state in states.items():
                after = elect_preferred(state, up)
                if after is not state:
                    planned.append(PlannedElection(topic, index, state, after))
    return planned


def log_elections(planned: Iterable[PlannedElection]) -> None:
    """Log the leaders that have changed."""
    changed = [one for one in planned if one.after.leader_epoch != one.before.leader_epoch]
    for one in changed[:_MAX_LOGGED]:
        before, after = one.before, one.after
        message, level = "leader elected", logging.INFO
        if not after.has_leader:
            message, level = "no leader: no eligible replica is alive", logging.WARNING
        elif after.is_recovering and not before.is_recovering:
            message, level = "unclean leader elected: records may be lost", logging.ERROR
        logger.log(
            level,
            message,
            extra={
                "partition": f"{one.topic.name}-{one.index}",
                "leader": after.leader,
                "before": before.leader,
                "leader_epoch": after.leader_epoch,
                "isr": ",".join(map(str, after.isr)),
                "elr": ",".join(map(str, after.elr)),
            },
        )
    if len(changed) > _MAX_LOGGED:
        logger.info("leaders elected", extra={"partitions": len(changed)})
