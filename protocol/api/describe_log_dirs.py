"""DescribeLogDirs (key 35): describe the log directories and the size of the partitions in them.

Version 1 is the same as version 0.
Version 2 is the first flexible version.
Version 3 adds a top-level ErrorCode to the response.
Version 4 adds TotalBytes and UsableBytes to the response.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_LOG_DIRS
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, field


class DescribableLogDirTopic(Message):
    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class DescribeLogDirsRequest(Message, api=DESCRIBE_LOG_DIRS):
    topics: Sequence[DescribableLogDirTopic] | None = field(
        Array(DescribableLogDirTopic), nullable=1
    )


class DescribeLogDirsPartition(Message):
    partition_index: int = field(Int32)
    partition_size: int = field(Int64)
    offset_lag: int = field(Int64)
    is_future_key: bool = field(Bool)


class DescribeLogDirsTopic(Message):
    name: str = field(String)
    partitions: Sequence[DescribeLogDirsPartition] = field(Array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Message):
    error_code: int = field(Int16)
    log_dir: str = field(String)
    topics: Sequence[DescribeLogDirsTopic] = field(Array(DescribeLogDirsTopic))
    total_bytes: int = field(Int64, since=4, ignorable=True, default=-1)
    usable_bytes: int = field(Int64, since=4, ignorable=True, default=-1)


class DescribeLogDirsResponse(Message, api=DESCRIBE_LOG_DIRS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=3, ignorable=True)
    results: Sequence[DescribeLogDirsResult] = field(Array(DescribeLogDirsResult))
