"""Elections: which partitions need another state, as brokers and operators require.

The controller looks at all partitions after each change of the metadata. Nearly all of them need
nothing, which a comparison of sets tells; `coord/election.py` decides on the others. A reassignment
is completed here, too: whichever broker is the controller when its new replicas are in sync does
it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from ottla.coord.election import complete_reassignment, elect, elect_preferred, elect_unclean
from ottla.coord.metadata_image import MetadataImage, Topic
from ottla.coord.partition_state import PartitionState
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError

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
    #: Why: "clean", "preferred" or "reassignment"; see `outcome`.
    kind: str = "clean"

    @property
    def outcome(self) -> str | None:
        """How the new leader was elected, for the metrics; None if the leader is the same."""
        if self.after.leader == self.before.leader:
            return None
        if not self.after.has_leader:
            return "none"
        return "unclean" if self.is_unclean else self.kind

    @property
    def is_unclean(self) -> bool:
        """Whether records may be lost."""
        return self.after.is_recovering and not self.before.is_recovering


def plan_elections(
    image: MetadataImage,
    min_isr_of: Callable[[Topic], int],
    is_unclean_enabled: Callable[[Topic], bool],
    has_lost: Callable[[int, Topic], bool] = lambda _broker_id, _topic: True,
) -> list[PlannedElection]:
    """Return the partitions whose state has to change because of who is registered.

    `has_lost` tells whether a lossy broker may have lost records of a topic.
    """
    registrations = image.registrations
    fenced = {one for one in registrations if registrations[one].state == "fenced"}
    any_lossy = {one for one in fenced if registrations[one].is_lossy}
    leaving = {one for one in registrations if registrations[one].state == "leaving"}
    settled = registrations.keys() - fenced - leaving
    planned = []
    for topic_id, states in image.partition_states.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        lossy = {one for one in any_lossy if has_lost(one, topic)}
        # A fenced broker is unfenced right after the elections.
        alive = registrations.keys() - lossy
        for index, state in states.items():
            if state.has_leader and settled >= set(state.isr) and lossy.isdisjoint(state.elr):
                if state.is_reassigning:
                    after = complete_reassignment(state, settled, min_isr_of(topic))
                    if after is not state:
                        planned.append(PlannedElection(topic, index, state, after, "reassignment"))
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
                after = replace(after, partition_epoch=state.partition_epoch + 1)
                planned.append(PlannedElection(topic, index, state, after))
    return planned


def plan_preferred_elections(
    image: MetadataImage, brokers: Collection[int], max_imbalance_percent: int
) -> list[PlannedElection]:
    """Return the partitions that their preferred leaders, among `brokers`, are to lead again.

    Those of a broker that lacks more than a share of the partitions that it should lead.
    """
    preferred = Counter(state.replicas[0] for _topic, _index, state in _states(image))
    planned = [
        PlannedElection(topic, index, state, after, "preferred")
        for topic, index, state in _states(image)
        for after in [elect_preferred(state, brokers)]
        if after is not state
    ]
    missing = Counter(one.after.leader for one in planned)
    return [
        one
        for one in planned
        if missing[one.after.leader] * 100 > preferred[one.after.leader] * max_imbalance_percent
    ]


def _states(image: MetadataImage) -> Iterator[tuple[Topic, int, PartitionState]]:
    for topic_id, states in list(image.partition_states.items()):
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            for index, state in list(states.items()):
                yield topic, index, state


def plan_preferred_election(image: MetadataImage, topic: Topic, index: int) -> PlannedElection:
    """Return the election of a partition's preferred leader. Raises ApiError."""
    state = _state_to_elect(image, topic, index)
    if state.leader == state.replicas[0]:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
    after = elect_preferred(state, _up(image))
    if after is state:
        preferred = state.replicas[0]
        reason = "is not in sync" if preferred in _up(image) else "is not alive"
        raise ApiError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader of {topic.name}-{index}, broker {preferred}, {reason}",
        )
    return PlannedElection(topic, index, state, after, "preferred")


def plan_unclean_election(image: MetadataImage, topic: Topic, index: int) -> PlannedElection:
    """Return the election of any live replica of a partition without a leader. Raises ApiError.

    An operator's request: unclean.leader.election.enable does not matter.
    """
    state = _state_to_elect(image, topic, index)
    if state.has_leader:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
    after = elect_unclean(state, _up(image))
    if after is state:
        raise ApiError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"No replica of {topic.name}-{index} is alive: start one of the brokers"
            f" {', '.join(map(str, state.replicas))}",
        )
    return PlannedElection(topic, index, state, after)


def _state_to_elect(image: MetadataImage, topic: Topic, index: int) -> PartitionState:
    state = image.partition_state(topic, index)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return state


def _up(image: MetadataImage) -> set[int]:
    return {one for one in image.registrations if image.registrations[one].state == "up"}


def log_elections(planned: Iterable[PlannedElection]) -> None:
    """Log the leaders that have changed."""
    changed = [one for one in planned if one.after.leader_epoch != one.before.leader_epoch]
    for one in changed[:_MAX_LOGGED]:
        before, after = one.before, one.after
        message, level = "leader elected", logging.INFO
        if not after.has_leader:
            message, level = "no leader: no eligible replica is alive", logging.WARNING
        elif one.is_unclean:
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
