"""`ottla user …`: users that authenticate with SCRAM."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from . import output
from .errors import Exit, Failure
from .outcomes import Outcomes
from .target import Target, connected, json_option
from .topic import confirm, yes_option

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_users = click.argument("users", metavar="USER...", nargs=-1, required=True)


@click.group()
def user() -> None:
    """List, create and delete users (SCRAM)."""


@user.command("list")
@json_option
@connected
def list_users(target: Target, as_json: bool) -> None:
    """List the users and their mechanisms.

    \b
        ottla user list
    """
    with target.admin() as admin:
        listed = admin.describe_user_scram_credentials()
    output.print_rows(
        ("user", "mechanism", "iterations"),
        [
            (name, mechanism, iterations)
            for name, mechanisms in sorted(listed.items())
            for mechanism, iterations in mechanisms.items()
        ],
        as_json=as_json,
    )


@user.command("create")
@click.argument("name", metavar="USER")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable with the password.")
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the password. [default: ask for it, or read a line from stdin]",
)
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    help="SCRAM-SHA-256 or SCRAM-SHA-512; repeatable. [default: both]",
)
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16_384),
    default=8192,
    show_default=True,
    help="Iterations of the hash: more make passwords harder to guess.",
)
@json_option
@connected
def create_user(
    target: Target,
    name: str,
    password_env: str | None,
    password_file: Path | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    as_json: bool,
) -> None:
    """Create a user, or change the password.

    The password is never an argument: other users of this machine could see it.

    \b
        ottla user create alice --password-env ALICE_PASSWORD
        ottla user create alice --password-file alice.secret
    """
    password = _password(name, password_env, password_file)
    chosen = mechanisms or _MECHANISMS
    with target.admin() as admin:
        admin.create_user(name, password, mechanisms=chosen, iterations=iterations)
    output.print_done(
        [{"user": name, "mechanisms": list(chosen)}],
        [f"{name}: created for {' and '.join(chosen)}"],
        as_json=as_json,
    )


@user.command("delete")
@_users
@yes_option
@json_option
@connected
def delete_users(target: Target, users: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete users; connections that are open stay open.

    \b
        ottla user delete alice --yes
    """
    confirm(f"delete {', '.join(users)}", yes)
    outcomes = Outcomes("user", users)
    with target.admin() as admin:
        for name in outcomes.attempt(admin.delete_users):
            outcomes.succeed(name, "deleted")
    outcomes.print(as_json=as_json)


def _password(name: str, variable: str | None, file: Path | None) -> str:
    if variable is not None and file is not None:
        raise click.UsageError("--password-env and --password-file are mutually exclusive")
    if variable is not None:
        password = os.environ.get(variable)
        if password is None:
            raise Failure(f"The environment variable {variable} is not set", Exit.USAGE)
    elif file is not None:
        password = file.read_text(encoding="utf-8").rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt(
            f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Failure(
            "The password is empty: give it with --password-env, --password-file or on stdin",
            Exit.USAGE,
        )
    return password
