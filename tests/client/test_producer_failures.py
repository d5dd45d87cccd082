"""What a producer does when things go wrong: nothing lost, nothing twice, nothing out of order.

The other side is scripted, so that it fails in the way and at the moment that the story needs.
"""

import asyncio
import random
from itertools import chain

import pytest

from harness.scripted_broker import Call, Stage
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
#: Room for three records of ten bytes, so that there are many batches, and they are full.
SMALL = BatchConfig(batch_bytes=200, linger=0.01)


def a_producer(stage, operation=10.0, request=5.0, **settings):
    timeouts = TimeoutConfig(connect=2.0, request=request, operation=operation)
    settings.setdefault("client", ClientConfig(retry=QUICK, timeouts=timeouts))
    settings.setdefault("batch", SMALL)
    return Producer(stage.address, **settings)


def values(count):
    return [b"%010d" % number for number in range(count)]


async def send_all(producer, wanted, **more):
    return [await producer.enqueue("orders", value, **more) for value in wanted]


async def warm_up(producer):
    """Let the first batch be acknowledged: from then on several are under way."""
    await producer.send("orders", b"first")


def refused_with(code):
    return lambda call: call.refuse(code)


def lost_answer(call):
    call.serve()
    call.cut()


def lost_request(call):
    call.cut()


def written_but(code):
    def script(call):
        call.serve()
        return call.refuse(code)

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
async def test_what_may_be_sent_again_is_written_once_and_in_order(script, at):
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[Call.serve] * at, script)

        futures = await send_all(producer, values(30))
        receipts = await asyncio.gather(*futures)

    assert stage.ledger.values("orders") == [b"first", *values(30)]
    assert [receipt.offset for receipt in receipts] == list(range(1, 31))
    assert stage.producer_ids == 1


def truly(code):
    """A refusal by a broker that does not lie: what it has written, it has written."""

    def script(call):
        for topic, partition, batch in call.batches():
            known = call.stage.ledger.producers.get((topic, partition, batch.producer_id), ())
            if any(first == batch.base_sequence for first, _last, _offset in known):
                return call.serve()
        return call.refuse(code)

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
#: What goes wrong, and how long it is tried.
TROUBLES = {
    "transient": (TRANSIENT, 20.0),
    "numbers": ({name: SERIOUS[name] for name in NUMBERS}, 20.0),
    "serious": (TRANSIENT | SERIOUS, 1.0),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", TROUBLES)
async def test_whatever_happens_no_record_is_there_twice_or_out_of_order(seed, kind):
    chance = random.Random(seed)
    scripts, operation = TROUBLES[kind]
    places = range(6 if kind == "numbers" else 3)
    times = {"request": 0.2, "operation": operation}
    topics = {"orders": len(places)}
    async with Stage(nodes=2, topics=topics) as stage, a_producer(stage, **times) as producer:

        def trouble(call):
            luck = chance.random()
            if luck < 0.25:
                return chance.choice(list(scripts.values()))(call)
            if luck < 0.35:
                stage.move("orders", chance.choice(places), to=chance.randrange(2))
            return late(call.serve()) if luck < 0.6 else call.serve()

        async def late(answer):
            await asyncio.sleep(chance.random() * 0.01)
            return answer

        stage.script(ProduceRequest, *[trouble] * 80)
        sent = []
        for number in range(300):
            partition, value = chance.choice(places), b"%05d" % number
            future = await producer.enqueue("orders", value, partition=partition)
            sent.append((partition, value, future))
            if chance.random() < 0.05:
                await asyncio.sleep(0.002)
        results = await asyncio.gather(*(future for _, _, future in sent), return_exceptions=True)
        assert producer._sender.pool.free == producer._sender.pool.limit

    for partition in places:
        written = stage.ledger.values("orders", partition)
        assert written == sorted(set(written))
    for (partition, value, _future), result in zip(sent, results, strict=True):
        written = stage.ledger.values("orders", partition)
        if isinstance(result, tuple):
            assert written[result.offset] == value
        else:
            assert kind != "transient"
            assert kind == "serious" or not isinstance(result, DeadlineError)
            if isinstance(result, KafkaError) and result.code == ErrorCode.INVALID_RECORD:
                assert value not in written


async def test_several_requests_are_under_way_but_no_more_than_five():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        gate = asyncio.Event()
        most = 0

        async def hold(call):
            answer = call.serve()
            await gate.wait()
            return answer

        stage.script(ProduceRequest, *[hold] * 20)
        futures = await send_all(producer, values(40))
        await eventually(lambda: len(stage.asked(ProduceRequest)) == 1 + 5)
        await asyncio.sleep(0.05)
        most = len(stage.asked(ProduceRequest)) - 1
        gate.set()
        await asyncio.gather(*futures)

    assert most == 5


async def test_the_first_batch_of_a_producer_goes_alone():
    """A broker that does not know a producer would take the second one in its place."""
    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, refused_with(ErrorCode.NOT_LEADER_OR_FOLLOWER))

        await asyncio.gather(*await send_all(producer, values(30)))

    assert stage.ledger.values("orders") == values(30)
    assert stage.ledger.batches["orders", 0][0].base_sequence == 0


