"""The admin client."""

from __future__ import annotations

from .configs import ConfigsAdmin
from .groups import GroupsAdmin
from .topics import TopicsAdmin
from .transactions import TransactionsAdmin


class Admin(TopicsAdmin, ConfigsAdmin, GroupsAdmin, TransactionsAdmin):
    """Describes and changes a cluster. `bootstrap` is "host:port,…" or a list of such."""
