"""The producer under failures: nothing lost, duplicated or reordered.

The other side is scripted, so that it fails in the way and at the moment that the story needs.
"""

import asyncio
import random
from itertools import chain

import pytest

from harness.scripted_broker import Call, ScriptedCluster
from harness.waiting import eventually
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.errors import (
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    UnsupportedError,
)
from ottla.client.producer.producer import BatchConfig, Producer
from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.produce import ProduceRequest, ProduceResponse

QUICK = RetryConfig(backoff=0.005, max_backoff=0.02)
#: Three records of ten bytes per batch: many full batches.
SMALL = BatchConfig(batch_bytes=200, linger=0.01)


def a_producer(stage, operation=10.0, request=5.0, **configs):
    timeouts = TimeoutConfig(connect=2.0, request=request, operation=operation)
    configs.setdefault("client", ClientConfig(retry=QUICK, timeouts=timeouts))
    configs.setdefault("batch", SMALL)
    return Producer(stage.address, **configs)


def values(count):
    return [b"%010d" % number for number in range(count)]


async def send_all(producer, wanted, **more):
    return [await producer.enqueue("orders", value, **more) for value in wanted]


async def warm_up(producer):
    """Have the first batch acknowledged: from then on, several may be in flight."""
    await producer.send("orders", b"first")


def refused_with(code):
    return lambda call: call.error_response(code)


def lost_answer(call):
    call.serve()
    call.disconnect()


def lost_request(call):
    call.disconnect()


def written_but(code):
    def script(call):
        call.serve()
        return call.error_response(code)

    return script


async def never(_call):
    await asyncio.sleep(3600)


