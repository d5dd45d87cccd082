"""Records without timestamps, as librdkafka sends them."""

import asyncio

import confluent_kafka

from harness.brokers import a_broker, add_topic, partition_of
from harness.wire import batches_of, connect, fetch_request, fetched_partitions


def produce(address, topic, values, **options):
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    errors = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _message: errors.append(error), **options
        )
    producer.flush(20)
    return errors


async def test_retention_keeps_new_records_without_timestamps(tmp_path):
    """The header of such a batch has a max timestamp of 0, which is in 1970."""
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        errors = await asyncio.to_thread(
            produce, broker.address, "t", [b"one", b"two"], partition=0, timestamp=-1
        )
        assert errors == [None, None]

        await broker.housekeeping.apply_retention()

        log = partition_of(broker).log
        assert (log.start_offset, log.end_offset) == (0, 2)
        response = await client.request(fetch_request(0), 12)
        records = [
            record
            for batch in batches_of(fetched_partitions(response)[0])
            for record in batch.records()
        ]
        assert [(record.value, record.timestamp) for record in records] == [
            (b"one", -1),
            (b"two", -1),
        ]
        assert log.active_segment.max_timestamp == -1


async def test_librdkafka_learns_which_records_have_no_key(tmp_path):
    async with a_broker(tmp_path) as broker:
        await add_topic(broker, "compacted", cleanup_policy="compact")
        codes = {}

        def produce_some_without_keys():
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": broker.address, "linger.ms": 200}
            )
            for number in range(6):
                producer.produce(
                    "compacted",
                    b"value",
                    None if number in (1, 4) else b"key",
                    on_delivery=lambda error, _message, number=number: codes.update(
                        {number: error.name()}
                    ),
                )
            producer.flush(20)

        await asyncio.to_thread(produce_some_without_keys)

        assert [codes[number] for number in range(6)] == [
            "INVALID_RECORD" if number in (1, 4) else "_INVALID_DIFFERENT_RECORD"
            for number in range(6)
        ]