async def test_a_batch_that_is_sent_again_has_the_numbers_that_it_had():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, lost_answer)

        await asyncio.gather(*await send_all(producer, values(3)))

        (first,), (second,) = (call.batches() for call in stage.asked(ProduceRequest)[1:3])
    assert bytes(first[2].view) == bytes(second[2].view)


async def test_a_new_leader_is_found_when_the_old_one_says_that_it_is_not():
    async with Stage(nodes=2) as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=1)

        receipt = await producer.send("orders", b"second")

        assert receipt.offset == 1
        assert [call.node.id for call in stage.asked(ProduceRequest)] == [0, 0, 1]


async def test_a_partition_without_a_leader_waits_for_one():
    async with Stage(nodes=2, topics={"orders": 2}) as stage, a_producer(stage) as producer:
        stage.move("orders", 0, to=-1)

        sending = asyncio.ensure_future(producer.send("orders", b"late", partition=0))
        await producer.send("orders", b"at once", partition=1)
        assert not sending.done()
        stage.move("orders", 0, to=1)

        assert (await sending).partition == 0


async def test_records_without_a_key_avoid_a_partition_without_a_leader():
    async with Stage(topics={"orders": 3}) as stage, a_producer(stage) as producer:
        stage.move("orders", 1, to=-1)

        receipts = [await producer.send("orders", b"x") for _ in range(20)]

    assert {receipt.partition for receipt in receipts} == {0, 2}


async def test_a_broker_that_is_away_for_a_while_is_tried_again():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        await stage.nodes[0].stop()
        futures = await send_all(producer, values(9))
        await asyncio.sleep(0.05)
        await stage.nodes[0].start()

        await asyncio.gather(*futures)

    assert stage.ledger.values("orders") == [b"first", *values(9)]


async def test_a_broker_that_is_away_does_not_keep_others_waiting():
    topics = {"orders": 2}
    async with Stage(nodes=2, topics=topics) as stage, a_producer(stage) as producer:
        await producer.send("orders", b"0", partition=0)
        await producer.send("orders", b"1", partition=1)
        await stage.nodes[1].stop()

        stuck = await producer.enqueue("orders", b"stuck", partition=1)
        await producer.send("orders", b"2", partition=0)

        assert not stuck.done()
        await stage.nodes[1].start()
        await stuck


@pytest.mark.parametrize("partitioner", ["sticky", "round-robin"])
async def test_records_without_a_key_avoid_a_broker_that_is_away(partitioner):
    topics = {"orders": 4}
    async with (
        Stage(nodes=2, topics=topics) as stage,
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

        # One batch of each of its two partitions was on its way before that was known.
        assert 0 < len(lost) <= 2 * 4
        # Once it is back it has its share again, though nothing has waited for that.
        await stage.nodes[1].start()
        receipts = [await producer.send("orders", b"y") for _ in range(40)]
        assert {one.partition for one in receipts} == {0, 1, 2, 3}


# Refused for good.


async def test_a_refused_batch_fails_its_records_and_no_others():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, Call.serve, refused_with(ErrorCode.INVALID_RECORD))

        futures = await send_all(producer, values(12))
        results = await asyncio.gather(*futures, return_exceptions=True)

    failed = [number for number, result in enumerate(results) if isinstance(result, KafkaError)]
    assert failed == [3, 4, 5]
    assert {results[number].code for number in failed} == {ErrorCode.INVALID_RECORD}
    expected = [value for number, value in enumerate(values(12)) if number not in failed]
    assert stage.ledger.values("orders") == [b"first", *expected]


async def test_numbers_go_on_behind_a_batch_that_was_not_written():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, refused_with(ErrorCode.INVALID_RECORD))

        futures = await send_all(producer, values(12))
        await asyncio.gather(*futures, return_exceptions=True)

        batches = stage.ledger.batches["orders", 0]
        assert [batch.base_sequence for batch in batches] == [0, 1, 4, 7]
        assert stage.producer_ids == 1


