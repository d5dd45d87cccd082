"""ACLs and principals in tests.

async with an_authorized_broker(tmp_path) as broker:
    allow(broker, "User:alice", AclOperation.READ, ResourceType.TOPIC, "orders")
    async with connect_as(broker, "alice") as client: …

A connection gets its principal as authentication would set it, so that these tests need no TLS and
no SASL; `tests/broker` has tests of both with ACLs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.wire import WireClient, connect
from ottla.broker import Broker, BrokerConfig
from ottla.coord.acls import ACL_VALUE, AclBinding, acl_key
from ottla.coord.principal import user
from ottla.protocol.acls import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

ADMIN = "User:admin"


@asynccontextmanager
async def an_authorized_broker(path: Path, **configs: Any) -> AsyncIterator[Broker]:
    """Run a broker with an authorizer, whose super user is admin."""
    defaults = {"authorizer_class_name": "acl", "super_users": ADMIN}
    config = BrokerConfig(
        log_dir=str(path), listeners="PLAINTEXT://127.0.0.1:0", **{**defaults, **configs}
    )
    async with Broker(config) as broker:
        yield broker


@asynccontextmanager
async def connect_as(broker: Broker, name: str) -> AsyncIterator[WireClient]:
    """Connect, and let the connection have the principal of a user."""
    before = set(broker.server._connections)
    async with connect(broker) as client:
        while not (accepted := set(broker.server._connections) - before):
            await asyncio.sleep(0)
        (connection,) = accepted
        connection.principal = user(name)
        yield client


def binding(
    principal: str,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    pattern_type: PatternType = PatternType.LITERAL,
    permission: PermissionType = PermissionType.ALLOW,
    host: str = "*",
) -> AclBinding:
    return AclBinding(resource_type, name, pattern_type, principal, host, operation, permission)


async def allow(broker: Broker, *bindings: AclBinding) -> None:
    """Create ACLs without a request."""
    await broker.controller.change(lambda: [(acl_key(one), ACL_VALUE) for one in bindings])


async def revoke_all(broker: Broker) -> None:
    """Delete all ACLs without a request."""
    await broker.controller.change(
        lambda: [(acl_key(one), None) for one in broker.topics.image.acls]
    )
