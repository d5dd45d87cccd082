"""The pages: rendered on the server, from the queries that the REST API has too.

Pages only read. Their forms and buttons call the REST API, so that there is one way to change
anything.
"""

from __future__ import annotations

from fastapi import APIRouter

from . import access, cluster, groups, records, reference, topics

router = APIRouter(include_in_schema=False)
for module in (access, cluster, topics, records, groups, reference):
    router.include_router(module.router)
