"""`ottla broker …`: start a broker and list its configs.

Flags are shorthands for broker configs. The daemon is imported when the command runs, so that
`--help` does not wait for it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from ottla.broker.config.broker_config import BROKER_CONFIGS, BrokerConfig, ConfigError, ConfigKey
from ottla.broker.config.loader import load_broker_config

from .errors import Exit, Failure
from .local_console import LocalConsole, bootstrap_of, console_option

# Flags of `ottla broker start`, and the configs they set.
_FLAGS = {
    "--id": "broker.id",
    "--data-dir": "log.dir",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--num-partitions": "num.partitions",
    "--metrics": "metrics.listener",
    "--log-level": "log.level",
    "--log-format": "log.format",
}
_ADDRESSES = ("--listen", "--advertise")
_METAVARS = {
    "--id": "NUMBER",
    "--data-dir": "DIRECTORY",
    "--listen": "[NAME://]HOST:PORT",
    "--advertise": "[NAME://]HOST:PORT",
    "--num-partitions": "NUMBER",
    "--metrics": "HOST:PORT",
}

# Advice by errno of a failed start.
_ADVICE = {
    errno.EADDRINUSE: "stop the process on that port, or use another: --listen HOST:PORT",
    errno.EADDRNOTAVAIL: "use an address of this machine: --listen HOST:PORT",
    errno.EACCES: "check the permissions, or use another --data-dir or --listen",
    socket.EAI_NONAME: "use an address of this machine: --listen HOST:PORT",
    errno.ENOENT: "use another --data-dir",
    errno.ENOSPC: "free some space, or use another --data-dir",
    errno.EROFS: "use another --data-dir",
}


@click.group()
def broker() -> None:
    """Run a broker and list its configs."""


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    for flag, name in reversed(_FLAGS.items()):
        key = BROKER_CONFIGS[name]
        command = click.option(
            flag,
            metavar=_METAVARS.get(flag),
            multiple=flag in _ADDRESSES,
            type=click.Choice(key.choices, case_sensitive=False) if key.choices else str,
            help=f"{name}: {key.doc} [default: {key.default or 'empty'}]",
        )(command)
    return command


@broker.command()
@_flags
@click.option(
    "--config",
    "file",
    metavar="FILE",
    type=Path,
    help="Config file in the format of Kafka's server.properties.",
)
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(0, 65535),
    help="Short for --listen 127.0.0.1:NUMBER.",
)
@click.option("--cluster", metavar="FILE", type=Path, help="Cluster file that lists all brokers.")
@click.option(
    "--set", "pairs", metavar="KEY=VALUE", multiple=True, help="Any broker config; repeatable."
)
@console_option
def start(
    file: Path | None,
    port: int | None,
    cluster: Path | None,
    pairs: tuple[str, ...],
    console_port: int | None,
    **flags: Any,
) -> None:
    """Start a broker and serve until SIGTERM or SIGINT.

    \b
    A broker for this machine, with its data in ./ottla-data:
        ottla broker start
    A broker for other machines, with an address they can resolve, in a trusted network:
        ottla broker start --listen 0.0.0.0:9092 --advertise logs.example.org:9092 \\
            --set allow.insecure.listeners=true
    Two named listeners:
        ottla broker start --listen INTERNAL://10.0.0.5:9092 --listen EXTERNAL://0.0.0.0:9093
    A member of a cluster; all brokers share the cluster file:
        ottla broker start --id 2 --cluster cluster.toml
    Any broker config by its name:
        ottla broker start --set log.retention.hours=24 --set log.durability=fsync
    With the web console on http://127.0.0.1:8080:
        ottla broker start --console

    Configs are read from, in order of precedence: flags and --set; the environment
    (OTTLA_NUM_PARTITIONS sets num.partitions); the file given with --config; the cluster file; the
    defaults. List all configs: ottla broker configs
    """
    try:
        listen = [] if port is None else [("--port", "listeners", f"PLAINTEXT://127.0.0.1:{port}")]
        flags_given = merge_flags((*listen, *_from_flags(flags), *config_pairs(pairs)))
        warnings: list[str] = []
        config = load_broker_config(flags_given, os.environ, file, cluster, warnings.append)
    except ConfigError as problem:
        raise config_failure(problem) from None
    if console_port is None:
        sys.exit(_run(config, warnings))
    with LocalConsole(console_port, bootstrap_of(config)):
        sys.exit(_run(config, warnings))


def config_failure(problem: ConfigError) -> Failure:
    """Return the usage error of an invalid config."""
    return Failure(f"{problem} (list all configs: ottla broker configs)", Exit.USAGE)


def _run(config: BrokerConfig, warnings: Iterable[str]) -> int:
    from ottla.broker.daemon import run
    from ottla.storage.errors import DataDirectoryError

    try:
        return run(config, warnings)
    except ConfigError as problem:
        raise Failure(str(problem), Exit.USAGE) from None
    except DataDirectoryError as problem:
        raise Failure(f"{problem}; fix it, or use another --data-dir") from None
    except OSError as problem:
        raise Failure(os_failure(problem)) from None


def os_failure(problem: OSError) -> str:
    """Return the error message of a failed system call, with advice."""
    parts = (problem.filename, problem.strerror or str(problem))
    text = ": ".join(str(part) for part in parts if part is not None)
    advice = _ADVICE.get(problem.errno or 0)
    return f"{text}; {advice}" if advice else text


def merge_flags(given: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Merge (flag, config, value) triples. Raises ConfigError if two flags disagree."""
    merged: dict[str, tuple[str, str]] = {}
    for flag, name, text in given:
        other_flag, other_text = merged.setdefault(name, (flag, text))
        if other_text != text:
            raise ConfigError(
                f"Conflicting values for {name}: {other_flag} {other_text} and {flag} {text}"
            )
    return {name: text for name, (_, text) in merged.items()}


