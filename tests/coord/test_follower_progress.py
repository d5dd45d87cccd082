"""What a leader knows of its followers."""

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