TRANSIENT = {
    "not leader": refused_with(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "no leader": refused_with(ErrorCode.LEADER_NOT_AVAILABLE),
    "unknown topic": refused_with(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "too few replicas": refused_with(ErrorCode.NOT_ENOUGH_REPLICAS),
    "written to too few replicas": written_but(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    "timed out, not written": refused_with(ErrorCode.REQUEST_TIMED_OUT),
    "timed out, written": written_but(ErrorCode.REQUEST_TIMED_OUT),
    "damaged": refused_with(ErrorCode.CORRUPT_MESSAGE),
    "storage": refused_with(ErrorCode.KAFKA_STORAGE_ERROR),
    "request lost": lost_request,
    "answer lost": lost_answer,
    "left out of the answer": lambda _call: ProduceResponse(),
    "written, left out of the answer": lambda call: (call.serve(), ProduceResponse())[1],
}


@pytest.mark.parametrize("script", TRANSIENT.values(), ids=TRANSIENT.keys())
@pytest.mark.parametrize("at", [0, 2])
async def test_retries_are_written_once_and_in_order(script, at):
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[Call.serve] * at, script)

        futures = await send_all(producer, values(30))
        results = await asyncio.gather(*futures)

    assert stage.written.values("orders") == [b"first", *values(30)]
    assert [metadata.offset for metadata in results] == list(range(1, 31))
    assert stage.producer_ids == 1


def truly(code):
    """An error that is consistent with what the broker has written."""

    def script(call):
        for topic, partition, batch in call.batches():
            known = call.cluster.written.producers.get((topic, partition, batch.producer_id), ())
            if any(first == batch.base_sequence for first, _last, _offset in known):
                return call.serve()
        return call.error_response(code)

    return script


SERIOUS = {
    "refused": truly(ErrorCode.INVALID_RECORD),
    "too large": truly(ErrorCode.MESSAGE_TOO_LARGE),
    "lost records": truly(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "forgot the producer": refused_with(ErrorCode.UNKNOWN_PRODUCER_ID),
    "a bug, not written": refused_with(ErrorCode.UNKNOWN_SERVER_ERROR),
    "a bug, written": written_but(ErrorCode.UNKNOWN_SERVER_ERROR),
    "hangs": never,
}


NUMBERS = ("refused", "too large", "lost records", "forgot the producer")
#: The failures, and the delivery timeout.
TROUBLES = {
    "transient": (TRANSIENT, 20.0),
    "numbers": ({name: SERIOUS[name] for name in NUMBERS}, 20.0),
    "serious": (TRANSIENT | SERIOUS, 1.0),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", TROUBLES)
async def test_random_failures_cause_no_duplicates_and_no_reordering(seed, kind):
    chance = random.Random(seed)
    scripts, operation = TROUBLES[kind]
    partitions = range(6 if kind == "numbers" else 3)
    times = {"request": 0.2, "operation": operation}
    topics = {"orders": len(partitions)}
    async with (
        ScriptedCluster(nodes=2, topics=topics) as stage,
        a_producer(stage, **times) as producer,
    ):

        def trouble(call):
            luck = chance.random()
            if luck < 0.25:
                return chance.choice(list(scripts.values()))(call)
            if luck < 0.35:
                stage.move("orders", chance.choice(partitions), to=chance.randrange(2))
            return late(call.serve()) if luck < 0.6 else call.serve()

        async def late(answer):
            await asyncio.sleep(chance.random() * 0.01)
            return answer

        stage.script(ProduceRequest, *[trouble] * 80)
        sent = []
        for number in range(300):
            partition, value = chance.choice(partitions), b"%05d" % number
            future = await producer.enqueue("orders", value, partition=partition)
            sent.append((partition, value, future))
            if chance.random() < 0.05:
                await asyncio.sleep(0.002)
        results = await asyncio.gather(*(future for _, _, future in sent), return_exceptions=True)
        assert producer._sender.pool.free == producer._sender.pool.limit

    for partition in partitions:
        written = stage.written.values("orders", partition)
        assert written == sorted(set(written))
    for (partition, value, _future), result in zip(sent, results, strict=True):
        written = stage.written.values("orders", partition)
        if isinstance(result, tuple):
            assert written[result.offset] == value
        else:
            assert kind != "transient"
            assert kind == "serious" or not isinstance(result, DeadlineError)
            if isinstance(result, KafkaError) and result.code == ErrorCode.INVALID_RECORD:
                assert value not in written


async def test_up_to_five_requests_are_in_flight():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        gate = asyncio.Event()
        max_bytes = 0

        async def hold(call):
            answer = call.serve()
            await gate.wait()
            return answer

        stage.script(ProduceRequest, *[hold] * 20)
        futures = await send_all(producer, values(40))
        await eventually(lambda: len(stage.requests_of(ProduceRequest)) == 1 + 5)
        await asyncio.sleep(0.05)
        max_bytes = len(stage.requests_of(ProduceRequest)) - 1
        gate.set()
        await asyncio.gather(*futures)

    assert max_bytes == 5


async def test_the_first_batch_of_a_producer_is_sent_alone():
    """A broker that does not know the producer would accept the second one in its place."""
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, refused_with(ErrorCode.NOT_LEADER_OR_FOLLOWER))

        await asyncio.gather(*await send_all(producer, values(30)))

    assert stage.written.values("orders") == values(30)
    assert stage.written.batches["orders", 0][0].base_sequence == 0


async def test_a_retry_has_the_same_sequence():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, lost_answer)

        await asyncio.gather(*await send_all(producer, values(3)))

        (first,), (second,) = (call.batches() for call in stage.requests_of(ProduceRequest)[1:3])
    assert bytes(first[2].view) == bytes(second[2].view)


async def test_not_leader_is_followed_by_a_metadata_refresh():
    async with ScriptedCluster(nodes=2) as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=1)

        metadata = await producer.send("orders", b"second")

        assert metadata.offset == 1
        assert [call.node.id for call in stage.requests_of(ProduceRequest)] == [0, 0, 1]


async def test_records_wait_for_a_leader():
    async with (
        ScriptedCluster(nodes=2, topics={"orders": 2}) as stage,
        a_producer(stage) as producer,
    ):
        stage.move("orders", 0, to=-1)

        sending = asyncio.ensure_future(producer.send("orders", b"late", partition=0))
        await producer.send("orders", b"at once", partition=1)
        assert not sending.done()
        stage.move("orders", 0, to=1)

        assert (await sending).partition == 0


async def test_records_without_a_key_avoid_a_leaderless_partition():
    async with ScriptedCluster(topics={"orders": 3}) as stage, a_producer(stage) as producer:
        stage.move("orders", 1, to=-1)

        results = [await producer.send("orders", b"x") for _ in range(20)]

    assert {metadata.partition for metadata in results} == {0, 2}


async def test_an_unreachable_broker_is_retried():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        await stage.nodes[0].stop()
        futures = await send_all(producer, values(9))
        await asyncio.sleep(0.05)
        await stage.nodes[0].start()

        await asyncio.gather(*futures)

    assert stage.written.values("orders") == [b"first", *values(9)]


async def test_an_unreachable_broker_does_not_delay_others():
    topics = {"orders": 2}
    async with ScriptedCluster(nodes=2, topics=topics) as stage, a_producer(stage) as producer:
        await producer.send("orders", b"0", partition=0)
        await producer.send("orders", b"1", partition=1)
        await stage.nodes[1].stop()

        stuck = await producer.enqueue("orders", b"stuck", partition=1)
        await producer.send("orders", b"2", partition=0)

        assert not stuck.done()
        await stage.nodes[1].start()
        await stuck


@pytest.mark.parametrize("partitioner", ["sticky", "round-robin"])
async def test_records_without_a_key_avoid_an_unreachable_broker(partitioner):
    topics = {"orders": 4}
    async with (
        ScriptedCluster(nodes=2, topics=topics) as stage,
        a_producer(stage, operation=2, partitioner=partitioner) as producer,
    ):
        await producer.send_many("orders", [b"warm"] * 20)
        await stage.nodes[1].stop()

        futures = []
        for _ in range(60):
            futures.append(await producer.enqueue("orders", b"x" * 50))
            await asyncio.sleep(0.005)
        await asyncio.wait(futures)
        lost = [one for one in futures if one.exception() is not None]

        # One batch of each of its two partitions was sent before the failure was known.
        assert 0 < len(lost) <= 2 * 4
        # Once it is back, it gets its share again, although no batch was waiting for it.
        await stage.nodes[1].start()
        results = [await producer.send("orders", b"y") for _ in range(40)]
        assert {one.partition for one in results} == {0, 1, 2, 3}


# Errors that are not retriable.


async def test_a_rejected_batch_fails_its_records_and_no_others():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, Call.serve, refused_with(ErrorCode.INVALID_RECORD))

        futures = await send_all(producer, values(12))
        results = await asyncio.gather(*futures, return_exceptions=True)

    failed = [number for number, result in enumerate(results) if isinstance(result, KafkaError)]
    assert failed == [3, 4, 5]
    assert {results[number].code for number in failed} == {ErrorCode.INVALID_RECORD}
    expected = [value for number, value in enumerate(values(12)) if number not in failed]
    assert stage.written.values("orders") == [b"first", *expected]


