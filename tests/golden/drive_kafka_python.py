"""Drive kafka-python through as many of its features as possible."""

from __future__ import annotations

import time
from typing import Any

from corpus import CODECS, TOPIC_PREFIX, expected
from driving import SASL_PASSWORD, SASL_USER, addresses, run
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    OffsetSpec,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata

ADDRESSES = addresses()
TOPIC = "golden-kafka-python"
PARTITIONS = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
BASE: dict[str, Any] = {"bootstrap_servers": ADDRESSES.plain}
admin = KafkaAdminClient(**BASE)


def create_topics() -> None:
    admin.create_topics(
        {
            TOPIC: {
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": {"cleanup.policy": "delete"},
            },
            TOPIC + "-assigned": {"assignments": {0: [1], 1: [1]}},
        }
        | {
            TOPIC_PREFIX + codec: {"num_partitions": 1, "replication_factor": 1}
            for codec in CODECS["kafka-python"]
        }
    )


def create_invalid_topics() -> None:
    admin.create_topics([TOPIC, "no spaces"], raise_errors=False)


def create_partitions() -> None:
    admin.create_partitions({TOPIC: 3, "missing": 2}, raise_errors=False)


def produce_corpus() -> None:
    for codec in CODECS["kafka-python"]:
        kind = None if codec == "none" else codec
        producer = KafkaProducer(**BASE, compression_type=kind, linger_ms=300)
        for record in expected("kafka-python"):
            producer.send(
                TOPIC_PREFIX + codec,
                record.value,
                record.key,
                headers=list(record.headers),
                partition=0,
                timestamp_ms=record.timestamp,
            )
        # flush() would send the batch before it has all records.
        time.sleep(0.6)
        producer.close(5)


def produce_some(producer: KafkaProducer) -> None:
    for number in range(3):
        producer.send(TOPIC, b"value %d" % number, b"key %d" % number)
    producer.flush(10)


def produce_acks() -> None:
    for acks in (0, 1, "all"):
        producer = KafkaProducer(**BASE, acks=acks, enable_idempotence=False)
        produce_some(producer)
        producer.close(5)


def produce_idempotent() -> None:
    producer = KafkaProducer(**BASE, enable_idempotence=True)
    produce_some(producer)
    producer.close(5)


def produce_too_large() -> None:
    producer = KafkaProducer(**BASE, retries=0, enable_idempotence=False)
    try:
        producer.send(TOPIC + "-assigned", b"x" * 2000).get(10)
    finally:
        producer.close(5)


def consumer(**configs: Any) -> KafkaConsumer:
    configs = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | configs
    return KafkaConsumer(**BASE, **configs)


def poll(member: KafkaConsumer, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not member.poll(timeout_ms=500) and time.monotonic() < deadline:
        pass


def group() -> None:
    member = consumer(group_id=TOPIC, heartbeat_interval_ms=300)
    member.subscribe([TOPIC])
    poll(member)
    member.commit()
    member.committed(PARTITIONS[0])
    time.sleep(1)
    admin.describe_groups([TOPIC], include_authorized_operations=True)
    admin.delete_groups([TOPIC])
    member.close()


def group_resumed() -> None:
    """kafka-python validates a committed offset with a leader epoch before it uses it."""
    member = consumer(group_id=TOPIC, isolation_level="read_committed")
    member.subscribe([TOPIC])
    poll(member, 2)
    member.close()


def group_static_and_cooperative() -> None:
    member = consumer(
        group_id=TOPIC + "-static",
        group_instance_id="instance",
        partition_assignment_strategy=[CooperativeStickyAssignor],
    )
    member.subscribe(pattern="^golden-kafka-py.*")
    poll(member)
    member.commit({PARTITIONS[0]: OffsetAndMetadata(1, "with metadata", -1)})
    member.close()
    admin.describe_groups([TOPIC + "-static", "missing"])


def remove_members() -> None:
    members = [MemberToRemove(group_instance_id="instance", reason="because")]
    admin.remove_group_members(TOPIC + "-static", members)
    admin.remove_group_members(TOPIC + "-static", [MemberToRemove(member_id="missing")])


def assigned() -> None:
    reader = consumer()
    corpus = TopicPartition(TOPIC_PREFIX + "none", 0)
    reader.assign([corpus])
    poll(reader)
    reader.seek(corpus, 10)
    poll(reader)
    reader.offsets_for_times({PARTITIONS[0]: 1_600_000_000_000, corpus: 1})
    reader.beginning_offsets(PARTITIONS)
    reader.end_offsets(PARTITIONS)
    reader.topics()
    reader.close()


def fetch_out_of_range() -> None:
    reader = consumer(auto_offset_reset="none")
    corpus = TopicPartition(TOPIC_PREFIX + "none", 0)
    reader.assign([corpus])
    reader.seek(corpus, 10_000)
    try:
        poll(reader, 2)
    finally:
        reader.close()


def transactions() -> None:
    producer = KafkaProducer(**BASE, transactional_id=TOPIC)
    producer.init_transactions()
    member = consumer(group_id=TOPIC + "-txn")
    member.subscribe([TOPIC])
    poll(member)
    producer.begin_transaction()
    produce_some(producer)
    offsets = {PARTITIONS[0]: OffsetAndMetadata(2, "", -1)}
    producer.send_offsets_to_transaction(offsets, member.group_metadata())
    admin.list_transactions()
    admin.list_transactions(state_filters=["Ongoing"], duration_filter_ms=0)
    admin.describe_transactions([TOPIC])
    admin.describe_producers(PARTITIONS)
    producer.commit_transaction()
    producer.begin_transaction()
    produce_some(producer)
    producer.abort_transaction()
    member.close()
    producer.close(5)


def fenced() -> None:
    """A second producer with the same transactional id fences the first."""
    first = KafkaProducer(**BASE, transactional_id=TOPIC)
    second = KafkaProducer(**BASE, transactional_id=TOPIC)
    first.init_transactions()
    second.init_transactions()
    first.begin_transaction()
    try:
        produce_some(first)
        first.commit_transaction()
    finally:
        first.close(1)
        second.close(1)


def read_committed() -> None:
    reader = consumer(isolation_level="read_committed")
    reader.assign(PARTITIONS)
    poll(reader)
    reader.poll(timeout_ms=500)
    reader.close()


def describe_missing_transaction() -> None:
    admin.describe_transactions(["missing"])


def describe_producers_of_missing_partition() -> None:
    admin.describe_producers([TopicPartition(TOPIC, 99)], broker_id=1)


def groups() -> None:
    admin.list_groups()
    admin.list_groups(states_filter=["Empty"], types_filter=["classic"])
    admin.list_group_offsets([TOPIC, TOPIC + "-static"])
    admin.list_group_offsets({TOPIC: PARTITIONS})


def group_offsets() -> None:
    admin.alter_group_offsets(TOPIC, {PARTITIONS[0]: OffsetAndMetadata(1, "moved", -1)})
    admin.reset_group_offsets(TOPIC, {PARTITIONS[0]: OffsetSpec.EARLIEST})
    admin.delete_group_offsets(TOPIC, PARTITIONS)


def offsets_of_missing_group() -> None:
    admin.delete_group_offsets("missing", PARTITIONS)


def delete_groups() -> None:
    admin.delete_groups([TOPIC, "missing"])


def describe_configs() -> None:
    topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
    admin.describe_configs([topic], include_synonyms=True)
    two = {"retention.ms": None, "cleanup.policy": None}
    admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, two)])
    ids = {"broker.id": None, "num.partitions": None}
    broker = ConfigResource(ConfigResourceType.BROKER, "1", ids)
    admin.describe_configs([broker], include_synonyms=True, config_filter="all")


