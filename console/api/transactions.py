"""Transactions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ..models import Page, Transaction, TransactionDetails
from .dependencies import ClientDep, NamePath, PagingDep, Writable

router = APIRouter(tags=["transactions"])


@router.get("/transactions")
async def list_transactions(
    client: ClientDep,
    paging: PagingDep,
    search: Annotated[str, Query(max_length=249, description="A part of the id.")] = "",
) -> Page[Transaction]:
    """Return the transactional ids of all coordinators."""
    listed = await client.admin.list_transactions()
    found = [
        Transaction.of(one)
        for one in listed
        if search.casefold() in one.transactional_id.casefold()
    ]
    return Page[Transaction].of(found, paging.offset, paging.limit)


@router.get("/transactions/{transactional_id:path}")
async def get_transaction(client: ClientDep, transactional_id: NamePath) -> TransactionDetails:
    """Return a transactional id, and its transaction."""
    described = await client.admin.describe_transactions(transactional_id)
    return TransactionDetails.described(described[transactional_id])


@router.delete("/transactions/{transactional_id:path}", status_code=204, dependencies=[Writable])
async def abort_transaction(client: ClientDep, transactional_id: NamePath) -> None:
    """Abort the open transaction of a transactional id, and fence its producer."""
    await client.admin.describe_transactions(transactional_id)
    await client.admin.fence_producers(transactional_id)
