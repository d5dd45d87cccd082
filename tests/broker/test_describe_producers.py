"""DescribeProducers: who wrote with sequence numbers."""

from harness.brokers import broker_and_client
from harness.logs import NOW
from harness.requests import create_topic, produce_batch
from ottla.protocol.api.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.errors import ErrorCode


async def ask(client, *topics):
    wanted = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics]
    return (await client.request(DescribeProducersRequest(topics=wanted))).topics


async def test_a_partition_knows_its_idempotent_producers(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 3, producer_id=11, producer_epoch=2, base_sequence=0)
        await produce_batch(client, "t", 2, producer_id=11, producer_epoch=2, base_sequence=3)
        await produce_batch(client, "t", 1, producer_id=12, producer_epoch=0, base_sequence=0)
        await produce_batch(client, "t", 1)

        [topic] = await ask(client, ("t", [0, 1]))

        first, second = topic.partitions
        assert [
            (one.producer_id, one.producer_epoch, one.last_sequence)
            for one in first.active_producers
        ] == [(11, 2, 4), (12, 0, 0)]
        assert all(one.last_timestamp > NOW for one in first.active_producers)
        assert all(one.current_txn_start_offset == -1 for one in first.active_producers)
        assert all(one.coordinator_epoch == -1 for one in first.active_producers)
        assert (second.error_code, list(second.active_producers)) == (ErrorCode.NONE, [])


async def test_each_partition_is_answered_once_and_a_missing_one_harms_no_other(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        there, missing = await ask(client, ("t", [0, 1, 0]), ("missing", [0]), ("t", [0]))

        assert [(part.partition_index, part.error_code) for part in there.partitions] == [
            (0, ErrorCode.NONE),
            (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert missing.partitions[0].error_message
