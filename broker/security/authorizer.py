"""The authorizer: decides with the ACLs of the metadata image, and remembers its decisions.

A decision that is remembered costs one dict access, so a check on the produce path costs less than
a microsecond. The ACLs' version says when they have changed: then all decisions are forgotten. The
number of remembered decisions and the length of their names are limited: clients choose the names
that they ask for.

Denied attempts are logged by `ottla.authorizer`, a few of each principal in ten seconds, and
counted. The formatters of the log escape what clients choose, so that nobody can forge a line.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.coord.acls import Acls
from ottla.coord.principal import KafkaPrincipal
from ottla.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from ..requests.dispatch import RequestContext

logger = logging.getLogger("ottla.authorizer")

_MAX_DECISIONS = 100_000
#: Decisions about longer names are not remembered. The names of topics have up to 249 characters.
_MAX_REMEMBERED_NAME = 255
#: Lines per principal in a window, and principals that have lines in it.
_MAX_LINES = 10
_WINDOW_SECONDS = 10.0
_MAX_PRINCIPALS = 1000
#: Characters of a name in the log.
_MAX_LOGGED_NAME = 256

#: The name is None if it is about any resource of the type.
_Question = tuple[KafkaPrincipal, str, AclOperation, ResourceType, str | None]


class Authorizer:
    """Decides what principals may do."""

    def __init__(
        self, acls: Acls, super_users: Iterable[KafkaPrincipal], *, allows_if_none: bool
    ) -> None:
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._allows_if_none = allows_if_none
        self._decisions: dict[_Question, bool] = {}
        self._version = acls.version
        self._window_end = 0.0
        # Denied attempts by principal, in this window.
        self._attempts: Counter[KafkaPrincipal] = Counter()
        #: Denied attempts, by operation and resource type.
        self.denials: Counter[tuple[str, str]] = Counter()

    def allows(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs: bool = True,
    ) -> bool:
        """Whether the client of a request may do something; with `logs`, log it if not."""
        question = (context.principal, context.client_host, operation, resource_type, name)
        if self._version != self._acls.version:
            self._forget()
        decision = self._decisions.get(question)
        if decision is None:
            decision = self._decide(question)
        if not decision and logs:
            self._log_denied(context, operation, resource_type, name)
        return decision

    def allows_any(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether the client of a request may do something with any resource of a type."""
        question = (context.principal, context.client_host, operation, resource_type, None)
        if self._version != self._acls.version:
            self._forget()
        decision = self._decisions.get(question)
        return self._decide(question) if decision is None else decision

    def operations(
        self,
        context: RequestContext,
        operations: Iterable[AclOperation],
        resource_type: ResourceType,
        name: str,
    ) -> int:
        """Return those of some operations that the client of a request may do, as a bit field."""
        return sum(
            1 << operation
            for operation in operations
            if self.allows(context, operation, resource_type, name, logs=False)
        )

    def _forget(self) -> None:
        self._version = self._acls.version
        self._decisions.clear()

    def _decide(self, question: _Question) -> bool:
        decision = question[0] in self._super_users or self._decide_by_acls(*question)
        if len(question[-1] or "") <= _MAX_REMEMBERED_NAME:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[question] = decision
        return decision

    def _decide_by_acls(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | None,
    ) -> bool:
        acls, allows_if_none = self._acls, self._allows_if_none
        if name is None:
            return (allows_if_none and acls.decide_by_default(resource_type)) or acls.decide_any(
                str(principal), host, operation, resource_type
            )
        return acls.decide(
            str(principal), host, operation, resource_type, name, allows_if_none=allows_if_none
        )

    def _log_denied(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        self.denials[operation.name, resource_type.name] += 1
        if not logger.isEnabledFor(logging.INFO):
            return
        now, principal = time.monotonic(), context.principal
        if now >= self._window_end:
            self._window_end = now + _WINDOW_SECONDS
            self._attempts.clear()
        self._attempts[principal] += 1
        count = self._attempts[principal]
        if count > _MAX_LINES or len(self._attempts) > _MAX_PRINCIPALS:
            return
        logger.info(
            "denied",
            extra={
                "principal": str(principal)[:_MAX_LOGGED_NAME],
                "host": context.client_host,
                "operation": operation.name,
                "resource": resource_type.name,
                "resource_name": "" if name == CLUSTER_NAME else name[:_MAX_LOGGED_NAME],
                "api": context.api.name,
                **({"suppresses": "further ones for some seconds"} if count == _MAX_LINES else {}),
            },
        )
