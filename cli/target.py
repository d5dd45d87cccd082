"""Which cluster a command talks to, and how: options that all commands have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from . import output, profiles
from .failures import Exit, Failure, translated

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.config import ClientConfig
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.producer.producer import Producer

#: What a broker on this machine has, unless it is told otherwise.
DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_SECONDS = 5.0

#: The environment variables of commands: each, and what it is for.
VARIABLES = {
    "OTTLA_BOOTSTRAP": "`--bootstrap`",
    "OTTLA_PROFILE": "`--profile`",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster to talk to."""

    bootstrap: str
    client_id: str = "ottla-cli"
    timeout: float = DEFAULT_TIMEOUT_SECONDS

    def config(self, *, is_patient: bool = False) -> ClientConfig:
        """Give the SDK's settings; a patient client lives through a broker that starts again."""
        from ottla.client.config import ClientConfig, TimeoutConfig

        # Whoever waits at a prompt wants to know soon that nobody answers; but an answer that is
        # under way may take as long as anywhere else.
        usual = TimeoutConfig()
        return ClientConfig(
            client_id=self.client_id,
            timeouts=TimeoutConfig(
                connect=max(1.0, self.timeout),
                request=max(usual.request, self.timeout),
                operation=max(usual.operation, self.timeout) if is_patient else self.timeout,
            ),
            # A name with a slip in it must not become a topic.
            allow_auto_create=False,
        )

    def producer(self, *, acks: str = "all", compression: str = "none", **more: Any) -> Producer:
        """Give a producer, to be entered on an event loop."""
        from ottla.client.producer.producer import Producer

        return Producer(
            self.bootstrap,
            acks=acks if acks == "all" else int(acks),  # type: ignore[arg-type]
            compression=compression,  # type: ignore[arg-type]
            client=self.config(is_patient=True),
            **more,
        )

    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        reset: str = "earliest",
        is_committed: bool = False,
    ) -> Consumer:
        """Give a consumer, to be entered on an event loop."""
        from ottla.client.consumer.consumer import Consumer

        return Consumer(
            self.bootstrap,
            *topics,
            group=group,
            auto_offset_reset=reset,
            isolation="read_committed" if is_committed else "read_uncommitted",
            client=self.config(is_patient=True),
        )

    def admin(self) -> Admin:
        """Give an admin, to be closed."""
        from ottla.client.blocking import Admin

        return Admin(self.bootstrap, client=self.config())


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a Target as its first argument, and translate what the SDK raises."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,…",
        envvar="OTTLA_BOOTSTRAP",
        show_envvar=True,
        help=f"Some brokers of the cluster. [default: {DEFAULT_BOOTSTRAP}]",
    )
    @click.option(
        "--profile",
        metavar="NAME",
        envvar="OTTLA_PROFILE",
        show_envvar=True,
        shell_complete=_complete_profiles,
        help="A cluster by name; see ottla profile.",
    )
    @click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help=f"How long to try when no broker answers. [default: {DEFAULT_TIMEOUT_SECONDS:g}]",
    )
    @click.pass_context
    def run(context: click.Context, /, **arguments: Any) -> None:
        for name in ("bootstrap", "profile", "timeout"):
            arguments.pop(name)
        with translated(), output.warnings_shown():
            command(target_of(context), **arguments)

    return functools.update_wrapper(run, command)


def target_of(context: click.Context) -> Target:
    """Say which cluster is meant: flags first, then the environment, then the default profile."""
    given = context.params
    flags = {
        name
        for name in ("bootstrap", "profile")
        if given.get(name) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if len(flags) == 2:
        raise click.UsageError("--bootstrap and --profile both say which cluster is meant")
    is_by_profile = "profile" in flags or not given.get("bootstrap")
    settings: dict[str, Any] = {}
    if is_by_profile:
        settings |= _profile(given.get("profile"))
    else:
        settings["bootstrap"] = given["bootstrap"]
    if given.get("timeout"):
        settings["timeout"] = given["timeout"]
    return _checked(Target(**settings))


def _profile(name: str | None) -> Mapping[str, Any]:
    known = profiles.load()
    wanted = name or known.default
    return {"bootstrap": DEFAULT_BOOTSTRAP} if wanted is None else known[wanted]


def _checked(target: Target) -> Target:
    from ottla.client.cluster import parse_addresses

    try:
        parse_addresses(target.bootstrap)
    except ValueError as error:
        raise Failure(f"--bootstrap: {error}", Exit.USAGE) from error
    return target


def _complete_profiles(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        names = profiles.load().by_name
    except Failure:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


#: For every command that prints a result.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
