"""The command `ottla`: its groups live in the rooms, and are imported when they are used."""

from __future__ import annotations

from importlib import import_module

import click

_CLIENT = "ottla.cli"
# Where a group is, and what `ottla --help` says of it without importing it.
GROUPS = {
    "broker": ("ottla.cli.broker:broker", "Run a broker, and list its settings."),
    "topic": (f"{_CLIENT}.topic_records:topic", "List, describe, create, alter and delete topics."),
    "produce": (f"{_CLIENT}.produce:produce", "Send what comes on stdin, or files, to a topic."),
    "consume": (f"{_CLIENT}.consume:consume", "Print the records of topics."),
    "group": (f"{_CLIENT}.group_reset:group", "List, describe, reset and delete consumer groups."),
    "config": (f"{_CLIENT}.config:config", "Show and change the settings of topics and brokers."),
    "cluster": (
        f"{_CLIENT}.cluster:cluster",
        "Start a cluster, show its brokers and what they speak.",
    ),
    "perf": (f"{_CLIENT}.perf:perf", "Measure how fast a cluster is."),
    "profile": (f"{_CLIENT}.profiles:profile", "Name clusters, so that --profile NAME is enough."),
    "completion": (f"{_CLIENT}.completion:completion", "Print what makes a shell complete."),
    "log": ("ottla.cli.broker:log", "Look into the files of a data directory."),
}
# Commands of the server's side in a group of the client's, which cannot know them.
GUESTS = {"cluster": "ottla.cli.broker:up"}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Name the commands."""
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in GROUPS:
            return None
        command = _imported(GROUPS[cmd_name][0])
        if cmd_name in GUESTS:
            assert isinstance(command, click.Group)
            command.add_command(_imported(GUESTS[cmd_name]))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in GROUPS.items()])


def _imported(place: str) -> click.Command:
    module, _, attribute = place.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def say_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, and whether records are decoded by the compiled module."""
    if wanted and not ctx.resilient_parsing:
        version = import_module("importlib.metadata").version("ottla")
        fast = import_module("ottla.protocol.compiled").fast
        click.echo(f"ottla {version} (records: {'compiled' if fast else 'pure Python'})")
        ctx.exit()


@click.group(cls=LazyGroup, epilog="Start with: ottla broker start --help")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=say_version,
    help="Show the version and exit.",
)
def ottla() -> None:
    """Run and look into ottla, a distributed log that speaks the Kafka wire protocol."""


def main() -> None:
    """Run the command."""
    ottla(prog_name="ottla")


if __name__ == "__main__":
    main()
