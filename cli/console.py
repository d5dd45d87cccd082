"""`ottla console`: serve the web console and the REST API of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import Exit, Failure
from .target import Target, connected

if TYPE_CHECKING:
    from ottla.console.config import ConsoleConfig

_NICENESS = 5
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TOKEN_VARIABLE = "OTTLA_CONSOLE_TOKEN"  # noqa: S105  # a name


@click.command()
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others than loopback need --token or --login.",
)
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on.",
)
@click.option("--read-only", is_flag=True, help="Reject every change.")
@click.option(
    "--token",
    metavar="TOKEN",
    envvar=_TOKEN_VARIABLE,
    show_envvar=True,
    help="Bearer token that every request needs.",
)
@click.option(
    "--login",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    help="Let users log in with their SASL credentials, by this mechanism.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Host name by which browsers may reach the console; repeatable.",
)
@click.option("--tls-certificate", metavar="FILE", type=Path, help="PEM file: serve HTTPS.")
@click.option("--tls-key", metavar="FILE", type=Path, help="PEM file with the private key.")
@click.option(
    "--until-stdin-closes", is_flag=True, hidden=True, help="Serve LocalConsole, and end with it."
)
@connected
def console(
    target: Target,
    host: str,
    port: int,
    read_only: bool,
    token: str | None,
    login: str | None,
    allowed_hosts: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Serve a web console and a REST API for a cluster.

    \b
    On http://127.0.0.1:8080, for the cluster at localhost:9092:
        ottla console
    For another cluster, without changes:
        ottla console --bootstrap logs.example.org:9092 --read-only --port 8081
    For a team, each with their own SASL credentials:
        ottla console --command-config tls.properties --login SCRAM-SHA-256 \\
            --host 0.0.0.0 --allow-host console.example.org

    Works with any Kafka-compatible cluster, and needs the extra ottla[console].
    """
    try:
        from ottla.console.config import ConsoleConfig
        from ottla.console.server import bind, run
    except ImportError as error:
        raise Failure(
            f'The console needs {error.name}: install it with pip install "ottla[console]"'
        ) from None
    try:
        config = ConsoleConfig(
            bootstrap=target.bootstrap,
            security=target.security,
            timeout=target.timeout,
            host=host,
            port=port,
            allowed_hosts=allowed_hosts,
            read_only=read_only,
            token=token,
            login_mechanism=login,
        )
    except ValueError as error:
        raise Failure(f"{error} (--token, --login)", Exit.USAGE) from None
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    try:
        bound = bind(config)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure(f"{host}:{port}: {reason}; use another --port") from None

    if until_stdin_closes:
        # Brokers beside it come first.
        os.nice(_NICENESS)

    def ready() -> None:
        click.echo(f"console for {target.bootstrap}: {address_of(config, tls_certificate)}")

    run(
        config,
        bound,
        ready,
        certificate=tls_certificate,
        key=tls_key,
        until_stdin_closes=until_stdin_closes,
    )


def address_of(config: ConsoleConfig, certificate: Path | None) -> str:
    """Return the URL of a console."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if certificate else 'http'}://{host}:{config.port}"
