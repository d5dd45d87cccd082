"""Consumers of a log that was truncated, or not, when its leader changed (KIP-320).

tests/cluster/test_unclean_election.py has the same with real brokers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from harness.consumer_stage import (
    T0,
    T1,
    ScriptedBrokers,
    a_consumer,
    batch_of,
    offsets_of,
    take,
)
from harness.waiting import eventually
from ottla.client.errors import LogTruncationError
from ottla.protocol import batch as batches
from ottla.protocol.api.fetch import FetchRequest
from ottla.protocol.api.offset_for_leader_epoch import OffsetForLeaderEpochRequest


@pytest.fixture
async def stage() -> AsyncIterator[ScriptedBrokers]:
    """Two brokers; the first leads in epoch 4, and has records 0 to 9."""
    async with ScriptedBrokers(nodes=2) as started:
        started.served.add("OffsetForLeaderEpoch")
        started.epochs[T0] = 4
        started.logs[T0] += batch_of(*range(10), leader_epoch=4)
        yield started


def elect(stage: ScriptedBrokers, *ends: tuple[int, int], log: bytes) -> None:
    """Let the second broker lead in epoch 5, with a log of its own."""
    stage.epoch_ends[T0] = list(ends)
    stage.logs[T0] = bytearray(log)
    stage.leaders[T0], stage.epochs[T0] = 1, 5


def validations(stage: ScriptedBrokers) -> list[tuple[int, int, int]]:
    """Return the broker, the current epoch and the epoch asked for of all validations."""
    return [
        (node, one.current_leader_epoch, one.leader_epoch)
        for node, request in stage.requests
        if isinstance(request, OffsetForLeaderEpochRequest)
        for topic in request.topics
        for one in topic.partitions
    ]


async def test_a_log_that_goes_on_is_read_on(stage, caplog):
    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 10)) == [*range(10)]
        assert not validations(stage)
        later = batch_of(10, 11, leader_epoch=5)
        elect(stage, (4, 10), (5, 12), log=bytes(stage.logs[T0]) + later)
        assert offsets_of(await take(consumer, 2)) == [10, 11]

    assert validations(stage) == [(1, 5, 4)]
    kinds = [(node, type(request)) for node, request in stage.requests]
    assert kinds.index((1, OffsetForLeaderEpochRequest)) < kinds.index((1, FetchRequest))
    assert "truncated" not in caplog.text


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_truncated_log_is_read_on_where_it_diverges(stage, policy, caplog):
    async with a_consumer(stage.address, auto_offset_reset=policy) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        await take(consumer, 10)
        shorter = batch_of(*range(6), leader_epoch=4) + batch_of(*range(6, 12), leader_epoch=5)
        elect(stage, (4, 6), (5, 12), log=shorter)
        records = await take(consumer, 6)
        assert await consumer.position(T0) == 12

    assert offsets_of(records) == [*range(6, 12)]
    assert {record.leader_epoch for record in records} == {5}
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "t-0: the log was truncated below position 10" in warning.message


async def test_without_a_policy_the_application_decides(stage):
    async with a_consumer(stage.address, "t", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        await take(consumer, 10)
        shorter = batch_of(*range(6), leader_epoch=4) + batch_of(*range(6, 12), leader_epoch=5)
        elect(stage, (4, 6), (5, 12), log=shorter)
        for _ in range(2):  # It is raised until something is done about it.
            with pytest.raises(LogTruncationError, match="diverges at offset 6") as raised:
                await take(consumer, 1)
            error = raised.value
            assert (error.partition, error.position, error.diverging_offset) == (T0, 10, 6)
        consumer.seek(T0, error.diverging_offset)
        assert offsets_of(await take(consumer, 6)) == [*range(6, 12)]


async def test_other_partitions_are_read_while_one_is_truncated(stage):
    stage.logs[T1] = bytearray(batch_of(0, leader_epoch=4))
    async with a_consumer(stage.address, "t", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        consumer.seek(T1, 0)
        await take(consumer, 11)
        elect(stage, (4, 6), log=batch_of(*range(6), leader_epoch=4))
        with pytest.raises(LogTruncationError):
            await take(consumer, 1)
        stage.logs[T1] += batch_of(1, leader_epoch=4)
        records = []
        while not records:
            try:
                records = await take(consumer, 1)
            except LogTruncationError as error:
                assert error.partition == T0
        assert [(one.partition, one.offset) for one in records] == [(1, 1)]


@pytest.mark.parametrize("policy", ["earliest", "none"])
async def test_a_leader_that_knows_no_such_epoch(stage, policy):
    async with a_consumer(stage.address, "t", auto_offset_reset=policy) as consumer:
        consumer.seek(T0, 0)
        await take(consumer, 10)
        elect(stage, log=batch_of(0, 1, leader_epoch=5))
        if policy == "none":
            with pytest.raises(LogTruncationError, match="at an unknown offset") as raised:
                await take(consumer, 1)
            assert raised.value.diverging_offset is None
        else:
            assert offsets_of(await take(consumer, 2)) == [0, 1]


async def test_what_was_not_delivered_yet_is_fetched_again(stage):
    stage.logs[T0] = bytearray(batch_of(0, leader_epoch=3) + batch_of(1, 2, leader_epoch=4))
    async with a_consumer(stage.address, "t", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        assert offsets_of(await take(consumer, 1)) == [0]
        elect(stage, (3, 1), log=batch_of(0, leader_epoch=3) + batch_of(1, leader_epoch=5))
        await eventually(lambda: bool(validations(stage)))
        assert validations(stage) == [(1, 5, 4)]
        # Nothing that was delivered is gone, so nobody has to know.
        (record,) = await take(consumer, 1)

    assert (record.offset, record.leader_epoch) == (1, 5)


async def test_a_control_batch_in_a_newer_epoch_is_no_truncation(stage):
    marker = batches.build_batch(
        [batches.Record(10, 0, bytes(4), b"\0" * 6)],
        leader_epoch=5,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    stage.logs[T0] += bytes(marker)
    async with a_consumer(stage.address, "t", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        await take(consumer, 10)
        assert await consumer.getone(0.1) is None
        assert await consumer.position(T0) == 11
        stage.epoch_ends[T0] = [(4, 10), (5, 11), (6, 12)]
        stage.logs[T0] += batch_of(11, leader_epoch=6)
        stage.leaders[T0], stage.epochs[T0] = 1, 6
        assert offsets_of(await take(consumer, 1)) == [11]

    assert validations(stage) == [(1, 6, 5)]


async def test_brokers_without_the_request_are_trusted(stage):
    stage.served.discard("OffsetForLeaderEpoch")
    async with a_consumer(stage.address, "t") as consumer:
        await take(consumer, 10)
        elect(stage, (4, 6), log=bytes(stage.logs[T0]) + batch_of(10, leader_epoch=5))
        assert offsets_of(await take(consumer, 1)) == [10]

    assert not validations(stage)


async def test_a_leader_that_changes_again_is_asked_again(stage):
    answers = []

    async with a_consumer(stage.address, "t") as consumer:
        await take(consumer, 10)
        elect(stage, (4, 10), log=bytes(stage.logs[T0]) + batch_of(10, leader_epoch=6))

        def fence(call):
            stage.epochs[T0] = 6
            answers.append(call.serve())
            return answers[-1]

        stage.script(OffsetForLeaderEpochRequest, fence)
        assert offsets_of(await take(consumer, 1)) == [10]

    assert answers[0].topics[0].partitions[0].error_code == 74
    assert validations(stage) == [(1, 5, 4), (1, 6, 4)]
