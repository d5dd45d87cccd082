"""`ottla profile …`: clusters by name, in a small file of the user's.

default = "local"

[profiles.local]
bootstrap = "localhost:9092"
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from . import output
from .failures import Exit, Failure, translated

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_KNOWN: dict[str, tuple[type, ...]] = {
    "bootstrap": (str,),
    "client_id": (str,),
    "timeout": (int, float),
}


@dataclass(frozen=True, slots=True)
class Profiles:
    """What is in the file."""

    default: str | None = None
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self.by_name:
            names = ", ".join(self.by_name) or "none so far"
            raise Failure(
                f"there is no profile {name!r}, only {names}; make one:"
                f" ottla profile set {name} --bootstrap HOST:PORT",
                Exit.USAGE,
            )
        return self.by_name[name]


def path() -> Path:
    """Say where the file is."""
    return Path(click.get_app_dir("ottla")) / "profiles.toml"


def load() -> Profiles:
    """Read the file, if there is one."""
    file = path()
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{file}: {error}; mend it, or delete it", Exit.USAGE) from error
    profiles = found.get("profiles", {})
    default = found.get("default")
    for name, settings in profiles.items():
        _check(file, name, settings)
    if default is not None and default not in profiles:
        raise Failure(f"{file}: the default, {default!r}, is no profile", Exit.USAGE)
    return Profiles(default, profiles)


def _check(file: Path, name: str, settings: Any) -> None:
    if not isinstance(settings, dict) or not isinstance(settings.get("bootstrap"), str):
        raise Failure(f"{file}: profile {name!r} has no bootstrap", Exit.USAGE)
    for key, value in settings.items():
        if key not in _KNOWN or isinstance(value, bool) or not isinstance(value, _KNOWN[key]):
            known = ", ".join(_KNOWN)
            raise Failure(
                f"{file}: profile {name!r}: {key} = {value!r} is none of {known}", Exit.USAGE
            )


def save(profiles: Profiles) -> None:
    """Write the file, all of it or nothing."""
    lines = []
    if profiles.default is not None:
        lines += [f"default = {_quoted(profiles.default)}", ""]
    for name, settings in profiles.by_name.items():
        lines += [
            f"[profiles.{name}]",
            *(f"{key} = {_quoted(value)}" for key, value in settings.items()),
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
    """Name clusters, so that --profile NAME is enough."""


@profile.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_profiles(as_json: bool) -> None:
    """List the profiles, and where they are kept.

    \b
        ottla profile list
    """
    known = load()
    if as_json:
        output.print_json(
            {"file": str(path()), "default": known.default, "profiles": known.by_name}
        )
        return
    output.print_table(
        ("profile", "bootstrap", "default"),
        (
            (name, settings["bootstrap"], "yes" if name == known.default else "")
            for name, settings in known.by_name.items()
        ),
    )
    output.note(f"in {path()}")


@profile.command("set")
@click.argument("name")
@click.option("-b", "--bootstrap", metavar="HOST:PORT,…", required=True, help="Its brokers.")
@click.option("--client-id", help="What to tell brokers who we are.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long to try.",
)
@click.option("--use", is_flag=True, help="Take it when no profile is named.")
def set_profile(name: str, use: bool, **settings: Any) -> None:
    """Make a profile, or change it.

    \b
        ottla profile set staging --bootstrap logs1.example.org:9092,logs2.example.org:9092
    """
    from ottla.client.cluster import parse_addresses

    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not of letters, digits, _ and -")
    try:
        parse_addresses(settings["bootstrap"])
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    known = load()
    given = {key: value for key, value in settings.items() if value is not None}
    is_first = not known.by_name
    with translated():
        save(Profiles(name if use or is_first else known.default, {**known.by_name, name: given}))


@profile.command("use")
@click.argument("name")
def use_profile(name: str) -> None:
    """Take a profile when none is named.

    \b
        ottla profile use staging
    """
    known = load()
    _ = known[name]
    with translated():
        save(Profiles(name, known.by_name))


@profile.command("delete")
@click.argument("name")
def delete_profile(name: str) -> None:
    """Forget a profile.

    \b
        ottla profile delete staging
    """
    known = load()
    _ = known[name]
    rest = {other: settings for other, settings in known.by_name.items() if other != name}
    with translated():
        save(Profiles(None if known.default == name else known.default, rest))
