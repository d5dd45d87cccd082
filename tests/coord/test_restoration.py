"""A metadata store from the copies of brokers: what is taken, and what may be lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from ottla.coord.metadata_image import (
    MAX_RESTORATIONS,
    MetadataImage,
    Restoration,
    StorePosition,
    Topic,
    partition_record,
    producer_ids_record,
    topic_record,
)
from ottla.coord.partition_state import NO_LEADER, PartitionState
from ottla.coord.restoration import (
    MetadataCopy,
    RestorationError,
    RestorationPlan,
    copy_content,
    parse_copy,
    plan_restoration,
)

TOPIC = Topic("orders", uuid4(), ((0, 1, 2),), {"retention.ms": "5"})
LED = PartitionState((0, 1, 2), 1, 7, (1, 2), (), 1, partition_epoch=9)
STORE = "old"


def a_copy(
    broker_id: int, revision: int, state: PartitionState | None = LED, **changes: Any
) -> MetadataCopy:
    image = MetadataImage()
    image.replay(*topic_record(TOPIC))
    if state is not None:
        image.replay(*partition_record(TOPIC.id, 0, state))
        image.store_position = StorePosition(STORE, revision)
        image.directory = UUID(int=10 + broker_id)
    image.replay(*producer_ids_record(4000))
    return replace(
        MetadataCopy(f"dir-{broker_id}", "cluster", broker_id, image, None, {}), **changes
    )


def copies(**changes: Any) -> list[MetadataCopy]:
    return [a_copy(0, 50, **changes), a_copy(1, 60, **changes), a_copy(2, 55, **changes)]


def entries(plan: RestorationPlan) -> dict[str, Any]:
    return {key.decode(): json.loads(value) for key, value in plan.entries}


def state_in(plan: RestorationPlan) -> PartitionState:
    return PartitionState.from_content(entries(plan)[f"partition/{TOPIC.id}/0"])


def test_the_newest_copy_is_taken_and_the_last_leader_leads():
    plan = plan_restoration(copies())

    assert plan.newest.broker_id == 1
    assert (plan.missing, plan.waiting, plan.doubtful) == (frozenset(), [], [])
    state = state_in(plan)
    assert (state.leader, state.isr, state.elr, state.last_leader) == (NO_LEADER, (1,), (), 1)
    assert (state.leader_epoch, state.partition_epoch) == (8, 10)
    found = entries(plan)
    assert found["topic/orders"]["configs"] == {"retention.ms": "5"}
    assert found["producer-ids"]["next"] > 4000
    assert list(found)[-1] == "cluster"  # A store without it is not valid.
    assert found["cluster"]["id"] == "cluster"
    assert found["last-registration/2"]["directory"] == str(UUID(int=12))


def test_a_partition_without_a_leader_keeps_those_who_may_be_elected():
    lost = replace(LED, leader=NO_LEADER, isr=(), elr=(0, 2), last_leader=1)
    state = state_in(plan_restoration(copies(state=lost)))
    assert (state.isr, state.elr, state.last_leader) == ((), (0, 2), 1)

    nobody = replace(lost, elr=())
    ((_tp, reason),) = plan_restoration(copies(state=nobody)).waiting
    assert "its last leader, broker 1" in reason


def test_a_later_epoch_in_a_log_is_a_doubt_and_is_exceeded():
    logs = copies()
    logs[2] = replace(logs[2], leader_epochs={"orders-0": 30})
    plan = plan_restoration(logs)
    assert [one.partition.partition for one in plan.doubtful] == [0]
    assert state_in(plan).leader_epoch == 31


def test_a_broker_without_a_copy_counts_as_one_that_lost_its_records():
    plan = plan_restoration([a_copy(0, 50), a_copy(2, 55)])
    assert plan.missing == {1}
    ((_tp, reason),) = plan.waiting
    assert "waits for broker 1" in reason
    assert entries(plan)["last-registration/1"]["directory"] == str(UUID(int=0))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (a_copy(0, 9), "Two copies of broker 0"),
        (a_copy(1, 9, cluster_id="another"), "belongs to cluster cluster, dir-1 to another"),
        (a_copy(1, 9, state=None), "only one of them belongs to a static cluster"),
    ],
)
def test_copies_of_different_clusters_are_refused(other, message):
    with pytest.raises(RestorationError, match=message):
        plan_restoration([a_copy(0, 50), other])


def test_a_static_partition_keeps_its_replica():
    copy = a_copy(0, 0, None, leader_epochs={"orders-0": 3})
    plan = plan_restoration([copy])
    state = state_in(plan)
    assert (state.replicas, state.isr, state.leader_epoch) == ((0,), (0,), 4)
    assert plan.doubtful == []


def test_an_exported_copy_is_the_same():
    copy = replace(a_copy(1, 60), leader_epochs={"orders-0": 3})
    content = json.loads(json.dumps(copy_content(copy)))
    parsed = parse_copy("file", content)
    assert copy_content(parsed) == copy_content(copy)
    assert plan_restoration([parsed]).entries == plan_restoration([copy]).entries
    for damaged in ({}, {**content, "records": [["topic/x", "{"]]}, []):
        with pytest.raises(RestorationError):
            parse_copy("file", damaged)


def test_a_restored_store_has_what_each_generation_had():
    restoration = Restoration()
    for generation in range(1, MAX_RESTORATIONS + 3):
        restoration = restoration.next(StorePosition(f"s{generation - 1}", 100))
        assert restoration.generation == generation
    last = restoration.generation - 1
    assert restoration.contains(last, StorePosition(f"s{last}", 100))
    assert not restoration.contains(last, StorePosition(f"s{last}", 101))
    assert not restoration.contains(last, StorePosition("other", 1))
    assert not restoration.contains(last + 1, StorePosition("new", 1))
    assert restoration.contains(last - 50, StorePosition(f"s{last - 50}", 99))
    assert not restoration.contains(0, StorePosition("s0", 1)), "longer ago than it remembers"
