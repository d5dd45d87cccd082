"""`ottla profile …`: named clusters, kept in a file of the user.

default = "local"

[profiles.local]
bootstrap = "localhost:9092"
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from . import output, security
from .errors import Exit, Failure, translate_errors

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OPTION_TYPES: dict[str, tuple[type, ...]] = {
    "bootstrap": (str,),
    "client_id": (str,),
    "timeout": (int, float),
    **dict.fromkeys(security.PROFILE_ENTRIES, (str,)),
}


@dataclass(frozen=True, slots=True)
class Profiles:
    """The content of the file."""

    default: str | None = None
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self.by_name:
            names = ", ".join(self.by_name) or "none"
            raise Failure(
                f"Unknown profile {name!r}, existing profiles: {names}; create one:"
                f" ottla profile set {name} --bootstrap HOST:PORT",
                Exit.USAGE,
            )
        return self.by_name[name]


def path() -> Path:
    """Return the path of the file."""
    return Path(click.get_app_dir("ottla")) / "profiles.toml"


def load() -> Profiles:
    """Read the file, if it exists."""
    file = path()
    if not file.exists():
        return Profiles()
    import tomllib

    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{file}: {error}; fix or delete the file", Exit.USAGE) from error
    profiles = document.get("profiles", {})
    default = document.get("default")
    for name, options in profiles.items():
        _check(file, name, options)
    if default is not None and default not in profiles:
        raise Failure(f"{file}: unknown default profile {default!r}", Exit.USAGE)
    return Profiles(default, profiles)


def _check(file: Path, name: str, options: Any) -> None:
    if not isinstance(options, dict) or not isinstance(options.get("bootstrap"), str):
        raise Failure(f"{file}: profile {name!r}: bootstrap is missing", Exit.USAGE)
    for key, value in options.items():
        if (
            key not in _OPTION_TYPES
            or isinstance(value, bool)
            or not isinstance(value, _OPTION_TYPES[key])
        ):
            allowed = ", ".join(_OPTION_TYPES)
            raise Failure(
                f"{file}: profile {name!r}: invalid entry {key} = {value!r}, allowed: {allowed}",
                Exit.USAGE,
            )


def save(profiles: Profiles) -> None:
    """Replace the file atomically."""
    import tempfile

    lines = []
    if profiles.default is not None:
        lines += [f"default = {_quoted(profiles.default)}", ""]
    for name, options in profiles.by_name.items():
        lines += [
            f"[profiles.{name}]",
            *(f"{key} = {_quoted(value)}" for key, value in options.items()),
            "",
        ]
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
        new.write("\n".join(lines))
    os.replace(new.name, file)


def _quoted(value: Any) -> str:
    # A JSON string is a TOML string.
    return json.dumps(value)


@click.group()
def profile() -> None:
    """Manage named clusters for --profile."""


@profile.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_profiles(as_json: bool) -> None:
    """List the profiles and the path of their file.

    \b
        ottla profile list
    """
    existing = load()
    if as_json:
        output.print_json(
            {"file": str(path()), "default": existing.default, "profiles": existing.by_name}
        )
        return
    output.print_table(
        ("profile", "bootstrap", "default"),
        (
            (name, options["bootstrap"], "yes" if name == existing.default else "")
            for name, options in existing.by_name.items()
        ),
    )
    output.note(f"file: {path()}")


@profile.command("set")
@click.argument("name")
@click.option("-b", "--bootstrap", metavar="HOST:PORT,…", required=True, help="Bootstrap servers.")
@click.option("--client-id", help="Client id sent to brokers.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Timeout when no broker answers.",
)
@security.profile_options
@click.option("--use", is_flag=True, help="Make it the default profile.")
def set_profile(name: str, use: bool, **options: Any) -> None:
    """Create or change a profile.

    \b
        ottla profile set staging --bootstrap logs1.example.org:9092,logs2.example.org:9092
        ottla profile set prod -b logs.example.org:9093 --security-protocol SASL_SSL \\
            --sasl-mechanism SCRAM-SHA-256 --sasl-username alice --sasl-password-env KAFKA_PASSWORD

    Secrets are not kept in the profile: they are read from a variable or a file.
    """
    from ottla.client.cluster import parse_addresses

    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"invalid profile name {name!r}: use letters, digits, '_' and '-'")
    try:
        parse_addresses(options["bootstrap"])
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    existing = load()
    given = {key: value for key, value in options.items() if value is not None}
    given |= security.entries_of(options)
    is_first = not existing.by_name
    with translate_errors():
        save(
            Profiles(
                name if use or is_first else existing.default, {**existing.by_name, name: given}
            )
        )


@profile.command("use")
@click.argument("name")
def use_profile(name: str) -> None:
    """Make a profile the default.

    \b
        ottla profile use staging
    """
    existing = load()
    _ = existing[name]
    with translate_errors():
        save(Profiles(name, existing.by_name))


@profile.command("delete")
@click.argument("name")
def delete_profile(name: str) -> None:
    """Delete a profile.

    \b
        ottla profile delete staging
    """
    existing = load()
    _ = existing[name]
    others = {other: options for other, options in existing.by_name.items() if other != name}
    with translate_errors():
        save(Profiles(None if existing.default == name else existing.default, others))
