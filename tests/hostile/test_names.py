"""Names that want to be more than names: no file is made outside of the data directory."""

import pytest

from harness.daemon import Daemon
from harness.logs import a_batch
from harness.wire import BlockingWireClient
from hostile.attack import unharmed
from hostile.names import IMPOSSIBLE, OURS, POSSIBLE, create, only_ours, paths
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


def test_a_name_that_no_topic_can_have_is_refused(broker):
    before = paths(broker.data)

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for version in CREATE_TOPICS.versions:
            assert create(connection, *IMPOSSIBLE, version=version) == [INVALID] * len(IMPOSSIBLE)

    assert paths(broker.data) == before
    assert only_ours(broker)


def test_a_name_that_no_topic_can_have_is_not_made_by_asking_for_it(broker):
    before = paths(broker.data)
    wanted = [MetadataRequestTopic(name=name) for name in IMPOSSIBLE]

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for version in METADATA.versions:
            answer = connection.request(MetadataRequest(topics=wanted), version)
            assert {topic.error_code for topic in answer.topics} == {INVALID}
            assert sorted(topic.name for topic in answer.topics) == sorted(IMPOSSIBLE)

    assert paths(broker.data) == before


def test_nothing_is_made_or_read_by_a_name_that_is_not_there(broker):
    before = paths(broker.data)
    names = [*IMPOSSIBLE, *OURS, "__cluster_metadata"]
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
        grown = connection.request(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=5) for name in names]
            ),
            3,
        )

    assert {p.error_code for t in produced.responses for p in t.partition_responses} == {UNKNOWN}
    assert {p.error_code for t in fetched.responses for p in t.partitions} == {UNKNOWN}
    assert {topic.error_code for topic in deleted.responses} <= {UNKNOWN, INVALID}
    assert {topic.error_code for topic in grown.results} <= {UNKNOWN, INVALID}
    assert paths(broker.data) == before


def test_odd_names_are_topics_like_any_other(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert create(connection, *POSSIBLE) == [0] * len(POSSIBLE)
        for name in POSSIBLE:
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
        answer = connection.request(MetadataRequest(topics=None), 12)
    assert {topic.name for topic in answer.topics} == set(POSSIBLE)
    assert only_ours(broker)


def test_names_of_our_own_files_do_them_no_harm(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        codes = create(connection, *OURS, "__cluster_metadata", "__consumer_offsets")

    assert set(codes[:-2]) == {0}
    assert codes[-2] == INVALID
    assert only_ours(broker)
    broker.restart()
    assert only_ours(broker)


def test_names_that_look_alike_are_told_apart_or_refused(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert create(connection, "a.b") == [0]

        assert create(connection, "a_b", "A.b", "a.b") == [
            INVALID,
            0,
            ErrorCode.TOPIC_ALREADY_EXISTS,
        ]
        assert create(connection, "c.d", "c_d") == [0, INVALID]


def test_the_same_name_many_times_in_a_request_is_made_at_most_once(broker):
    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        codes = create(connection, *["twice"] * 50)
        answer = connection.request(MetadataRequest(topics=None), 12)

    assert set(codes) <= {0, ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_ALREADY_EXISTS}
    assert codes.count(0) <= 1
    assert len(answer.topics) <= 1


def test_groups_may_be_called_anything_and_make_no_file_by_that_name(broker):
    groups = [name for name in IMPOSSIBLE if len(name) < 1000]
    requests = [
        (FindCoordinatorRequest(coordinator_keys=groups), 6),
        *((JoinGroupRequest(group_id=name, session_timeout_ms=10_000), 9) for name in groups),
        *((OffsetCommitRequest(group_id=name), 9) for name in groups),
    ]

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        for request, version in requests:
            connection.request(request, version)

    assert only_ours(broker)
