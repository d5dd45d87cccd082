"""The commands of the server's side: `ottla broker …`, `ottla cluster up` and `ottla log …`.

A flag is a setting by another name. What a command does is done elsewhere, and imported when it is
asked for: `--help` must not wait for the daemon.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.broker.config.broker_config import BROKER_CONFIGS, BrokerConfig, ConfigError, ConfigKey
from ottla.broker.config.loader import load_broker_config
from ottla.cli import output

from .failures import Exit, Failure

if TYPE_CHECKING:
    from ottla.protocol.batch import Record
    from ottla.storage.dump import DumpedBatch

# Flags of `ottla broker start`, and the settings that they are.
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

# What to do when the operating system refuses.
_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or take another port: --listen HOST:PORT",
    errno.EADDRNOTAVAIL: "listen on an address of this machine: --listen HOST:PORT",
    errno.EACCES: "run as a user who may, or choose another --data-dir or --listen",
    socket.EAI_NONAME: "listen on an address of this machine: --listen HOST:PORT",
    errno.ENOENT: "choose another --data-dir",
    errno.ENOSPC: "make room, or choose another --data-dir",
    errno.EROFS: "choose another --data-dir",
}


@click.group()
def broker() -> None:
    """Run a broker, and list its settings."""


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
@click.option("--config", "file", metavar="FILE", type=Path, help="A file of KEY=VALUE lines.")
@click.option("--cluster", metavar="FILE", type=Path, help="A file that lists all brokers.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="Any setting, repeatedly.")
def start(file: Path | None, cluster: Path | None, pairs: tuple[str, ...], **flags: Any) -> None:
    """Start a broker, and serve until SIGTERM or SIGINT.

    \b
    A broker for this machine, data in ./ottla-data:
        ottla broker start
    One that others reach, by a name that they can resolve:
        ottla broker start --listen 0.0.0.0:9092 --advertise logs.example.org:9092
    Two listeners, each with a name of its own:
        ottla broker start --listen INTERNAL://10.0.0.5:9092 --listen EXTERNAL://0.0.0.0:9093
    One of a cluster, of which all brokers have the same list:
        ottla broker start --id 2 --cluster cluster.toml
    Any setting, by its name:
        ottla broker start --set log.retention.hours=24 --set log.durability=fsync

    A setting is taken from the first of these that has it: a flag or --set; the environment
    (OTTLA_NUM_PARTITIONS is num.partitions); the file of --config, in the format of Kafka's
    server.properties; the file of --cluster; the default. All settings: ottla broker settings
    """  # A real \b, which click knows.
    try:
        given = _agreed((*_from_flags(flags), *_from_pairs(pairs)))
        config = load_broker_config(given, os.environ, file, cluster)
    except ConfigError as problem:
        raise _wrong(problem) from None
    sys.exit(_run(config))


def _wrong(problem: ConfigError) -> Failure:
    return Failure(f"{problem} (all settings: ottla broker settings)", Exit.USAGE)


def _run(config: BrokerConfig) -> int:
    from ottla.broker.daemon import run
    from ottla.storage.errors import DataDirectoryError

    try:
        return run(config)
    except ConfigError as problem:
        raise Failure(str(problem), Exit.USAGE) from None
    except DataDirectoryError as problem:
        raise Failure(f"{problem}; mend that, or choose another --data-dir") from None
    except OSError as problem:
        raise Failure(_refusal(problem)) from None


def _refusal(problem: OSError) -> str:
    parts = (problem.filename, problem.strerror or str(problem))
    text = ": ".join(str(part) for part in parts if part is not None)
    advice = _ADVICE.get(problem.errno or 0)
    return f"{text}; {advice}" if advice else text


def _agreed(given: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Join what flags say: which, of what, and what. Raises ConfigError if two do not agree."""
    found: dict[str, tuple[str, str]] = {}
    for source, name, text in given:
        other, was = found.setdefault(name, (source, text))
        if was != text:
            raise ConfigError(f"{name}: {other} says {was}, and {source} says {text}")
    return {name: text for name, (_, text) in found.items()}


