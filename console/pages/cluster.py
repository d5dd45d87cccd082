"""The cluster: overview, brokers, transactions, ACLs, users and quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ottla.client import ErrorCode, KafkaError, UnsupportedError

from .. import queries
from ..api.dependencies import ClientDep
from ..models import Acl, Entity, Quota, Transaction, TransactionDetails, User, entries_of
from ..problems import Problem
from . import units
from .rendering import paged, render

router = APIRouter()

_ATTENTION_ROWS = 10


@router.get("/")
async def show_overview(request: Request, client: ClientDep) -> Response:
    """Show brokers and the health of partitions."""
    cluster, brokers, unhealthy = await asyncio.gather(
        queries.cluster(client),
        queries.brokers(client),
        queries.topics(client, internal=True, unhealthy=True, sort="health", descending=True),
    )
    return render(
        request,
        "overview.html",
        section="overview",
        cluster=cluster,
        brokers=brokers,
        disk=max((one.size_bytes or 0 for one in brokers), default=0),
        unhealthy=unhealthy[:_ATTENTION_ROWS],
        unhealthy_count=len(unhealthy),
    )


@router.get("/brokers/{broker}")
async def show_broker(request: Request, client: ClientDep, broker: int) -> Response:
    """Show a broker and its configs."""
    found = next((one for one in await queries.brokers(client) if one.id == broker), None)
    if found is None:
        raise Problem(404, f"There is no broker {broker}")
    configs = []
    reason = "A broker that is down does not tell its configs."
    if found.is_alive:
        try:
            described = await client.admin.describe_broker_configs(broker)
            configs = entries_of(described[broker].values())
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            reason = f"Not shown: {error.detail or error.code.message}."
    return render(
        request,
        "broker.html",
        section="overview",
        broker=found,
        configs=configs,
        reason=reason,
        api=f"/api/v1/brokers/{broker}/configs",
    )


@router.get("/transactions")
async def show_transactions(request: Request, client: ClientDep) -> Response:
    """Show the transactional ids."""

    async def read() -> list[Transaction]:
        return [Transaction.of(one) for one in await client.admin.list_transactions()]

    return await _listed(request, "transactions", read, _transaction_text)


@router.get("/transactions/{transactional_id:path}")
async def show_transaction(request: Request, client: ClientDep, transactional_id: str) -> Response:
    """Show a transactional id, and its transaction."""
    described = await client.admin.describe_transactions(transactional_id)
    transaction = TransactionDetails.described(described[transactional_id])
    return render(request, "transaction.html", section="transactions", transaction=transaction)


@router.get("/acls")
async def show_acls(request: Request, client: ClientDep) -> Response:
    """Show the ACLs."""

    async def read() -> list[Acl]:
        found = [Acl.of(one) for one in await client.admin.describe_acls()]
        return sorted(found, key=lambda one: (one.principal, one.resource_type, one.resource_name))

    return await _listed(request, "acls", read, lambda one: f"{one.principal} {one.resource_name}")


@router.get("/users")
async def show_users(request: Request, client: ClientDep) -> Response:
    """Show the users of SCRAM."""

    async def read() -> list[User]:
        known = await client.admin.describe_user_scram_credentials()
        return [User(name=name, mechanisms=some) for name, some in sorted(known.items())]

    return await _listed(request, "users", read, lambda one: str(one.name))


@router.get("/quotas")
async def show_quotas(request: Request, client: ClientDep) -> Response:
    """Show the client quotas."""

    async def read() -> list[Quota]:
        known = await client.admin.describe_client_quotas()
        found = [Quota(entity=Entity.of(one), quotas=quotas) for one, quotas in known.items()]
        return sorted(found, key=_quota_text)

    return await _listed(request, "quotas", read, _quota_text, quota_names=units.QUOTAS)


def _transaction_text(one: Any) -> str:
    return str(one.transactional_id)


def _quota_text(one: Any) -> str:
    return " ".join(part or "" for part in (one.entity.user, one.entity.client_id, one.entity.ip))


async def _listed(
    request: Request,
    name: str,
    read: Callable[[], Awaitable[Sequence[Any]]],
    text_of: Callable[[Any], str],
    **context: Any,
) -> Response:
    """Return the page of a list, or what the cluster lacks."""
    search = request.query_params.get("search", "")
    reason = ""
    found: Sequence[Any] = ()
    try:
        found = await read()
    except UnsupportedError as error:
        reason = str(error)
    except KafkaError as error:
        if error.code not in (ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION):
            raise
        reason = error.detail or error.code.message
    matching = [one for one in found if search.casefold() in text_of(one).casefold()]
    return render(
        request,
        f"{name}.html",
        section=name,
        search=search,
        reason=reason,
        **context,
        **paged(request, matching),
    )
