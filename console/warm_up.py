"""What takes long once: done at the start, so that nobody waits for it.

The SDK compiles the codec of a message when it is used first, Jinja2 its templates, and the OpenAPI
document is made from all models.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from ottla.client import ClientError, KafkaError, UnsupportedError

from .cluster_client import ClusterClient
from .pages.rendering import load_templates


async def warm_up(app: FastAPI) -> None:
    """Load templates and the OpenAPI document, and ask the cluster once what pages ask for."""
    await asyncio.to_thread(load_templates)
    await asyncio.to_thread(app.openapi)
    if app.state.sessions.shared is not None:
        await _ask(app.state.sessions.shared.client)


async def _ask(client: ClusterClient) -> None:
    admin = client.admin
    for read in (
        client.cluster,
        client.topics,
        client.replicas,
        admin.list_groups,
        admin.list_transactions,
        admin.describe_acls,
        admin.describe_user_scram_credentials,
        admin.describe_client_quotas,
    ):
        try:
            await read()
        except (KafkaError, UnsupportedError):
            continue  # clusters need not have everything
        except ClientError:
            return  # not reachable; pages say so
