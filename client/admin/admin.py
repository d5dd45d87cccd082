"""The admin client."""

from __future__ import annotations

from .acls import AclsAdmin
from .configs import ConfigsAdmin
from .quotas import QuotasAdmin
from .replicas import ReplicasAdmin
from .share_groups import ShareGroupsAdmin
from .topics import TopicsAdmin
from .transactions import TransactionsAdmin
from .users import UsersAdmin


class Admin(
    TopicsAdmin,
    ConfigsAdmin,
    ShareGroupsAdmin,
    TransactionsAdmin,
    ReplicasAdmin,
    AclsAdmin,
    QuotasAdmin,
    UsersAdmin,
):
    """Describes and changes a cluster. `bootstrap` is "host:port,…" or a list of such."""
