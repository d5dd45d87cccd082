"""DescribeLogDirs: the log directory and the sizes of partitions."""

import shutil

import pytest

from harness.brokers import broker_and_client
from harness.logs import a_batch
from harness.requests import create_topic, produce_batch
from ottla.protocol.api.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.api.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS


def sizes(response):
    return {
        (topic.name, part.partition_index): part.partition_size
        for result in response.results
        for topic in result.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [*DESCRIBE_LOG_DIRS.versions])
async def test_partition_sizes_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        await create_topic(client, "u")
        await produce_batch(client, "t", 10, partition=1)

        response = await client.request(DescribeLogDirsRequest(topics=None), version)

        [result] = response.results
        assert (result.error_code, result.log_dir) == (ErrorCode.NONE, str(tmp_path))
        size = len(a_batch(10))  # A file may be larger: space is preallocated.
        assert sizes(response) == {("t", 0): 0, ("t", 1): size, ("u", 0): 0}
        parts = [part for topic in result.topics for part in topic.partitions]
        assert not any(part.offset_lag or part.is_future_key for part in parts)
        if version >= 4:
            assert result.total_bytes == shutil.disk_usage(tmp_path).total
            assert 0 < result.usable_bytes <= result.total_bytes


async def test_only_requested_partitions_that_exist_are_returned(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 3)
        await create_topic(client, "u")
        topics = [
            DescribableLogDirTopic(topic="t", partitions=[2, 0, 2, 7, -1]),
            DescribableLogDirTopic(topic="missing", partitions=[0]),
            DescribableLogDirTopic(topic="__cluster_metadata", partitions=[0]),
            DescribableLogDirTopic(topic="t", partitions=[0]),
        ]

        response = await client.request(DescribeLogDirsRequest(topics=topics))

        [topic] = response.results[0].topics
        assert [part.partition_index for part in topic.partitions] == [2, 0]
        nothing = await client.request(DescribeLogDirsRequest(topics=[]))
        assert [list(result.topics) for result in nothing.results] == [[]]


@pytest.mark.parametrize("version", [*ALTER_REPLICA_LOG_DIRS.versions])
async def test_replicas_can_only_stay_in_the_log_directory(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        dirs = [
            AlterReplicaLogDir(
                path=path,
                topics=[AlterReplicaLogDirTopic(name=name, partitions=indexes)],
            )
            for path, name, indexes in (
                (str(tmp_path), "t", [0, 5]),
                (f"{tmp_path}/", "u", [0]),
                ("/elsewhere", "t", [1]),
            )
        ]

        response = await client.request(AlterReplicaLogDirsRequest(dirs=dirs), version)

        assert {
            (topic.topic_name, one.partition_index): ErrorCode.of(one.error_code).name
            for topic in response.results
            for one in topic.partitions
        } == {
            ("t", 0): "NONE",
            ("t", 5): "UNKNOWN_TOPIC_OR_PARTITION",
            ("u", 0): "UNKNOWN_TOPIC_OR_PARTITION",
            ("t", 1): "LOG_DIR_NOT_FOUND",
        }
