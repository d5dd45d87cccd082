"""`ottla completion`, and completion of names that come from the cluster."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from .errors import Failure
from .target import target_of

if TYPE_CHECKING:
    from ottla.client.blocking import Admin

# Nobody waits longer after pressing the tab key.
_TIMEOUT_SECONDS = 1.0
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Completes commands, options, and the topics, groups and configs of the cluster.

    \b
    In ~/.bashrc:                   eval "$(ottla completion bash)"
    In ~/.zshrc:                    eval "$(ottla completion zsh)"
    In ~/.config/fish/config.fish:  ottla completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "ottla", "_OTTLA_COMPLETE").source())


def _live(
    names: Callable[[Admin, click.Context], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete names from the cluster; complete nothing if it does not answer."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from ottla.client.errors import ClientError, KafkaError

        already_given = _given(context, parameter)
        # Warnings would be printed into the command that is being typed.
        logger = logging.getLogger("ottla.client")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            target = dataclasses.replace(target_of(context), timeout=_TIMEOUT_SECONDS)
            with target.admin() as admin:
                candidates = sorted(names(admin, context))
        except (Failure, click.UsageError, ClientError, KafkaError, OSError):
            return []
        finally:
            logger.setLevel(level)
        return [
            CompletionItem(name)
            for name in candidates
            if name.startswith(incomplete) and name not in already_given
        ]

    return complete


def _given(context: click.Context, parameter: click.Parameter) -> tuple[Any, ...]:
    given = context.params.get(parameter.name or "")
    return given if isinstance(given, tuple) else ()


def _topics(admin: Admin, _context: click.Context) -> Iterable[str]:
    return (topic.name for topic in admin.list_topics())


def _groups(admin: Admin, _context: click.Context) -> Iterable[str]:
    return (group.group_id for group in admin.list_groups())


def _transactional_ids(admin: Admin, _context: click.Context) -> Iterable[str]:
    return (transaction.transactional_id for transaction in admin.list_transactions())


def _brokers_or_topics(admin: Admin, context: click.Context) -> Iterable[str]:
    if context.params.get("kind") == "broker":
        return (str(broker.id) for broker in admin.describe_cluster().brokers)
    return _topics(admin, context)


def _configs(admin: Admin, context: click.Context) -> Iterable[str]:
    if context.params.get("kind") == "broker":
        broker = int(context.params["name"])
        configs = admin.describe_broker_configs(broker)[broker]
    else:
        # click does not say which topic was named while an option's value is completed; all topics
        # have the same configs.
        name = context.params.get("name") or next(iter(_topics(admin, context)), None)
        configs = admin.describe_topic_configs(name)[name] if name else {}
    return (f"{entry.name}=" for entry in configs.values() if not entry.is_read_only)


complete_topics = _live(_topics)
complete_groups = _live(_groups)
complete_transactional_ids = _live(_transactional_ids)
complete_brokers_or_topics = _live(_brokers_or_topics)
complete_configs = _live(_configs)
