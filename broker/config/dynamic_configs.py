"""The settings of topics and brokers, as clients see and change them.

A setting has its value from the first of these that says one: the topic itself, what was altered of
the broker while it ran, what the broker was started with, the default. These are its synonyms, in
Kafka's word; those of a topic's setting that come from the broker have the broker's name for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.coord.metadata_image import Topic
from ottla.protocol.api.alter_configs import AlterConfigsResourceResponse
from ottla.protocol.configdef import ConfigError, ConfigKey, as_text, unknown_config
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import TOPIC_CONFIGS

from ..cluster.controller import ConfigChange
from ..requests.errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of
from ..requests.topic_metadata import find_topic
from .broker_config import BrokerConfig, broker_config_key, broker_configs

if TYPE_CHECKING:
    from ..broker import Broker


class ResourceType(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """One place that says what a setting is to be."""

    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    """A setting, and all that is said of it; what counts comes first."""

    setting: ConfigKey
    synonyms: Sequence[Synonym]

    @property
    def value(self) -> str | None:
        """What it is."""
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        """Who says so."""
        return self.synonyms[0].source

    @property
    def is_read_only(self) -> bool:
        """Whether it cannot be altered."""
        return not self.setting.is_dynamic or bool(self.setting.fixed_because)


class Describer:
    """Describes settings; made once for a request, however many topics it is about."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._at_start = BrokerConfig.of(config.static_configs)
        self._inherited = {
            declared.topic_name: list(self._synonyms(declared))
            for declared in broker_configs()
            if declared.topic_name is not None
        }

    def topic(self, own: Mapping[str, str]) -> Iterator[Described]:
        """Describe the settings of a topic that has these of its own."""
        for name, declared in TOPIC_CONFIGS.items():
            synonyms = self._inherited[name]
            if name in own:
                value = as_text(declared.parse(own[name]))
                synonyms = [Synonym(name, value, Source.TOPIC), *synonyms]
            yield Described(declared, synonyms)

    def broker(self) -> Iterator[Described]:
        """Describe the settings of the broker."""
        for declared in broker_configs():
            yield Described(declared, list(self._synonyms(declared)))

    def _synonyms(self, declared: ConfigKey) -> Iterator[Synonym]:
        """Give what the broker says of a setting.

        One that is said in another unit (`log.retention.hours`) shows as its value in this one.
        """
        name = declared.name
        now, at_start = self._config.text_of(name), self._at_start.text_of(name)
        if name in self._config.dynamic_configs or now != at_start:
            yield Synonym(name, now, Source.DYNAMIC_BROKER)
        if self._at_start.is_static(name):
            yield Synonym(name, at_start, Source.STATIC_BROKER)
        default = None if declared.default_value is None else declared.default
        yield Synonym(name, default, Source.DEFAULT)


class Operation(IntEnum):
    """What to do with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Edit(NamedTuple):
    """One setting to be altered; `operation` is as a client sent it."""

    name: str
    operation: int
    value: str | None


class Resource(NamedTuple):
    """What is to be altered of something that has settings."""

    kind: int
    name: str
    edits: Sequence[Edit]


async def alter(
    broker: Broker, resources: Sequence[Resource], *, replace: bool, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Alter the settings that resources have of their own; with `replace`, forget all others."""
    times_named = Counter((kind, name) for kind, name, _edits in resources)
    results = {}
    for kind, name, edits in resources:
        code, message = ErrorCode.NONE, None
        try:
            if times_named[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names this resource twice")
            check_no_duplicates(edit.name for edit in edits)
            configurable = _find(broker, kind, name)
            change = _change(configurable, edits, replace=replace)
            if validate_only:
                configurable.check(change)
            else:
                await configurable.alter(change)
        except EXPECTED_ERRORS as error:
            code, message = error_code_of(error), error_message_of(error)
        results[kind, name] = AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
    return list(results.values())


def _change(configurable: _Configurable, edits: Sequence[Edit], *, replace: bool) -> ConfigChange:
    def change(own: Mapping[str, str]) -> Mapping[str, str]:
        edited = {} if replace else dict(own)
        for name, operation, value in edits:
            declared = configurable.setting(name)
            if operation == Operation.DELETE:
                edited.pop(name, None)
                continue
            if value is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: it has no value")
            if operation == Operation.SET:
                edited[name] = value
            elif operation in (Operation.APPEND, Operation.SUBTRACT):
                if declared.type != "list":
                    raise ConfigError(f"{name}: it is not a list, but of type {declared.type}")
                before = edited[name] if name in edited else configurable.inherited(name)
                edited[name] = _edit_list(before, operation, value)
            else:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: no operation {operation}")
        return edited

    return change


def _edit_list(before: str, operation: int, value: str) -> str:
    items = _items(before)
    if operation == Operation.APPEND:
        return ",".join(dict.fromkeys([*items, *_items(value)]))
    gone = _items(value)
    return ",".join(item for item in items if item not in gone)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


class _Configurable(Protocol):
    """Something whose settings can be altered."""

    def setting(self, name: str) -> ConfigKey:
        """Give a setting that it has. Raises ConfigError."""

    def inherited(self, name: str) -> str:
        """Give the value of a setting that it does not have of its own."""

    def check(self, change: ConfigChange) -> None:
        """Raise ConfigError, or what the change raises, if it could not be changed so."""

    async def alter(self, change: ConfigChange) -> None:
        """Change it. Raises what `check` does."""


class _ConfigurableTopic:
    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._topics = broker.topics
        self._controller = broker.controller
        self._topic = topic

    def setting(self, name: str) -> ConfigKey:
        if name not in TOPIC_CONFIGS:
            raise unknown_config(name, TOPIC_CONFIGS)
        return TOPIC_CONFIGS[name]

    def inherited(self, name: str) -> str:
        return self._topics.config.topic_defaults.text_of(name)

    def check(self, change: ConfigChange) -> None:
        self._topics.topic_config(change(self._topic.configs))

    async def alter(self, change: ConfigChange) -> None:
        await self._controller.alter_topic_configs(self._topic, change)


class _ConfigurableBroker:
    def __init__(self, broker: Broker, broker_id: int) -> None:
        self._controller = broker.controller
        self._id = broker_id
        # With what another one was started is not known here.
        given = broker.config.static_configs if broker_id == broker.id else {}
        self._at_start = BrokerConfig.of(given)

    def setting(self, name: str) -> ConfigKey:
        return broker_config_key(name)

    def inherited(self, name: str) -> str:
        return self._at_start.text_of(name)

    def check(self, change: ConfigChange) -> None:
        self._controller.validate_broker_configs(self._id, change)

    async def alter(self, change: ConfigChange) -> None:
        await self._controller.alter_broker_configs(self._id, change)


def _find(broker: Broker, kind: int, name: str) -> _Configurable:
    if kind == ResourceType.TOPIC:
        return _ConfigurableTopic(broker, find_topic(broker, name))
    return _ConfigurableBroker(broker, check_broker(kind, name, broker.cluster.broker_ids))


def check_broker(kind: int, name: str, ids: Collection[int]) -> int:
    """Give the broker that a resource is. Raises ApiError if it is none of these."""
    if kind != ResourceType.BROKER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"a resource of type {kind}: only topics (2) and brokers (4) have settings here",
        )
    for broker_id in ids:
        if name == str(broker_id):
            return broker_id
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"the broker {name!r}: here is broker {', '.join(map(str, ids))}, and there are no settings"
        " for all",
    )


def check_no_duplicates(names: Iterable[str]) -> None:
    """Raise ApiError for a setting that is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is set twice")
        seen.add(name)
