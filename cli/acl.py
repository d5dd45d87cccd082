"""`ottla acl …`: who may do what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from . import output
from .errors import Exit, Failure
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import AclBinding, AclFilter

_OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster-action"),
    *("describe-configs", "alter-configs", "idempotent-write"),
)
_COLUMNS = ("resource", "name", "pattern", "principal", "permission", "operation", "host")


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option, text in (
        ("--cluster", "The cluster itself."),
        ("--transactional-id", "A transactional id; '*' is every one."),
        ("--group", "A consumer group; '*' is every group."),
        ("--topic", "A topic; '*' is every topic."),
    ):
        if option == "--cluster":
            command = click.option(option, is_flag=True, help=text)(command)
        else:
            command = click.option(option, metavar="NAME", help=text)(command)
    return command


_prefixed = click.option("--prefixed", is_flag=True, help="All resources whose name starts so.")
_host = click.option("--host", metavar="ADDRESS", help="Only for clients at this address.")
_principal_filter = click.option(
    "--principal", metavar="USER", help="Only ACLs of this principal: alice or User:alice."
)
_operations = click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(_OPERATIONS, case_sensitive=False),
    help="What is allowed; repeatable: " + ", ".join(_OPERATIONS) + ".",
)


@click.group()
def acl() -> None:
    """List, create and delete ACLs."""


@acl.command("list")
@_principal_filter
@_resource_options
@json_option
@connected
def list_acls(target: Target, principal: str | None, as_json: bool, **resource: Any) -> None:
    """List ACLs; with a name, those that count for that resource.

    \b
        ottla acl list
        ottla acl list --topic orders
        ottla acl list --principal alice
    """
    wanted = _filter(principal, resource, is_exact=False)
    with target.admin() as admin:
        found = admin.describe_acls(wanted)
    _print(found, as_json=as_json)


@acl.command("create")
@click.argument("principal", metavar="USER")
@_resource_options
@_prefixed
@_operations
@click.option("--deny", is_flag=True, help="Deny instead of allow; that wins over all allows.")
@_host
@json_option
@connected
def create_acls(
    target: Target,
    principal: str,
    prefixed: bool,
    operations: tuple[str, ...],
    deny: bool,
    host: str | None,
    as_json: bool,
    **resource: Any,
) -> None:
    """Allow a user operations on a resource, or deny them.

    Whoever may read, write, delete or alter may describe, too. '*' is every user.

    \b
        ottla acl create alice --topic orders --operation read --operation write
        ottla acl create alice --group billing- --prefixed --operation read
    """
    from ottla.client.admin import AclBinding, AclOperation, PatternType, PermissionType

    named = _resource(resource)
    if named is None:
        raise click.UsageError("One of --topic, --group, --transactional-id, --cluster is required")
    if not operations:
        raise click.UsageError("--operation is required, such as --operation read")
    _check_host(host)
    acls = [
        AclBinding(
            *named,
            _principal(principal),
            AclOperation[_enum_name(operation)],
            PermissionType.DENY if deny else PermissionType.ALLOW,
            host or "*",
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        )
        for operation in dict.fromkeys(operations)
    ]
    with target.admin() as admin:
        admin.create_acls(*acls)
    _print(acls, as_json=as_json)


def _check_host(host: str | None) -> None:
    """Raise BadParameter for a host that no client has: an ACL that denies would have no effect."""
    import ipaddress

    if host in (None, "*"):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise click.BadParameter(
            f"Invalid address {host!r}: expected one such as 10.0.0.1, not a name or a network",
            param_hint="'--host'",
        ) from None


@acl.command("delete")
@_principal_filter
@_resource_options
@_prefixed
@_operations
@_host
@yes_option
@json_option
@connected
def delete_acls(
    target: Target,
    principal: str | None,
    prefixed: bool,
    operations: tuple[str, ...],
    host: str | None,
    yes: bool,
    as_json: bool,
    **resource: Any,
) -> None:
    """Delete the ACLs that all options match.

    \b
        ottla acl delete --principal alice --topic orders --yes
    """
    import dataclasses

    from ottla.client.admin import AclOperation

    if principal is None and _resource(resource) is None:
        raise click.UsageError("--principal or a resource is required: not all ACLs at once")
    wanted = _filter(principal, resource, is_exact=True, is_prefixed=prefixed)
    wanted = dataclasses.replace(wanted, host=host)
    filters = [
        dataclasses.replace(wanted, operation=AclOperation[_enum_name(operation)])
        for operation in dict.fromkeys(operations)
    ] or [wanted]
    with target.admin() as admin:
        if not yes:
            found = [binding for one in filters for binding in admin.describe_acls(one)]
            _print(found, as_json=False, to_stderr=True)
            confirm(f"delete {len(found)} ACLs", yes)
        deleted = admin.delete_acls(*filters)
    bindings = [binding for removed in deleted.values() for binding in removed or ()]
    if bindings or as_json:
        _print(bindings, as_json=as_json)
    else:
        raise Failure("No ACL matches; list them: ottla acl list", Exit.NOT_FOUND)


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _enum_name(operation: str) -> str:
    return operation.upper().replace("-", "_")


def _resource(options: dict[str, Any]) -> tuple[Any, str] | None:
    from ottla.client.admin import ResourceType
    from ottla.protocol.acls import CLUSTER_NAME

    given = [(name, value) for name, value in options.items() if value]
    if len(given) > 1:
        raise click.UsageError("--topic, --group, --transactional-id, --cluster: only one of them")
    if not given:
        return None
    name, value = given[0]
    return ResourceType[name.upper()], CLUSTER_NAME if name == "cluster" else value


def _filter(
    principal: str | None, resource: dict[str, Any], *, is_exact: bool, is_prefixed: bool = False
) -> AclFilter:
    from ottla.client.admin import AclFilter, PatternType, ResourceType

    named = _resource(resource)
    exact = PatternType.PREFIXED if is_prefixed else PatternType.LITERAL
    pattern = exact if is_exact else PatternType.MATCH
    return AclFilter(
        resource_type=ResourceType.ANY if named is None else named[0],
        resource_name=None if named is None else named[1],
        principal=None if principal is None else _principal(principal),
        pattern_type=PatternType.ANY if named is None else pattern,
    )


def _print(acls: Iterable[AclBinding], *, as_json: bool, to_stderr: bool = False) -> None:
    def text(member: Any) -> str:
        return str(member.name).lower().replace("_", "-")

    rows = [
        (
            text(one.resource_type),
            one.resource_name,
            text(one.pattern_type),
            one.principal,
            text(one.permission),
            text(one.operation),
            one.host,
        )
        for one in acls
    ]
    output.print_rows(_COLUMNS, sorted(rows), as_json=as_json, to_stderr=to_stderr)
