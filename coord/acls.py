"""ACLs: bindings, filters, and the decision whether a principal may do something (KIP-11, KIP-290).

A binding allows or denies an operation to a principal, from a host, on the resources that a pattern
matches: the one with a name (LITERAL), those whose names start with it (PREFIXED), or all of a type
(LITERAL "*"). Bindings are records of the metadata log, one record each:

    acl/["topic","orders","literal","User:alice","*","read","allow"]     tombstone: removed

**Decision.** Of all bindings that match a resource:

1. a DENY of the operation, or of ALL, denies;
2. an ALLOW of the operation, of ALL, or of one that implies it, allows;
3. if there is no binding at all, for anybody, the authorizer's default counts;
4. otherwise the operation is denied.

Implication counts for ALLOW only: a DENY of READ leaves DESCRIBE alone.

A look-up costs one dict access for the literal name, one for "*", and one for each length that a
prefix of the type has, whatever the number of bindings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ottla.protocol.acls import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

from .addresses import canonical_address

#: A literal name that matches every resource of its type.
WILDCARD = "*"
ANY_HOST = "*"
ANY_USER = "User:*"
#: Bindings that a cluster may have.
MAX_ACLS = 100_000
KIND = "acl"

#: The operations whose ALLOW implies that of another one.
_IMPLIED_BY = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
_ALLOWING = {
    operation: frozenset((operation, AclOperation.ALL, *_IMPLIED_BY.get(operation, ())))
    for operation in AclOperation
}


class AclBinding(NamedTuple):
    """One ACL. `principal` is written as TYPE:NAME; `host` is an address, or "*"."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    def matches_resource(self, name: str) -> bool:
        """Whether the binding counts for the resource of its type with this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

    def applies_to(self, principal: str, host: str) -> bool:
        """Whether the binding counts for a principal that connects from a canonical address."""
        if self.principal not in (principal, ANY_USER):
            return False
        return self.host == ANY_HOST or canonical_address(self.host) == host


class InvalidAclError(ValueError):
    """A binding that no cluster can have."""


def check_binding(binding: AclBinding) -> None:
    """Raise InvalidAclError if a binding is not valid."""
    problem = ""
    if binding.resource_type is ResourceType.ANY:
        problem = "the resource type must not be ANY"
    elif binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = f"the pattern type must be LITERAL or PREFIXED, not {binding.pattern_type.name}"
    elif binding.operation is AclOperation.ANY:
        problem = "the operation must not be ANY"
    elif binding.permission is PermissionType.ANY:
        problem = "the permission must be ALLOW or DENY"
    elif not binding.resource_name:
        problem = "the resource name is empty"
    elif binding.resource_type is ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        problem = f"the name of the cluster resource must be {CLUSTER_NAME}"
    elif not all(binding.principal.partition(":")):
        problem = "the principal must be written as TYPE:NAME, such as User:alice"
    elif not binding.host:
        problem = f"the host is empty; {ANY_HOST} is every host"
    if problem:
        raise InvalidAclError(f"Invalid ACL: {problem}")


class AclFilter(NamedTuple):
    """Matches bindings; None and ANY match everything.

    The pattern type LITERAL or PREFIXED matches that type only, ANY both. MATCH matches all
    bindings that count for the resource with the name.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether a binding is one of those that the filter asks for."""
        if self.resource_type not in (ResourceType.ANY, binding.resource_type):
            return False
        if self.operation not in (AclOperation.ANY, binding.operation):
            return False
        if self.permission not in (PermissionType.ANY, binding.permission):
            return False
        if self.principal not in (None, binding.principal) or self.host not in (None, binding.host):
            return False
        name, pattern_type = self.resource_name, self.pattern_type
        if pattern_type is PatternType.MATCH:
            return name is None or binding.matches_resource(name)
        if pattern_type not in (PatternType.ANY, binding.pattern_type):
            return False
        return name in (None, binding.resource_name)


#: The bindings of one name, in the order of their creation.
_Bindings = dict[AclBinding, None]


class _Patterns:
    """The bindings of one resource type, by name."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Bindings] = {}
        self.prefixed: dict[str, _Bindings] = {}
        #: The number of prefixes of each length.
        self.prefix_lengths: Counter[int] = Counter()

    def add(self, binding: AclBinding) -> None:
        name = binding.resource_name
        is_prefix = binding.pattern_type is PatternType.PREFIXED
        by_name = self.prefixed if is_prefix else self.literal
        if is_prefix and name not in by_name:
            self.prefix_lengths[len(name)] += 1
        by_name.setdefault(name, {})[binding] = None

    def remove(self, binding: AclBinding) -> None:
        name = binding.resource_name
        is_prefix = binding.pattern_type is PatternType.PREFIXED
        by_name = self.prefixed if is_prefix else self.literal
        del by_name[name][binding]
        if by_name[name]:
            return
        del by_name[name]
        if is_prefix:
            self.prefix_lengths[len(name)] -= 1
            if not self.prefix_lengths[len(name)]:
                del self.prefix_lengths[len(name)]


