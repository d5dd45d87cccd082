"""The progress of an exactly-once sink, as records of its progress topic.

A commit record says that a batch is committed, and in which transactions its rows are. It becomes
visible when the driver's own transaction commits: that is the moment at which the batch is decided.
The transactions of the tasks are committed afterwards, and a completion record says that all are.

    key "commit"      {"version": 1, "query": "5c1f…", "batch": 12,
                       "transactions": [["rides-0-0", 4711, 3, 5000, "out", 2, 1200], …],
                       "ranges": [["out", 2, 1200, 6200], …]}
    key "completion"  {"version": 1, "commit": 34}

A transaction has its transactional id, producer id and epoch, the number of its records, and the
partition and offset of one of them. The ranges hold the records of all transactions, and possibly
others. A completion names the offset of its commit record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..types import TopicPartition
from .errors import ProgressError

COMMIT_KEY = b"commit"
COMPLETION_KEY = b"completion"

_VERSION = 1

#: The offsets of a partition that hold records of a batch: the first, and the one after the last.
Ranges = Mapping[TopicPartition, tuple[int, int]]


class StagedTransaction(NamedTuple):
    """An open transaction with the rows of one task."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    record_count: int
    #: The first record in one of its partitions.
    topic: str
    partition: int
    offset: int

    @property
    def producer(self) -> tuple[int, int]:
        """The producer id and epoch, which no other transaction has."""
        return self.producer_id, self.producer_epoch


@dataclass(frozen=True)
class BatchCommit:
    """A batch that is committed."""

    #: The id of the streaming query; "" for batch writes.
    query: str
    #: None for a batch write without an id.
    batch_id: int | None
    #: Those that remain to be committed.
    transactions: Sequence[StagedTransaction] = ()
    ranges: Ranges | None = None

    def covers(self, query: str, batch_id: int | None) -> bool:
        """Whether a batch of a query was committed with this one, or before."""
        if self.batch_id is None or batch_id is None:
            return False
        return self.query == query and batch_id <= self.batch_id


@dataclass(frozen=True)
class Progress:
    """The last commit that a driver has seen; there may be none."""

    commit: BatchCommit | None = None
    #: The offset of its record, which identifies it.
    offset: int = -1
    #: Whether all of its transactions are committed.
    is_complete: bool = True

    def covers(self, query: str, batch_id: int | None) -> bool:
        """Whether a batch is committed."""
        return self.commit is not None and self.commit.covers(query, batch_id)


def progress_topic(prefix: str) -> str:
    """Return the topic of commit records."""
    return f"{prefix}-progress"


def driver_id(prefix: str) -> str:
    """Return the transactional id of drivers."""
    return f"{prefix}-driver"


def task_id(prefix: str, partition: int, attempt: int) -> str:
    """Return the transactional id of an attempt of a task.

    Attempts have different ids, because Spark may run two of them at a time, and chooses the one
    that counts when both have written their rows.
    """
    return f"{prefix}-{partition}-{attempt}"


def is_task_id(transactional_id: str, prefix: str) -> bool:
    """Whether a transactional id is one of `task_id`."""
    return re.fullmatch(rf"{re.escape(prefix)}-\d+-\d+", transactional_id) is not None


def merge_ranges(all_ranges: Iterable[Ranges]) -> dict[TopicPartition, tuple[int, int]]:
    """Return, for each partition, one range that contains those of all tasks."""
    merged: dict[TopicPartition, tuple[int, int]] = {}
    for ranges in all_ranges:
        for tp, (first, end) in ranges.items():
            known = merged.get(tp, (first, end))
            merged[tp] = min(first, known[0]), max(end, known[1])
    return merged


# Records.


def encode_commit(commit: BatchCommit) -> bytes:
    """Return the value of a commit record."""
    ranges = sorted((commit.ranges or {}).items())
    return _encode(
        {
            "version": _VERSION,
            "query": commit.query,
            "batch": commit.batch_id,
            "transactions": [list(transaction) for transaction in commit.transactions],
            "ranges": [[*tp, first, end] for tp, (first, end) in ranges],
        }
    )


def encode_completion(offset: int) -> bytes:
    """Return the value of a completion record for the commit record at an offset."""
    return _encode({"version": _VERSION, "commit": offset})


def replay(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> Progress | None:
    """Return the progress after records (offset, key, value); None if there is no commit."""
    commit: tuple[int, BatchCommit] | None = None
    completed = -1
    for offset, key, value in records:
        if key == COMMIT_KEY:
            commit = offset, _decode_commit(_decode(value))
        elif key == COMPLETION_KEY:
            completed = _decode(value)["commit"]
        else:
            raise ProgressError(f"Unknown key {key!r} at offset {offset}")
    if commit is None:
        return None
    offset, last = commit
    return Progress(last, offset, is_complete=not last.transactions or completed == offset)


def _decode_commit(fields: Mapping[str, Any]) -> BatchCommit:
    return BatchCommit(
        fields["query"],
        fields["batch"],
        [StagedTransaction(*transaction) for transaction in fields["transactions"]],
        {
            TopicPartition(topic, partition): (first, end)
            for topic, partition, first, end in fields["ranges"]
        },
    )


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(value: bytes | None) -> Mapping[str, Any]:
    fields = json.loads(value or b"null")
    if not isinstance(fields, dict) or fields.get("version") != _VERSION:
        raise ProgressError(f"Invalid record {value!r}: expected version {_VERSION}")
    return fields
