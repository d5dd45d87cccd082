"""The admin client."""

from __future__ import annotations

from .acls import AclsAdmin
from .configs import ConfigsAdmin
from .groups import GroupsAdmin
from .quotas import QuotasAdmin
from .replicas import ReplicasAdmin
from .topics import TopicsAdmin
from .transactions import TransactionsAdmin
from .users import UsersAdmin


class Admin(
    TopicsAdmin,
    ConfigsAdmin,
    GroupsAdmin,
    TransactionsAdmin,
    ReplicasAdmin,
    AclsAdmin,
    QuotasAdmin,
    UsersAdmin,
):
    """Describes and changes a cluster. `bootstrap` is "host:port,…" or a list of such."""
