"""Drive confluent-kafka (librdkafka) through as many of its features as possible."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from corpus import CODECS, RECORDS, TOPIC_PREFIX
from driving import SASL_PASSWORD, SASL_USER, addresses, run

ADDRESSES = addresses()
TOPIC = "golden-confluent"
BASE: dict[str, Any] = {"bootstrap.servers": ADDRESSES.plain, "log_level": 0}
admin = AdminClient(BASE)


def results(futures: Any) -> None:
    """Wait for all futures, then raise the first error."""
    futures = list(futures.values()) if isinstance(futures, dict) else [futures]
    errors = [error for future in futures if (error := future.exception(20)) is not None]
    if errors:
        raise errors[0]


def create_topics() -> None:
    results(
        admin.create_topics(
            [
                NewTopic(TOPIC, 2, 1, config={"cleanup.policy": "delete"}),
                NewTopic(TOPIC + "-assigned", 2, replica_assignment=[[1], [1]]),
                *(NewTopic(TOPIC_PREFIX + codec, 1, 1) for codec in CODECS["confluent"]),
            ]
        )
    )


def create_invalid_topics() -> None:
    results(admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic("no spaces", 1, 9)]))


def create_partitions() -> None:
    results(admin.create_partitions([NewPartitions(TOPIC, 3), NewPartitions("missing", 2)]))


def produce_corpus() -> None:
    for codec in CODECS["confluent"]:
        producer = Producer(BASE | {"compression.type": codec, "linger.ms": 500})
        for record in RECORDS:
            producer.produce(
                TOPIC_PREFIX + codec,
                record.value,
                record.key,
                partition=0,
                timestamp=record.timestamp,
                headers=list(record.headers) or None,
            )
        producer.flush(10)


def produce_some(producer: Producer, count: int = 3) -> None:
    for number in range(count):
        producer.produce(TOPIC, f"value {number}", f"key {number}")
    producer.flush(10)


def produce_acks_0() -> None:
    produce_some(Producer(BASE | {"acks": 0}))


def produce_acks_1() -> None:
    produce_some(Producer(BASE | {"acks": 1}))


def produce_idempotent() -> None:
    produce_some(Producer(BASE | {"enable.idempotence": True}))


def produce_too_large() -> None:
    """The broker rejects batches above max.message.bytes."""
    producer = Producer(BASE | {"retries": 0})
    producer.produce(TOPIC + "-assigned", b"x" * 2000)
    producer.flush(10)


def consume(configs: dict[str, Any], count: int = 3, topic: str = TOPIC) -> Consumer:
    consumer = Consumer(
        BASE | {"auto.offset.reset": "earliest", "enable.auto.commit": False} | configs
    )
    consumer.subscribe([topic])
    seen, deadline = 0, time.monotonic() + 12
    while seen < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen += 1
    return consumer


def group_classic() -> None:
    consumer = consume({"group.id": TOPIC, "heartbeat.interval.ms": 500})
    consumer.commit(asynchronous=False)
    consumer.committed([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)], 5)
    consumer.poll(1.2)
    consumer.close()


def group_static_and_cooperative() -> None:
    configs = {
        "group.id": TOPIC + "-static",
        "group.instance.id": "instance",
        "partition.assignment.strategy": "cooperative-sticky",
    }
    consumer = consume(configs)
    consumer.commit(asynchronous=False)
    consumer.close()


def group_consumer_protocol() -> None:
    consumer = consume({"group.id": TOPIC + "-new", "group.protocol": "consumer"})
    consumer.commit(asynchronous=False)
    consumer.poll(1.5)
    describe_groups()
    consumer.close()


def group_consumer_protocol_by_pattern() -> None:
    configs = {
        "group.id": TOPIC + "-new-static",
        "group.instance.id": "instance",
        "group.protocol": "consumer",
        "group.remote.assignor": "range",
    }
    consume(configs, topic="^golden-conf.*").close()


def group_alive() -> None:
    """Describe a group that has a member."""
    consumer = consume({"group.id": TOPIC})
    describe_groups()
    admin.list_groups(timeout=10)
    admin.list_groups(TOPIC, timeout=10)
    results(admin.delete_consumer_groups([TOPIC + "-static"]))
    consumer.close()


def assigned_with_epoch() -> None:
    """A position with a leader epoch makes librdkafka send OffsetForLeaderEpoch."""
    consumer = Consumer(BASE | {"group.id": TOPIC, "isolation.level": "read_uncommitted"})
    consumer.assign([TopicPartition(TOPIC_PREFIX + "none", 0, 5, leader_epoch=0)])
    consumer.poll(2)
    consumer.seek(TopicPartition(TOPIC_PREFIX + "none", 0, 2, leader_epoch=0))
    consumer.poll(2)
    consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1_600_000_000_000)], 5)
    consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), 5)
    consumer.close()


def fetch_out_of_range() -> None:
    consumer = Consumer(BASE | {"group.id": TOPIC, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC_PREFIX + "none", 0, 10_000)])
    consumer.poll(2)
    consumer.close()


def transactions() -> None:
    producer = Producer(BASE | {"transactional.id": TOPIC, "transaction.timeout.ms": 20_000})
    producer.init_transactions(10)
    consumer = consume({"group.id": TOPIC + "-txn"})
    producer.begin_transaction()
    produce_some(producer)
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 10
    )
    producer.commit_transaction(10)
    producer.begin_transaction()
    produce_some(producer)
    producer.abort_transaction(10)
    consumer.close()


def fenced() -> None:
    """A second producer with the same transactional id fences the first."""
    first = Producer(BASE | {"transactional.id": TOPIC})
    first.init_transactions(10)
    first.begin_transaction()
    second = Producer(BASE | {"transactional.id": TOPIC})
    second.init_transactions(10)
    produce_some(first)
    first.commit_transaction(10)


def read_committed() -> None:
    """Read past an aborted transaction."""
    consume({"group.id": TOPIC + "-committed"}, 10).close()


def describe_groups() -> None:
    names = [TOPIC, TOPIC + "-static", TOPIC + "-new", TOPIC + "-new-static", "missing"]
    results(admin.describe_consumer_groups(names, include_authorized_operations=True))


def list_groups() -> None:
    results(admin.list_consumer_groups())
    results(admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}))


def group_offsets() -> None:
    everything = ConsumerGroupTopicPartitions(TOPIC)
    some = ConsumerGroupTopicPartitions(TOPIC, [TopicPartition(TOPIC, 0)])
    moved = ConsumerGroupTopicPartitions(TOPIC, [TopicPartition(TOPIC, 0, 1)])
    results(admin.list_consumer_group_offsets([everything], require_stable=True))
    results(admin.list_consumer_group_offsets([some]))
    results(admin.alter_consumer_group_offsets([moved]))


def delete_groups() -> None:
    results(admin.delete_consumer_groups([TOPIC, "missing"]))


def describe_configs() -> None:
    topic = ConfigResource(ResourceType.TOPIC, TOPIC)
    results(admin.describe_configs([topic]))
    missing = ConfigResource(ResourceType.TOPIC, "missing")
    results(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1"), missing]))


def alter_configs() -> None:
    limit = {"max.message.bytes": "1000"}
    changed = ConfigResource(ResourceType.TOPIC, TOPIC + "-assigned", set_config=limit)
    wrong = ConfigResource(ResourceType.TOPIC, TOPIC, set_config={"no.such": "1"})
    results(admin.alter_configs([changed, wrong]))


def incremental_alter_configs() -> None:
    entries = [
        ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("segment.bytes", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    topic = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    results(admin.incremental_alter_configs([topic]))
    wrong = ConfigEntry("retention.ms", "no", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[wrong])
    results(admin.incremental_alter_configs([topic]))


def list_offsets() -> None:
    for spec in (
        OffsetSpec.earliest(),
        OffsetSpec.latest(),
        OffsetSpec.max_timestamp(),
        OffsetSpec.for_timestamp(1_600_000_000_000),
    ):
        partitions = {TopicPartition(TOPIC, 0): spec, TopicPartition(TOPIC, 1): spec}
        level = IsolationLevel.READ_COMMITTED
        results(admin.list_offsets(partitions, isolation_level=level))


def delete_records() -> None:
    results(admin.delete_records([TopicPartition(TOPIC, 0, 1), TopicPartition(TOPIC, 1, 9999)]))


def describe_topics() -> None:
    admin.list_topics(timeout=10)
    admin.list_topics(TOPIC, timeout=10)
    names = TopicCollection([TOPIC, "missing"])
    results(admin.describe_topics(names, include_authorized_operations=True))


def describe_cluster() -> None:
    results(admin.describe_cluster(include_authorized_operations=True))


def _acl(kind: Any) -> Any:
    return kind(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        "User:golden",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )


def create_acls() -> None:
    results(admin.create_acls([_acl(AclBinding)]))


def describe_acls() -> None:
    results(admin.describe_acls(_acl(AclBindingFilter)))


def delete_acls() -> None:
    results(admin.delete_acls([_acl(AclBindingFilter)]))


def delete_topics() -> None:
    topics = [TOPIC, TOPIC + "-assigned", "missing"]
    results(admin.delete_topics(topics + [TOPIC_PREFIX + codec for codec in CODECS["confluent"]]))


def sasl(password: str) -> None:
    configs = {
        "bootstrap.servers": ADDRESSES.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": password,
        "log_level": 0,
    }
    Producer(configs).list_topics(timeout=3)


def sasl_valid() -> None:
    sasl(SASL_PASSWORD)


def sasl_invalid() -> None:
    sasl("wrong")


run(
    create_topics,
    create_invalid_topics,
    create_partitions,
    produce_corpus,
    produce_acks_0,
    produce_acks_1,
    produce_idempotent,
    group_classic,
    group_static_and_cooperative,
    group_consumer_protocol,
    group_consumer_protocol_by_pattern,
    group_alive,
    assigned_with_epoch,
    fetch_out_of_range,
    transactions,
    fenced,
    read_committed,
    describe_groups,
    list_groups,
    group_offsets,
    describe_configs,
    alter_configs,
    produce_too_large,
    incremental_alter_configs,
    list_offsets,
    delete_records,
    describe_topics,
    describe_cluster,
    create_acls,
    describe_acls,
    delete_acls,
    delete_groups,
    delete_topics,
)
if ADDRESSES.sasl is not None:
    run(sasl_valid, sasl_invalid)
