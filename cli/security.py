"""How commands connect to secured listeners: a file of Kafka's client configs, or a profile.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-256
    sasl.username=alice
    sasl.password=${env:ALICE_PASSWORD}
    ssl.truststore.location=certs/ca.pem

`${env:NAME}` is an environment variable, and `${directory:DIR:FILE}` the content of a file, as with
Kafka's config providers. Relative paths are those of the command's working directory in the file,
as with Kafka's tools, and are made absolute in a profile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import Exit, Failure

if TYPE_CHECKING:
    from ottla.client.security import SecurityConfig

_REFERENCE = re.compile(r"\$\{(\w+):([^}]*)\}")
_PREFIXES = ("security.", "sasl.", "ssl.")
# Kafka's names of what a profile can have; their secrets are in the environment or a file.
_ENTRIES = {
    "security_protocol": "Security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    "sasl_mechanism": "SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.",
    "sasl_username": "User name for SASL.",
    "sasl_password_env": "Environment variable with the password.",
    "sasl_password_file": "File with the password.",
    "sasl_token_file": "File with the token, for OAUTHBEARER.",
    "ssl_truststore_location": "PEM file of the CAs to trust.",
    "ssl_keystore_location": "PEM file with the client's certificate chain and key.",
    "ssl_key_password_env": "Environment variable with the password of the key.",
    "ssl_key_password_file": "File with the password of the key.",
    "command_config": "File with Kafka's client configs (security.protocol, …).",
}
_PATHS = tuple(name for name in _ENTRIES if name.endswith(("_file", "_location", "_config")))
#: The names of these entries.
PROFILE_ENTRIES = tuple(_ENTRIES)


def profile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a profile about security."""
    for name, text in reversed(_ENTRIES.items()):
        metavar = {"env": "VARIABLE", "file": "FILE", "location": "FILE", "config": "FILE"}.get(
            name.rpartition("_")[2], "NAME"
        )
        command = click.option(f"--{name.replace('_', '-')}", metavar=metavar, help=text)(command)
    return command


def entries_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a profile for its options: paths are absolute. Raises Failure."""
    entries = {name: options[name] for name in _ENTRIES if options.get(name) is not None}
    for name in _PATHS:
        if name in entries:
            entries[name] = str(Path(entries[name]).expanduser().absolute())
    if entries:
        _check_entries(entries)
    return entries


def security_of(entries: Mapping[str, Any]) -> SecurityConfig | None:
    """Return the security config of a profile's entries; None: PLAINTEXT. Raises Failure."""
    properties: dict[str, str] = {}
    if path := entries.get("command_config"):
        properties |= _read_properties(Path(path))
    for name in ("security_protocol", "sasl_mechanism", "sasl_username"):
        if name in entries:
            properties[name.replace("_", ".")] = entries[name]
    for name in ("ssl_truststore_location", "ssl_keystore_location"):
        if name in entries:
            properties[name.replace("_", ".")] = entries[name]
    for name in ("sasl_password", "ssl_key_password"):
        if variable := entries.get(f"{name}_env"):
            properties[name.replace("_", ".")] = _from_environment(variable, f"--{name}-env")
        elif file := entries.get(f"{name}_file"):
            properties[name.replace("_", ".")] = _from_file(Path(file))
    if file := entries.get("sasl_token_file"):
        properties["sasl.oauthbearer.token.endpoint.url"] = Path(file).absolute().as_uri()
    if not properties:
        return None
    from ottla.client.security import SecurityConfig

    try:
        config = SecurityConfig.from_properties(properties)
    except ValueError as error:
        raise Failure(f"Security of this connection: {error}", Exit.USAGE) from None
    return config if config.uses_tls or config.uses_sasl else None


def _check_entries(entries: Mapping[str, Any]) -> None:
    for name in ("sasl_password", "ssl_key_password"):
        if f"{name}_env" in entries and f"{name}_file" in entries:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option}-env and --{option}-file are mutually exclusive")
    names = ("sasl_username", "sasl_mechanism", "ssl_truststore_location", "ssl_keystore_location")
    given = [name for name in names if name in entries]
    if given and not {"security_protocol", "command_config"} & set(entries):
        option = given[0].replace("_", "-")
        raise click.UsageError(f"--{option} requires --security-protocol, such as SASL_SSL")


def _read_properties(path: Path) -> dict[str, str]:
    """Return the security configs in a file of client configs; others do not matter here."""
    try:
        lines = path.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Failure(f"--command-config {path}: {reason}", Exit.USAGE) from None
    properties = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise Failure(f"{path}:{number}: expected NAME=VALUE", Exit.USAGE)
        name = name.strip()
        if name.startswith(_PREFIXES):
            properties[name] = _resolved(value.strip(), f"{path}:{number}")
    return properties


def _resolved(value: str, where: str) -> str:
    def replace(match: re.Match[str]) -> str:
        provider, argument = match.groups()
        if provider == "env":
            return _from_environment(argument, where)
        if provider == "directory":
            directory, _, name = argument.rpartition(":")
            return _from_file(Path(directory) / name)
        raise Failure(
            f"{where}: unknown provider {provider!r}: use ${{env:NAME}} or ${{directory:DIR:FILE}}",
            Exit.USAGE,
        )

    return _REFERENCE.sub(replace, value)


def _from_environment(variable: str, where: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise Failure(f"{where}: the environment variable {variable} is not set", Exit.USAGE)
    return value


def _from_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Failure(f"Cannot read the secret in {path}: {reason}", Exit.USAGE) from None
