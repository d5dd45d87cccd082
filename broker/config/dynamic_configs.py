"""Topic and broker configs as clients see and alter them (DescribeConfigs, AlterConfigs).

A config takes its value from the first source that sets it: the topic, the dynamic configs of the
broker (altered while it runs), those of all brokers (the resource with an empty name), the static
broker configs (set at the start), the default. Kafka calls these the config's synonyms; those that
come from the broker have the broker's name for the config.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.coord.metadata_image import ALL_BROKERS, MetadataImage, Topic
from ottla.protocol.acls import CLUSTER_NAME
from ottla.protocol.acls import ResourceType as AclResourceType
from ottla.protocol.api.alter_configs import AlterConfigsResourceResponse
from ottla.protocol.configdef import ConfigError, ConfigKey, as_text, unknown_config
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import TOPIC_CONFIGS

from ..cluster.controller import ConfigChange
from ..requests.authorization import ALTER_CONFIGS, CLUSTER, GROUP, TOPIC, check
from ..requests.errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of
from ..requests.slices import SLICE_ELEMENTS, in_slices
from ..requests.topic_metadata import find_topic
from .broker_config import BROKER_CONFIGS, BrokerConfig, broker_config_key
from .group_configs import GROUP_CONFIGS, check_group_configs, inherited_config

if TYPE_CHECKING:
    from ..broker import Broker
    from ..requests.dispatch import RequestContext


class ResourceType(IntEnum):
    """The resources that have configs; numbers of the wire protocol."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of a value; numbers of the wire protocol."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """The value of a config in one source."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """A config with its synonyms, the effective one first."""

    key: ConfigKey
    synonyms: Sequence[ConfigSynonym]

    @property
    def value(self) -> str | None:
        """The effective value."""
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        """The source of the effective value."""
        return self.synonyms[0].source

    @property
    def is_read_only(self) -> bool:
        """Whether it cannot be altered."""
        return not self.key.is_dynamic or bool(self.key.fixed_because)


class ConfigDescriber:
    """Describes the configs of one broker and its topics; built once per request."""

    def __init__(self, config: BrokerConfig, image: MetadataImage) -> None:
        self._config = config
        self._own = image.broker_configs.get(config.broker_id, {})
        self._of_all = image.broker_configs.get(ALL_BROKERS, {})
        # Parsing all configs again takes a millisecond.
        has_overrides = bool(config.dynamic_configs)
        self._static = BrokerConfig.of(config.static_configs) if has_overrides else config
        self._default = self._static.with_overrides(self._of_all) if self._of_all else self._static
        self._inherited = {
            key.topic_name: list(self._synonyms(key))
            for key in BROKER_CONFIGS.values()
            if key.topic_name is not None
        }

    def topic(self, overrides: Mapping[str, str]) -> Iterator[DescribedConfig]:
        """Describe the configs of a topic with these overrides."""
        for name, key in TOPIC_CONFIGS.items():
            default = ConfigSynonym(name, key.default, ConfigSource.DEFAULT)
            synonyms = self._inherited.get(name, [default])
            if name in overrides:
                value = as_text(key.parse(overrides[name]))
                synonyms = [ConfigSynonym(name, value, ConfigSource.TOPIC), *synonyms]
            yield DescribedConfig(key, synonyms)

    def group(self, overrides: Mapping[str, str]) -> Iterator[DescribedConfig]:
        """Describe the configs of a group with these overrides."""
        for name, key in GROUP_CONFIGS.items():
            broker_key = BROKER_CONFIGS.get(f"group.{name}")
            if broker_key is None:
                synonyms = [ConfigSynonym(name, key.default, ConfigSource.DEFAULT)]
            else:
                synonyms = list(self._synonyms(broker_key))
            if name in overrides:
                value = as_text(key.parse(overrides[name]))
                synonyms = [ConfigSynonym(name, value, ConfigSource.GROUP), *synonyms]
            yield DescribedConfig(key, synonyms)

    def broker(self) -> Iterator[DescribedConfig]:
        """Describe the configs of the broker."""
        for key in (*BROKER_CONFIGS.values(), *self._config.listener_config_keys):
            yield DescribedConfig(key, list(self._synonyms(key)))

    def all_brokers(self) -> Iterator[DescribedConfig]:
        """Describe the dynamic configs of all brokers: only those that are set."""
        for name in self._of_all:
            value = self._default.text_of(name)
            synonym = ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
            yield DescribedConfig(broker_config_key(name), [synonym])

    def _synonyms(self, key: ConfigKey) -> Iterator[ConfigSynonym]:
        """Yield the values of a config on the broker.

        A value set in another unit (`log.retention.hours`) is converted.
        """
        name = key.name
        if key.is_sensitive:
            yield from self._sensitive_synonyms(key)
            return
        current, static = self._config.text_of(name), self._static.text_of(name)
        default_of_all = self._default.text_of(name)
        if name in self._own or current != default_of_all:
            yield ConfigSynonym(name, current, ConfigSource.DYNAMIC_BROKER)
        if name in self._of_all or default_of_all != static:
            yield ConfigSynonym(name, default_of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        default = None if key.default_value is None else key.default
        if self._static.is_static(name):
            yield ConfigSynonym(name, static, ConfigSource.STATIC_BROKER)
        elif key.topic_name is not None and default is not None:
            default = static  # With a metadata store, some have another default.
        yield ConfigSynonym(name, default, ConfigSource.DEFAULT)

    def _sensitive_synonyms(self, key: ConfigKey) -> Iterator[ConfigSynonym]:
        """Yield where a secret is set; its value is not shown, as in Kafka."""
        if self._static.is_static(key.name):
            yield ConfigSynonym(key.name, None, ConfigSource.STATIC_BROKER)
        yield ConfigSynonym(key.name, None, ConfigSource.DEFAULT)


class AlterOperation(IntEnum):
    """The operations of IncrementalAlterConfigs; numbers of the wire protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigEdit(NamedTuple):
    """One config to alter; `operation` is the client's and may be unknown."""

    name: str
    operation: int
    value: str | None


