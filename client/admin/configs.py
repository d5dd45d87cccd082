"""Settings of topics and of brokers: describe, alter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from .requests import AdminRequests, Outcome, no_such_broker, outcome
from .results import ConfigEntry, ConfigSource

_TOPIC, _BROKER = 2, 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
# By Kafka's numbers.
_SOURCES = dict(enumerate(ConfigSource))
_TYPES = (
    *("unknown", "boolean", "string", "int", "short"),
    *("long", "double", "list", "class", "password"),
)

Configs = dict[str, ConfigEntry]


class ConfigsAdmin(AdminRequests):
    """What an admin can do with settings."""

    async def describe_topic_configs(
        self, *topics: str, keys: Collection[str] | None = None
    ) -> dict[str, Configs]:
        """Give the settings of topics: by topic, and then by name."""

        async def attempt(left: list[str]) -> Mapping[str, Outcome[Configs]]:
            request = _describe(_TOPIC, left, keys)
            return _described(await self._cluster.send_to_any(request, DescribeConfigsResponse))

        return await self._each(topics, attempt, "describing settings")

    async def describe_broker_configs(
        self, *brokers: int, keys: Collection[str] | None = None
    ) -> dict[int, Configs]:
        """Give the settings of brokers: by broker, and then by name. Each is asked itself."""

        async def ask(node_id: int, _: list[int]) -> Mapping[int, Outcome[Configs]]:
            request = _describe(_BROKER, [str(node_id)], keys)
            answer = await self._cluster.send(node_id, request, DescribeConfigsResponse)
            return {int(name): found for name, found in _described(answer).items()}

        async def attempt(left: list[int]) -> Mapping[int, Outcome[Configs]]:
            known = await self._known_brokers()
            answers: dict[int, Outcome[Configs]] = {
                broker: no_such_broker(broker, known) for broker in left
            }
            answers |= await self._by_node({one: one for one in left if one in known}, ask)
            return answers

        return await self._each(brokers, attempt, "describing settings")

    async def alter_topic_configs(
        self,
        topic: str,
        set: Mapping[str, str] | None = None,  # noqa: A002  # it reads well where it is called
        *,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic; the others stay as they are.

        `unset` gives a setting its default again; `append` and `subtract` are for lists.
        """
        changes = _changes(set, unset, append, subtract)

        async def attempt(left: list[str]) -> Mapping[str, Outcome[None]]:
            request = _alter(_TOPIC, left, changes, validate_only=validate_only)
            return _altered(
                await self._cluster.send_to_controller(request, IncrementalAlterConfigsResponse)
            )

        await self._each([topic], attempt, f"altering {topic}")

    async def alter_broker_configs(
        self,
        broker: int,
        set: Mapping[str, str] | None = None,  # noqa: A002
        *,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a broker, as with those of a topic."""
        changes = _changes(set, unset, append, subtract)

        async def attempt(left: list[str]) -> Mapping[str, Outcome[None]]:
            known = await self._known_brokers()
            if broker not in known:
                return {str(broker): no_such_broker(broker, known)}
            request = _alter(_BROKER, left, changes, validate_only=validate_only)
            return _altered(
                await self._cluster.send(broker, request, IncrementalAlterConfigsResponse)
            )

        await self._each([str(broker)], attempt, f"altering broker {broker}")


def _describe(kind: int, names: list[str], keys: Collection[str] | None) -> DescribeConfigsRequest:
    wanted = None if keys is None else list(keys)
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=wanted
            )
            for name in names
        ],
        include_documentation=True,
    )


def _described(answer: DescribeConfigsResponse) -> dict[str, Outcome[Configs]]:
    return {
        result.resource_name: outcome(
            result.error_code,
            result.error_message,
            {config.name: _entry(config) for config in result.configs},
        )
        for result in answer.results
    }


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    kind = config.config_type
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=_SOURCES.get(config.config_source, ConfigSource.UNKNOWN),
        type=_TYPES[kind] if 0 <= kind < len(_TYPES) else "unknown",
        is_read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        documentation=config.documentation or "",
    )


def _changes(
    set_to: Mapping[str, str] | None,
    unset: Iterable[str],
    append: Mapping[str, str] | None,
    subtract: Mapping[str, str] | None,
) -> list[AlterableConfig]:
    pairs = [
        *((_SET, name, value) for name, value in (set_to or {}).items()),
        *((_DELETE, name, None) for name in unset),
        *((_APPEND, name, value) for name, value in (append or {}).items()),
        *((_SUBTRACT, name, value) for name, value in (subtract or {}).items()),
    ]
    if not pairs:
        raise ValueError("there is nothing to alter")
    return [
        AlterableConfig(name=name, config_operation=operation, value=value)
        for operation, name, value in pairs
    ]


def _alter(
    kind: int, names: list[str], changes: list[AlterableConfig], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
            for name in names
        ],
        validate_only=validate_only,
    )


def _altered(answer: IncrementalAlterConfigsResponse) -> dict[str, Outcome[None]]:
    return {
        result.resource_name: outcome(result.error_code, result.error_message, None)
        for result in answer.responses
    }
