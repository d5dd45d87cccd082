"""The configs that a group may have of its own (DescribeConfigs, IncrementalAlterConfigs).

A config that a group does not have is the broker's: `group.consumer.session.timeout.ms` for
`consumer.session.timeout.ms`. A few are of groups alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.coord.config import CONSUMER_GROUP_CONFIG_FIELDS, SHARE_GROUP_CONFIG_FIELDS
from ottla.coord.share.offset_reset import check_offset_reset
from ottla.protocol.configdef import ConfigError, ConfigKey

from .broker_config import BROKER_CONFIGS, LIMITED_GROUP_CONFIGS, BrokerConfig, limits_of

_OFFSET_RESET = "share.auto.offset.reset"
_ONLY_OF_GROUPS = {
    key.name: key
    for key in (
        ConfigKey(
            name=_OFFSET_RESET,
            type="string",
            default_value="latest",
            doc="Where a share group starts in a partition: earliest, latest or"
            " by_duration:DURATION, as in by_duration:PT1H.",
        ),
        ConfigKey(
            name="share.isolation.level",
            type="string",
            default_value="read_uncommitted",
            doc="Whether a share group gets only records of committed transactions.",
            choices=("read_committed", "read_uncommitted"),
        ),
        ConfigKey(
            name="share.renew.acknowledge.enable",
            type="bool",
            default_value=True,
            doc="Whether members may extend the locks of records that they work on.",
        ),
    )
}

#: By name. The others are declared as broker configs.
GROUP_CONFIGS: Mapping[str, ConfigKey] = {
    name: _ONLY_OF_GROUPS.get(name) or replace(BROKER_CONFIGS[f"group.{name}"], name=name)
    for name in (*CONSUMER_GROUP_CONFIG_FIELDS, *SHARE_GROUP_CONFIG_FIELDS)
}


def check_group_configs(configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise ConfigError if a value is invalid, or outside the broker's limits."""
    for name, text in configs.items():
        value = GROUP_CONFIGS[name].parse(text)
        if name == _OFFSET_RESET:
            try:
                check_offset_reset(value)
            except ValueError as error:
                raise ConfigError(f"Invalid {name} {value!r}: {error}") from None
        if name not in LIMITED_GROUP_CONFIGS:
            continue
        low, high = (int(broker.text_of(f"group.{limit}")) for limit in limits_of(name))
        if not low <= value <= high:
            raise ConfigError(f"Invalid {name} {value}: expected {low} to {high}")


def inherited_config(name: str, broker: BrokerConfig) -> str:
    """Return the value of a group that has none of its own."""
    key = _ONLY_OF_GROUPS.get(name)
    return broker.text_of(f"group.{name}") if key is None else key.default