def _from_flags(flags: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for flag, name in _FLAGS.items():
        value = flags[flag.removeprefix("--").replace("-", "_")]
        if flag in _ADDRESSES:
            value = ",".join(map(_with_name, value)) or None
        if value is not None:
            yield flag, name, value


def config_pairs(pairs: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Parse --set options. Raises ConfigError."""
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Invalid option --set {pair}: expected KEY=VALUE")
        yield "--set", name.strip(), text.strip()


def _with_name(address: str) -> str:
    return address if "://" in address else f"PLAINTEXT://{address}"


@broker.command("configs")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@click.argument("filter", required=False, default="")
def list_configs(as_json: bool, filter: str) -> None:  # noqa: A002
    """List broker configs with their defaults.

    With FILTER, only those that contain it in their name or description.

    \b
        ottla broker configs retention
    """
    keys = [
        key for key in BROKER_CONFIGS.values() if filter.lower() in f"{key.name} {key.doc}".lower()
    ]
    if not keys:
        raise Failure(f"No config contains {filter!r} in its name or description")
    if as_json:
        click.echo(json.dumps([_as_json(key) for key in keys], indent=2))
    else:
        click.echo("\n".join(map(_paragraph, keys)))


def _as_json(key: ConfigKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "type": key.type,
        "default": key.default,
        "allowed": key.allowed,
        "is_dynamic": key.is_dynamic,
        "topic_name": key.topic_name,
        "doc": key.doc,
    }


def _paragraph(key: ConfigKey) -> str:
    parts = [key.doc]
    if key.allowed:
        parts.append(f"allowed: {key.allowed}")
    if not key.is_dynamic:
        parts.append("read-only while the broker runs")
    width = min(shutil.get_terminal_size().columns, 100)
    text = textwrap.fill(
        "; ".join(parts) + ".", width, initial_indent="    ", subsequent_indent="    "
    )
    return f"{key.name}={key.default}\n{text}"
