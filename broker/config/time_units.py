"""Broker configs that give in hours or minutes what another config gives in milliseconds.

As in Kafka, milliseconds win over minutes and minutes over hours, within one source; a source of
higher precedence wins over a lower one in any unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.protocol.configdef import INT_MAX, ConfigKey

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS


class _TimeUnit(NamedTuple):
    name: str
    target: str
    """The config in milliseconds."""
    unit_ms: int
    low: int

    @property
    def key(self) -> ConfigKey:
        return ConfigKey(
            name=self.name,
            type="int",
            default_value=None,
            doc=f"{self.target} in {self.name.rpartition('.')[2]}, if that is not set.",
            low=self.low,
            high=INT_MAX,
        )

    def to_ms(self, value: int) -> int:
        return value * self.unit_ms if value >= 0 else -1


#: By name. Of two with the same target, the later one wins.
TIME_UNITS: Mapping[str, _TimeUnit] = {
    unit.name: unit
    for unit in (
        _TimeUnit("log.retention.hours", "log.retention.ms", _HOUR_MS, -1),
        _TimeUnit("log.retention.minutes", "log.retention.ms", _MINUTE_MS, -1),
        _TimeUnit("log.roll.hours", "log.roll.ms", _HOUR_MS, 1),
    )
}


def target_of(name: str) -> str:
    """Return the config in milliseconds for one in another unit, and any other name unchanged."""
    return TIME_UNITS[name].target if name in TIME_UNITS else name


def merge_configs(lower: Mapping[str, str], higher: Mapping[str, str]) -> dict[str, str]:
    """Merge two sources; `higher` wins, in any time unit."""
    overridden = {target_of(name) for name in higher}
    kept = {name: text for name, text in lower.items() if target_of(name) not in overridden}
    return {**kept, **higher}


def to_milliseconds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those in other units converted to milliseconds."""
    converted = {
        unit.target: unit.to_ms(values[name]) for name, unit in TIME_UNITS.items() if name in values
    }
    return {**converted, **values}