async def test_an_unexpected_error_of_a_broker_leaves_it_open_and_ends_the_numbers():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, written_but(ErrorCode.UNKNOWN_SERVER_ERROR))

        results = await asyncio.gather(*await send_all(producer, values(6)), return_exceptions=True)
        await producer.send("orders", b"last")

    assert [type(result) for result in results[:3]] == [KafkaError] * 3
    assert stage.ledger.values("orders") == [b"first", *values(6), b"last"]


async def test_the_reason_of_the_broker_is_in_the_error():
    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, refused_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED))

        with pytest.raises(KafkaError, match="orders-0: access to the topic is denied"):
            await producer.send("orders", b"x")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_batch_that_is_too_large_is_split(idempotent):
    def limited(call):
        ((_topic, _partition, batch),) = call.batches()
        if batch.record_count > 4:
            return call.refuse(ErrorCode.MESSAGE_TOO_LARGE)
        return call.serve()

    batch = BatchConfig(batch_bytes=2000)
    settings = {"idempotent": idempotent, "batch": batch}
    async with Stage() as stage, a_producer(stage, **settings) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[limited] * 200)

        bulk = asyncio.ensure_future(producer.send_many("orders", values(50)))
        await asyncio.sleep(0)
        futures = await send_all(producer, values(20))
        receipts = await asyncio.gather(*futures)
        written = await bulk
        await producer.flush()

    stored = stage.ledger.values("orders")
    assert sorted(stored) == sorted([b"first", *values(50), *values(20)])
    for receipt, value in zip(receipts, values(20), strict=True):
        assert stored[receipt.offset] == value
    ours = [stored[part.base_offset : part.base_offset + part.record_count] for part in written]
    assert list(chain(*ours)) == values(50)
    assert stage.producer_ids == idempotent


async def test_a_record_that_is_too_large_by_itself_fails():
    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, *[refused_with(ErrorCode.MESSAGE_TOO_LARGE)] * 3)

        results = await asyncio.gather(*await send_all(producer, values(2)), return_exceptions=True)
        await producer.send("orders", b"small")

    assert [result.code for result in results] == [ErrorCode.MESSAGE_TOO_LARGE] * 2
    assert stage.ledger.values("orders") == [b"small"]


# Numbers that a broker does not know.


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
async def test_a_broker_that_has_forgotten_the_producer_gets_a_new_one(code, caplog):
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, *[refused_with(code)] * 3)

        await asyncio.gather(*await send_all(producer, values(12)))

        last = stage.ledger.batches["orders", 0][-1]
        assert stage.ledger.values("orders") == [b"first", *values(12)]
        assert (last.producer_id, last.last_sequence) == (1002, 11)
        assert stage.producer_ids == 2
    assert f"orders-0 continues with a new producer id: {code.name}" in caplog.text


async def test_other_partitions_keep_their_numbers_when_one_gets_new_ones():
    async with Stage(topics={"orders": 2}) as stage, a_producer(stage) as producer:
        for partition in (0, 1):
            await producer.send("orders", b"x", partition=partition)
        stage.script(ProduceRequest, refused_with(ErrorCode.UNKNOWN_PRODUCER_ID))
        await producer.send("orders", b"y", partition=0)
        await producer.send("orders", b"y", partition=1)

        ids = {
            partition: [batch.producer_id for batch in stage.ledger.batches["orders", partition]]
            for partition in (0, 1)
        }
    assert ids == {0: [1001, 1002], 1: [1001, 1001]}


async def test_a_partition_that_needs_a_new_id_while_it_queues_gets_it():
    """It stands in the queue of a broker that is not to be sent anything for a while."""
    gates = [asyncio.Event() for _ in range(5)]

    def held(gate, answer_of):
        async def script(call):
            answer = answer_of(call)
            await gate.wait()
            return answer

        return script

    def forgotten(call):
        answer = call.refuse(ErrorCode.UNKNOWN_PRODUCER_ID)
        return ProduceResponse(responses=answer.responses, throttle_time_ms=100)

    settings = {"operation": 3.0, "batch": BatchConfig()}
    topics = {"orders": 5}
    async with Stage(topics=topics) as stage, a_producer(stage, **settings) as producer:
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

    assert stage.ledger.values("orders", 0) == [b"first", b"second", b"second"]


