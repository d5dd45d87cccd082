"""`ottla cert …`: a certificate authority and certificates for local use."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import output
from .errors import Exit, Failure, translate_errors
from .target import json_option

if TYPE_CHECKING:
    from types import ModuleType

_directory = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Directory of the authority and its certificates.",
)
_days = click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    help="Days until the certificate expires.",
)
_if_missing = click.option(
    "--if-missing", is_flag=True, help="Keep a certificate that exists and has not expired."
)


@click.group()
def cert() -> None:
    """Create certificates for local use.

    The first certificate also creates the authority: DIR/ca.pem is what clients trust
    (ssl.truststore.location). DIR/ca.key signs certificates; keep it secret.
    """


@cert.command("broker")
@click.argument("name", default="broker")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Host or address that clients connect to; repeatable. [default: localhost, 127.0.0.1]",
)
@_directory
@_days
@_if_missing
@json_option
def broker_certificate(
    name: str, hosts: tuple[str, ...], directory: Path, days: int, if_missing: bool, as_json: bool
) -> None:
    """Create the certificate of a broker, DIR/NAME.pem.

    It is for ssl.keystore.location of the broker.

    \b
        ottla cert broker --host localhost --host kafka.example.org
    """
    _issue(
        directory,
        name,
        hosts or ("localhost", "127.0.0.1"),
        days,
        if_missing=if_missing,
        as_json=as_json,
    )


@cert.command("client")
@click.argument("name")
@_directory
@_days
@_if_missing
@json_option
def client_certificate(
    name: str, directory: Path, days: int, if_missing: bool, as_json: bool
) -> None:
    """Create the certificate of a client, DIR/NAME.pem.

    It is for ssl.keystore.location of the client. Brokers with ssl.client.auth=required know it
    as User:CN=NAME.

    \b
        ottla cert client alice
    """
    _issue(directory, name, (), days, if_missing=if_missing, as_json=as_json)


@cert.command("show")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show names and expiry of a certificate.

    \b
        ottla cert show certs/broker.pem
    """
    certificates = _certificates()
    with translate_errors():
        try:
            facts = certificates.describe(file)
        except FileNotFoundError:
            raise Failure(f"{file} does not exist", Exit.NOT_FOUND) from None
        except ValueError:
            raise Failure(f"{file}: no certificate in PEM format found") from None
    output.print_json(facts) if as_json else output.print_facts(facts)


def _issue(
    directory: Path,
    name: str,
    hosts: tuple[str, ...],
    days: int,
    *,
    if_missing: bool,
    as_json: bool,
) -> None:
    certificates = _certificates()
    if not name or set(name) & set("/\\\0") or name in (".", "..", "ca"):
        raise click.BadParameter(f"invalid name {name!r}: it becomes a file, and 'ca' is taken")
    path = directory / f"{name}.pem"
    with translate_errors():
        try:
            if path.exists() and if_missing and certificates.expires(path) > datetime.now(UTC):
                verb = "exists"
            else:
                verb = "created"
                authority = certificates.CertificateAuthority.open(directory)
                certificates.write_keystore(path, authority.issue(name, hosts=hosts, days=days))
        except ValueError as error:
            raise Failure(f"{directory}: {error}") from None
    if as_json:
        output.print_json({"keystore": str(path), "truststore": str(directory / "ca.pem")})
        return
    click.echo(f"{path}: {verb}")
    output.note(f"to trust it: ssl.truststore.location={directory / 'ca.pem'}")


def _certificates() -> ModuleType:
    try:
        from . import certificates
    except ImportError as error:
        raise Failure(
            f"{error}; install the extra: pip install 'ottla[security]'", Exit.UNSUPPORTED
        ) from None
    return certificates