async def test_the_sequence_continues_after_a_rejected_batch():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, refused_with(ErrorCode.INVALID_RECORD))

        futures = await send_all(producer, values(12))
        await asyncio.gather(*futures, return_exceptions=True)

        batches = stage.written.batches["orders", 0]
        assert [batch.base_sequence for batch in batches] == [0, 1, 4, 7]
        assert stage.producer_ids == 1


async def test_after_unknown_server_error_the_producer_id_is_replaced():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, written_but(ErrorCode.UNKNOWN_SERVER_ERROR))

        results = await asyncio.gather(*await send_all(producer, values(6)), return_exceptions=True)
        await producer.send("orders", b"last")

    assert [type(result) for result in results[:3]] == [KafkaError] * 3
    assert stage.written.values("orders") == [b"first", *values(6), b"last"]


async def test_the_error_has_the_message_of_the_broker():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, refused_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED))

        with pytest.raises(KafkaError, match="orders-0: access to the topic is denied"):
            await producer.send("orders", b"x")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_batch_that_is_too_large_is_split(idempotent):
    def limited(call):
        ((_topic, _partition, batch),) = call.batches()
        if batch.record_count > 4:
            return call.error_response(ErrorCode.MESSAGE_TOO_LARGE)
        return call.serve()

    batch = BatchConfig(batch_bytes=2000)
    configs = {"idempotent": idempotent, "batch": batch}
    async with ScriptedCluster() as stage, a_producer(stage, **configs) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[limited] * 200)

        bulk = asyncio.ensure_future(producer.send_many("orders", values(50)))
        await asyncio.sleep(0)
        futures = await send_all(producer, values(20))
        results = await asyncio.gather(*futures)
        written = await bulk
        await producer.flush()

    stored = stage.written.values("orders")
    assert sorted(stored) == sorted([b"first", *values(50), *values(20)])
    for metadata, value in zip(results, values(20), strict=True):
        assert stored[metadata.offset] == value
    ours = [stored[part.base_offset : part.base_offset + part.record_count] for part in written]
    assert list(chain(*ours)) == values(50)
    assert stage.producer_ids == idempotent