async def test_what_may_have_been_written_is_not_sent_under_new_numbers():
    """The answer is lost, and then the broker does not know the producer any more."""
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, lost_answer, refused_with(ErrorCode.UNKNOWN_PRODUCER_ID))

        with pytest.raises(KafkaError, match="may or may not have been written"):
            await producer.send("orders", b"perhaps")
        await producer.send("orders", b"surely")

    assert stage.ledger.values("orders") == [b"first", b"perhaps", b"surely"]


async def test_a_duplicate_is_a_success_without_an_offset():
    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(ProduceRequest, written_but(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))

        receipt = await producer.send("orders", b"x", timestamp=5)

    assert receipt == ("orders", 0, -1, 5)
    assert stage.ledger.values("orders") == [b"x"]


async def test_sequences_wrap_around():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)
        stage.ledger.producers["orders", 0, 1001][-1] = (2**31 - 5, 2**31 - 5, 0)
        producer._sender.queues["orders"][0].sequence = 2**31 - 4

        await asyncio.gather(*await send_all(producer, values(9)))

        assert stage.producer_ids == 1
        assert stage.ledger.values("orders") == [b"first", *values(9)]
        assert stage.ledger.batches["orders", 0][-1].last_sequence == 4


async def test_no_producer_id_fails_what_waits_for_one():
    def denied(_call):
        return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(InitProducerIdRequest, denied)
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await producer.send("orders", b"x")

        assert (await producer.send("orders", b"y")).offset == 0


async def test_a_producer_id_is_asked_for_until_there_is_one():
    def loading(_call):
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async with Stage() as stage, a_producer(stage) as producer:
        stage.script(InitProducerIdRequest, loading, lost_request, loading)

        assert (await producer.send("orders", b"x")).offset == 0


async def test_a_broker_without_producer_ids_says_so():
    async with Stage(versions={"InitProducerId": (90, 91)}) as stage:
        async with a_producer(stage) as producer:
            with pytest.raises(UnsupportedError, match="InitProducerId"):
                await producer.send("orders", b"x")
        async with a_producer(stage, idempotent=False) as producer:
            await producer.send("orders", b"x")


async def test_a_broker_that_does_not_take_our_batches_says_so():
    async with Stage(versions={"Produce": (0, 2)}) as stage, a_producer(stage) as producer:
        with pytest.raises(UnsupportedError, match="Produce"):
            await producer.send("orders", b"x")


# Too late.


async def test_records_that_are_not_acknowledged_in_time_fail():
    async with Stage() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, never)

        with pytest.raises(DeadlineError, match=r"orders-0: not acknowledged within 1 s.*may not"):
            await producer.send("orders", b"late")


async def test_records_fail_in_time_when_there_is_no_broker():
    async with Stage() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        await stage.nodes[0].stop()

        with pytest.raises(DeadlineError, match="Cannot connect") as caught:
            await producer.send("orders", b"late")
        await stage.nodes[0].start()

    assert isinstance(caught.value.__cause__, ConnectionLostError)


async def test_records_fail_in_time_when_the_partition_has_no_leader():
    async with Stage() as stage, a_producer(stage, operation=1) as producer:
        stage.move("orders", 0, to=-1)

        with pytest.raises(DeadlineError, match="orders-0 has no leader"):
            await producer.send("orders", b"late")


async def test_an_unknown_topic_fails_in_time():
    async with Stage() as stage, a_producer(stage, operation=0.5) as producer:
        with pytest.raises(DeadlineError, match="topic 'other'"):
            await producer.send("other", b"x")


async def test_what_comes_behind_a_record_that_was_too_late_is_written():
    async with Stage() as stage, a_producer(stage, operation=1.5, request=2) as producer:
        await warm_up(producer)

        async def too_late(call):
            call.serve()
            await asyncio.sleep(3600)

        stage.script(ProduceRequest, too_late)
        late = await producer.enqueue("orders", b"perhaps")
        await eventually(lambda: stage.ledger.values("orders")[-1] == b"perhaps")
        await asyncio.sleep(1)
        under_way = await producer.enqueue("orders", b"perhaps, too")
        with pytest.raises(DeadlineError):
            await late
        waiting = [await producer.enqueue("orders", value) for value in values(15)]

        # It was sent, its answer is lost, and the numbers that it has cannot be used any more.
        with pytest.raises(KafkaError, match="may or may not have been written"):
            await under_way
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await producer.send("orders", b"last")

    unsure = sum(isinstance(result, KafkaError) for result in results)
    written = stage.ledger.values("orders")
    assert written[:3] == [b"first", b"perhaps", b"perhaps, too"]
    assert unsure < 15
    assert written[-1 - (15 - unsure) :] == [*values(15)[unsure:], b"last"]


