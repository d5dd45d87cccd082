"""What a leader knows of its followers."""

from dataclasses import replace

from ottla.coord.follower_progress import FollowerProgress
from ottla.coord.partition_state import PartitionState

STATE = PartitionState(replicas=(0, 1, 2), leader=0, leader_epoch=0, isr=(0, 1, 2))


def test_a_fetch_that_waited_in_the_socket_proves_nothing() -> None:
    progress = FollowerProgress(STATE, 0, 0, 0)

    progress.record_fetch(1, 7, 10, leader_end_offset=10, now_ms=1000)
    assert progress.fetches[1].previous_at_ms == -1

    # The leader was paused: this fetch was sent after the response to the one before it.
    progress.record_fetch(1, 7, 10, leader_end_offset=10, now_ms=60_000)
    assert progress.fetches[1].previous_at_ms == 1000


def test_consumers_read_from_followers_that_are_in_sync_and_have_the_offset() -> None:
    progress = FollowerProgress(replace(STATE, replicas=(0, 1, 2, 3)), 0, 0, 0)
    for broker_id, offset, start_offset in ((1, 10, 5), (2, 12, 0), (3, 12, 0)):
        progress.record_fetch(
            broker_id, 7, offset, leader_end_offset=12, now_ms=1000, start_offset=start_offset
        )
    # Broker 3 has all records, but may lag at any time: it is not in the ISR.
    assert progress.readable_at(10) == [2, 1]
    assert progress.readable_at(11) == [2]
    assert progress.readable_at(4) == [2]
    assert progress.readable_at(13) == []