def _from_flags(flags: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for flag, name in _FLAGS.items():
        value = flags[flag.removeprefix("--").replace("-", "_")]
        if flag in _ADDRESSES:
            value = ",".join(map(_with_name, value)) or None
        if value is not None:
            yield flag, name, value


def _from_pairs(pairs: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: it is not KEY=VALUE")
        yield "--set", name.strip(), text.strip()


def _with_name(address: str) -> str:
    return address if "://" in address else f"PLAINTEXT://{address}"


@broker.command("settings")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@click.argument("filter", required=False, default="")
def list_settings(as_json: bool, filter: str) -> None:  # noqa: A002
    """List the settings, with defaults; those with FILTER in name or text, if it is given.

    \b
        ottla broker settings retention
    """  # A real \b, which click knows.
    wanted = filter.lower()
    found = [key for key in BROKER_CONFIGS.values() if wanted in f"{key.name} {key.doc}".lower()]
    if not found:
        raise Failure(f"no setting has {filter!r} in its name or text")
    if as_json:
        click.echo(json.dumps([_as_json(setting) for setting in found], indent=2))
    else:
        click.echo("\n".join(map(_paragraph, found)))


def _as_json(setting: ConfigKey) -> dict[str, Any]:
    return {
        "name": setting.name,
        "type": setting.type,
        "default": setting.default,
        "allowed": setting.allowed,
        "is_dynamic": setting.is_dynamic,
        "topic_name": setting.topic_name,
        "doc": setting.doc,
    }


def _paragraph(setting: ConfigKey) -> str:
    parts = [setting.doc]
    if setting.allowed:
        parts.append(f"may be {setting.allowed}")
    if not setting.is_dynamic:
        parts.append("cannot change while the broker runs")
    width = min(shutil.get_terminal_size().columns, 100)
    text = textwrap.fill(
        "; ".join(parts) + ".", width, initial_indent="    ", subsequent_indent="    "
    )
    return f"{setting.name}={setting.default}\n{text}"


_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@click.command()
@click.option(
    "--brokers",
    "count",
    metavar="NUMBER",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How many there are.",
)
@click.option(
    "--port",
    metavar="FIRST",
    type=click.IntRange(1, 65535),
    default=9092,
    show_default=True,
    help="The port of the first; each other one has the next.",
)
@click.option(
    "--data-dir",
    "folder",
    metavar="DIRECTORY",
    type=Path,
    default=Path("ottla-cluster"),
    show_default=True,
    help="The cluster file, and a data directory for each.",
)
@click.option(
    "--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of all of them."
)
@click.option(
    "--log-level",
    type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR"), case_sensitive=False),
    help="The least important lines that they log.  [default: INFO]",
)
def up(count: int, port: int, folder: Path, pairs: tuple[str, ...], log_level: str | None) -> None:
    """Start a cluster of local processes; Ctrl-C stops it.

    \b
    Three brokers at localhost:9092, 9093 and 9094, data in ./ottla-cluster:
        ottla cluster up
    Five, from another port on, with a setting:
        ottla cluster up --brokers 5 --port 19092 --set num.partitions=6

    When all of them answer it prints their addresses, which are the bootstrap address. What they
    log is shown with the name of the broker in front. If one ends by itself, the others go on. A
    second Ctrl-C ends all at once, without flushing.
    """  # A real \b, which click knows.
    import asyncio

    from .local_cluster import NotStartedError, Plan, run

    level = [("--log-level", "log.level", log_level)] if log_level else []
    try:
        plan = Plan(folder, count, port, _agreed((*level, *_from_pairs(pairs))))
        plan.check(os.environ)
        plan.write()
        sys.exit(asyncio.run(run(plan, os.environ, _say, lambda: _say_ready(plan.places))))
    except ConfigError as problem:
        raise _wrong(problem) from None
    except NotStartedError as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(_refusal(problem)) from None


def _say(number: int | None, line: str) -> None:
    """Show a line of a broker, or of the cluster."""
    if number is not None:
        colour = _COLOURS[number % len(_COLOURS)]
        line = f"{click.style(f'broker-{number}', fg=colour)} | {line}"
    # Where it is no terminal, click takes colours out.
    click.echo(line, err=True, color=False if "NO_COLOR" in os.environ else None)


def _say_ready(places: Sequence[str]) -> None:
    _say(None, f"{len(places)} brokers answer; Ctrl-C stops them. The bootstrap address:")
    click.echo(",".join(places))


@click.group()
def log() -> None:
    """Look into the files of a data directory."""


@log.command("dump")
@click.option("--records", is_flag=True, help="Show the records of each batch too.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each batch.")
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
def dump_files(files: tuple[Path, ...], records: bool, as_json: bool) -> None:
    """Show the batches of segment files, and what is wrong with them.

    \b
        ottla log dump ottla-data/orders-0/*.log
        ottla log dump --records ottla-data/orders-0/00000000000000000000.log
    """  # A real \b, which click knows.
    from ottla.storage.dump import dump

    total = sum(path.stat().st_size for path in files)
    with output.progress("reading", total, is_shown=not sys.stdout.isatty()) as bar:
        for path in files:
            if not as_json:
                click.echo(f"{path}:")
            for batch in dump(path, records=records):
                click.echo(_dumped_json(path, batch) if as_json else _dumped_text(batch))
                bar.advance(batch.size)


def _dumped_text(batch: DumpedBatch) -> str:
    facts = {"position": batch.position, "size": batch.size, **batch.facts}
    if batch.error:
        facts["error"] = batch.error
    lines = [
        "  " + _fields(facts),
        *("    " + _fields(_record(record)) for record in batch.records),
    ]
    return "\n".join(lines)


def _fields(facts: dict[str, Any]) -> str:
    # Texts are quoted as in JSON: what is in a record cannot write to a terminal.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in facts.items())


def _dumped_json(path: Path, batch: DumpedBatch) -> str:
    shown = {"file": str(path), "position": batch.position, "size": batch.size, **batch.facts}
    shown["error"] = batch.error
    if batch.records:
        shown["content"] = [_record(record) for record in batch.records]
    return json.dumps(shown)


def _record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _readable(record.key),
        "value": _readable(record.value),
        "headers": [(name, _readable(value)) for name, value in record.headers],
    }


def _readable(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
