"""Client quotas: how rates are measured, and how clients over them are throttled."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.acls import connect_as
from harness.brokers import a_broker
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.wire import connect, fetch_request, fetched_partitions, offsets_of, produce_request
from ottla.broker.observability.metrics import Metrics
from ottla.broker.requests.dispatch import RequestContext
from ottla.broker.requests.quotas import (
    MAX_COUNTERS,
    MutationBucket,
    QuotaManager,
    Rate,
    RequestUsage,
)
from ottla.coord.principal import user
from ottla.coord.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    quota_entity,
    quota_record,
)
from ottla.protocol import registry
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode

SAMPLES = 11


async def set_quotas(broker, parts, **quotas):
    record = quota_record(quota_entity(parts.items()), quotas)
    await broker.controller.change(lambda: [record])


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(1, 1000))), st.floats(0, 20))
def test_a_rate_is_that_of_the_samples_in_the_window(steps, rest):
    rate, now, recorded = Rate(SAMPLES, 1.0), 100.0, []
    for step, value in steps:
        now += step
        rate.record(value, now)
        recorded.append((now, value))
    now += rest
    rate.advance(now)

    in_window = sum(value for at, value in recorded if int(at) > int(now) - SAMPLES)
    window = SAMPLES - 1 + now % 1
    assert rate.total == pytest.approx(in_window, abs=1e-6)
    expected = max(in_window / 50 - window, 0)
    assert rate.throttle_seconds(50, now) == pytest.approx(expected, abs=1e-6)


def test_a_client_that_waits_as_long_as_it_is_told_is_within_its_limit():
    rate = Rate(SAMPLES, 1.0)
    rate.record(30_000, 100.0)

    seconds = rate.throttle_seconds(1000, 100.0)

    assert seconds == 20
    rate.advance(100 + seconds)
    assert rate.throttle_seconds(1000, 100 + seconds) == 0


def test_a_bucket_is_overdrawn_once():
    bucket = MutationBucket()
    assert bucket.tokens(2, 22, 100.0) == 22
    bucket.take(30)
    assert bucket.tokens(2, 22, 101.0) == -6
    assert bucket.tokens(2, 22, 200.0) == 22


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def a_manager(entries, clock=None):
    quotas = ClientQuotas()
    for parts, limits in entries:
        key, _ = quota_record(quota_entity(parts.items()), limits)
        quotas.replay(key.decode().partition("/")[2], limits)
    return QuotaManager(quotas, Metrics(), SAMPLES, 1.0, clock or Clock())


def a_context(api=registry.PRODUCE, version=9, *, name="alice", client_id="app"):
    connection = SimpleNamespace(principal=user(name), client_host="10.0.0.1")
    return RequestContext(api, version, 1, client_id, connection, 0.0)


def test_clients_of_a_user_share_a_counter_and_pairs_do_not():
    manager = a_manager(
        [
            ({USER: "alice"}, {PRODUCER_BYTE_RATE: 100.0}),
            ({USER: "bob", CLIENT_ID: None}, {PRODUCER_BYTE_RATE: 100.0}),
        ]
    )

    def produce(name, client_id):
        usage = manager.begin(a_context(name=name, client_id=client_id))
        return usage.produce_throttle_seconds(900)

    assert produce("alice", "one") == 0
    assert produce("alice", "two") == 8
    assert produce("bob", "one") == 0
    assert produce("bob", "two") == 0
    assert produce("bob", "two") == 8
    assert manager.begin(a_context(name="eve")) is None


def test_what_only_brokers_may_send_counts_for_others():
    manager = a_manager([({USER: None}, {REQUEST_PERCENTAGE: 1.0})])

    assert manager.begin(a_context(registry.SASL_AUTHENTICATE, 2)) is None
    for api in (registry.WRITE_TXN_MARKERS, registry.ADD_PARTITIONS_TO_TXN, registry.FETCH):
        assert manager.begin(a_context(api, 1)) is not None


def test_the_number_of_counters_is_limited():
    manager = a_manager(
        [
            ({CLIENT_ID: None}, {PRODUCER_BYTE_RATE: 1.0}),
            ({IP: None}, {CONNECTION_CREATION_RATE: 1.0}),
        ]
    )
    while manager.admits_connection("10.0.0.1"):
        pass
    for number in range(MAX_COUNTERS + 10):
        usage = manager.begin(a_context(client_id=f"app-{number}"))
        usage.produce_throttle_seconds(1)

    assert len(manager._rates[PRODUCER_BYTE_RATE]) == MAX_COUNTERS
    assert len(manager._limits) <= MAX_COUNTERS
    assert not manager.admits_connection("10.0.0.1"), "client ids must not reset other quotas"


def test_long_client_ids_are_not_remembered():
    manager = a_manager([({CLIENT_ID: None}, {PRODUCER_BYTE_RATE: 1.0})])
    usage = manager.begin(a_context(client_id="a" * 30_000))
    usage.produce_throttle_seconds(1)

    ((_user, client_id),) = manager._rates[PRODUCER_BYTE_RATE]
    assert client_id == "a" * 255


def test_altered_quotas_count_at_once():
    manager = a_manager([({USER: "alice"}, {PRODUCER_BYTE_RATE: 1.0})])
    assert manager.begin(a_context()) is not None

    manager._quotas.replay('{"user":"alice"}', None)

    assert manager.begin(a_context()) is None


async def test_a_producer_is_answered_at_once_and_then_not_read(tmp_path):
    async with a_broker(tmp_path) as broker, connect_as(broker, "alice") as client:
        await set_quotas(broker, {USER: "alice"}, **{PRODUCER_BYTE_RATE: 1000.0})
        batch = a_batch(value=bytes(30_000))

        response = await client.request(produce_request(batch), 9)

        # All bytes of the request, in a window of 10 to 11 seconds.
        assert 19_000 < response.throttle_time_ms < 20_300
        assert response.responses[0].partition_responses[0].error_code == 0
        client.send(ApiVersionsRequest(), 0)
        assert await client.receives_nothing()
        async with connect_as(broker, "bob") as other:
            response = await other.request(produce_request(a_batch(value=bytes(30_000))), 9)
            assert response.throttle_time_ms == 0
        async with connect_as(broker, "alice") as again:
            response = await again.request(produce_request(a_batch()), 9)
            assert response.throttle_time_ms > 19_000
        assert broker.metrics.throttled_requests[PRODUCER_BYTE_RATE] == 2
        assert broker.metrics.throttled_seconds[PRODUCER_BYTE_RATE] > 38


async def test_a_client_is_read_again_after_its_time(tmp_path):
    async with a_broker(tmp_path, quota_window_num=2) as broker, connect(broker) as client:
        await set_quotas(broker, {CLIENT_ID: "wire"}, **{PRODUCER_BYTE_RATE: 10_000.0})
        response = await client.request(produce_request(a_batch(value=bytes(21_000))), 9)
        start = time.monotonic()

        # The beginning of a large request, which is read on when the time has come.
        large = produce_request(a_batch(value=bytes(300_000)))
        client.send(large, 9)
        next_response = await client.response()

        assert next_response.responses[0].partition_responses[0].error_code == 0
        assert time.monotonic() - start > response.throttle_time_ms / 1000 - 0.05


async def test_a_producer_without_acks_is_not_read_either(tmp_path):
    async with a_broker(tmp_path) as broker, connect_as(broker, "alice") as client:
        await set_quotas(broker, {USER: None}, **{PRODUCER_BYTE_RATE: 1000.0})
        client.send(produce_request(a_batch(value=bytes(30_000)), acks=0), 9)
        client._in_flight.clear()
        client.send(ApiVersionsRequest(), 0)

        assert await client.receives_nothing()
        assert broker.topics.find("t", 0).log.end_offset == 1


async def test_a_fetch_over_the_limit_is_empty(tmp_path):
    async with a_broker(tmp_path) as broker, connect_as(broker, "alice") as client:
        async with connect(broker) as other:
            await other.request(produce_request(a_batch(value=bytes(15_000))), 9)
        await set_quotas(broker, {USER: "alice"}, **{CONSUMER_BYTE_RATE: 1000.0})
        # Alone, it is sent, or it would never be.
        first = await client.request(fetch_request(0), 12)
        (data,) = fetched_partitions(first)
        assert offsets_of(data) == [0]
        assert first.throttle_time_ms == 0

        second = await client.request(fetch_request(0), 12)

        assert not second.responses
        assert 18_000 < second.throttle_time_ms < 21_000
        async with connect_as(broker, "alice") as again:
            # What was not sent does not count.
            third = await again.request(fetch_request(0), 12)
            assert third.throttle_time_ms <= second.throttle_time_ms


async def test_a_throttled_fetch_leaves_its_session_as_it_is(tmp_path):
    async with a_broker(tmp_path, quota_window_num=2) as broker, connect(broker) as client:
        await client.request(produce_request(a_batch(value=bytes(1000))), 9)
        await set_quotas(broker, {CLIENT_ID: "wire"}, **{CONSUMER_BYTE_RATE: 450.0})
        opened = await client.request(fetch_request(0, session_epoch=0), 12)
        assert fetched_partitions(opened)

        throttled = await client.request(
            fetch_request(0, session_id=opened.session_id, session_epoch=1), 12
        )
        assert throttled.throttle_time_ms
        assert (throttled.session_id, throttled.responses) == (opened.session_id, [])
        await set_quotas(broker, {CLIENT_ID: "wire"})

        async with connect(broker) as again:
            request = fetch_request(session_id=opened.session_id, session_epoch=2)
            (data,) = fetched_partitions(await again.request(request, 12))
            assert offsets_of(data) == [0]


async def test_a_fetch_asks_for_no_more_than_it_may_get(tmp_path):
    async with a_broker(tmp_path) as broker, connect_as(broker, "alice") as client:
        async with connect(broker) as other:
            for _ in range(5):
                await other.request(produce_request(a_batch(value=bytes(900))), 9)
        await set_quotas(broker, {USER: "alice"}, **{CONSUMER_BYTE_RATE: 200.0})

        # 2,000 bytes in ten seconds: two batches. It does not wait for more.
        response = await client.request(fetch_request(0, min_bytes=5000, max_wait_ms=30_000), 12)

        (data,) = fetched_partitions(response)
        assert offsets_of(data) == [0, 1]


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_topics_over_the_limit_are_refused_or_counted(tmp_path, version):
    is_strict = version >= 6
    async with a_broker(tmp_path) as broker:
        await set_quotas(broker, {USER: None}, **{CONTROLLER_MUTATION_RATE: 1.0})

        async def create(name, partitions):
            async with connect(broker) as client:
                response = await client.request(create_topics_request(name, partitions), version)
                return response.topics[0].error_code, response.throttle_time_ms

        # The bucket holds 11.
        code, throttle_ms = await create("a", 15)
        assert code == 0
        assert 3000 < throttle_ms <= 4000
        code, throttle_ms = await create("b", 15)
        if is_strict:
            assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert 2000 < throttle_ms <= 4000
        else:
            assert code == 0
            assert throttle_ms > 15_000
        assert ("b" in broker.topics.image.topics) is not is_strict


async def test_auto_created_topics_count_too(tmp_path):
    async with a_broker(tmp_path, num_partitions=12) as broker:
        await set_quotas(broker, {USER: None}, **{CONTROLLER_MUTATION_RATE: 1.0})

        async def ask(name):
            topic = MetadataRequestTopic(name=name)
            async with connect(broker) as client:
                response = await client.request(MetadataRequest(topics=[topic]), 12)
            return response.topics[0].error_code

        # The bucket holds 11.
        assert await ask("a") == 0
        assert await ask("b") == ErrorCode.LEADER_NOT_AVAILABLE
        assert set(broker.topics.image.topics) == {"t", "a"}


async def test_partitions_and_deletions_count_too(tmp_path):
    async with a_broker(tmp_path, {"t": 2, "u": 2}) as broker:
        await set_quotas(broker, {USER: None}, **{CONTROLLER_MUTATION_RATE: 0.1})
        topic = CreatePartitionsTopic(name="t", count=6, assignments=None)
        async with connect(broker) as client:
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=5000)
            response = await client.request(request, 3)
            assert response.results[0].error_code == 0
            assert response.throttle_time_ms > 20_000
        async with connect(broker) as client:
            response = await client.request(DeleteTopicsRequest(topic_names=["u"]), 5)
            assert response.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert "u" in broker.topics.image.topics


async def test_the_time_of_the_event_loop_counts(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await set_quotas(broker, {CLIENT_ID: "wire"}, **{REQUEST_PERCENTAGE: 1e-6})

        response = await client.request(MetadataRequest(topics=None), 12)

        # At most one sample.
        assert response.throttle_time_ms == 1000
        assert broker.metrics.throttled_requests[REQUEST_PERCENTAGE] == 1


@pytest.mark.parametrize("count", [10, 10_000])  # The second is decoded in a thread.
async def test_the_time_to_decode_and_encode_counts(tmp_path, count, monkeypatch):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await set_quotas(broker, {CLIENT_ID: "wire"}, **{REQUEST_PERCENTAGE: 1000.0})
        recorded = []
        record = RequestUsage.record_seconds
        monkeypatch.setattr(
            RequestUsage,
            "record_seconds",
            lambda usage, seconds: (recorded.append(seconds), record(usage, seconds)),
        )
        names = [f"{number:0>20}" for number in range(count)]
        topics = [MetadataRequestTopic(name=name) for name in names]
        await client.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)

        decoded, _handled, encoded = recorded
        assert decoded > 0
        assert encoded > 0


async def test_the_time_of_a_coroutine_is_that_of_its_steps():
    manager = a_manager([({USER: "alice"}, {REQUEST_PERCENTAGE: 1.0})], time.monotonic)
    usage = manager.begin(a_context())
    counter = manager.rate(REQUEST_PERCENTAGE, ("alice", None))

    async def handler():
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(0.2)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            return "done"

    assert await usage.run(handler) == "done"
    # In percent: 10 ms, and not 200 ms more.
    assert 1 <= counter.total < 15


async def test_new_connections_of_an_address_are_limited(tmp_path):
    async with a_broker(tmp_path) as broker:
        await set_quotas(broker, {IP: "127.0.0.1"}, **{CONNECTION_CREATION_RATE: 1.0})

        outcomes = []
        for _ in range(15):
            async with connect(broker) as client:
                try:
                    await client.request(ApiVersionsRequest(), 0)
                    outcomes.append(True)
                except (ConnectionError, asyncio.IncompleteReadError):
                    outcomes.append(False)

        assert outcomes[:10] == [True] * 10
        assert False in outcomes
        assert broker.metrics.throttled_requests[CONNECTION_CREATION_RATE] == outcomes.count(False)


async def test_without_quotas_nothing_is_counted(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(a_batch()), 9)

        assert response.throttle_time_ms == 0
        assert broker.dispatcher.quotas is None