class ConfigResource(NamedTuple):
    """A topic or broker, with the configs to alter."""

    type: int
    name: str
    edits: list[ConfigEdit]


async def alter_configs(
    broker: Broker,
    context: RequestContext,
    resources: Sequence[ConfigResource],
    *,
    replace: bool,
    validate_only: bool,
) -> list[AlterConfigsResourceResponse]:
    """Alter the overrides of each resource; with `replace`, remove all others."""
    occurrences: Counter[tuple[int, str]] = Counter()
    async for resources_of_slice in in_slices(resources):
        occurrences.update((resource_type, name) for resource_type, name, _ in resources_of_slice)
    results = {}
    for number, (resource_type, name, edits) in enumerate(resources, start=1):
        if number % SLICE_ELEMENTS == 0:
            await asyncio.sleep(0)
        code, message = ErrorCode.NONE, None
        try:
            check(broker, context, ALTER_CONFIGS, *protected_resource(resource_type, name))
            if occurrences[resource_type, name] > 1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Duplicate resource {name!r} in the request"
                )
            check_no_duplicates(edit.name for edit in edits)
            configurable = _find(broker, resource_type, name)
            change = _change(configurable, edits, replace=replace)
            if validate_only:
                configurable.validate(change)
            else:
                await configurable.alter(change)
        except EXPECTED_ERRORS as error:
            code, message = error_code_of(error), error_message_of(error)
        results[resource_type, name] = AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=resource_type, resource_name=name
        )
    return list(results.values())


def _change(
    configurable: _Configurable, edits: Sequence[ConfigEdit], *, replace: bool
) -> ConfigChange:
    def change(overrides: Mapping[str, str]) -> Mapping[str, str]:
        edited = {} if replace else dict(overrides)
        for name, operation, value in edits:
            key = configurable.key(name)
            if operation == AlterOperation.DELETE:
                edited.pop(name, None)
                continue
            if value is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Missing value for {name}")
            if operation == AlterOperation.SET:
                edited[name] = value
            elif operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
                if key.type != "list":
                    raise ConfigError(
                        f"Cannot append to or subtract from {name}: it is of type {key.type}, not"
                        " list"
                    )
                before = edited[name] if name in edited else configurable.inherited(name)
                edited[name] = _edit_list(before, operation, value)
            else:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}"
                )
        return edited

    return change