async def test_a_single_record_that_is_too_large_fails():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, *[refused_with(ErrorCode.MESSAGE_TOO_LARGE)] * 3)

        results = await asyncio.gather(*await send_all(producer, values(2)), return_exceptions=True)
        await producer.send("orders", b"small")

    assert [result.code for result in results] == [ErrorCode.MESSAGE_TOO_LARGE] * 2
    assert stage.written.values("orders") == [b"small"]


# Sequences that a broker does not know.


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
async def test_an_unknown_producer_continues_with_a_new_producer_id(code, caplog):
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[refused_with(code)] * 3)

        await asyncio.gather(*await send_all(producer, values(12)))

        last = stage.written.batches["orders", 0][-1]
        assert stage.written.values("orders") == [b"first", *values(12)]
        assert (last.producer_id, last.last_sequence) == (1002, 11)
        assert stage.producer_ids == 2
    assert f"orders-0 continues with a new producer id: {code.name}" in caplog.text


async def test_other_partitions_keep_their_sequences_when_one_is_reset():
    async with ScriptedCluster(topics={"orders": 2}) as stage, a_producer(stage) as producer:
        for partition in (0, 1):
            await producer.send("orders", b"x", partition=partition)
        stage.script(ProduceRequest, refused_with(ErrorCode.UNKNOWN_PRODUCER_ID))
        await producer.send("orders", b"y", partition=0)
        await producer.send("orders", b"y", partition=1)

        ids = {
            partition: [batch.producer_id for batch in stage.written.batches["orders", partition]]
            for partition in (0, 1)
        }
    assert ids == {0: [1001, 1002], 1: [1001, 1001]}


async def test_a_scheduled_partition_gets_a_new_producer_id():
    """It is in the queue of a broker that throttles."""
    gates = [asyncio.Event() for _ in range(5)]

    def held(gate, answer_of):
        async def script(call):
            answer = answer_of(call)
            await gate.wait()
            return answer

        return script

    def forgotten(call):
        answer = call.error_response(ErrorCode.UNKNOWN_PRODUCER_ID)
        return ProduceResponse(responses=answer.responses, throttle_time_ms=100)

    configs = {"operation": 3.0, "batch": BatchConfig()}
    topics = {"orders": 5}
    async with ScriptedCluster(topics=topics) as stage, a_producer(stage, **configs) as producer:
        for partition in range(5):
            await producer.send("orders", b"first", partition=partition)
        scripts = [held(gates[0], forgotten), *(held(gate, Call.serve) for gate in gates[1:])]
        stage.script(ProduceRequest, *scripts)
        futures = []
        for partition in (0, 1, 2, 3, 4, 0):
            futures.append(await producer.enqueue("orders", b"second", partition=partition))
            await asyncio.sleep(0.02)
        gates[0].set()
        await asyncio.sleep(0.05)
        for gate in gates[1:]:
            gate.set()

        await asyncio.gather(*futures)

    assert stage.written.values("orders", 0) == [b"first", b"second", b"second"]


async def test_a_batch_that_may_be_written_is_not_sent_with_a_new_sequence():
    """The response is lost, and then the broker no longer knows the producer."""
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, lost_answer, refused_with(ErrorCode.UNKNOWN_PRODUCER_ID))

        with pytest.raises(KafkaError, match="may or may not have been written"):
            await producer.send("orders", b"perhaps")
        await producer.send("orders", b"surely")

    assert stage.written.values("orders") == [b"first", b"perhaps", b"surely"]


async def test_a_duplicate_succeeds_without_an_offset():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, written_but(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))

        metadata = await producer.send("orders", b"x", timestamp=5)

    assert metadata == ("orders", 0, -1, 5)
    assert stage.written.values("orders") == [b"x"]


