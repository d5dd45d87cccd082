"""The Prometheus endpoint, as a scraper reads it."""

import asyncio
import sys
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.brokers import broker_and_client
from harness.daemon import Daemon, free_port
from harness.requests import create_topic, produce_batch, topic_metadata
from ottla.broker import Broker, BrokerConfig
from ottla.broker.config.broker_config import ConfigError
from ottla.client.blocking import Consumer, Producer
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState

METRICS_ON_ANY_PORT = {"metrics.listener": "127.0.0.1:0"}


def scrape(port):
    """Return the samples by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        (line.name, *sorted(line.labels.items())): line.value
        for family in text_string_to_metric_families(text)
        for line in family.samples
    }


async def scraped(broker):
    return await asyncio.to_thread(scrape, broker._exporter.port)


def sample(name, **labels):
    return (name, *sorted(labels.items()))


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


async def test_without_prometheus_client_the_error_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "ottla.broker.observability.prometheus", raising=False)
    broker = Broker(
        BrokerConfig(
            log_dir=str(tmp_path),
            listeners="PLAINTEXT://127.0.0.1:0",
            metrics_listener="127.0.0.1:0",
        )
    )

    with pytest.raises(ConfigError, match=r"pip install 'ottla\[metrics\]'"):
        await broker.start()


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
