"""The configs that a group may have of its own (DescribeConfigs, IncrementalAlterConfigs).

A config that a group does not have is the broker's: `group.consumer.session.timeout.ms` for
`consumer.session.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.coord.config import GROUP_CONFIG_FIELDS
from ottla.protocol.configdef import ConfigError, ConfigKey

from .broker_config import BROKER_CONFIGS, BrokerConfig

#: By name. They are declared as broker configs.
GROUP_CONFIGS: Mapping[str, ConfigKey] = {
    name: replace(BROKER_CONFIGS[f"group.{name}"], name=name) for name in GROUP_CONFIG_FIELDS
}
_HAVE_LIMITS = frozenset({"consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"})


def check_group_configs(configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise ConfigError if a value is invalid, or outside the broker's limits."""
    for name, text in configs.items():
        value = GROUP_CONFIGS[name].parse(text)
        if name not in _HAVE_LIMITS:
            continue
        low, high = (
            int(broker.text_of(f"group.{name}".replace("consumer.", f"consumer.{limit}.")))
            for limit in ("min", "max")
        )
        if not low <= value <= high:
            raise ConfigError(f"Invalid {name} {value}: expected {low} to {high}")
