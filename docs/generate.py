"""Writes those parts of docs/ that follow from the code.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if they are not what they would be

A generated part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

from ottla.__main__ import ottla
from ottla.broker.config.broker_config import BROKER_CONFIGS, NO_LIMIT, ConfigKey
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.cli.errors import Exit
from ottla.cli.target import VARIABLES
from ottla.coord.consumer.states import ConsumerGroupState
from ottla.coord.states import PREDECESSORS, GroupState
from ottla.protocol.configdef import LONG_MAX
from ottla.protocol.errors import ErrorCode, Retry
from ottla.protocol.registry import APIS
from ottla.storage.config import TOPIC_CONFIGS

DOCS = Path(__file__).resolve().parent

# Options that are documented once for all commands.
COMMON_OPTIONS = ("bootstrap", "profile", "timeout")
RETRY = {Retry.NEVER: "", Retry.LATER: "yes", Retry.REFRESHED: "yes, after a metadata refresh"}


def apis() -> str:
    """Return the table of APIs and versions."""
    lines = [
        "| key | API | versions | flexible from | served | purpose |",
        "|---:|---|---|---|---|---|",
    ]
    for api in APIS.values():
        versions = str(api.versions)
        if api.advertised != api.versions:
            versions += f" (advertised as {api.advertised})"
        flexible = api.versions.flexible_since
        never = flexible is None or flexible > api.versions.last
        source = f"[{api.name}](../protocol/api/{api.module_name}.py)"
        purpose = (sys.modules[api.request.__module__].__doc__ or "").splitlines()[0]
        purpose = purpose.partition(": ")[2].removesuffix(".")
        served = (
            f"[yes](../broker/requests/handlers/{api.module_name}.py)"
            if api.key in SUPPORTED_APIS
            else ""
        )
        flexibility = "never" if never else flexible
        lines.append(
            f"| {api.key} | {source} | {versions} | {flexibility} | {served} | {purpose} |"
        )
    return "\n".join(lines)


def errors() -> str:
    """Return the table of error codes."""
    lines = ["| code | name | retriable | message |", "|---:|---|---|---|"]
    lines += [
        f"| {code.value} | {code.name} | {RETRY[code.retry]} | {code.message} |"
        for code in ErrorCode
    ]
    return "\n".join(lines)


def log_config() -> str:
    """Return the table of topic configs that a log follows."""
    lines = ["| config | default | allowed | description |", "|---|---|---|---|"]
    lines += [
        f"| `{key.name}` | {_default(key)} | {_allowed(key)} | {key.doc} |"
        for key in TOPIC_CONFIGS.values()
    ]
    return "\n".join(lines)


def topic_config() -> str:
    """Return the table of topic configs and the broker configs that set their defaults."""
    lines = [
        "| topic config | broker config with its default | default | allowed | description |",
        "|---|---|---|---|---|",
    ]
    for key in BROKER_CONFIGS.values():
        if key.topic_name:
            names = f"`{key.topic_name}` | `{key.name}`"
            lines.append(f"| {names} | {_default(key)} | {_allowed(key)} | {key.doc} |")
    return "\n".join(lines)


def broker_config() -> str:
    """Return the table of broker configs."""
    lines = [
        "| config | default | allowed | dynamic | description |",
        "|---|---|---|---|---|",
    ]
    for key in BROKER_CONFIGS.values():
        if not key.topic_name:
            facts = f"{_default(key)} | {_allowed(key)} | {'yes' if key.is_dynamic else ''}"
            lines.append(f"| `{key.name}` | {facts} | {key.doc} |")
    return "\n".join(lines)


def group_states() -> str:
    """Return the table of the states of classic groups, from their docstrings in the source."""
    lines = ["| state | previous states | description and responses |", "|---|---|---|"]
    for state, text in zip(GroupState, _descriptions(GroupState), strict=True):
        before = ", ".join(sorted(other.value for other in PREDECESSORS[state]))
        lines.append(f"| {state.value} | {before} | {text} |")
    return "\n".join(lines)


def consumer_group_states() -> str:
    """Return the table of the states of consumer groups."""
    lines = ["| state | description and responses |", "|---|---|"]
    for state, text in zip(ConsumerGroupState, _descriptions(ConsumerGroupState), strict=True):
        lines.append(f"| {state.value} | {text} |")
    return "\n".join(lines)


def _descriptions(enum: type[Enum]) -> list[str]:
    source = Path(inspect.getsourcefile(enum) or "").read_text()
    (states,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return [
        " ".join(node.value.value.split())
        for node in states.body[1:]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]


def commands() -> str:
    """Return the reference of all commands."""
    context = click.Context(ottla, info_name="ottla")
    return "\n\n".join(
        _section(path, command, level)
        for path, command, level in _walk("ottla", ottla, context, 3)
        if path != "ottla"
    )


def _walk(
    path: str, command: click.Command, context: click.Context, level: int
) -> Iterator[tuple[str, click.Command, int]]:
    yield path, command, level - 1
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _walk(f"{path} {name}", inner, context, level + 1)


def _section(path: str, command: click.Command, level: int) -> str:
    arguments = [
        argument.metavar or _optional((argument.name or "").upper(), argument.required)
        for argument in command.params
        if isinstance(argument, click.Argument)
    ]
    parts = [f"{'#' * level} `{' '.join([path, *arguments])}`", _prose(command.help or "")]
    rows = [
        f"| {_names(option)} | {_words(option)} |"
        for option in command.params
        if isinstance(option, click.Option) and option.name not in COMMON_OPTIONS
    ]
    if rows:
        parts.append("\n".join(["| option | description |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _optional(name: str, is_required: bool) -> str:
    return name if is_required else f"[{name}]"


def _prose(text: str) -> str:
    """Return a help text as Markdown; paragraphs that click does not wrap are examples."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```\n{inspect.cleandoc(paragraph[1:])}\n```" if paragraph[:1] == "\b" else paragraph
        for paragraph in paragraphs
    )


