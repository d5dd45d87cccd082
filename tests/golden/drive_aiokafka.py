"""Drive aiokafka through as many of its features as possible."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.admin import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteGroupsRequest,
    DescribeAclsRequest,
)
from corpus import CODECS, RECORDS, TOPIC_PREFIX
from driving import SASL_PASSWORD, SASL_USER, addresses, arun

ADDRESSES = addresses()
TOPIC = "golden-aiokafka"
PARTITIONS = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
BASE: dict[str, Any] = {"bootstrap_servers": ADDRESSES.plain}


class Admin:
    """An admin client for one step."""

    async def __aenter__(self) -> AIOKafkaAdminClient:
        self.client = AIOKafkaAdminClient(**BASE)
        await self.client.start()
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def create_topics() -> None:
    async with Admin() as admin:
        topics = [
            NewTopic(TOPIC, 2, 1, topic_configs={"cleanup.policy": "delete"}),
            *(NewTopic(TOPIC_PREFIX + codec, 1, 1) for codec in CODECS["aiokafka"]),
        ]
        await admin.create_topics(topics)
        assigned = NewTopic(TOPIC + "-assigned", -1, -1, replica_assignments={0: [1], 1: [1]})
        await admin.create_topics([assigned])
        await admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic("no spaces", 1, 1)])


async def create_partitions() -> None:
    async with Admin() as admin:
        await admin.create_partitions({TOPIC: NewPartitions(3), "missing": NewPartitions(2)})


async def produce_corpus() -> None:
    for codec in CODECS["aiokafka"]:
        kind = None if codec == "none" else codec
        async with AIOKafkaProducer(**BASE, compression_type=kind, linger_ms=300) as producer:
            sent = [
                await producer.send(
                    TOPIC_PREFIX + codec,
                    record.value,
                    record.key,
                    partition=0,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in RECORDS
            ]
            await asyncio.gather(*sent)


async def produce_some(producer: AIOKafkaProducer) -> None:
    for number in range(3):
        await producer.send_and_wait(TOPIC, b"value %d" % number, b"key %d" % number)


async def produce_acks() -> None:
    for acks in (0, 1, "all"):
        async with AIOKafkaProducer(**BASE, acks=acks) as producer:
            await produce_some(producer)


async def produce_idempotent() -> None:
    async with AIOKafkaProducer(**BASE, enable_idempotence=True) as producer:
        await produce_some(producer)


async def produce_too_large() -> None:
    async with AIOKafkaProducer(**BASE) as producer:
        await producer.send_and_wait(TOPIC + "-assigned", b"x" * 2000)


def consumer(**configs: Any) -> AIOKafkaConsumer:
    configs = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | configs
    return AIOKafkaConsumer(**BASE, **configs)


async def group() -> None:
    async with consumer(group_id=TOPIC, heartbeat_interval_ms=300) as member:
        member.subscribe([TOPIC])
        for _ in range(4):
            await member.getone()
        await member.commit()
        await member.committed(PARTITIONS[0])
        await asyncio.sleep(1)
        async with Admin() as admin:
            await admin.describe_consumer_groups([TOPIC])
            await admin._send_request(DeleteGroupsRequest([TOPIC]))


async def group_static() -> None:
    configs = {"group_id": TOPIC + "-static", "group_instance_id": "instance"}
    async with consumer(**configs, isolation_level="read_committed") as member:
        member.subscribe(pattern="^golden-aio.*")
        await member.getone()
        await member.commit({PARTITIONS[0]: (1, "with metadata")})


async def assigned() -> None:
    async with consumer(group_id=None) as reader:
        corpus = TopicPartition(TOPIC_PREFIX + "none", 0)
        reader.assign([corpus])
        await reader.getone()
        reader.seek(corpus, 10)
        await reader.getone()
        await reader.offsets_for_times({PARTITIONS[0]: 1_600_000_000_000, corpus: 1})
        await reader.beginning_offsets(PARTITIONS)
        await reader.end_offsets(PARTITIONS)
        await reader.topics()


async def fetch_out_of_range() -> None:
    async with consumer(group_id=None, auto_offset_reset="none") as reader:
        corpus = TopicPartition(TOPIC_PREFIX + "none", 0)
        reader.assign([corpus])
        reader.seek(corpus, 10_000)
        await reader.getone()


async def transactions() -> None:
    async with AIOKafkaProducer(**BASE, transactional_id=TOPIC) as producer:
        async with producer.transaction():
            await produce_some(producer)
            await producer.send_offsets_to_transaction({PARTITIONS[0]: 2}, TOPIC)
        await producer.begin_transaction()
        await produce_some(producer)
        await producer.abort_transaction()


async def fenced() -> None:
    """A second producer with the same transactional id fences the first."""
    first = AIOKafkaProducer(**BASE, transactional_id=TOPIC)
    second = AIOKafkaProducer(**BASE, transactional_id=TOPIC)
    async with first, second:
        await first.begin_transaction()
        await produce_some(first)


async def read_committed() -> None:
    async with consumer(group_id=None, isolation_level="read_committed") as reader:
        reader.assign(PARTITIONS)
        for _ in range(3):
            await reader.getmany(timeout_ms=700)


async def groups() -> None:
    async with Admin() as admin:
        await admin.list_consumer_groups()
        await admin.describe_consumer_groups([TOPIC])
        await admin.describe_consumer_groups(["missing"])
        await admin.list_consumer_group_offsets(TOPIC)
        await admin.list_consumer_group_offsets(TOPIC, partitions=PARTITIONS)
        await admin.find_coordinator(TOPIC)
        await admin._send_request(DeleteGroupsRequest([TOPIC, "missing"]))


async def describe_configs() -> None:
    async with Admin() as admin:
        topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
        two = {"retention.ms": None, "cleanup.policy": None}
        await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, two)])
        await admin.describe_configs([topic], include_synonyms=True)
        await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "missing")])
        ids = {"broker.id": None, "num.partitions": None}
        broker = ConfigResource(ConfigResourceType.BROKER, "1", ids)
        await admin.describe_configs([broker], include_synonyms=True)


async def alter_configs() -> None:
    async with Admin() as admin:
        limit = {"max.message.bytes": "1000"}
        await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, TOPIC + "-assigned", limit)]
        )
        wrong = {"no.such": "1"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, wrong)])


async def delete_records() -> None:
    async with Admin() as admin:
        await admin.delete_records({PARTITIONS[0]: RecordsToDelete(-1)})


async def delete_records_out_of_range() -> None:
    async with Admin() as admin:
        await admin.delete_records({PARTITIONS[1]: RecordsToDelete(9999)})


async def describe() -> None:
    async with Admin() as admin:
        await admin.describe_cluster()
        await admin.list_topics()
        await admin.describe_topics([TOPIC, "missing"])


# aiokafka has request classes for these, but no methods.


#: The ACLs of the topic, of everybody, for every operation.
ANY_ACL = {"principal": None, "host": None, "operation": 1, "permission_type": 1}


async def send_acls(request: Any, **fields: Any) -> None:
    async with Admin() as admin:
        topic = {"resource_type": 2, "resource_name": TOPIC, "resource_pattern_type_filter": 3}
        await admin._send_request(request(**topic, **fields))


async def describe_acls() -> None:
    await send_acls(DescribeAclsRequest, **ANY_ACL)


async def create_acls() -> None:
    acl = {"principal": "User:golden", "host": "*", "operation": 3, "permission_type": 3}
    await send_acls(CreateAclsRequest, **acl)


async def delete_acls() -> None:
    await send_acls(DeleteAclsRequest, **ANY_ACL)


async def delete_topics() -> None:
    async with Admin() as admin:
        topics = [TOPIC, TOPIC + "-assigned", "missing"]
        await admin.delete_topics(topics + [TOPIC_PREFIX + codec for codec in CODECS["aiokafka"]])


async def sasl(password: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=ADDRESSES.sasl,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=SASL_USER,
        sasl_plain_password=password,
    )
    async with producer:
        await producer.partitions_for(TOPIC)


async def sasl_valid() -> None:
    await sasl(SASL_PASSWORD)


async def sasl_invalid() -> None:
    await sasl("wrong")


async def main() -> None:
    await arun(
        create_topics,
        create_partitions,
        produce_corpus,
        produce_acks,
        produce_idempotent,
        group,
        group_static,
        assigned,
        fetch_out_of_range,
        transactions,
        fenced,
        read_committed,
        groups,
        describe_configs,
        alter_configs,
        produce_too_large,
        delete_records,
        delete_records_out_of_range,
        describe,
        describe_acls,
        create_acls,
        delete_acls,
        delete_topics,
    )
    if ADDRESSES.sasl is not None:
        await arun(sasl_valid, sasl_invalid)


asyncio.run(main())
