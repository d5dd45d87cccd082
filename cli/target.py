"""The cluster a command talks to: options that all client commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from . import output, profiles, security
from .errors import Exit, Failure, translate_errors

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.blocking.topics_admin import TopicsAdmin
    from ottla.client.config import ClientConfig
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.producer.producer import Producer
    from ottla.client.security import SecurityConfig
    from ottla.client.share.consumer import ShareConsumer

#: The default listener of a broker on this machine.
DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_SECONDS = 5.0

#: Environment variables, and the options they set.
VARIABLES = {
    "OTTLA_BOOTSTRAP": "`--bootstrap`",
    "OTTLA_PROFILE": "`--profile`",
    "OTTLA_COMMAND_CONFIG": "`--command-config`",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and how to connect to it."""

    bootstrap: str
    client_id: str = "ottla-cli"
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    #: How long the broker may take to acknowledge a record; None: as long as the SDK's default.
    delivery_timeout: float | None = None
    security: SecurityConfig | None = None

    def config(self, *, is_patient: bool = False) -> ClientConfig:
        """Return the client config; a patient client survives the restart of a broker."""
        from ottla.client.config import ClientConfig, TimeoutConfig

        # At a prompt an unreachable broker is reported soon; a request that was sent may take as
        # long as anywhere else.
        defaults = TimeoutConfig()
        operation = max(defaults.operation, self.timeout) if is_patient else self.timeout
        return ClientConfig(
            client_id=self.client_id,
            timeouts=TimeoutConfig(
                connect=max(1.0, self.timeout),
                request=max(defaults.request, self.timeout),
                operation=operation,
            ),
            # A mistyped name must not create a topic.
            allow_auto_create=False,
            security=self.security,
        )

    def producer(self, *, acks: str = "all", compression: str = "none", **more: Any) -> Producer:
        """Return a producer, to be entered on an event loop."""
        from ottla.client.producer.producer import Producer

        config = self.config(is_patient=True)
        if self.delivery_timeout is not None:
            timeouts = replace(config.timeouts, operation=self.delivery_timeout)
            config = replace(config, timeouts=timeouts)
        return Producer(
            self.bootstrap,
            acks=acks if acks == "all" else int(acks),  # type: ignore[arg-type]
            compression=compression,  # type: ignore[arg-type]
            client=config,
            **more,
        )

    def consumer(
        self,
        *topics: str,
        pattern: re.Pattern[str] | None = None,
        group: str | None = None,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
    ) -> Consumer:
        """Return a consumer, to be entered on an event loop."""
        from ottla.client.consumer.consumer import Consumer

        return Consumer(
            self.bootstrap,
            *topics,
            pattern=pattern,
            group=group,
            auto_offset_reset=reset,
            isolation=isolation,
            client=self.config(is_patient=True),
        )

    def share_consumer(
        self, *topics: str, group: str, dead_letter: str | None, max_records: int | None
    ) -> ShareConsumer:
        """Return a share consumer, to be entered on an event loop."""
        from ottla.client.share.config import ShareConfig
        from ottla.client.share.consumer import ShareConsumer

        # What is acquired and not printed would be delivered again, with a higher count.
        limited = ShareConfig() if max_records is None else ShareConfig(max_records, "record_limit")
        return ShareConsumer(
            self.bootstrap,
            *topics,
            group=group,
            dead_letter=dead_letter,
            share=limited,
            client=self.config(is_patient=True),
        )

    def admin(self) -> Admin:
        """Return an admin client; the caller closes it."""
        from ottla.client.blocking import Admin

        return Admin(self.bootstrap, client=self.config())

    def topics_admin(self) -> TopicsAdmin:
        """Return a client that only lists topics, and imports less; the caller closes it."""
        from ottla.client.blocking.topics_admin import TopicsAdmin

        return TopicsAdmin(self.bootstrap, client=self.config())


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a Target as the first argument of a command, and convert exceptions of the SDK."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,…",
        envvar="OTTLA_BOOTSTRAP",
        show_envvar=True,
        help=f"Bootstrap servers. [default: {DEFAULT_BOOTSTRAP}]",
    )
    @click.option(
        "--profile",
        metavar="NAME",
        envvar="OTTLA_PROFILE",
        show_envvar=True,
        shell_complete=_complete_profiles,
        help="Named cluster; see ottla profile.",
    )
    @click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help=f"Timeout when no broker answers. [default: {DEFAULT_TIMEOUT_SECONDS:g}]",
    )
    @click.option(
        "--command-config",
        metavar="FILE",
        envvar="OTTLA_COMMAND_CONFIG",
        show_envvar=True,
        help="File with Kafka's client configs for TLS and SASL.",
    )
    @click.pass_context
    def run(context: click.Context, /, **arguments: Any) -> None:
        for name in ("bootstrap", "profile", "timeout", "command_config"):
            arguments.pop(name)
        with translate_errors(), output.show_warnings():
            command(target_of(context), **arguments)

    return functools.update_wrapper(run, command)


def target_of(context: click.Context) -> Target:
    """Return the cluster to use: from flags, the environment, or the default profile."""
    params = dict(context.params)
    flags = {
        name
        for name in ("bootstrap", "profile")
        if params.get(name) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if not flags:
        # Before the command: ottla -b HOST:PORT topic list.
        before = context.find_root().params
        flags = {name for name in ("bootstrap", "profile") if before.get(name)}
        params |= {name: before[name] for name in flags}
    if len(flags) == 2:
        raise click.UsageError("--bootstrap and --profile are mutually exclusive")
    uses_profile = "profile" in flags or not params.get("bootstrap")
    options: dict[str, Any] = {}
    if uses_profile:
        options |= _profile(params.get("profile"))
    else:
        options["bootstrap"] = params["bootstrap"]
    if params.get("timeout"):
        options["timeout"] = options["delivery_timeout"] = params["timeout"]
    secured = {name: options.pop(name) for name in security.PROFILE_ENTRIES if name in options}
    if params.get("command_config"):
        secured = {"command_config": params["command_config"]}
    options["security"] = security.security_of(secured)
    return _checked(Target(**options))


def _profile(name: str | None) -> Mapping[str, Any]:
    known = profiles.load()
    profile = name or known.default
    return {"bootstrap": DEFAULT_BOOTSTRAP} if profile is None else known[profile]


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


#: For commands that print a result.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
