"""The page of metrics, as a stranger reads it."""

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

ANYWHERE = {"metrics.listener": "127.0.0.1:0"}


def page(port):
    """Read the page: values by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def shown(broker):
    return await asyncio.to_thread(page, broker._exporter.port)


def of(name, **labels):
    return (name, *sorted(labels.items()))


async def test_requests_bytes_and_connections_are_counted(tmp_path):
    async with broker_and_client(tmp_path, ANYWHERE) as (broker, client):
        before = await shown(broker)
        for _ in range(3):
            await topic_metadata(client)
        after = await shown(broker)

        def grown(key):
            return after[key] - before.get(key, 0)

        assert grown(of("ottla_request_seconds_count", api="Metadata")) == 3
        assert grown(of("ottla_request_seconds_bucket", api="Metadata", le="+Inf")) == 3
        assert after[of("ottla_request_seconds_sum", api="Metadata")] > 0
        assert grown(of("ottla_received_bytes_total")) > 0
        assert grown(of("ottla_sent_bytes_total")) > grown(of("ottla_received_bytes_total"))
        assert after[of("ottla_connections_open")] == 1
        assert after[of("ottla_connections_total", what="accepted")] == 1
        buckets = [
            value
            for (name, *labels), value in after.items()
            if name == "ottla_request_seconds_bucket" and ("api", "Metadata") in labels
        ]
        assert len(buckets) > 10
        assert buckets == sorted(buckets)


async def test_partitions_tell_where_they_begin_and_end(tmp_path):
    async with broker_and_client(tmp_path, ANYWHERE) as (broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 5, partition=1)
        found = await shown(broker)

        assert found[of("ottla_partition_end_offset", topic="t", partition="0")] == 0
        assert found[of("ottla_partition_end_offset", topic="t", partition="1")] == 5
        assert found[of("ottla_partition_start_offset", topic="t", partition="1")] == 0
        assert found[of("ottla_partition_size_bytes", topic="t", partition="1")] > 61
        assert found[of("ottla_partitions_offline")] == 0

        await client.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)
        )
        gone = await shown(broker)
        assert not [key for key in gone if ("topic", "t") in key]


async def test_it_ends_with_the_broker(tmp_path):
    async with broker_and_client(tmp_path, ANYWHERE) as (broker, _client):
        port = broker._exporter.port

    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(page, port)


async def test_an_address_that_is_taken_is_said_and_nothing_is_left(tmp_path):
    async with broker_and_client(tmp_path / "one", ANYWHERE) as (broker, _client):
        taken = f"127.0.0.1:{broker._exporter.port}"
        with pytest.raises(OSError, match=f"cannot listen on {taken}"):
            async with broker_and_client(tmp_path / "two", {"metrics.listener": taken}):
                pass

    async with broker_and_client(tmp_path / "two"):
        pass


@pytest.mark.parametrize("text", ["9404", "localhost", "http://localhost:1", "h:99999", ":x"])
def test_an_address_that_is_none(text):
    with pytest.raises(ConfigError, match=r"metrics.listener: '.*' is not HOST:PORT, as in"):
        BrokerConfig(metrics_listener=text)


async def test_who_lacks_the_library_is_told_what_to_install(tmp_path, monkeypatch):
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


def test_the_daemon_shows_them_while_a_group_consumes(tmp_path):
    port = free_port()
    with Daemon(tmp_path, "--metrics", f"127.0.0.1:{port}") as broker:
        with Producer(broker.address) as producer:
            producer.send_many("t", [b"x"] * 10)
        with Consumer(broker.address, "t", group="g") as consumer:
            for _ in range(4):
                consumer.getone(timeout=30)
            consumer.commit()
            found = page(port)

        place = {"topic": "t", "partition": "0"}
        end = found[of("ottla_partition_end_offset", **place)]
        assert end - found[of("ottla_group_committed_offset", group="g", **place)] == 6
        assert found[of("ottla_groups", state="Stable")] == 1
        if sys.platform == "linux":
            assert found[of("process_resident_memory_bytes")] > 10_000_000
