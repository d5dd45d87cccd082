"""Malicious names: no file is created outside of the data directory."""

import pytest

from harness.attack import unharmed
from harness.daemon import Daemon
from harness.logs import a_batch
from harness.topic_names import (
    FILE_NAMES,
    INVALID_NAMES,
    UNUSUAL_NAMES,
    create,
    has_only_log_directories,
    paths,
)
from harness.wire import BlockingWireClient
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.join_group import JoinGroupRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.api.offset_commit import OffsetCommitRequest
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import CREATE_TOPICS, METADATA

INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path / "home") as started:
        yield started


def test_an_invalid_topic_name_is_refused(broker):
    before = paths(broker.data)

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for version in CREATE_TOPICS.versions:
            assert create(connection, *INVALID_NAMES, version=version) == [INVALID] * len(
                INVALID_NAMES
            )

    assert paths(broker.data) == before
    assert has_only_log_directories(broker)


def test_an_invalid_topic_name_is_not_auto_created(broker):
    before = paths(broker.data)
    topics = [MetadataRequestTopic(name=name) for name in INVALID_NAMES]

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for version in METADATA.versions:
            response = connection.request(MetadataRequest(topics=topics), version)
            assert {topic.error_code for topic in response.topics} == {INVALID}
            assert sorted(topic.name for topic in response.topics) == sorted(INVALID_NAMES)

    assert paths(broker.data) == before


def test_requests_for_unknown_topics_create_and_read_nothing(broker):
    before = paths(broker.data)
    names = [*INVALID_NAMES, *FILE_NAMES, "__cluster_metadata"]
    produce = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(records=a_batch())])
            for name in names
        ],
    )
    fetch = FetchRequest(
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition_max_bytes=1)])
            for name in names
        ]
    )

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        produced = connection.request(produce, 11)
        fetched = connection.request(fetch, 12)
        deleted = connection.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names]), 6
        )
        extended = connection.request(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=5) for name in names]
            ),
            3,
        )

    assert {p.error_code for t in produced.responses for p in t.partition_responses} == {UNKNOWN}
    assert {p.error_code for t in fetched.responses for p in t.partitions} == {UNKNOWN}
    assert {topic.error_code for topic in deleted.responses} <= {UNKNOWN, INVALID}
    assert {topic.error_code for topic in extended.results} <= {UNKNOWN, INVALID}
    assert paths(broker.data) == before


def test_unusual_topic_names_are_valid(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert create(connection, *UNUSUAL_NAMES) == [0] * len(UNUSUAL_NAMES)
        for name in UNUSUAL_NAMES:
            data = [PartitionProduceData(records=a_batch(2))]
            request = ProduceRequest(
                acks=-1,
                timeout_ms=5000,
                topic_data=[TopicProduceData(name=name, partition_data=data)],
            )
            (topic,) = connection.request(request, 9).responses
            assert topic.partition_responses[0].error_code == 0, name

    broker.restart()
    with BlockingWireClient(broker) as connection:
        response = connection.request(MetadataRequest(topics=None), 12)
    assert {topic.name for topic in response.topics} == set(UNUSUAL_NAMES)
    assert has_only_log_directories(broker)


def test_topics_named_like_files_of_the_data_directory_do_no_harm(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        codes = create(connection, *FILE_NAMES, "__cluster_metadata", "__consumer_offsets")

    assert set(codes[:-2]) == {0}
    assert codes[-2] == INVALID
    assert has_only_log_directories(broker)
    broker.restart()
    assert has_only_log_directories(broker)


def test_similar_names_are_distinct_or_collide(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert create(connection, "a.b") == [0]

        assert create(connection, "a_b", "A.b", "a.b") == [
            INVALID,
            0,
            ErrorCode.TOPIC_ALREADY_EXISTS,
        ]
        assert create(connection, "c.d", "c_d") == [0, INVALID]


def test_a_name_repeated_in_a_request_creates_at_most_one_topic(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        codes = create(connection, *["twice"] * 50)
        response = connection.request(MetadataRequest(topics=None), 12)

    assert set(codes) <= {0, ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_ALREADY_EXISTS}
    assert codes.count(0) <= 1
    assert len(response.topics) <= 1


def test_group_ids_of_any_form_create_no_files(broker):
    groups = [name for name in INVALID_NAMES if len(name) < 1000]
    requests = [
        (FindCoordinatorRequest(coordinator_keys=groups), 6),
        *((JoinGroupRequest(group_id=name, session_timeout_ms=10_000), 9) for name in groups),
        *((OffsetCommitRequest(group_id=name), 9) for name in groups),
    ]

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for request, version in requests:
            connection.request(request, version)

    assert has_only_log_directories(broker)
