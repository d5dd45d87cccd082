"""`ottla quota …`: fair shares of users, client ids and addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import output
from .errors import Exit, Failure
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import QuotaEntity

#: The name of all that have no quota of their own.
DEFAULT = "<default>"


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option, text in (
        ("--ip", "Address that clients connect from."),
        ("--client-id", "Client id."),
        ("--user", f"User; '{DEFAULT}' is every one without quotas of its own."),
    ):
        command = click.option(option, metavar="NAME", help=text)(command)
    return command


@click.group()
def quota() -> None:
    """List, set and delete client quotas."""


@quota.command("list")
@_entity_options
@json_option
@connected
def list_quotas(target: Target, as_json: bool, **names: str | None) -> None:
    """List quotas.

    \b
        ottla quota list
        ottla quota list --user alice
    """
    with target.admin() as admin:
        found = admin.describe_client_quotas(_entity(names))
    rows = [
        (
            *(_name(part) for part in (entity.user, entity.client_id, entity.ip)),
            name,
            _number(value),
        )
        for entity, quotas in found.items()
        for name, value in sorted(quotas.items())
    ]
    output.print_rows(
        ("user", "client_id", "ip", "quota", "value"),
        sorted(rows, key=str),
        as_json=as_json,
    )


@quota.command("set")
@click.argument("quotas", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@_entity_options
@json_option
@connected
def set_quotas(target: Target, quotas: tuple[str, ...], as_json: bool, **names: str | None) -> None:
    """Set quotas of a user, a client id, both, or an address.

    producer_byte_rate and consumer_byte_rate are bytes per second and broker, request_percentage
    is time of request handling, controller_mutation_rate is partitions per second, and
    connection_creation_rate, for --ip, connections per second.

    \b
        ottla quota set --user alice producer_byte_rate=1000000
        ottla quota set --client-id '<default>' consumer_byte_rate=5000000
    """
    values = dict(map(_pair, quotas))
    entity = _named(names)
    with target.admin() as admin:
        admin.alter_client_quotas(entity, values)
    output.print_done(
        [{"entity": str(entity), **values}],
        [f"{entity}: {', '.join(f'{name}={value:g}' for name, value in values.items())}"],
        as_json=as_json,
    )


@quota.command("delete")
@click.argument("quotas", metavar="[QUOTA...]", nargs=-1)
@_entity_options
@yes_option
@json_option
@connected
def delete_quotas(
    target: Target, quotas: tuple[str, ...], yes: bool, as_json: bool, **names: str | None
) -> None:
    """Delete quotas of a user, client id or address.

    Without a name, all its quotas.

    \b
        ottla quota delete --user alice producer_byte_rate --yes
    """
    entity = _named(names)
    with target.admin() as admin:
        known = admin.describe_client_quotas(entity, strict=True).get(entity, {})
        chosen = quotas or tuple(sorted(known))
        missing = [name for name in chosen if name not in known]
        if missing or not chosen:
            what = ", ".join(missing) or "quotas"
            raise Failure(f"{entity} has no {what}; list them: ottla quota list", Exit.NOT_FOUND)
        confirm(f"delete {', '.join(chosen)} of {entity}", yes)
        admin.alter_client_quotas(entity, unset=chosen)
    output.print_done(
        [{"entity": str(entity), "deleted": list(chosen)}],
        [f"{entity}: deleted {', '.join(chosen)}"],
        as_json=as_json,
    )


def _pair(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
    if not equals or not name:
        raise click.BadParameter(f"{text!r}: expected QUOTA=VALUE, such as producer_byte_rate=1e6")
    return name, number


def _named(names: dict[str, str | None]) -> QuotaEntity:
    if not any(names.values()):
        raise click.UsageError("--user, --client-id or --ip is required")
    return _entity(names)


def _entity(names: dict[str, str | None]) -> QuotaEntity:
    from ottla.client.admin import QuotaEntity, QuotaName

    parts = {kind: QuotaName.DEFAULT if name == DEFAULT else name for kind, name in names.items()}
    return QuotaEntity(**parts)


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value


def _name(part: Any) -> str | None:
    return None if part is None else str(part)