async def test_a_late_answer_to_a_record_that_was_given_up_is_no_trouble():
    async with Stage() as stage, a_producer(stage, operation=1) as producer:
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
    assert stage.ledger.values("orders") == [b"first", b"slow", b"next"]


async def test_a_record_that_was_never_sent_leaves_no_gap_when_it_is_too_late():
    async with Stage() as stage, a_producer(stage, operation=1) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=-1)
        await producer._cluster.refresh(["orders"])
        results = await asyncio.gather(*await send_all(producer, values(6)), return_exceptions=True)
        stage.move("orders", 0, to=0)
        await producer.send("orders", b"next")

        assert {type(result) for result in results} == {DeadlineError}
        assert stage.producer_ids == 1
    assert stage.ledger.values("orders") == [b"first", b"next"]


async def test_a_broker_that_does_not_answer_is_left():
    async with Stage() as stage, a_producer(stage, request=0.1) as producer:
        await warm_up(producer)
        stage.script(ProduceRequest, never)

        await asyncio.gather(*await send_all(producer, values(9)))

    assert stage.ledger.values("orders") == [b"first", *values(9)]


# Without idempotence.


async def test_without_idempotence_order_is_kept_too():
    async with Stage() as stage, a_producer(stage, idempotent=False) as producer:
        await warm_up(producer)
        scripts = [refused_with(ErrorCode.NOT_ENOUGH_REPLICAS), Call.serve, lost_request]
        stage.script(ProduceRequest, *scripts * 3)

        await asyncio.gather(*await send_all(producer, values(30)))

    assert stage.ledger.values("orders") == [b"first", *values(30)]
    assert stage.producer_ids == 0


async def test_without_idempotence_a_lost_answer_means_a_duplicate():
    async with Stage() as stage, a_producer(stage, acks=1) as producer:
        stage.script(ProduceRequest, lost_answer)

        receipt = await producer.send("orders", b"x")

    assert receipt.offset == 1
    assert stage.ledger.values("orders") == [b"x", b"x"]


async def test_without_acks_what_cannot_be_sent_is_sent_again():
    async with Stage() as stage, a_producer(stage, acks=0) as producer:
        await warm_up(producer)
        await eventually(lambda: stage.ledger.values("orders") == [b"first"])
        await stage.nodes[0].stop()
        await asyncio.sleep(0.05)
        await stage.nodes[0].start()

        assert (await producer.send("orders", b"x", timestamp=7)) == ("orders", 0, -1, 7)
        await eventually(lambda: len(stage.ledger.values("orders")) > 1)

    assert stage.ledger.values("orders") == [b"first", b"x"]


# What else a broker may say.


async def test_a_broker_that_asks_for_peace_gets_it():
    async with Stage() as stage, a_producer(stage) as producer:
        await warm_up(producer)

        def throttle(call):
            answer = call.serve()
            return ProduceResponse(responses=answer.responses, throttle_time_ms=150)

        stage.script(ProduceRequest, throttle)
        started = asyncio.get_running_loop().time()
        await producer.send("orders", b"x")
        await producer.send("orders", b"y")

        assert asyncio.get_running_loop().time() - started > 0.14


async def test_metadata_are_looked_up_again_when_they_are_old():
    config = ClientConfig(retry=QUICK, metadata_max_age=0.05)
    async with Stage(nodes=2) as stage, a_producer(stage, client=config) as producer:
        await warm_up(producer)
        stage.move("orders", 0, to=1)
        await eventually(
            lambda: producer._cluster.metadata.topics["orders"].partitions[0].leader == 1
        )

        await producer.send("orders", b"x")

        assert [call.node.id for call in stage.asked(ProduceRequest)] == [0, 1]


async def test_many_who_want_the_same_topic_ask_for_it_once():
    async with Stage() as stage, a_producer(stage) as producer:
        await asyncio.gather(*(producer.send("orders", value) for value in values(50)))

        assert len(stage.asked(MetadataRequest)) == 1


async def test_requests_are_reported():
    told = []
    config = ClientConfig(retry=QUICK, on_request=lambda *what: told.append(what))
    async with Stage() as stage, a_producer(stage, client=config) as producer:
        stage.script(ProduceRequest, lost_request)
        await producer.send("orders", b"x")

    produced = [(node, type(error)) for name, node, _, error in told if name == "Produce"]
    assert produced == [(0, ConnectionLostError), (0, type(None))]
    assert {name for name, *_ in told} == {"Metadata", "InitProducerId", "Produce"}
    assert all(0 <= seconds < 5 for _, _, seconds, _ in told)
