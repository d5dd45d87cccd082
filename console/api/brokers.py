"""The cluster, its brokers and their configs."""

from __future__ import annotations

from fastapi import APIRouter

from .. import queries
from ..models import Broker, Cluster, Config, ConfigChanges, Page, entries_of
from ..problems import Problem
from .dependencies import BrokerPath, ClientDep, PagingDep, Writable, rejecting_values

router = APIRouter(tags=["cluster"])


@router.get("/cluster")
async def get_cluster(client: ClientDep) -> Cluster:
    """Return the cluster as a whole: brokers, topics, and the health of partitions."""
    return await queries.cluster(client)


@router.get("/brokers")
async def list_brokers(client: ClientDep, paging: PagingDep) -> Page[Broker]:
    """Return the brokers, those that are down included."""
    return Page[Broker].of(await queries.brokers(client), paging.offset, paging.limit)


@router.get("/brokers/{broker}")
async def get_broker(client: ClientDep, broker: BrokerPath) -> Broker:
    """Return a broker."""
    for one in await queries.brokers(client):
        if one.id == broker:
            return one
    raise Problem(404, f"There is no broker {broker}")


@router.get("/brokers/{broker}/configs")
async def list_broker_configs(client: ClientDep, broker: BrokerPath) -> list[Config]:
    """Return the configs of a broker, overridden ones first."""
    configs = (await client.admin.describe_broker_configs(broker))[broker]
    return entries_of(configs.values())


@router.patch(
    "/brokers/{broker}/configs",
    dependencies=[Writable],
    openapi_extra={"x-example": {"set": {"log.retention.ms": "3600000"}}},
)
async def alter_broker_configs(
    client: ClientDep, broker: BrokerPath, changes: ConfigChanges
) -> list[Config]:
    """Change configs of a broker, and return them."""
    with rejecting_values():
        await client.admin.alter_broker_configs(
            broker, changes.set, unset=changes.unset, validate_only=changes.validate_only
        )
    return await list_broker_configs(client, broker)
