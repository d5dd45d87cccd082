"""The Prometheus endpoint, as a scraper reads it."""

import asyncio
import sys
import time
from bisect import bisect_left
from urllib.error import HTTPError

import pytest

from harness.brokers import broker_and_client
from harness.daemon import Daemon, free_port
from harness.metrics import fetch, sample, scrape
from harness.requests import (
    create_topic,
    fetch_partition,
    produce_batch,
    send_request,
    topic_metadata,
)
from harness.waiting import eventually
from harness.wire import fetch_request
from ottla.broker import BrokerConfig
from ottla.broker.config.broker_config import ConfigError
from ottla.client.blocking import Consumer, Producer
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState

METRICS_ON_ANY_PORT = {"metrics.listener": "127.0.0.1:0"}
OPENMETRICS_PREFERRED = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


async def scraped(broker):
    return await asyncio.to_thread(scrape, broker._exporter.port)


async def test_requests_bytes_and_connections_are_counted(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        before = await scraped(broker)
        for _ in range(3):
            await topic_metadata(client)
        after = await scraped(broker)

        def increase(key):
            return after[key] - before.get(key, 0)

        assert increase(sample("ottla_request_duration_seconds_count", api="Metadata")) == 3
        assert (
            increase(sample("ottla_request_duration_seconds_bucket", api="Metadata", le="+Inf"))
            == 3
        )
        assert after[sample("ottla_request_duration_seconds_sum", api="Metadata")] > 0
        assert increase(sample("ottla_received_bytes_total")) > 0
        assert increase(sample("ottla_sent_bytes_total")) > increase(
            sample("ottla_received_bytes_total")
        )
        assert after[sample("ottla_open_connections")] == 1
        assert after[sample("ottla_connections_total", outcome="accepted")] == 1
        buckets = [
            value
            for (name, *labels), value in after.items()
            if name == "ottla_request_duration_seconds_bucket" and ("api", "Metadata") in labels
        ]
        assert len(buckets) > 10
        assert buckets == sorted(buckets)


async def test_partitions_report_offsets_and_sizes(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 5, partition=1)
        samples = await scraped(broker)

        assert samples[sample("ottla_partition_log_end_offset", topic="t", partition="0")] == 0
        assert samples[sample("ottla_partition_log_end_offset", topic="t", partition="1")] == 5
        assert samples[sample("ottla_partition_log_start_offset", topic="t", partition="1")] == 0
        assert samples[sample("ottla_partition_log_size_bytes", topic="t", partition="1")] > 61
        assert samples[sample("ottla_offline_partitions")] == 0

        await client.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)
        )
        after_deletion = await scraped(broker)
        assert not [key for key in after_deletion if ("topic", "t") in key]


async def test_the_endpoint_stops_with_the_broker(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, _client):
        port = broker._exporter.port

    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(scrape, port)


async def test_a_metrics_address_in_use_fails_the_start_and_releases_everything(tmp_path):
    async with broker_and_client(tmp_path / "one", METRICS_ON_ANY_PORT) as (broker, _client):
        taken = f"127.0.0.1:{broker._exporter.port}"
        with pytest.raises(OSError, match=f"cannot listen on {taken}"):
            async with broker_and_client(tmp_path / "two", {"metrics.listener": taken}):
                pass

    async with broker_and_client(tmp_path / "two"):
        pass


@pytest.mark.parametrize("text", ["9404", "localhost", "http://localhost:1", "h:99999", ":x"])
def test_an_invalid_metrics_listener_is_an_error(text):
    with pytest.raises(ConfigError, match=r"for metrics\.listener: expected HOST:PORT, as in"):
        BrokerConfig(metrics_listener=text)


def test_lag_is_log_end_offset_minus_committed_offset(tmp_path):
    port = free_port()
    with Daemon(tmp_path, "--metrics", f"127.0.0.1:{port}") as broker:
        with Producer(broker.address) as producer:
            producer.send_many("t", [b"x"] * 10)
        with Consumer(broker.address, "t", group="g") as consumer:
            for _ in range(4):
                consumer.getone(timeout=30)
            consumer.commit()
            samples = scrape(port)

        labels = {"topic": "t", "partition": "0"}
        end = samples[sample("ottla_partition_log_end_offset", **labels)]
        assert end - samples[sample("ottla_group_committed_offset", group="g", **labels)] == 6
        assert samples[sample("ottla_groups", state="Stable")] == 1
        if sys.platform == "linux":
            assert samples[sample("process_resident_memory_bytes")] > 10_000_000