def _names(option: click.Option) -> str:
    value = ""
    if not option.is_flag:
        choices = getattr(option.type, "choices", None)
        kind = "\\|".join(choices) if choices else option.type.name.upper().split(" ")[0]
        value = f" {option.metavar or kind}"
    return ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len))


def _words(option: click.Option) -> str:
    words = option.help or ""
    if option.show_default and not option.is_flag:
        words += f" [default: {option.default}]"
    return words.strip()


def exit_codes() -> str:
    """Return the table of exit codes."""
    lines = ["| code | meaning |", "|---:|---|"]
    return "\n".join([*lines, *(f"| {code.value} | {code.meaning} |" for code in Exit)])


def variables() -> str:
    """Return the table of environment variables."""
    lines = ["| variable | option |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {use} |" for name, use in VARIABLES.items())])


def _default(key: ConfigKey) -> str:
    if key.default_value in (LONG_MAX, NO_LIMIT):
        return "no limit"
    if key.type in ("int", "long") and key.default_value is not None:
        return f"{key.default_value:,}"
    return f"`{key.default}`" if "://" in key.default else key.default


def _allowed(key: ConfigKey) -> str:
    return ", ".join(f"`{choice}`" for choice in key.choices) or key.allowed


def rest() -> str:
    """Return the reference of the REST API."""
    # Its modules need the extra `console`, which nothing else here does.
    document = import_module("ottla.console.app").openapi()
    return str(import_module("ottla.console.reference").markdown(document))


def sdk() -> str:
    """Return the directives of mkdocstrings for the public classes of the SDK, by kind."""
    client = import_module("ottla.client")
    sections: dict[str, list[str]] = {"Clients": [], "Configs": [], "Data": [], "Errors": []}
    for name in client.__all__:
        public = getattr(client, name)
        section = "Data"
        if name in import_module("ottla.client.blocking").__all__:
            section = "Clients"
        elif name.endswith("Config"):
            section = "Configs"
        elif issubclass(public, Exception):
            section = "Errors"
        sections[section].append(f"::: {public.__module__}.{public.__qualname__}")
    testing = import_module("ottla.testing").RunningBroker
    sections["Testing"] = [f"::: {testing.__module__}.{testing.__qualname__}"]
    return "\n\n".join(
        "\n\n".join([f"## {title}", *directives]) for title, directives in sections.items()
    )


PARTS = {
    "apis": apis,
    "errors": errors,
    "log_config": log_config,
    "topic_config": topic_config,
    "broker_config": broker_config,
    "group_states": group_states,
    "consumer_group_states": consumer_group_states,
    "commands": commands,
    "exit_codes": exit_codes,
    "variables": variables,
    "rest": rest,
    "sdk": sdk,
}


def generated(text: str) -> str:
    """Return the text with its generated parts up to date."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "rest" and find_spec("fastapi") is None:
            return match[0]
        return f"<!-- generated: {name} -->\n\n{PARTS[name]()}\n\n<!-- end -->"

    return re.sub(
        r"<!-- generated: (?P<name>\w+) -->.*?<!-- end -->", replace, text, flags=re.DOTALL
    )


def main() -> int:
    """Update the pages, or check them."""
    stale = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        current = generated(text)
        if text != current:
            stale.append(path.relative_to(DOCS.parent))
            if "--check" not in sys.argv:
                path.write_text(current)
    if stale and "--check" in sys.argv:
        names = ", ".join(map(str, stale))
        sys.stderr.write(f"stale: {names}; update with: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
