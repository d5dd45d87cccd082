"""DescribeCluster (key 60): describe the cluster and its brokers.

Version 1 adds EndpointType: brokers or controllers. Version 2 adds fenced brokers: those that are
known, but not alive.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_CLUSTER
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, field


class DescribeClusterRequest(Message, api=DESCRIBE_CLUSTER):
    include_cluster_authorized_operations: bool = field(Bool)  # fill the ACL bitfield
    endpoint_type: int = field(Int8, since=1, default=1)  # 1 brokers 2 controllers
    include_fenced_brokers: bool = field(Bool, since=2, default=False)


class DescribeClusterBroker(Message):
    broker_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable=0, default=None)
    is_fenced: bool = field(Bool, since=2, default=False)


class DescribeClusterResponse(Message, api=DESCRIBE_CLUSTER):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    endpoint_type: int = field(Int8, since=1, default=1)  # 1 brokers 2 controllers
    cluster_id: str = field(String)
    controller_id: int = field(Int32, default=-1)
    brokers: Sequence[DescribeClusterBroker] = field(Array(DescribeClusterBroker))  # live, or all
    # ACL operation bitfield, INT32_MIN = not requested
    cluster_authorized_operations: int = field(Int32, default=-(2**31))