async def test_sequences_wrap_around():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.written.producers["orders", 0, 1001][-1] = (2**31 - 5, 2**31 - 5, 0)
        producer._sender.queues["orders"][0].sequence = 2**31 - 4

        await asyncio.gather(*await send_all(producer, values(9)))

        assert stage.producer_ids == 1
        assert stage.written.values("orders") == [b"first", *values(9)]
        assert stage.written.batches["orders", 0][-1].last_sequence == 4


async def test_records_fail_if_init_producer_id_fails():
    def denied(_call):
        return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(InitProducerIdRequest, denied)
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await producer.send("orders", b"x")

        assert (await producer.send("orders", b"y")).offset == 0


async def test_init_producer_id_is_retried():
    def loading(_call):
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        stage.script(InitProducerIdRequest, loading, lost_request, loading)

        assert (await producer.send("orders", b"x")).offset == 0


async def test_a_broker_without_init_producer_id_raises_unsupported_error():
    async with ScriptedCluster(versions={"InitProducerId": (90, 91)}) as stage:
        async with a_producer(stage) as producer:
            with pytest.raises(UnsupportedError, match="InitProducerId"):
                await producer.send("orders", b"x")
        async with a_producer(stage, idempotent=False) as producer:
            await producer.send("orders", b"x")


async def test_a_broker_without_record_batch_v2_raises_unsupported_error():
    async with (
        ScriptedCluster(versions={"Produce": (0, 2)}) as stage,
        a_producer(stage) as producer,
    ):
        with pytest.raises(UnsupportedError, match="Produce"):
            await producer.send("orders", b"x")


# Deadlines.


async def test_records_without_an_ack_fail_at_the_deadline():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, never)

        with pytest.raises(DeadlineError, match=r"orders-0: not acknowledged within 1 s.*may not"):
            await producer.send("orders", b"late")


async def test_records_fail_at_the_deadline_without_a_broker():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        await stage.nodes[0].stop()

        with pytest.raises(DeadlineError, match="Cannot connect") as caught:
            await producer.send("orders", b"late")
        await stage.nodes[0].start()

    assert isinstance(caught.value.__cause__, ConnectionLostError)


async def test_records_fail_at_the_deadline_without_a_leader():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1) as producer:
        stage.move("orders", 0, to=-1)

        with pytest.raises(DeadlineError, match="orders-0 has no leader"):
            await producer.send("orders", b"late")


async def test_an_unknown_topic_fails_at_the_deadline():
    async with ScriptedCluster() as stage, a_producer(stage, operation=0.5) as producer:
        with pytest.raises(DeadlineError, match="topic 'other'"):
            await producer.send("other", b"x")


async def test_records_behind_an_expired_one_are_written():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1.5, request=2) as producer:
        await warm_up(producer)

        async def too_late(call):
            call.serve()
            await asyncio.sleep(3600)

        stage.script(ProduceRequest, too_late)
        late = await producer.enqueue("orders", b"perhaps")
        await eventually(lambda: stage.written.values("orders")[-1] == b"perhaps")
        await asyncio.sleep(1)
        under_way = await producer.enqueue("orders", b"perhaps, too")
        with pytest.raises(DeadlineError):
            await late
        waiting = [await producer.enqueue("orders", value) for value in values(15)]

        # It was sent, its response is lost, and its sequence cannot be used again.
        with pytest.raises(KafkaError, match="may or may not have been written"):
            await under_way
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await producer.send("orders", b"last")

    unsure = sum(isinstance(result, KafkaError) for result in results)
    written = stage.written.values("orders")
    assert written[:3] == [b"first", b"perhaps", b"perhaps, too"]
    assert unsure < 15
    assert written[-1 - (15 - unsure) :] == [*values(15)[unsure:], b"last"]


async def test_a_late_response_to_an_expired_batch_is_ignored():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        gate = asyncio.Event()

        async def slow(call):
            answer = call.serve()
            await gate.wait()
            return answer

        stage.script(ProduceRequest, slow)
        with pytest.raises(DeadlineError):
            await producer.send("orders", b"slow")
        gate.set()
        await producer.send("orders", b"next")

        assert stage.producer_ids == 1
    assert stage.written.values("orders") == [b"first", b"slow", b"next"]


