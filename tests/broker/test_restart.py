"""A broker that stops and starts: what there was is there, and as it was."""

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


async def everything(client):
    """All that a client can find out of topics."""
    topics = await topic_metadata(client)
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in topics
    ]
    configs = await client.request(
        DescribeConfigsRequest(resources=resources, include_synonyms=True)
    )
    cluster = await client.request(DescribeClusterRequest())
    return topics, configs.results, cluster.cluster_id


async def test_topics_ids_settings_and_partitions_are_as_before(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "plain")
        await create_topic(client, "set", 3, retention_ms="5", cleanup_policy="compact")
        await topic_metadata(client, "asked.for", create=True)
        await create_topic(client, "grown")
        wanted = CreatePartitionsTopic(name="grown", count=4, assignments=None)
        await client.request(CreatePartitionsRequest(topics=[wanted]))
        await produce_batch(client, "grown", 3, partition=3)
        before = await everything(client)
        assert sorted(before[0]) == ["asked.for", "grown", "plain", "set"]

    for _ in range(2):
        async with broker_and_client(tmp_path) as (_broker, client):
            assert await everything(client) == before
            assert (await offset_for_time(client, "grown", -1, partition=3)).offset == 3


async def test_a_topic_that_was_deleted_stays_away(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("gone", "kept"):
            await create_topic(client, name, 2)
        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")]))

    async with broker_and_client(tmp_path) as (_broker, client):
        assert list(await topic_metadata(client)) == ["kept"]
        await create_topic(client, "gone")
        assert await produce_batch(client, "gone") == 0


async def test_a_topic_has_the_settings_of_the_broker_that_serves_it_now(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

    async with broker_and_client(tmp_path, {"log.retention.ms": "77"}) as (broker, client):
        assert broker.topics.find("t", 0).log.config.retention_ms == 77


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_start_that_loses_its_port_at_the_last_moment_lets_go_of_the_directory(tmp_path, run):
    async def lose_and_start_again():
        async with broker_and_client(tmp_path) as (_broker, client):
            await create_topic(client, "t")
        broker = Broker(BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0"))

        with socket.socket() as rival:

            def take_the_port(_done, _of):
                # Until one of them listens, several may have it.
                host, _, port = broker.address.rpartition(":")
                rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                rival.bind((host, int(port)))
                rival.listen()

            with pytest.raises(OSError, match=r"cannot listen on .* in use"):
                await broker.start(take_the_port)

        async with broker_and_client(tmp_path) as (_broker, client):
            assert list(await topic_metadata(client)) == ["t"]

    run(lose_and_start_again())


@pytest.mark.parametrize(("name", "at"), [(f"{0:020d}.log", 16), ("log-start-offset", 0)])
async def test_a_start_without_readable_metadata_says_which_directory_it_is(tmp_path, name, at):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
    file = tmp_path / "__cluster_metadata-0" / name
    content = bytearray(file.read_bytes() if file.exists() else b"0")
    content[at] = 0x7F
    file.write_bytes(content)

    assert "__cluster_metadata-0 cannot be read: " in await problem_of_a_start(tmp_path)

    assert file.read_bytes() == content


@pytest.mark.parametrize("lost", ["t0", "t1", "t2"])
async def test_no_start_believes_a_journal_that_has_lost_records(tmp_path, lost):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("t0", "t1", "t2"):
            await create_topic(client, name)
            await produce_batch(client, name)
    file = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    content = bytearray(file.read_bytes())
    content[content.rindex(lost.encode())] ^= 1
    file.write_bytes(content)

    assert "CRC mismatch" in await problem_of_a_start(tmp_path)
    # A start that is not after a clean stop puts damaged bytes aside, and could go on without.
    problem = await problem_of_a_start(tmp_path)
    assert "has lost records" in problem
    assert await problem_of_a_start(tmp_path) == problem
    assert len([*tmp_path.glob("t?-0")]) == 3

    Path(re.search(r"remove (\S+) to start without", problem)[1]).unlink()
    async with broker_and_client(tmp_path) as (_broker, client):
        assert list(await topic_metadata(client)) == sorted({"t0", "t1", "t2"} - {lost})
    assert len([*tmp_path.glob(f"*.stray/{lost}-0/*.log")]) == 1
    async with broker_and_client(tmp_path):
        pass


async def test_no_start_takes_a_journal_that_is_gone_for_an_empty_one(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t")
    shutil.rmtree(tmp_path / "__cluster_metadata-0")

    assert "it ends at offset 0, and its recovery point is 1" in await problem_of_a_start(tmp_path)
    assert (tmp_path / "t-0").exists()


async def problem_of_a_start(path):
    with pytest.raises(DataDirectoryError) as raised:
        async with broker_and_client(path):
            pass
    return str(raised.value)
