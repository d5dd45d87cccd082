"""The consumer against scripted brokers that misbehave, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from harness.consumer_stage import (
    ABORT,
    CLIENT,
    COMMIT,
    T0,
    T1,
    ScriptedBrokers,
    a_consumer,
    a_marker,
    a_transaction,
    batch_of,
    drain,
    offsets_of,
    partition_error,
    take,
)
from harness.waiting import eventually
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ErrorCode, KafkaError
from ottla.protocol import batch as batches
from ottla.protocol.api.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from ottla.protocol.api.metadata import MetadataRequest


@pytest.fixture
async def stage() -> AsyncIterator[ScriptedBrokers]:
    async with ScriptedBrokers() as started:
        yield started


@pytest.fixture
async def two() -> AsyncIterator[ScriptedBrokers]:
    async with ScriptedBrokers(nodes=2) as started:
        started.logs[T1] = bytearray()
        yield started


def asked(request: FetchRequest) -> dict[int, int]:
    return {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}


async def test_read_committed_skips_aborted_transactions(stage):
    stage.logs[T0] += (
        a_transaction(1, 0, 1)
        + a_transaction(2, 2, 3)
        + a_marker(1, 4, ABORT)
        + a_marker(2, 5, COMMIT)
        + batch_of(6)
        + a_transaction(3, 7)
    )
    stage.aborted[T0] = [(1, 0)]
    stage.last_stable[T0] = 7

    async with a_consumer(stage.address, "t", isolation="read_committed") as consumer:
        committed = await drain(consumer, 3)
        assert await consumer.position(T0) == 7
    async with a_consumer(stage.address, "t") as consumer:
        everything = await drain(consumer, 6)

    assert offsets_of(committed) == [2, 3, 6]
    assert offsets_of(everything) == [0, 1, 2, 3, 6, 7]


async def test_a_control_batch_at_the_end_is_not_fetched_again(stage):
    stage.logs[T0] += a_transaction(1, 0) + a_marker(1, 1, COMMIT)

    async with a_consumer(stage.address, "t", group=None) as consumer:
        assert offsets_of(await drain(consumer, 1)) == [0]
        assert await consumer.position(T0) == 2
        assert await consumer.lag() == {T0: 0}
        await eventually(lambda: asked(stage.fetches()[-1]) == {0: 2})


async def test_a_new_leader_is_found(two):
    two.logs[T0] += batch_of(0)
    two.leaders = {T0: 0, T1: 1}

    async with a_consumer(two.address, "t") as consumer:
        await take(consumer, 1)
        two.leaders = {T0: 1, T1: 1}
        two.logs[T0] += batch_of(1)
        two.logs[T1] += batch_of(0)
        records = await take(consumer, 2)

    assert {(one.partition, one.offset) for one in records} == {(0, 1), (1, 0)}


async def test_a_late_response_of_an_old_leader_is_ignored(two):
    two.logs[T0] += batch_of(0)
    two.leaders = {T0: 0, T1: 1}
    two.slow[0] = asyncio.Event()

    def refuse(node: int, _request: FetchRequest) -> FetchResponse | None:
        if node == 0 or two.leaders[T0] == 1:
            return None
        two.leaders = {T0: 1, T1: 1}
        moved = partition_error(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[moved])])

    async with a_consumer(two.address, "t") as consumer:
        await eventually(lambda: two.fetches(0))
        two.on_fetch = refuse  # The metadata is refreshed, and has another leader.
        assert offsets_of(await take(consumer, 1)) == [0]
        two.slow[0].set()
        await asyncio.sleep(0.05)
        two.logs[T0] += batch_of(1)
        assert offsets_of(await take(consumer, 1)) == [1]


async def test_each_broker_is_fetched_from_for_the_partitions_it_leads(two):
    two.leaders = {T0: 0, T1: 1}
    two.logs[T0] += batch_of(0)
    two.logs[T1] += batch_of(0)

    async with a_consumer(two.address, "t") as consumer:
        await take(consumer, 2)

    assert {partition for request in two.fetches(0) for partition in asked(request)} == {0}
    assert {partition for request in two.fetches(1) for partition in asked(request)} == {1}


async def test_a_newer_leader_epoch_is_fetched_with_metadata(stage):
    stage.logs[T0] += batch_of(0)

    async with a_consumer(stage.address, "t") as consumer:
        await take(consumer, 1)
        stage.epochs[T0] = 5
        stage.logs[T0] += batch_of(1)
        assert offsets_of(await take(consumer, 1)) == [1]

    last = stage.fetches()[-1].topics[0].partitions[0]
    assert last.current_leader_epoch == 5


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
async def test_retriable_fetch_errors_are_retried(stage, code):
    stage.logs[T0] += batch_of(0)
    left = 3

    def fail(_node: int, _request: FetchRequest) -> FetchResponse | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        return FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=[partition_error(0, code)])]
        )

    stage.on_fetch = fail
    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 1)) == [0]

    looked_up = sum(isinstance(request, MetadataRequest) for _node, request in stage.requests)
    assert (looked_up > 3) == (code.retry.value == "refreshed")


async def test_fatal_fetch_errors_are_raised_and_reading_continues_afterwards(stage):
    stage.logs[T0] += batch_of(0)
    answer = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[partition_error(0, 29)])]
    )
    stage.on_fetch = lambda *_: answer

    async with a_consumer(stage.address, "t") as consumer:
        for _ in range(2):
            with pytest.raises(KafkaError, match="t-0 at offset 0: access to the topic is denied"):
                await consumer.getone(5)
        stage.on_fetch = lambda *_: None
        assert offsets_of(await take(consumer, 1)) == [0]


async def test_a_top_level_fetch_error_is_retried(stage):
    stage.logs[T0] += batch_of(0)
    answers = [FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), None]
    stage.on_fetch = lambda *_: answers.pop(0) if answers else None

    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 1)) == [0]


async def test_a_corrupt_batch_raises_and_can_be_skipped_with_seek(stage):
    stage.logs[T0] += batch_of(0) + batch_of(1) + batch_of(2)
    size = len(batch_of(0))
    stage.logs[T0][2 * size - 1] ^= 0xFF

    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 1)) == [0]
        for _ in range(2):
            with pytest.raises(KafkaError, match=r"t-0, batch at offset 1.*CRC") as error:
                await consumer.getone(5)
            assert error.value.code is ErrorCode.CORRUPT_MESSAGE
        assert await consumer.position(T0) == 1
        consumer.seek(T0, 2)
        assert offsets_of(await take(consumer, 1)) == [2]


async def test_a_batch_corrupted_in_transit_is_fetched_again(stage):
    stage.logs[T0] += batch_of(0)
    is_first = True

    def damage(node: int, request: FetchRequest) -> FetchResponse:
        nonlocal is_first
        answer = stage.fetch(node, request)
        if is_first:
            data = bytearray(stage.logs[T0])
            data[-1] ^= 0xFF
            answer.responses[0].partitions[0].records = data  # type: ignore[misc]
        is_first = False
        return answer

    stage.on_fetch = damage
    async with a_consumer(stage.address, "t") as consumer:
        with pytest.raises(KafkaError, match="CRC"):
            await consumer.getone(5)
        assert offsets_of(await take(consumer, 1)) == [0]


async def test_old_message_formats_raise(stage):
    stage.logs[T0] += batch_of(0)

    def old(node: int, request: FetchRequest) -> FetchResponse:
        answer = stage.fetch(node, request)
        data = bytearray(answer.responses[0].partitions[0].records or b"")
        data[16] = 1
        part = answer.responses[0].partitions[0]
        part.records = data  # type: ignore[misc]
        return answer

    stage.on_fetch = old
    async with a_consumer(stage.address, "t") as consumer:
        with pytest.raises(KafkaError, match="magic 1"):
            await consumer.getone(5)


async def test_an_incomplete_last_batch_is_fetched_again(stage):
    stage.logs[T0] += batch_of(0) + batch_of(1)

    def cut(node: int, request: FetchRequest) -> FetchResponse:
        answer = stage.fetch(node, request)
        part = answer.responses[0].partitions[0]
        if asked(request) == {0: 0}:
            part.records = (part.records or b"")[:-10]  # type: ignore[misc]
        return answer

    stage.on_fetch = cut
    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 2)) == [0, 1]


async def test_a_fetch_response_after_a_seek_is_discarded(stage):
    stage.logs[T0] += b"".join(batch_of(n) for n in range(10))
    consumer = a_consumer(stage.address)

    def seek_first(_node: int, request: FetchRequest) -> None:
        if asked(request) == {0: 0}:
            consumer.seek(T0, 7)

    stage.on_fetch = seek_first
    async with consumer:
        consumer.assign([T0])
        assert offsets_of(await take(consumer, 3)) == [7, 8, 9]


async def test_a_seek_while_a_fetch_is_planned_takes_effect(stage):
    stage.logs[T0] += batch_of(0)

    async with a_consumer(stage.address) as consumer:
        fetch = consumer._fetcher._fetch

        async def seek_first(*planned):
            consumer._fetcher._fetch = fetch
            consumer.seek_to_end(T0)
            await fetch(*planned)

        consumer._fetcher._fetch = seek_first
        consumer.assign([T0])

        await eventually(lambda: consumer._fetcher._fetch == fetch)
        assert await consumer.position(T0) == 1
        await eventually(stage.fetches)
    assert min(offset for request in stage.fetches() for offset in asked(request).values()) == 1


async def test_compacted_batches_have_offset_gaps(stage):
    rows = [batches.Record(n, 0, b"k", b"v") for n in (3, 8)]
    stage.logs[T0] += batches.build_batch(rows, base_offset=0, last_offset=9)
    stage.logs[T0] += batches.build_batch([], base_offset=10, last_offset=19)
    stage.logs[T0] += batch_of(20)

    async with a_consumer(stage.address, "t") as consumer:
        assert offsets_of(await take(consumer, 3)) == [3, 8, 20]
        assert await consumer.position(T0) == 21


async def test_a_busy_partition_does_not_wait_for_an_idle_one(stage):
    """One long poll asks for both: one for the idle partition alone would delay the busy one."""
    stage.logs[T1] = bytearray()
    stage.logs[T0] += b"".join(batch_of(n) for n in range(5))

    def one_batch(node: int, request: FetchRequest) -> FetchResponse:
        answer = stage.fetch(node, request)
        for data in answer.responses[0].partitions:
            data.records = (data.records or b"")[: len(batch_of(0))]  # type: ignore[misc]
        return answer

    stage.on_fetch = one_batch
    async with a_consumer(stage.address, "t") as consumer:
        await take(consumer, 5)

    assert all(asked(request).keys() == {0, 1} for request in stage.fetches()[:5])


# One of several brokers is down or hangs: the others are still read.


async def delays(stage: ScriptedBrokers, consumer: Consumer, seconds: float) -> list[float]:
    """Write records to the partition of broker 0; return how long each took to arrive."""
    loop = asyncio.get_running_loop()
    found: list[float] = []
    end = loop.time() + seconds
    while loop.time() < end:
        stage.logs[T0] += batch_of(stage.end(T0))
        written = loop.time()
        (record,) = await take(consumer, 1)
        assert record.partition == 0
        found.append(loop.time() - written)
        await asyncio.sleep(0.02)
    return found


#: Less than what a broker that hangs is waited for, and more than a busy machine may take.
AT_ONCE = 1.2
IMPATIENT = ClientConfig(
    retry=RetryConfig(backoff=0.01, max_backoff=0.1),
    timeouts=TimeoutConfig(connect=1.5, request=1.5, operation=10),
)


async def test_a_broker_that_is_down_does_not_delay_the_others(two):
    two.leaders = {T0: 0, T1: 1}

    async with a_consumer(two.address, "t") as consumer:
        await two.stop(1)
        assert max(await delays(two, consumer, 0.5)) < AT_ONCE
        two.logs[T1] += batch_of(0)
        await two.start(1)
        (record,) = await take(consumer, 1)

    assert record.partition == 1


async def test_a_broker_that_hangs_does_not_delay_the_others(two):
    two.leaders = {T0: 0, T1: 1}

    # Metadata come from it, too.
    address = f"127.0.0.1:{two.nodes[1].port}"
    async with a_consumer(address, "t", client=IMPATIENT) as consumer:
        two.hung.add(1)
        assert max(await delays(two, consumer, 4.0)) < AT_ONCE


async def test_positions_are_found_while_the_broker_of_another_partition_hangs(two):
    two.leaders = {T0: 0, T1: 1}
    two.logs[T0] += batch_of(0)
    two.hung.add(1)

    async with a_consumer(two.address) as consumer:
        consumer.assign([T0, T1])
        async with asyncio.timeout(CLIENT.timeouts.request / 2):
            assert (await anext(consumer)).partition == 0
            # A later lookup does not wait for it either.
            consumer.seek_to_beginning(T0)
            assert (await anext(consumer)).partition == 0


async def test_partitions_without_a_leader_do_not_delay_the_others(two, caplog):
    two.leaders = {T0: 0, T1: 0}
    two.metadata_leaders = {T0: 0, T1: -1}

    async with a_consumer(two.address, "t") as consumer:
        assert max(await delays(two, consumer, 0.3)) < AT_ONCE
        # It is logged once.
        (said,) = [one.message for one in caplog.records if one.levelname == "WARNING"]
        assert said.endswith("t-1 has no leader")
        two.logs[T1] += batch_of(0)
        two.metadata_leaders = None
        (record,) = await take(consumer, 1)

    assert record.partition == 1


async def test_a_topic_deleted_while_a_fetch_is_planned_is_handled(stage):
    stage.logs[T0] += batch_of(0)

    async with a_consumer(stage.address, "t") as consumer:
        original = consumer._fetcher._partition_fetch

        def forget_metadata(requested):
            consumer._cluster.metadata.topics.clear()
            consumer._fetcher._partition_fetch = original
            return original(requested)

        assert offsets_of(await take(consumer, 1)) == [0]
        consumer._fetcher._partition_fetch = forget_metadata
        await eventually(lambda: consumer._fetcher._partition_fetch == original)
        stage.logs[T0] += batch_of(1)
        assert offsets_of(await take(consumer, 1)) == [1]
