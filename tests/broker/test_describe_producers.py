"""DescribeProducers: the idempotent producers of a partition."""

from harness.brokers import broker_and_client
from harness.logs import NOW
from harness.requests import create_topic, produce_batch
from ottla.protocol.api.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.errors import ErrorCode


async def describe_producers(client, *topics):
    requested = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics]
    return (await client.request(DescribeProducersRequest(topics=requested))).topics


async def test_idempotent_producers_of_a_partition(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 3, producer_id=11, producer_epoch=2, base_sequence=0)
        await produce_batch(client, "t", 2, producer_id=11, producer_epoch=2, base_sequence=3)
        await produce_batch(client, "t", 1, producer_id=12, producer_epoch=0, base_sequence=0)
        await produce_batch(client, "t", 1)

        [topic] = await describe_producers(client, ("t", [0, 1]))

        first, second = topic.partitions
        assert [
            (producer.producer_id, producer.producer_epoch, producer.last_sequence)
            for producer in first.active_producers
        ] == [(11, 2, 4), (12, 0, 0)]
        assert all(producer.last_timestamp > NOW for producer in first.active_producers)
        assert all(producer.current_txn_start_offset == -1 for producer in first.active_producers)
        assert all(producer.coordinator_epoch == -1 for producer in first.active_producers)
        assert (second.error_code, list(second.active_producers)) == (ErrorCode.NONE, [])


async def test_partitions_are_deduplicated_and_an_unknown_one_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        there, missing, invalid = await describe_producers(
            client, ("t", [0, 1, 0]), ("missing", [0]), ("t", [0]), ("not/valid", [0])
        )

        assert [(part.partition_index, part.error_code) for part in there.partitions] == [
            (0, ErrorCode.NONE),
            (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert missing.partitions[0].error_message
        assert invalid.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