class Acls:
    """All bindings of a cluster. `replay` is the only method that changes them."""

    def __init__(self) -> None:
        self._patterns = {kind: _Patterns() for kind in ResourceType}
        self._bindings: _Bindings = {}
        #: Changes with the bindings: what was derived from another version is outdated.
        self.version = 0

    def __len__(self) -> int:
        return len(self._bindings)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._bindings

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._bindings)

    def replay(self, name: str, content: Any) -> None:
        """Apply a record: the name in its key, and its content, None for a tombstone."""
        binding = _parse(name)
        self.version += 1
        if content is not None:
            self._bindings[binding] = None
            self._patterns[binding.resource_type].add(binding)
        elif binding in self._bindings:
            del self._bindings[binding]
            self._patterns[binding.resource_type].remove(binding)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a snapshot."""
        for binding in self._bindings:
            yield acl_key(binding), ACL_VALUE

    def of_resource(self, resource_type: ResourceType, name: str) -> Iterator[AclBinding]:
        """Yield the bindings that count for a resource."""
        patterns = self._patterns[resource_type]
        yield from patterns.literal.get(name, ())
        if name != WILDCARD:
            yield from patterns.literal.get(WILDCARD, ())
        for length in patterns.prefix_lengths:
            if length <= len(name):
                yield from patterns.prefixed.get(name[:length], ())

    def candidates(self, wanted: AclFilter) -> Iterable[AclBinding]:
        """Return the bindings that a filter may match, each once."""
        if wanted.resource_type is ResourceType.ANY or wanted.resource_name is None:
            return self._bindings
        return self.of_resource(wanted.resource_type, wanted.resource_name)

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the bindings that a filter matches."""
        return list(filter(wanted.matches, self.candidates(wanted)))

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        allows_if_none: bool = False,
    ) -> bool:
        """Whether a principal may do something with a resource.

        `allows_if_none` is the answer if no binding at all counts for the resource.
        """
        allowing = _ALLOWING[operation]
        is_allowed = has_any = False
        for binding in self.of_resource(resource_type, name):
            has_any = True
            if not binding.applies_to(principal, host):
                continue
            if binding.permission is PermissionType.DENY:
                if binding.operation in (operation, AclOperation.ALL):
                    return False
            elif binding.operation in allowing:
                is_allowed = True
        return is_allowed if has_any else allows_if_none

    def decide_by_default(self, resource_type: ResourceType) -> bool:
        """Whether there may be resources of a type for which no binding counts."""
        return WILDCARD not in self._patterns[resource_type].literal

    def decide_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there may be a resource of a type with which a principal may do something."""
        patterns = self._patterns[resource_type]
        allowing = _ALLOWING[operation]
        denying = (operation, AclOperation.ALL)

        def has(bindings: Iterable[AclBinding], permission: PermissionType) -> bool:
            operations = denying if permission is PermissionType.DENY else allowing
            return any(
                binding.permission is permission
                and binding.operation in operations
                and binding.applies_to(principal, host)
                for binding in bindings
            )

        def is_denied(name: str) -> bool:
            """Whether a pattern denies everything that starts with a name."""
            prefixes = (name[:length] for length in patterns.prefix_lengths if length <= len(name))
            return any(
                has(patterns.prefixed.get(prefix, ()), PermissionType.DENY) for prefix in prefixes
            )

        if has(patterns.literal.get(WILDCARD, ()), PermissionType.DENY):
            return False
        for name, bindings in patterns.literal.items():
            if not has(bindings, PermissionType.ALLOW):
                continue
            if name == WILDCARD:
                return True
            if not has(bindings, PermissionType.DENY) and not is_denied(name):
                return True
        return any(
            has(bindings, PermissionType.ALLOW) and not is_denied(prefix)
            for prefix, bindings in patterns.prefixed.items()
        )


#: The value of a binding's record: the key says everything.
ACL_VALUE = b"{}"


def acl_key(binding: AclBinding) -> bytes:
    """Return the key of a binding's record."""
    content = [
        binding.resource_type.name.lower(),
        binding.resource_name,
        binding.pattern_type.name.lower(),
        binding.principal,
        binding.host,
        binding.operation.name.lower(),
        binding.permission.name.lower(),
    ]
    return f"{KIND}/{json.dumps(content, separators=(',', ':'))}".encode()


def _parse(name: str) -> AclBinding:
    resource_type, resource_name, pattern_type, principal, host, operation, permission = json.loads(
        name
    )
    return AclBinding(
        ResourceType[resource_type.upper()],
        resource_name,
        PatternType[pattern_type.upper()],
        principal,
        host,
        AclOperation[operation.upper()],
        PermissionType[permission.upper()],
    )
