"""The part of the blocking admin client that lists topics, which is quick to import."""

from __future__ import annotations

from typing import Any

from ..admin.topics import TopicsAdmin as AsyncTopicsAdmin
from .client import BlockingClient, blocking, signature_of


class TopicsAdmin(BlockingClient[AsyncTopicsAdmin]):
    """Lists topics, for the command line and its completion."""

    @signature_of(AsyncTopicsAdmin)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    list_topics = blocking(AsyncTopicsAdmin.list_topics)
