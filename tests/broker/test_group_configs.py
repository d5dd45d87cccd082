"""Configs of groups: described, altered, within limits, effective, and kept by a restart."""

from __future__ import annotations

from typing import Any

from harness.brokers import a_broker
from harness.wire import connect
from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.errors import ErrorCode

GROUP = 32


async def alter(client: Any, name: str, value: str | None) -> Any:
    config = AlterableConfig(name=name, config_operation=0 if value else 1, value=value)
    resource = AlterConfigsResource(resource_type=GROUP, resource_name="g", configs=[config])
    response = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    return response.responses[0]


async def describe(client: Any) -> dict[str, tuple[str, int]]:
    resource = DescribeConfigsResource(resource_type=GROUP, resource_name="g")
    response: DescribeConfigsResponse = await client.request(
        DescribeConfigsRequest(resources=[resource])
    )
    return {one.name: (one.value, one.config_source) for one in response.results[0].configs}


async def test_a_group_has_configs_of_its_own(tmp_path):
    async with a_broker(tmp_path, {"t": 1}) as broker, connect(broker) as client:
        assert (await describe(client))["consumer.heartbeat.interval.ms"] == ("5000", 5)
        for value, code in (("1000", ErrorCode.INVALID_CONFIG), ("6000", ErrorCode.NONE)):
            result = await alter(client, "consumer.heartbeat.interval.ms", value)
            assert result.error_code == code, result.error_message
        unknown = await alter(client, "consumer.size", "1")
        assert unknown.error_code == ErrorCode.INVALID_CONFIG

    async with a_broker(tmp_path, {"u": 1}) as broker, connect(broker) as client:
        assert (await describe(client))["consumer.heartbeat.interval.ms"] == ("6000", 8)
        await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
        heartbeat: ConsumerGroupHeartbeatResponse = await client.request(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
        )
        assert (heartbeat.error_code, heartbeat.heartbeat_interval_ms) == (0, 6000)
        await alter(client, "consumer.heartbeat.interval.ms", None)
        assert (await describe(client))["consumer.heartbeat.interval.ms"] == ("5000", 5)
