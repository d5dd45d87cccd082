"""Reassignments: what an operator's request makes of the state of a partition.

A request only begins a reassignment, replaces it or cancels it; the controller completes it when
the new replicas are in sync (see `elections.py`). Nothing is kept beside the state of the
partition, so that the next controller goes on where one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ottla.coord.election import complete_reassignment, original_replicas, reassign
from ottla.coord.metadata_image import MetadataImage, Topic
from ottla.coord.partition_state import PartitionState
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError
from .elections import PlannedElection

logger = logging.getLogger(__name__)

_MAX_QUOTED_REPLICAS = 10


def plan_reassignment(
    image: MetadataImage,
    topic: Topic,
    index: int,
    target: Sequence[int],
    min_isr: int,
    *,
    allows_factor_change: bool = True,
) -> PlannedElection | None:
    """Return the change that moves a partition to other replicas; None if there is nothing to do.

    Raises ApiError if it cannot have these replicas.
    """
    state = image.partition_state(topic, index)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_target(image, state, target)
    if not allows_factor_change and len(target) != len(original_replicas(state)):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(target)} replicas instead of {len(original_replicas(state))}: the request does"
            " not allow to change the replication factor",
        )
    after = reassign(state, target, min_isr)
    return None if after is state else PlannedElection(topic, index, state, after, "reassignment")


def plan_cancellation(
    image: MetadataImage, topic: Topic, index: int, min_isr: int
) -> PlannedElection:
    """Return the change that cancels a reassignment. Raises ApiError if there is none.

    It is complete at once if enough of the old replicas are in sync; if not, the new ones that are
    stay until then.
    """
    state = image.partition_state(topic, index)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not state.is_reassigning:
        raise ApiError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}-{index} is not being reassigned"
        )
    alive = {one for one in image.registrations if image.registrations[one].state == "up"}
    cancelled = reassign(state, original_replicas(state), min_isr)
    after = complete_reassignment(cancelled, alive, min_isr)
    after = replace(after, partition_epoch=state.partition_epoch + 1)
    return PlannedElection(topic, index, state, after, "reassignment")


def check_static_reassignment(
    topic: Topic, index: int, target: Sequence[int] | None, broker_ids: Iterable[int]
) -> None:
    """Raise ApiError unless a request changes nothing, in a cluster without a metadata store."""
    if target is None:
        raise ApiError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}-{index} is not being reassigned"
        )
    if tuple(target) == topic.replicas[index]:
        return
    reason = "partitions cannot be moved without a metadata store: set cluster.store"
    if not target or not set(target) <= {*broker_ids}:
        reason = f"expected one of the brokers {', '.join(map(str, sorted(broker_ids)))}"
    raise ApiError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Invalid replicas {_quoted(target)}: {reason}"
    )


def log_reassignments(planned: Iterable[PlannedElection]) -> None:
    """Log the reassignments that have begun, were cancelled or are complete."""
    logged = [one for one in planned if one.before.replicas != one.after.replicas]
    for number, one in enumerate(logged):
        if number == _MAX_QUOTED_REPLICAS:
            logger.info("replicas are moved", extra={"partitions": len(logged)})
            return
        logger.info(
            "replicas are moved" if one.after.is_reassigning else "replicas were moved",
            extra={
                "partition": f"{one.topic.name}-{one.index}",
                "replicas": _joined(one.after.replicas),
                "before": _joined(one.before.replicas),
                "adding": _joined(one.after.adding_replicas),
                "removing": _joined(one.after.removing_replicas),
            },
        )


def _check_target(image: MetadataImage, state: PartitionState, target: Sequence[int]) -> None:
    known = {*image.registrations, *state.replicas}
    reason = ""
    if not target:
        reason = "expected at least one broker"
    elif len(set(target)) != len(target):
        reason = "expected distinct brokers"
    elif unknown := [one for one in target if one not in known]:
        names = ", ".join(map(str, unknown[:_MAX_QUOTED_REPLICAS]))
        plural = "s" if len(unknown) > 1 else ""
        registered = ", ".join(map(str, sorted(image.registrations)))
        reason = f"broker{plural} {names} not registered; {registered} are"
    if reason:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Invalid replicas {_quoted(target)}: {reason}"
        )


def _quoted(replicas: Sequence[int]) -> str:
    more = ", …" if len(replicas) > _MAX_QUOTED_REPLICAS else ""
    return f"[{', '.join(map(str, replicas[:_MAX_QUOTED_REPLICAS]))}{more}]"


def _joined(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
