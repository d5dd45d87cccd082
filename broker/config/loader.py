"""Load broker configs from the command line, the environment and files.

In order of precedence: flags, environment variables (`OTTLA_NUM_PARTITIONS` is `num.partitions`),
a file in the format of Kafka's server.properties (see `kafka_properties`), the cluster file (see
`cluster_file`), the defaults. Errors name the variable, or the file and line.

An unknown environment variable is a warning: others set variables too. Kubernetes injects
`OTTLA_PORT=tcp://…` and more into each container, if a Service is named `ottla`; these get one
warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ottla.protocol.configdef import ConfigError, field_of, unknown_config

from ..cluster.cluster_file import read_cluster_file
from .broker_config import BROKER_CONFIGS, BrokerConfig, broker_config_key
from .kafka_properties import Translated, translate
from .security_configs import listener_variable_config, split_listener_config
from .time_units import merge_configs

#: Called with what was ignored and why.
Warn = Callable[[str], None]

_VARIABLE_PREFIX = "OTTLA_"
_LISTENER_PREFIX = "OTTLA_LISTENER_NAME_"
# Variables of other commands and of tests, which may be set where a broker starts.
_CLIENT_VARIABLES = ("OTTLA_BOOTSTRAP", "OTTLA_PROFILE", "OTTLA_COMMAND_CONFIG", "OTTLA_ETCD")
# Variables of the services of a Kubernetes namespace, as of those of linked containers.
_SERVICE_VARIABLE = re.compile(
    r"OTTLA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)?)"
)


def load_broker_config(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: Path | None = None,
    cluster_file: Path | None = None,
    warn: Warn = lambda _text: None,
) -> BrokerConfig:
    """Merge the configs of all sources. Raises ConfigError."""
    configs = read_cluster_file(cluster_file) if cluster_file else {}
    properties = _read_properties(file) if file else Translated({}, (), {})
    configs = merge_configs(configs, properties.configs)
    configs = merge_configs(configs, _read_environment(environ, warn))
    config = BrokerConfig.of(merge_configs(configs, flags))
    _check_listener_configs(config)
    for name, factor in properties.factors.items():
        config.check_replication_factor(name, factor)
    if properties.ignored:
        warn(f"{file}: ignored configs without effect in ottla: {', '.join(properties.ignored)}")
    return config


def _check_listener_configs(config: BrokerConfig) -> None:
    """Raise ConfigError for configs of a listener that there is not."""
    names = [name.lower() for name in config.listener_names]
    for name in config.listener_configs:
        parts = split_listener_config(name)
        if parts is not None and parts.listener not in names:
            raise ConfigError(
                f"{name}: there is no listener {parts.listener.upper()}; expected"
                f" {' or '.join(f'listener.name.{known}.…' for known in names)}"
            )


def environment_variable(name: str) -> str:
    """Return the environment variable of a broker config."""
    return _VARIABLE_PREFIX + field_of(name).upper()


def _read_environment(environ: Mapping[str, str], warn: Warn) -> dict[str, str]:
    names = {environment_variable(name): name for name in BROKER_CONFIGS}
    configs = {}
    of_services = []
    for variable, text in environ.items():
        if variable in names:
            _check(names[variable], text, source=variable)
            configs[names[variable]] = text
        elif variable.startswith(_LISTENER_PREFIX) and (
            name := listener_variable_config(variable.removeprefix(_LISTENER_PREFIX))
        ):
            _check(name, text, source=variable)
            configs[name] = text
        elif _SERVICE_VARIABLE.fullmatch(variable):
            of_services.append(variable)
        elif variable.startswith(_VARIABLE_PREFIX) and variable not in _CLIENT_VARIABLES:
            warn(f"Ignored an environment variable: {unknown_config(variable, names)}")
    if of_services:
        warn(
            "Ignored environment variables that Kubernetes sets for a Service (no config; the"
            f" address is OTTLA_LISTENERS): {', '.join(sorted(of_services))}"
        )
    return configs


def _read_properties(path: Path) -> Translated:
    configs: dict[str, str] = {}
    sources: dict[str, str] = {}
    for number, line in _lines(path):
        source = f"{path}:{number}"
        name, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"{source}: Invalid line {line!r}: expected KEY=VALUE")
        if name in configs:
            raise ConfigError(f"{source}: Duplicate config {name}")
        configs[name], sources[name] = text, source

    def refuse(name: str, problem: str) -> ConfigError:
        return ConfigError(f"{sources.get(name, path)}: {problem}")

    translated = translate(configs, BROKER_CONFIGS, refuse)
    for name, text in translated.configs.items():
        _check(name, text, source=sources.get(name, str(path)))
    return translated


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
