"""Replicated row 30: partitions move to other brokers while brokers are killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from chaos.matrix import replicated_row
from chaos.replicated import PARTITIONS, ReplicatedBed, replicated
from chaos.testbed import Run
from ottla.client.errors import ClientError
from ottla.client.types import TopicPartition
from ottla.coord.partition_state import PartitionState
from ottla.protocol.errors import KafkaError

_PLACES = ((0, 1, 2), (3, 4, 5))
_SECONDS = 120.0
_CANCELLED_EVERY = 3


@replicated_row("30", "reassignment under load, with kills", "moves", short=1, normal=4, full=30)
def move_replicas(run: Run) -> None:
    """It completes, or is cancelled, and there never are fewer than three replicas."""
    here, there = _PLACES
    with replicated(run, brokers=6) as bed:
        with bed.load(run, replicas=here, per_second=150) as load:
            with bed.admin() as admin:
                topic_id = admin.describe_topics(bed.topic)[bed.topic].id
            for cycle in run.cycles():
                _reassign(bed, there)
                for _ in range(2):
                    time.sleep(run.random.uniform(0.0, bed.session_seconds))
                    victim = run.random.choice(bed.brokers)
                    victim.kill()
                    time.sleep(run.random.uniform(0.0, 2 * bed.session_seconds))
                    victim.launch()
                    victim.wait_until_ready()
                if cycle % _CANCELLED_EVERY == _CANCELLED_EVERY - 1:
                    _reassign(bed, None)
                bed.wait(lambda: not _is_moving(bed), "the end of the moves", _SECONDS)
                places = {_place(one) for one in bed.view.states(bed.topic).values()}
                assert places <= set(_PLACES), places
                if cycle % _CANCELLED_EVERY != _CANCELLED_EVERY - 1:
                    assert places == {there}, places
                # What was cancelled too late, too.
                if there in places:
                    here, there = there, here
                load.wait_for_acks()
        assert bed.view.least_replicas(topic_id) >= len(here)


def _reassign(bed: ReplicatedBed, target: Sequence[int] | None) -> None:
    """Begin to move all partitions, or cancel their moves; partitions may not be moving."""
    deadline = time.monotonic() + _SECONDS
    partitions = [TopicPartition(bed.topic, index) for index in range(PARTITIONS)]
    while True:
        moves = {
            tp: target
            for tp in partitions
            if target is not None or bed.view.states(bed.topic)[tp.partition].is_reassigning
        }
        with bed.admin() as admin, suppress(ClientError, KafkaError):
            if moves:
                admin.alter_partition_reassignments(moves)
            return
        assert time.monotonic() < deadline, f"Not within {_SECONDS} s: a move to {target}"


def _is_moving(bed: ReplicatedBed) -> bool:
    return any(state.is_reassigning for state in bed.view.states(bed.topic).values())


def _place(state: PartitionState) -> tuple[int, ...]:
    return tuple(sorted(state.replicas))
