"""The command `ottla`: its groups live in the rooms, and are imported when they are used."""

from __future__ import annotations

from importlib import import_module

import click

# Where a group is, and what `ottla --help` says of it without importing it.
GROUPS = {
    "broker": ("ottla.broker.cli:broker", "Run a broker, and list its settings."),
    "log": ("ottla.broker.cli:log", "Look into the files of a data directory."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Name the commands."""
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in GROUPS:
            return None
        module, _, attribute = GROUPS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in GROUPS.items()])


@click.group(cls=LazyGroup, epilog="Start with: ottla broker start --help")
@click.version_option(package_name="ottla", message="%(prog)s %(version)s")
def ottla() -> None:
    """Run and look into ottla, a distributed log that speaks the Kafka wire protocol."""


def main() -> None:
    """Run the command."""
    ottla(prog_name="ottla")


if __name__ == "__main__":
    main()
