"""Load broker configs from the command line, the environment and files.

In order of precedence: flags, environment variables (`OTTLA_NUM_PARTITIONS` is `num.partitions`),
a file in the format of Kafka's server.properties, the cluster file (see `cluster_file`), the
defaults. Errors name the variable, or the file and line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.protocol.configdef import ConfigError, field_of, unknown_config

from ..cluster.cluster_file import read_cluster_file
from .broker_config import BROKER_CONFIGS, BrokerConfig, broker_config_key
from .time_units import merge_configs

_VARIABLE_PREFIX = "OTTLA_"
# Variables of the command line's client commands, which may be set where a broker starts.
_CLIENT_VARIABLES = ("OTTLA_BOOTSTRAP", "OTTLA_PROFILE")


def load_broker_config(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: Path | None = None,
    cluster_file: Path | None = None,
) -> BrokerConfig:
    """Merge the configs of all sources. Raises ConfigError."""
    configs = read_cluster_file(cluster_file) if cluster_file else {}
    configs = merge_configs(configs, _read_properties(file) if file else {})
    configs = merge_configs(configs, _read_environment(environ))
    return BrokerConfig.of(merge_configs(configs, flags))


def environment_variable(name: str) -> str:
    """Return the environment variable of a broker config."""
    return _VARIABLE_PREFIX + field_of(name).upper()


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    names = {environment_variable(name): name for name in BROKER_CONFIGS}
    configs = {}
    for variable, text in environ.items():
        if variable in names:
            _check(names[variable], text, source=variable)
            configs[names[variable]] = text
        elif variable.startswith(_VARIABLE_PREFIX) and variable not in _CLIENT_VARIABLES:
            raise unknown_config(variable, names)
    return configs


def _read_properties(path: Path) -> dict[str, str]:
    configs: dict[str, str] = {}
    for number, line in _lines(path):
        source = f"{path}:{number}"
        name, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"{source}: Invalid line {line!r}: expected KEY=VALUE")
        if name in configs:
            raise ConfigError(f"{source}: Duplicate config {name}")
        _check(name, text, source=source)
        configs[name] = text
    return configs


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines that are neither blank nor comments."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: Invalid encoding: expected UTF-8") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and line.lstrip()[0] not in "#!":
            yield number, line.strip()


def _check(name: str, text: str, *, source: str) -> None:
    """Raise a ConfigError that names the source, if the value is not valid."""
    try:
        broker_config_key(name).parse(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