def _edit_list(before: str, operation: int, value: str) -> str:
    items, edited_items = _items(before), _items(value)
    if operation == AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *edited_items]))
    return ",".join(item for item in items if item not in edited_items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


class _Configurable(Protocol):
    """A topic, a broker, or all brokers, whose configs can be altered."""

    def key(self, name: str) -> ConfigKey:
        """Return the definition of a config. Raises ConfigError if it is unknown."""

    def inherited(self, name: str) -> str:
        """Return the value of a config that is not overridden."""

    def validate(self, change: ConfigChange) -> None:
        """Raise ConfigError, or what the change raises, if the result is not valid."""

    async def alter(self, change: ConfigChange) -> None:
        """Apply the change. Raises what `validate` does."""


class _ConfigurableTopic:
    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._topics = broker.topics
        self._controller = broker.controller
        self._topic = topic

    def key(self, name: str) -> ConfigKey:
        if name not in TOPIC_CONFIGS:
            raise unknown_config(name, TOPIC_CONFIGS)
        return TOPIC_CONFIGS[name]

    def inherited(self, name: str) -> str:
        return self._topics.config.topic_defaults.text_of(name)

    def validate(self, change: ConfigChange) -> None:
        self._topics.validate_configs(self._topic, change(self._topic.configs))

    async def alter(self, change: ConfigChange) -> None:
        await self._controller.alter_topic_configs(self._topic, change)


class _ConfigurableBroker:
    def __init__(self, broker: Broker, broker_id: int) -> None:
        self._controller = broker.controller
        self._id = broker_id
        # The static configs of other brokers are not known here.
        static_configs = broker.config.static_configs if broker_id == broker.id else {}
        self._static = BrokerConfig.of(static_configs)

    def key(self, name: str) -> ConfigKey:
        return broker_config_key(name)

    def inherited(self, name: str) -> str:
        return self._static.text_of(name)

    def validate(self, change: ConfigChange) -> None:
        self._controller.validate_broker_configs(self._id, change)

    async def alter(self, change: ConfigChange) -> None:
        await self._controller.alter_broker_configs(self._id, change)


class _ConfigurableGroup:
    def __init__(self, broker: Broker, group_id: str) -> None:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid group id: it is empty")
        self._broker = broker
        self._id = group_id

    def key(self, name: str) -> ConfigKey:
        if name not in GROUP_CONFIGS:
            raise unknown_config(name, GROUP_CONFIGS)
        return GROUP_CONFIGS[name]

    def inherited(self, name: str) -> str:
        return inherited_config(name, self._broker.config)

    def validate(self, change: ConfigChange) -> None:
        self._check(change(self._broker.topics.image.group_configs.get(self._id, {})))

    async def alter(self, change: ConfigChange) -> None:
        await self._broker.controller.alter_group_configs(self._id, change, self._check)

    def _check(self, configs: Mapping[str, str]) -> None:
        check_group_configs(configs, self._broker.config)


def _find(broker: Broker, resource_type: int, name: str) -> _Configurable:
    if resource_type == ResourceType.TOPIC:
        return _ConfigurableTopic(broker, find_topic(broker, name))
    if resource_type == ResourceType.BROKER and not name:
        return _ConfigurableBroker(broker, ALL_BROKERS)
    if resource_type == ResourceType.GROUP:
        return _ConfigurableGroup(broker, name)
    broker_id = check_broker(resource_type, name, broker.cluster.broker_ids)
    return _ConfigurableBroker(broker, broker_id)


def check_broker(resource_type: int, name: str, broker_ids: Collection[int]) -> int:
    """Return the broker id of a resource. Raises ApiError if it is not one of `broker_ids`."""
    if resource_type != ResourceType.BROKER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unsupported resource type {resource_type}: expected TOPIC (2), BROKER (4) or GROUP"
            " (32)",
        )
    for broker_id in broker_ids:
        if name == str(broker_id):
            return broker_id
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Unknown broker {name!r}: expected one of {', '.join(map(str, broker_ids))}, or an empty"
        " name for all brokers",
    )


def protected_resource(resource_type: int, name: str) -> tuple[AclResourceType, str]:
    """Return the resource whose ACLs protect the configs of a resource."""
    if resource_type == ResourceType.TOPIC:
        return TOPIC, name
    if resource_type == ResourceType.GROUP:
        return GROUP, name
    return CLUSTER, CLUSTER_NAME


def check_no_duplicates(names: Iterable[str]) -> None:
    """Raise ApiError if a config is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate config {name}")
        seen.add(name)