async def test_a_batch_that_expires_before_it_is_sent_leaves_no_gap():
    async with ScriptedCluster() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=-1)
        await producer._cluster.refresh(["orders"])
        results = await asyncio.gather(*await send_all(producer, values(6)), return_exceptions=True)
        stage.move("orders", 0, to=0)
        await producer.send("orders", b"next")

        assert {type(result) for result in results} == {DeadlineError}
        assert stage.producer_ids == 1
    assert stage.written.values("orders") == [b"first", b"next"]


async def test_a_request_timeout_closes_the_connection():
    async with ScriptedCluster() as stage, a_producer(stage, request=0.1) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, never)

        await asyncio.gather(*await send_all(producer, values(9)))

    assert stage.written.values("orders") == [b"first", *values(9)]


# Without idempotence.


async def test_without_idempotence_order_is_kept():
    async with ScriptedCluster() as stage, a_producer(stage, idempotent=False) as producer:
        await warm_up(producer)
        scripts = [refused_with(ErrorCode.NOT_ENOUGH_REPLICAS), Call.serve, lost_request]
        stage.script(ProduceRequest, *scripts * 3)

        await asyncio.gather(*await send_all(producer, values(30)))

    assert stage.written.values("orders") == [b"first", *values(30)]
    assert stage.producer_ids == 0


async def test_without_idempotence_a_lost_response_causes_a_duplicate():
    async with ScriptedCluster() as stage, a_producer(stage, acks=1) as producer:
        stage.script(ProduceRequest, lost_answer)

        metadata = await producer.send("orders", b"x")

    assert metadata.offset == 1
    assert stage.written.values("orders") == [b"x", b"x"]


async def test_with_acks_0_batches_that_cannot_be_sent_are_retried():
    async with ScriptedCluster() as stage, a_producer(stage, acks=0) as producer:
        await warm_up(producer)
        await eventually(lambda: stage.written.values("orders") == [b"first"])
        await stage.nodes[0].stop()
        await asyncio.sleep(0.05)
        await stage.nodes[0].start()

        assert (await producer.send("orders", b"x", timestamp=7)) == ("orders", 0, -1, 7)
        await eventually(lambda: len(stage.written.values("orders")) > 1)

    assert stage.written.values("orders") == [b"first", b"x"]


# Throttling, metadata and the hook.


async def test_throttle_time_is_respected():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await warm_up(producer)

        def throttle(call):
            answer = call.serve()
            return ProduceResponse(responses=answer.responses, throttle_time_ms=150)

        stage.script(ProduceRequest, throttle)
        started = asyncio.get_running_loop().time()
        await producer.send("orders", b"x")
        await producer.send("orders", b"y")

        assert asyncio.get_running_loop().time() - started > 0.14


async def test_old_metadata_is_refreshed():
    config = ClientConfig(retry=QUICK, metadata_max_age=0.05)
    async with ScriptedCluster(nodes=2) as stage, a_producer(stage, client=config) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=1)
        await eventually(
            lambda: producer._cluster.metadata.topics["orders"].partitions[0].leader == 1
        )

        await producer.send("orders", b"x")

        assert [call.node.id for call in stage.requests_of(ProduceRequest)] == [0, 1]


async def test_concurrent_sends_look_up_a_topic_once():
    async with ScriptedCluster() as stage, a_producer(stage) as producer:
        await asyncio.gather(*(producer.send("orders", value) for value in values(50)))

        # And one without topics, when it connected.
        lookups = [call.request for call in stage.requests_of(MetadataRequest)]
        assert [bool(request.topics) for request in lookups] == [False, True]


async def test_requests_are_reported():
    reports = []
    config = ClientConfig(retry=QUICK, on_request=lambda *what: reports.append(what))
    async with ScriptedCluster() as stage, a_producer(stage, client=config) as producer:
        stage.script(ProduceRequest, lost_request)
        await producer.send("orders", b"x")

    produced = [(node, type(error)) for name, node, _, error in reports if name == "Produce"]
    assert produced == [(0, ConnectionLostError), (0, type(None))]
    assert {name for name, *_ in reports} == {"Metadata", "InitProducerId", "Produce"}
    assert all(0 <= seconds < 5 for _, _, seconds, _ in reports)
