"""Configs of topics and brokers: describe, alter."""

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

_TOPIC, _BROKER, _GROUP = 2, 4, 32
#: The resource name of the configs of all brokers.
_ALL_BROKERS = ""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
# Indexed by Kafka's numbers.
_SOURCES = dict(enumerate(ConfigSource))
_TYPES = (
    *("unknown", "boolean", "string", "int", "short"),
    *("long", "double", "list", "class", "password"),
)

Configs = dict[str, ConfigEntry]


class ConfigsAdmin(AdminRequests):
    """Admin requests about configs."""

    async def describe_topic_configs(
        self, *topics: str, keys: Collection[str] | None = None
    ) -> dict[str, Configs]:
        """Return the configs of topics: by topic, then by name."""
        return await self._describe_named(_TOPIC, topics, keys)

    async def describe_group_configs(
        self, *groups: str, keys: Collection[str] | None = None
    ) -> dict[str, Configs]:
        """Return the configs of groups: by group, then by name. A group need not exist."""
        return await self._describe_named(_GROUP, groups, keys)

    async def _describe_named(
        self, kind: int, names: Collection[str], keys: Collection[str] | None
    ) -> dict[str, Configs]:
        async def attempt(pending: list[str]) -> Mapping[str, Outcome[Configs]]:
            request = _describe(kind, pending, keys)
            return _described(await self._cluster.send_to_any(request, DescribeConfigsResponse))

        return await self._each(names, attempt, "describing configs")

    async def describe_broker_configs(
        self, *brokers: int, keys: Collection[str] | None = None
    ) -> dict[int, Configs]:
        """Return the configs of brokers: by broker, then by name. Each is asked for its own."""

        async def send(node_id: int, _: list[int]) -> Mapping[int, Outcome[Configs]]:
            request = _describe(_BROKER, [str(node_id)], keys)
            response = await self._cluster.send(node_id, request, DescribeConfigsResponse)
            return {int(name): result for name, result in _described(response).items()}

        async def attempt(pending: list[int]) -> Mapping[int, Outcome[Configs]]:
            known = await self._known_brokers()
            results: dict[int, Outcome[Configs]] = {
                broker: no_such_broker(broker, known) for broker in pending
            }
            results |= await self._by_node({one: one for one in pending if one in known}, send)
            return results

        return await self._each(brokers, attempt, "describing configs")

    async def describe_configs_of_all_brokers(self) -> Configs:
        """Return the dynamic configs of all brokers that are set, by name."""
        return (await self._describe_named(_BROKER, [_ALL_BROKERS], None))[_ALL_BROKERS]

    async def alter_topic_configs(
        self,
        topic: str,
        set: Mapping[str, str] | None = None,  # noqa: A002  # reads well in calls
        *,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change configs of a topic; the others keep their values.

        `unset` resets a config to its default; `append` and `subtract` are for list configs.
        """
        changes = _changes(set, unset, append, subtract)
        await self._alter_named(_TOPIC, topic, changes, validate_only=validate_only)

    async def alter_group_configs(
        self,
        group: str,
        set: Mapping[str, str] | None = None,  # noqa: A002
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change configs of a group, which need not exist yet."""
        changes = _changes(set, unset, None, None)
        await self._alter_named(_GROUP, group, changes, validate_only=validate_only)

    async def _alter_named(
        self, kind: int, name: str, changes: list[AlterableConfig], *, validate_only: bool
    ) -> None:
        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            request = _alter(kind, pending, changes, validate_only=validate_only)
            return _altered(
                await self._cluster.send_to_controller(request, IncrementalAlterConfigsResponse)
            )

        await self._each([name], attempt, f"altering {name}")

    async def alter_broker_configs(
        self,
        broker: int | None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        *,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change configs of a broker, in the same way as those of a topic.

        None changes the configs of all brokers, which each broker's own take precedence over.
        """
        changes = _changes(set, unset, append, subtract)
        name = _ALL_BROKERS if broker is None else str(broker)

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            request = _alter(_BROKER, pending, changes, validate_only=validate_only)
            if broker is None:
                response = await self._cluster.send_to_controller(
                    request, IncrementalAlterConfigsResponse
                )
                return _altered(response)
            known = await self._known_brokers()
            if broker not in known:
                return {name: no_such_broker(broker, known)}
            return _altered(
                await self._cluster.send(broker, request, IncrementalAlterConfigsResponse)
            )

        await self._each([name], attempt, f"altering broker {name or 'defaults'}")


def _describe(kind: int, names: list[str], keys: Collection[str] | None) -> DescribeConfigsRequest:
    names_or_all = None if keys is None else list(keys)
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=names_or_all
            )
            for name in names
        ],
        include_documentation=True,
    )


def _described(response: DescribeConfigsResponse) -> dict[str, Outcome[Configs]]:
    return {
        result.resource_name: outcome(
            result.error_code,
            result.error_message,
            {config.name: _entry(config) for config in result.configs},
        )
        for result in response.results
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
        raise ValueError("No config changes given: pass set, unset, append or subtract")
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


def _altered(response: IncrementalAlterConfigsResponse) -> dict[str, Outcome[None]]:
    return {
        result.resource_name: outcome(result.error_code, result.error_message, None)
        for result in response.responses
    }
