"""The metadata log: a change is one batch, applied as a whole or not at all."""

import asyncio
import errno
from uuid import UUID

import pytest

from harness.brokers import broker_and_client
from harness.daemon import free_ports
from harness.requests import create_topic, create_topics_request, produce_batch, topic_metadata
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.coord.metadata_image import (
    MAX_DELETED_TOPICS,
    MetadataImage,
    Topic,
    broker_record,
    topic_tombstone,
)
from ottla.protocol.batch import split_batches
from ottla.storage.disk import Disk

#: A change of many records.
RECORDS = [broker_record(number, {}) for number in range(1200)]


async def test_a_large_change_is_one_batch(tmp_path):
    async with broker_and_client(tmp_path) as (broker, _client):
        end_offset = broker.topics.metadata_log.end_offset

        await broker.topics.commit(RECORDS)

        log = broker.topics.metadata_log.partition.log
        (batch,) = split_batches(log.read(end_offset, 1).view)
        assert batch.record_count == len(RECORDS)
    async with broker_and_client(tmp_path) as (broker, _client):
        assert len(broker.topics.image.broker_configs) == len(RECORDS)


class FullDisk(Disk):
    """Has no space for leader epoch checkpoints of the metadata log, when asked to."""

    is_full = False

    def replace_file(self, path, content, *, durable=True):
        is_checkpoint = path.match("__cluster_metadata-0/leader-epoch-checkpoint")
        if self.is_full and is_checkpoint and durable:
            raise OSError(errno.ENOSPC, "injected")
        super().replace_file(path, content, durable=durable)


async def test_a_change_that_cannot_be_fsynced_is_not_kept(tmp_path):
    """A later fsync would make followers apply what the controller did not."""
    disk = FullDisk()
    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    async with Broker(config, disk=disk) as broker, connect(broker) as client:
        metadata_log = broker.topics.metadata_log
        end_offset = metadata_log.end_offset
        disk.is_full = True
        metadata_log.partition.log._leader_epoch_checkpoint.is_dirty = True
        with pytest.raises(OSError, match="injected"):
            await broker.topics.commit(RECORDS)

        assert metadata_log.end_offset == end_offset
        assert metadata_log.partition.log.offline_reason is None
        disk.is_full = False
        await create_topic(client, "later")
        assert list(await topic_metadata(client)) == ["later"]
        assert metadata_log.partition.high_watermark == end_offset + 1
    async with broker_and_client(tmp_path) as (_broker, client):
        assert list(await topic_metadata(client)) == ["later"]


async def test_each_start_of_a_controller_is_an_epoch(tmp_path):
    for number in range(3):
        async with broker_and_client(tmp_path) as (broker, client):
            image = broker.topics.image
            assert sorted(image.epochs) == list(range(number + 1))
            assert image.registrations[0].leader_epoch == number
            assert broker.topics.metadata_log.partition.leader_epoch == number
            await create_topic(client, f"t{number}")


def test_the_oldest_deletions_are_forgotten():
    image = MetadataImage()
    for number in range(MAX_DELETED_TOPICS + 3):
        for record in image.deletion_records(Topic("t", UUID(int=number), ((0,),), {})):
            image.replay(*record)
    assert len(image.deleted_topics) == MAX_DELETED_TOPICS
    assert UUID(int=2) not in image.deleted_topics
    assert UUID(int=3) in image.deleted_topics


async def test_data_is_deleted_only_with_the_deletion_of_the_topic_id(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        for name in ("missing", "deleted"):
            await create_topic(client, name)
            await produce_batch(client, name)

        deletion = broker.topics.image.deletion_records(broker.topics.image.topics["deleted"])
        await broker.topics.commit([topic_tombstone("missing"), *deletion])

        assert await topic_metadata(client) == {}
        assert [path.name for path in tmp_path.glob("*.stray/*")] == ["missing-0"]
        assert [path.name for path in tmp_path.glob("*.deleted/*")] == ["deleted-0"]


class FailingDisk(Disk):
    """Fails each fsync, when asked to."""

    fails = False

    def sync(self, fd, *, metadata=False):
        if self.fails:
            raise OSError(errno.EIO, "injected")
        super().sync(fd, metadata=metadata)


async def test_a_follower_that_cannot_write_its_metadata_log_fails(tmp_path):
    """It would serve stale metadata until its next start."""
    first = free_ports(2)
    brokers = f"0@127.0.0.1:{first},1@127.0.0.1:{first + 1}"
    configs = [
        BrokerConfig(broker_id=number, log_dir=str(tmp_path / str(number)), cluster_brokers=brokers)
        for number in range(2)
    ]
    disk = FailingDisk()
    async with Broker(configs[0]) as controller, Broker(configs[1], disk=disk) as follower:
        assert controller.failed is not None
        assert not controller.failed.done()
        async with connect(controller) as client:
            await create_topic(client, "before")
            disk.fails = True
            client.send(create_topics_request("after", leaders=[0]))

            assert follower.failed is not None
            error = await asyncio.wait_for(follower.failed, 30)
            disk.fails = False

        assert "__cluster_metadata-0 is offline: [Errno 5] injected" in str(error)
