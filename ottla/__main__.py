"""The `ottla` command; its subcommands are imported when they are used."""

from __future__ import annotations

from importlib import import_module

import click

from ottla import __version__

# The module and help text of each subcommand; `ottla --help` does not import the modules.
COMMANDS = {
    "broker": ("ottla.cli.broker:broker", "Run a broker and list its configs."),
    "topic": ("ottla.cli.topic_records:topic", "List, describe, create, alter and delete topics."),
    "produce": ("ottla.cli.produce:produce", "Send records from stdin or files to a topic."),
    "consume": ("ottla.cli.consume:consume", "Print the records of topics."),
    "group": (
        "ottla.cli.group_reset:group",
        "List, describe, reset and delete consumer groups and share groups.",
    ),
    "txn": ("ottla.cli.txn:txn", "List, describe and abort transactions."),
    "config": ("ottla.cli.config:config", "Show and change topic configs and broker configs."),
    "cluster": (
        "ottla.cli.cluster_restore:cluster",
        "Start a local cluster; describe brokers, and move replicas between them.",
    ),
    "console": (
        "ottla.cli.console:console",
        "Serve a web console and a REST API for a cluster.",
    ),
    "user": ("ottla.cli.user:user", "List, create and delete users (SCRAM)."),
    "acl": ("ottla.cli.acl:acl", "List, create and delete ACLs."),
    "quota": ("ottla.cli.quota:quota", "List, set and delete client quotas."),
    "cert": ("ottla.cli.cert:cert", "Create certificates for local use."),
    "perf": ("ottla.cli.perf:perf", "Measure throughput and latency."),
    "profile": ("ottla.cli.profiles:profile", "Manage named clusters for --profile."),
    "completion": ("ottla.cli.completion:completion", "Print the completion script of a shell."),
    "log": ("ottla.cli.log:log", "Inspect the segment files of a data directory."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a subcommand."""
        if cmd_name not in COMMANDS:
            return None
        return _import(COMMANDS[cmd_name][0])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of subcommands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])


def _import(path: str) -> click.Command:
    module, _, attribute = path.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def print_version(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the version, and whether the compiled module is in use."""
    if is_given and not ctx.resilient_parsing:
        fast = import_module("ottla.protocol.compiled").fast
        click.echo(f"ottla {__version__} (records: {'compiled' if fast else 'pure Python'})")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog="Start with: ottla broker start --help",
    # Inherited by all commands.
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,…",
    help="Bootstrap servers; may also follow the command.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Named cluster; may also follow the command.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def ottla(bootstrap: str | None, profile: str | None) -> None:  # see cli/target.py
    """Run and operate ottla, a distributed log that speaks the Kafka wire protocol."""


def main() -> None:
    """Run the command line."""
    ottla(prog_name="ottla")


if __name__ == "__main__":
    main()