def describe_configs_of_missing_topic() -> None:
    admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "missing")])


def alter_configs() -> None:
    limit = {"max.message.bytes": "1000"}
    topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC + "-assigned", limit)
    admin.alter_configs([topic], incremental=False)


def incremental_alter_configs() -> None:
    changes = {"cleanup.policy": ("APPEND", "compact"), "segment.bytes": ("DELETE", None)}
    topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC, changes)
    admin.alter_configs([topic], incremental=True)
    wrong = ConfigResource(ConfigResourceType.TOPIC, TOPIC, {"retention.ms": "no"})
    admin.alter_configs([wrong], incremental=True)


def list_offsets() -> None:
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, 1_600_000_000):
        admin.list_partition_offsets(dict.fromkeys(PARTITIONS, spec))


def list_offsets_of_missing_partition() -> None:
    admin.list_partition_offsets({TopicPartition(TOPIC, 99): OffsetSpec.LATEST}, timeout_ms=1000)


def delete_records() -> None:
    admin.delete_records({PARTITIONS[0]: -1})


def delete_records_out_of_range() -> None:
    admin.delete_records({PARTITIONS[1]: 9999})


def describe_topics() -> None:
    admin.list_topics()
    (topic,) = admin.describe_topics([TOPIC])
    admin.describe_topics([topic["topic_id"]])


def describe_missing_topic() -> None:
    admin.describe_topics(["missing"])


def describe_topic_partitions() -> None:
    page = admin.describe_topic_partitions([TOPIC, "missing"])
    page = admin.describe_topic_partitions([TOPIC, "missing"], response_partition_limit=1)
    admin.describe_topic_partitions([TOPIC], cursor=page["next_cursor"])


def describe_cluster() -> None:
    admin.describe_cluster()


def describe_log_dirs() -> None:
    admin.describe_log_dirs()
    admin.describe_log_dirs({TOPIC: [0, 1]})


def describe_acls() -> None:
    pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern))


def create_acls() -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, TOPIC)
    admin.create_acls(
        [ACL("User:golden", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)]
    )


def delete_acls() -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, TOPIC)
    admin.delete_acls(
        [ACLFilter("User:golden", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)]
    )


def delete_topics() -> None:
    corpus = [TOPIC_PREFIX + codec for codec in CODECS["kafka-python"]]
    admin.delete_topics([TOPIC, TOPIC + "-assigned", "missing", *corpus], raise_errors=False)


def sasl(password: str) -> None:
    KafkaAdminClient(
        bootstrap_servers=ADDRESSES.sasl,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=SASL_USER,
        sasl_plain_password=password,
        bootstrap_timeout_ms=2000,
    ).list_topics()


def sasl_valid() -> None:
    sasl(SASL_PASSWORD)


def sasl_invalid() -> None:
    sasl("wrong")


run(
    create_topics,
    create_invalid_topics,
    create_partitions,
    produce_corpus,
    produce_acks,
    produce_idempotent,
    group,
    group_resumed,
    group_static_and_cooperative,
    remove_members,
    assigned,
    fetch_out_of_range,
    transactions,
    fenced,
    read_committed,
    describe_missing_transaction,
    describe_producers_of_missing_partition,
    groups,
    group_offsets,
    offsets_of_missing_group,
    describe_configs,
    describe_configs_of_missing_topic,
    alter_configs,
    produce_too_large,
    incremental_alter_configs,
    list_offsets,
    list_offsets_of_missing_partition,
    delete_records,
    delete_records_out_of_range,
    describe_topics,
    describe_missing_topic,
    describe_topic_partitions,
    describe_cluster,
    describe_log_dirs,
    describe_acls,
    create_acls,
    delete_acls,
    delete_groups,
    delete_topics,
)
if ADDRESSES.sasl is not None:
    run(sasl_valid, sasl_invalid)
