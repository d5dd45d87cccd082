"""The records of the progress topic."""

import pytest

from ottla.client import TopicPartition
from ottla.client.spark.errors import ProgressError
from ottla.client.spark.progress import (
    COMMIT_KEY,
    COMPLETION_KEY,
    BatchCommit,
    Progress,
    StagedTransaction,
    encode_commit,
    encode_completion,
    is_task_id,
    merge_ranges,
    replay,
    task_id,
)

OUT = TopicPartition("out", 2)
COMMIT = BatchCommit(
    "5c1f", 12, [StagedTransaction("rides-0-0", 4711, 3, 5000, "out", 2, 1200)], {OUT: (1200, 6200)}
)


def test_the_last_commit_counts_and_is_complete_when_a_record_says_so():
    older = (3, COMMIT_KEY, encode_commit(BatchCommit("5c1f", 11)))
    commit = (7, COMMIT_KEY, encode_commit(COMMIT))

    assert replay([]) is None
    assert replay([older, commit]) == Progress(COMMIT, 7, is_complete=False)
    of_older = (8, COMPLETION_KEY, encode_completion(3))
    assert replay([older, commit, of_older]) == Progress(COMMIT, 7, is_complete=False)
    of_commit = (9, COMPLETION_KEY, encode_completion(7))
    assert replay([older, commit, of_commit]) == Progress(COMMIT, 7, is_complete=True)
    # The completion record of a driver that is late is harmless: there is more to verify.
    assert replay([older, commit, of_commit, of_older]) == Progress(COMMIT, 7, is_complete=False)


def test_a_commit_without_transactions_is_complete():
    assert replay([(3, COMMIT_KEY, encode_commit(BatchCommit("5c1f", 11)))]) == Progress(
        BatchCommit("5c1f", 11, [], {}), 3, is_complete=True
    )


@pytest.mark.parametrize(
    ("key", "value"), [(b"other", b"{}"), (COMMIT_KEY, None), (COMMIT_KEY, b'{"version":2}')]
)
def test_records_of_others_are_an_error(key, value):
    with pytest.raises(ProgressError):
        replay([(0, key, value)])


def test_a_commit_covers_the_batches_of_its_query_up_to_its_own():
    assert COMMIT.covers("5c1f", 12)
    assert COMMIT.covers("5c1f", 3)
    assert not COMMIT.covers("5c1f", 13)
    assert not COMMIT.covers("another", 12)
    assert not BatchCommit("", None).covers("", None)
    assert not Progress().covers("5c1f", 0)


def test_transactional_ids_of_other_prefixes_are_not_taken_for_ours():
    assert is_task_id(task_id("rides", 12, 1), "rides")
    assert not is_task_id(task_id("rides-1", 2, 0), "rides")
    assert not is_task_id(task_id("rides", 1, 0), "rides-1")
    assert not is_task_id("rides-driver", "rides")
    assert not is_task_id("ridesX1-0", "rides.")


def test_ranges_of_tasks_are_merged_by_partition():
    other = TopicPartition("out", 3)

    merged = merge_ranges([{OUT: (5, 9)}, {OUT: (2, 3), other: (0, 1)}, {}])

    assert merged == {OUT: (2, 9), other: (0, 1)}
