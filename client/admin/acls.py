"""ACLs: create, describe, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from ottla.protocol.acls import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from ottla.protocol.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.api.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse

from ..errors import error_of
from .requests import AdminRequests, Outcome, outcome

__all__ = [
    "CLUSTER_NAME",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclsAdmin",
    "PatternType",
    "PermissionType",
    "ResourceType",
]

E = TypeVar("E", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class AclBinding:
    """An ACL: allows or denies an operation on resources to a principal.

    `resource_name` is a name, or with PatternType.PREFIXED what names start with; "*" is every
    resource of the type. The cluster's name is "kafka-cluster". `principal` is "User:alice", or
    "User:*" for everybody; `host` is the address that a client connects from, or "*".
    """

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: PermissionType = PermissionType.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.operation.name} on {self.resource_type.name}"
            f" {self.resource_name} for {self.principal}"
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Matches ACLs; None and ANY match everything.

    PatternType.MATCH matches all ACLs that count for the resource with the name, whatever their
    patterns.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY

    @classmethod
    def of(cls, binding: AclBinding) -> AclFilter:
        """Return the filter that matches one ACL."""
        return cls(
            binding.resource_type,
            binding.resource_name,
            binding.principal,
            binding.operation,
            binding.permission,
            binding.host,
            binding.pattern_type,
        )


class AclsAdmin(AdminRequests):
    """Admin requests about ACLs. Without an authorizer they raise SECURITY_DISABLED."""

    async def create_acls(self, *acls: AclBinding) -> None:
        """Create ACLs. One that exists already is no error."""

        async def attempt(pending: list[AclBinding]) -> Mapping[AclBinding, Outcome[None]]:
            request = CreateAclsRequest(creations=list(map(_creation, pending)))
            response = await self._cluster.send_to_controller(request, CreateAclsResponse)
            return {
                acl: outcome(result.error_code, result.error_message, None)
                for acl, result in zip(pending, response.results, strict=False)
            }

        await self._each(acls, attempt, "creating ACLs")

    async def describe_acls(self, acl_filter: AclFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that a filter matches, or all."""
        wanted = acl_filter or AclFilter()
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )

        async def once() -> DescribeAclsResponse:
            response = await self._cluster.send_to_any(request, DescribeAclsResponse)
            error = error_of(response.error_code, response.error_message)
            if error is not None:
                raise error
            return response

        response = await self._cluster.retry(once, what="describing ACLs")
        return [
            AclBinding(
                _member(ResourceType, resource.resource_type),
                resource.resource_name,
                acl.principal,
                _member(AclOperation, acl.operation),
                _member(PermissionType, acl.permission_type),
                acl.host,
                _member(PatternType, resource.pattern_type),
            )
            for resource in response.resources
            for acl in resource.acls
        ]

    async def delete_acls(self, *filters: AclFilter) -> dict[AclFilter, list[AclBinding]]:
        """Delete the ACLs that filters match; return those of each filter."""

        async def attempt(
            pending: list[AclFilter],
        ) -> Mapping[AclFilter, Outcome[list[AclBinding]]]:
            request = DeleteAclsRequest(filters=list(map(_deletion, pending)))
            response = await self._cluster.send_to_controller(request, DeleteAclsResponse)
            return {
                wanted: outcome(result.error_code, result.error_message, _deleted(result))
                for wanted, result in zip(pending, response.filter_results, strict=False)
            }

        return await self._each(filters, attempt, "deleting ACLs")


def _creation(acl: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _deletion(wanted: AclFilter) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _deleted(result: DeleteAclsFilterResult) -> list[AclBinding]:
    return [
        AclBinding(
            _member(ResourceType, acl.resource_type),
            acl.resource_name,
            acl.principal,
            _member(AclOperation, acl.operation),
            _member(PermissionType, acl.permission_type),
            acl.host,
            _member(PatternType, acl.pattern_type),
        )
        for acl in result.matching_acls
        if not acl.error_code
    ]


def _member(kind: type[E], number: int) -> E:
    """Return a member by its number, UNKNOWN if it is one of a newer broker."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)
