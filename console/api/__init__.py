"""The REST API, under /api/v1: one module per kind of resource."""

from __future__ import annotations

from fastapi import APIRouter

from . import brokers, groups, live, records, security, topics, transactions
from .dependencies import PROBLEMS

router = APIRouter(prefix="/api/v1", responses=PROBLEMS)
for module in (brokers, topics, records, groups, transactions, security, live):
    router.include_router(module.router)
