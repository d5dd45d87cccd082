"""Restarts: topics, ids, configs and records survive; unreadable metadata is refused."""

import asyncio
import re
import shutil
import socket
from pathlib import Path

import pytest
import uvloop

from harness.brokers import broker_and_client
from harness.requests import create_topic, offset_for_time, produce_batch, topic_metadata
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.storage.errors import DataDirectoryError

TOPIC = 2


async def describe_all(client):
    """Return all that clients can see of topics, configs and cluster, but for leader epochs."""
    topics = await topic_metadata(client)
    for topic in topics.values():
        for partition in topic.partitions:
            partition.leader_epoch = -1
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in topics
    ]
    configs = await client.request(
        DescribeConfigsRequest(resources=resources, include_synonyms=True)
    )
    cluster = await client.request(DescribeClusterRequest())
    return topics, configs.results, cluster.cluster_id


async def test_topics_keep_their_ids_configs_and_partitions(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "plain")
        await create_topic(client, "set", 3, retention_ms="5", cleanup_policy="compact")
        await topic_metadata(client, "auto.created", create=True)
        await create_topic(client, "grown")
        grown = CreatePartitionsTopic(name="grown", count=4, assignments=None)
        await client.request(CreatePartitionsRequest(topics=[grown]))
        await produce_batch(client, "grown", 3, partition=3)
        before = await describe_all(client)
        assert sorted(before[0]) == ["auto.created", "grown", "plain", "set"]

    for _ in range(2):
        async with broker_and_client(tmp_path) as (_broker, client):
            assert await describe_all(client) == before
            assert (await offset_for_time(client, "grown", -1, partition=3)).offset == 3


async def test_a_deleted_topic_stays_deleted(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("gone", "kept"):
            await create_topic(client, name, 2)
        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")]))

    async with broker_and_client(tmp_path) as (_broker, client):
        assert list(await topic_metadata(client)) == ["kept"]
        await create_topic(client, "gone")
        assert await produce_batch(client, "gone") == 0


async def test_topic_defaults_follow_the_current_broker_configs(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

    async with broker_and_client(tmp_path, {"log.retention.ms": "77"}) as (broker, client):
        assert broker.topics.find("t", 0).log.config.retention_ms == 77


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_start_that_loses_its_port_releases_the_data_directory(tmp_path, run):
    async def lose_the_port_and_restart():
        async with broker_and_client(tmp_path) as (_broker, client):
            await create_topic(client, "t")
        broker = Broker(BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0"))

        with socket.socket() as rival:

            def take_the_port(_opened, _total):
                # Several sockets may bind a port until one of them listens.
                host, _, port = broker.address.rpartition(":")
                rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                rival.bind((host, int(port)))
                rival.listen()

            with pytest.raises(OSError, match=r"cannot listen on .* in use"):
                await broker.start(take_the_port)

        async with broker_and_client(tmp_path) as (_broker, client):
            assert list(await topic_metadata(client)) == ["t"]

    run(lose_the_port_and_restart())


@pytest.mark.parametrize(("name", "at"), [(f"{0:020d}.log", 16), ("log-start-offset", 0)])
async def test_a_start_with_unreadable_metadata_names_the_directory(tmp_path, name, at):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
    file = tmp_path / "__cluster_metadata-0" / name
    content = bytearray(file.read_bytes() if file.exists() else b"0")
    content[at] = 0x7F
    file.write_bytes(content)

    assert "__cluster_metadata-0 cannot be read: " in await start_error(tmp_path)

    assert file.read_bytes() == content


@pytest.mark.parametrize("lost", ["t0", "t1", "t2"])
async def test_a_metadata_log_that_lost_records_is_refused(tmp_path, lost):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("t0", "t1", "t2"):
            await create_topic(client, name)
            await produce_batch(client, name)
    file = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    content = bytearray(file.read_bytes())
    content[content.rindex(lost.encode())] ^= 1
    file.write_bytes(content)

    assert "CRC mismatch" in await start_error(tmp_path)
    # A start after an unclean stop sets damaged bytes aside, and must not go on without them.
    error = await start_error(tmp_path)
    assert "has lost records" in error
    assert await start_error(tmp_path) == error
    assert len([*tmp_path.glob("t?-0")]) == 3

    Path(re.search(r"remove (\S+) to start without", error)[1]).unlink()
    async with broker_and_client(tmp_path) as (_broker, client):
        assert list(await topic_metadata(client)) == sorted({"t0", "t1", "t2"} - {lost})
    assert len([*tmp_path.glob(f"*.stray/{lost}-0/*.log")]) == 1
    async with broker_and_client(tmp_path):
        pass


async def test_a_missing_metadata_log_is_refused(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t")
    shutil.rmtree(tmp_path / "__cluster_metadata-0")

    assert "it ends at offset 0, and its recovery point is 3" in await start_error(tmp_path)
    assert (tmp_path / "t-0").exists()


async def start_error(path):
    with pytest.raises(DataDirectoryError) as raised:
        async with broker_and_client(path):
            pass
    return str(raised.value)