async def test_what_is_produced_and_consumed_is_counted_by_topic(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 5, partition=1)
        await produce_batch(client, "t", 3, partition=0)
        await fetch_partition(client, "t", 1)
        await fetch_partition(client, "t", 1, offset=5)  # Nothing.
        samples = await scraped(broker)

        size = samples[sample("ottla_partition_log_size_bytes", topic="t", partition=1)]
        other = samples[sample("ottla_partition_log_size_bytes", topic="t", partition=0)]
        assert samples[sample("ottla_topic_messages_in_total", topic="t")] == 8
        assert samples[sample("ottla_topic_bytes_in_total", topic="t")] == size + other
        assert samples[sample("ottla_topic_bytes_out_total", topic="t")] == size
        assert samples[sample("ottla_topic_replication_bytes_out_total", topic="t")] == 0
        assert samples[sample("ottla_produced_batch_bytes_count")] == 2
        assert samples[sample("ottla_produced_batch_bytes_sum")] == size + other
        assert samples[sample("ottla_fetched_bytes_count")] == 1


async def test_a_fetch_that_waits_is_counted_once(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        await create_topic(client, "t", 1)
        await produce_batch(client, "t", 5)
        await send_request(client, fetch_request(0, topic="t", min_bytes=100_000, max_wait_ms=30))
        samples = await scraped(broker)

        size = samples[sample("ottla_partition_log_size_bytes", topic="t", partition=0)]
        assert samples[sample("ottla_topic_bytes_out_total", topic="t")] == size


async def test_flushes_and_the_event_loop_are_timed(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        await create_topic(client, "t", 1)
        await produce_batch(client, "t", 1)
        delay = broker.metrics.event_loop_delay_seconds
        await eventually(lambda: delay.count > 0)
        time.sleep(0.3)  # The loop hangs.
        await eventually(lambda: sum(delay.counts[bisect_left(delay.bounds, 0.1) :]) > 0)
        samples = await scraped(broker)

        assert samples[sample("ottla_log_flush_duration_seconds_count")] >= 1
        assert samples[sample("ottla_event_loop_delay_seconds_count")] >= 2
        assert samples[sample("ottla_log_loading_seconds")] > 0
        assert samples[sample("ottla_leader_count")] == 1
        assert samples[sample("ottla_partition_count")] == 1
        assert samples[sample("ottla_memory_max_bytes")] > 0


async def test_both_formats_have_the_same_samples(tmp_path):
    label = 'a"b\\c\nd'
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, client):
        await create_topic(client, "t", 1)
        broker.metrics.failures["Metadata", label] += 1
        port = broker._exporter.port
        text = await asyncio.to_thread(scrape, port, "text/plain")
        openmetrics = await asyncio.to_thread(scrape, port, OPENMETRICS_PREFERRED)
        content_type, page = await asyncio.to_thread(fetch, port, accept=OPENMETRICS_PREFERRED)

    assert text.keys() == openmetrics.keys()
    assert text[sample("ottla_request_errors_total", api="Metadata", error_code=label)] == 1
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.endswith("# EOF\n")


async def test_health_and_readiness(tmp_path):
    async with broker_and_client(tmp_path, METRICS_ON_ANY_PORT) as (broker, _client):
        port = broker._exporter.port
        assert (await asyncio.to_thread(fetch, port, "/ready"))[1] == "ok\n"
        assert (await asyncio.to_thread(fetch, port, "/health"))[1] == "ok\n"
        broker._exporter._probe.called_at -= 60
        with pytest.raises(HTTPError, match="503") as error:
            fetch(port, "/health")
        assert b"the event loop has not answered for 6" in error.value.read()
        with pytest.raises(HTTPError, match="404"):
            fetch(port, "/other")
        await broker.server.stop(1)
        with pytest.raises(HTTPError, match="503") as error:
            fetch(port, "/ready")
        assert error.value.read() == b"starting or stopping\n"
