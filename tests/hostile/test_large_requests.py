"""Requests that name as many elements as they may do not hold up other connections."""

from contextlib import ExitStack

import pytest

from harness.attack import append, create_topic, open_connections, unharmed
from harness.bystander import Bystanders
from harness.daemon import Daemon, peak_mib
from harness.wire import BlockingWireClient, frame_of
from ottla.protocol.api import fetch, list_offsets, offset_for_leader_epoch, write_txn_markers

#: Below four per partition that the broker may have.
COUNT = 79_000


def large_fetch(**fields):
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = fetch.FetchTopic(topic="t", partitions=[partition] * COUNT)
    return frame_of(fetch.FetchRequest(topics=[topic], **fields), 11)


def large_list_offsets():
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name="t", partitions=[partition] * COUNT)
    return frame_of(list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)


def large_offset_for_leader_epoch():
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="t", partitions=[partition] * COUNT)
    return frame_of(offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic]), 4)


def large_write_txn_markers():
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        coordinator_epoch=0,
        topics=[
            write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0] * (COUNT // 8))
        ],
    )
    return frame_of(write_txn_markers.WriteTxnMarkersRequest(markers=[marker] * 4), 1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("large")) as started:
        create_topic(started, "t")
        append(started, b"value", 3)
        yield started


@pytest.mark.process
def test_large_requests_do_not_hold_up_a_bystander(broker, tmp_path):
    frames = (
        large_fetch(max_wait_ms=0, min_bytes=1),
        large_fetch(max_wait_ms=50, min_bytes=2**31 - 1),
        large_list_offsets(),
        large_offset_for_leader_epoch(),
        large_write_txn_markers(),
    )
    with Bystanders(broker, tmp_path) as bystanders, BlockingWireClient(broker) as client:
        for frame in frames:
            client.send(frame)
            assert len(client.frame()) > COUNT
    bystanders.result().check_latency()


def test_large_fetches_of_many_clients_are_decoded_one_at_a_time(broker):
    """A decoded request takes ten times the memory of its frame."""
    frame = large_fetch(max_wait_ms=0, min_bytes=1)
    with unharmed(broker, growth_mib=110), ExitStack() as stack:
        before = peak_mib(broker)
        clients = open_connections(broker, stack, 3, frame)
        for client in clients:
            assert len(client.frame()) > COUNT
        assert peak_mib(broker) - before < 110
