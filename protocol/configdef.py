"""Config definitions: the name, type, default, bounds and documentation of each config.

A config is declared once, as a field of a frozen dataclass:

    segment_bytes: int = config_key(1 << 30, "Segment size at which the log rolls.", low=1024)

The field's name with dots for underscores is the config's name (`segment.bytes`). `LogConfig` in
`ottla.storage` declares the topic configs this way, `BrokerConfig` in `ottla.broker` the broker
configs; the tables in docs/configuration.md and the answers to DescribeConfigs come from here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class ConfigError(ValueError):
    """An unknown config, or an invalid value for a known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """The definition of one config."""

    name: str
    type: str
    """One of Kafka's types: bool, string, int, long, double, list."""
    default_value: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fixed_because: str = ""
    """The reason why only the default is accepted; empty if other values are."""
    is_dynamic: bool = True
    """Whether it can be altered while the broker runs."""
    is_sensitive: bool = False
    """Whether the value is a secret: it is never shown."""
    topic_name: str | None = None
    """For a broker config: the topic config it is the default of."""

    @property
    def default(self) -> str:
        """The default as text."""
        return as_text(self.default_value)

    @property
    def allowed(self) -> str:
        """The valid values, for error messages and docs; empty if any text is valid."""
        if self.fixed_because:
            return f"{self.default} only: {self.fixed_because}"
        if self.type == "bool":
            return "true, false"
        if self.low is None:
            return ", ".join(choice or "(empty)" for choice in self.choices)
        is_unbounded = self.high is None or self.high >= LONG_MAX
        return f"{self.low:,} or more" if is_unbounded else f"{self.low:,} to {self.high:,}"

    def parse(self, text: str) -> Any:
        """Return the value of `text`. Raises ConfigError."""
        kind = _TYPES[self.type]
        try:
            value = _convert(text.strip(), kind)
        except ValueError:
            raise ConfigError(
                f"Invalid value {text!r} for {self.name}: expected type {self.type}, "
                f"allowed: {self.allowed}"
            ) from None
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError if `value` is not valid."""
        problem = ""
        if self.fixed_because and value != self.default_value:
            problem = f"only {self.default} is supported: {self.fixed_because}"
        elif self.choices and value not in self.choices:
            problem = f"expected one of {self.allowed}"
        elif self.low is not None and not value >= self.low:
            problem = f"the minimum is {self.low}"
        elif self.high is not None and not value <= self.high:
            problem = f"the maximum is {self.high}"
        if problem:
            raise ConfigError(f"Invalid value {as_text(value)} for {self.name}: {problem}")


def config_key(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    fixed_because: str = "",
    is_list: bool = False,
    is_dynamic: bool = True,
    is_sensitive: bool = False,
) -> Any:
    """Declare a config, as the default of a dataclass field."""
    kind = {bool: "bool", int: "long", float: "double", str: "string"}[type(default)]
    if kind == "long":
        high = LONG_MAX if high is None else high
        kind = "int" if high <= INT_MAX else "long"
    key = ConfigKey(
        name="",
        type="list" if is_list else kind,
        default_value=default,
        doc=doc,
        low=low,
        high=high,
        choices=choices,
        fixed_because=fixed_because,
        is_dynamic=is_dynamic,
        is_sensitive=is_sensitive,
    )
    return field(default=default, metadata={"config": key}, repr=not is_sensitive)


def config_keys(config: type[Any]) -> Mapping[str, ConfigKey]:
    """Return the configs that a dataclass declares, by name."""
    declared = ((spec.name.replace("_", "."), spec.metadata) for spec in fields(config))
    return {
        name: replace(metadata["config"], name=name)
        for name, metadata in declared
        if "config" in metadata
    }


def field_of(name: str) -> str:
    """Return the name of the dataclass field of a config."""
    return name.replace(".", "_")


def as_text(value: Any) -> str:
    """Return a value as text that `ConfigKey.parse` accepts; None becomes the empty text."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_config(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown config, with the closest known name as a hint."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"Unknown config {name}{hint}")


_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "long": int,
    "double": float,
    "string": str,
    "list": str,
}


def _convert(text: str, kind: type) -> Any:
    if kind is not bool:
        return kind(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
