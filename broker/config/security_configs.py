"""Security configs: TLS, SASL and users, for all listeners or for one.

`ssl.keystore.location` applies to all listeners; `listener.name.external.ssl.keystore.location` to
the listener EXTERNAL, and wins. The users and credentials of a mechanism have names that are always
those of one listener: `listener.name.external.plain.sasl.jaas.config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ottla.protocol.configdef import (
    INT_MAX,
    ConfigError,
    ConfigKey,
    config_key,
    config_keys,
    unknown_config,
)

PLAINTEXT = "PLAINTEXT"
SECURITY_PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SASL_MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_MINUTE_MS = 60 * 1000
_LISTENER_PREFIX = re.compile(r"listener\.name\.(?P<listener>[a-z0-9_]+)\.(?P<name>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfigs:
    """The part of the broker configs that is about security."""

    listener_security_protocol_map: str = config_key(
        "",
        "Comma-separated list of LISTENER:PROTOCOL, where PROTOCOL is PLAINTEXT, SSL,"
        " SASL_PLAINTEXT or SASL_SSL. A listener with the name of a protocol has that protocol;"
        " if the list is empty, all others are PLAINTEXT.",
        is_list=True,
        is_dynamic=False,
    )
    allow_insecure_listeners: bool = config_key(
        False,
        "Whether a listener that other machines can reach may do without authentication. Without"
        " it, the broker does not start with such a listener.",
        is_dynamic=False,
    )
    security_inter_broker_protocol: str = config_key(
        "",
        "Security protocol of the communication between brokers, as an alternative to"
        " inter.broker.listener.name: the first listener with this protocol is used.",
        choices=("", *SECURITY_PROTOCOLS),
        is_dynamic=False,
    )
    sasl_mechanism_inter_broker_protocol: str = config_key(
        "",
        "SASL mechanism with which this broker authenticates at other brokers, with the username"
        " and password in sasl.jaas.config of that mechanism and the inter-broker listener; with"
        " OAUTHBEARER, with a token from sasl.oauthbearer.token.endpoint.url.",
        choices=("", *SASL_MECHANISMS),
        is_dynamic=False,
    )

    ssl_keystore_type: str = config_key("PEM", "Format of ssl.keystore.location: only PEM.")
    ssl_keystore_location: str = config_key(
        "", "PEM file with the certificate chain, the broker's own first, and the private key."
    )
    ssl_keystore_certificate_chain: str = config_key(
        "",
        "The certificate chain in PEM, instead of ssl.keystore.location; \\n ends a line.",
        is_dynamic=False,
    )
    ssl_keystore_key: str = config_key(
        "",
        "The private key in PEM, with ssl.keystore.certificate.chain.",
        is_dynamic=False,
        is_sensitive=True,
    )
    ssl_key_password: str = config_key(
        "", "Password of an encrypted private key.", is_dynamic=False, is_sensitive=True
    )
    ssl_truststore_type: str = config_key("PEM", "Format of ssl.truststore.location: only PEM.")
    ssl_truststore_location: str = config_key(
        "", "PEM file with the certificates that sign those of clients and other brokers."
    )
    ssl_truststore_certificates: str = config_key(
        "", "The same in PEM, instead of ssl.truststore.location.", is_dynamic=False
    )
    ssl_client_auth: str = config_key(
        "none",
        "Whether clients need a certificate. Its subject is their principal, unless they"
        " authenticate with SASL.",
        choices=("none", "requested", "required"),
        is_dynamic=False,
    )
    ssl_enabled_protocols: str = config_key(
        "TLSv1.2,TLSv1.3", "TLS versions: TLSv1.2 and TLSv1.3.", is_list=True, is_dynamic=False
    )
    ssl_protocol: str = config_key(
        "TLSv1.3", "Accepted for compatibility; ssl.enabled.protocols applies.", is_dynamic=False
    )
    ssl_cipher_suites: str = config_key(
        "",
        "Cipher suites by their names in Java. If empty, OpenSSL's defaults. Suites of TLSv1.3"
        " are used all or none.",
        is_list=True,
        is_dynamic=False,
    )
    ssl_endpoint_identification_algorithm: str = config_key(
        "https",
        "Whether this broker, as a client of other brokers, checks that their certificates are for"
        " their host names: https, or empty.",
        choices=("https", ""),
        is_dynamic=False,
    )
    ssl_principal_mapping_rules: str = config_key(
        "DEFAULT",
        "Rules that map the subject of a client's certificate to the name of its principal:"
        " RULE:PATTERN/REPLACEMENT/ with L or U for lower or upper case; the first that matches"
        " wins. DEFAULT is the subject itself. Requires ottla[security].",
        is_dynamic=False,
    )

    sasl_enabled_mechanisms: str = config_key(
        "",
        "Comma-separated list of SASL mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
        " OAUTHBEARER.",
        is_list=True,
        is_dynamic=False,
    )
    sasl_server_max_receive_size: int = config_key(
        512 * 1024,
        "Maximum size of a request before the client has authenticated.",
        low=1024,
        high=INT_MAX,
        is_dynamic=False,
    )
    connections_max_reauth_ms: int = config_key(
        0,
        "Time after which clients have to authenticate again; 0 is never. Connections that do not"
        " are closed with their next request.",
        low=0,
        is_dynamic=False,
    )
    sasl_bootstrap_users: str = config_key(
        "",
        "Users for SCRAM that the controller creates when it starts, if they do not exist:"
        " SCRAM-SHA-512=[name=admin,password=…], separated by semicolons. Change their passwords"
        " then.",
        is_dynamic=False,
        is_sensitive=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = config_key(
        "",
        "File or URL of the keys (JWKS) that sign tokens: file:///… or https://…. Requires"
        " ottla[security].",
        is_dynamic=False,
    )
    sasl_oauthbearer_expected_issuer: str = config_key(
        "", "Issuer (iss) that tokens must have.", is_dynamic=False
    )
    sasl_oauthbearer_expected_audience: str = config_key(
        "", "Audiences of which tokens (aud) must have one.", is_list=True, is_dynamic=False
    )
    sasl_oauthbearer_clock_skew_seconds: int = config_key(
        30, "Tolerated difference of clocks.", low=0, high=INT_MAX, is_dynamic=False
    )
    sasl_oauthbearer_scope_claim_name: str = config_key(
        "scope", "Claim with the scopes of a token.", is_dynamic=False
    )
    sasl_oauthbearer_sub_claim_name: str = config_key(
        "sub", "Claim with the name of the principal.", is_dynamic=False
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = config_key(
        60 * _MINUTE_MS, "Time after which the keys are read again.", low=1000, is_dynamic=False
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = config_key(
        100, "Time between two attempts to read the keys.", low=1, is_dynamic=False
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = config_key(
        10_000,
        "Maximum time between two attempts to read the keys; also the minimum time between two"
        " reads because of unknown keys.",
        low=1,
        is_dynamic=False,
    )
    sasl_oauthbearer_token_endpoint_url: str = config_key(
        "",
        "Where this broker gets the tokens with which it authenticates at other brokers: a file"
        " (file:///…), which is read for each connection, or an identity provider (https://…),"
        " with clientId, clientSecret and scope in sasl.jaas.config.",
        is_dynamic=False,
    )
    sasl_oauthbearer_unsecured_tokens: bool = config_key(
        False,
        "Whether tokens without a signature are accepted, for development: anybody can be anybody.",
        is_dynamic=False,
    )

    connection_failed_authentication_delay_ms: int = config_key(
        100, "Time before a failed authentication is answered.", low=0, high=10_000
    )
    connections_authentication_timeout_ms: int = config_key(
        10_000,
        "Maximum time of the TLS handshake and of the authentication of a connection.",
        low=1,
    )
    max_unauthenticated_connections: int = config_key(
        1000,
        "Maximum number of connections that have not authenticated yet, TLS handshake included."
        " Above it, the oldest of them is closed for each new one.",
        low=1,
        high=INT_MAX,
    )

    listener_configs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The configs of single listeners, by their full names."""


_KEYS = config_keys(SecurityConfigs)
_FOR_LISTENERS = {
    name: key
    for name, key in _KEYS.items()
    if (
        name.startswith(("ssl.", "sasl."))
        and name not in ("sasl.mechanism.inter.broker.protocol", "sasl.bootstrap.users")
    )
    or name == "connections.max.reauth.ms"
}
_JAAS_KEYS = {
    name: ConfigKey(
        name=name,
        type="string",
        default_value="",
        doc="",
        is_dynamic=False,
        is_sensitive=True,
    )
    for name in (f"{mechanism.lower()}.sasl.jaas.config" for mechanism in SASL_MECHANISMS)
}
#: The configs that a listener can have for itself, by their names without the listener.
LISTENER_CONFIGS: Mapping[str, ConfigKey] = {**_FOR_LISTENERS, **_JAAS_KEYS}


class ListenerConfigName(NamedTuple):
    """The parts of `listener.name.<listener>.<name>`."""

    listener: str
    name: str


def split_listener_config(name: str) -> ListenerConfigName | None:
    """Return the parts of the name of a listener's config; None for other configs."""
    match = _LISTENER_PREFIX.fullmatch(name)
    return None if match is None else ListenerConfigName(match["listener"], match["name"])


def listener_config_name(listener: str, name: str) -> str:
    """Return the full name of a config of a listener."""
    return f"listener.name.{listener.lower()}.{name}"


def listener_config_key(name: str) -> ConfigKey | None:
    """Return the definition of a listener's config by its full name; None for other names.

    Raises ConfigError if listeners have no such config.
    """
    parts = split_listener_config(name)
    if parts is None:
        return None
    key = LISTENER_CONFIGS.get(parts.name)
    if key is None:
        raise unknown_config(
            name, (listener_config_name(parts.listener, n) for n in LISTENER_CONFIGS)
        )
    doc = key.doc or "The login module of the mechanism, with its users and credentials."
    return replace(key, name=name, doc=f"For listener {parts.listener.upper()}: {doc}")


def listener_variable_config(rest: str) -> str | None:
    """Return the config of an environment variable, OTTLA_LISTENER_NAME_ taken off; or None."""
    for name in sorted(LISTENER_CONFIGS, key=len, reverse=True):
        suffix = "_" + re.sub(r"[.-]", "_", name).upper()
        if rest.endswith(suffix) and len(rest) > len(suffix):
            return listener_config_name(rest.removesuffix(suffix), name)
    return None


def parse_protocol_map(text: str, listeners: Iterable[str]) -> dict[str, str]:
    """Return the security protocol of each listener. Raises ConfigError."""
    config = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        listener, colon, protocol = (part.strip().upper() for part in item.partition(":"))
        if not colon or not listener:
            raise ConfigError(f"Invalid value {item!r} for {config}: expected LISTENER:PROTOCOL")
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"Invalid security protocol {protocol!r} in {config}: expected one of"
                f" {', '.join(SECURITY_PROTOCOLS)}"
            )
        if protocols.setdefault(listener, protocol) != protocol:
            raise ConfigError(f"Duplicate listener {listener} in {config}")
    of_listeners = {}
    for listener in listeners:
        if listener in protocols:
            of_listeners[listener] = protocols[listener]
        elif listener in SECURITY_PROTOCOLS:
            of_listeners[listener] = listener
        elif not protocols:
            of_listeners[listener] = PLAINTEXT
        else:
            raise ConfigError(
                f"Listener {listener} is missing in {config}: add {listener}:PROTOCOL, where"
                f" PROTOCOL is one of {', '.join(SECURITY_PROTOCOLS)}"
            )
    return of_listeners


class ListenerSecurityConfig:
    """The security configs of one listener: its own, and those of all listeners."""

    def __init__(self, configs: SecurityConfigs, listener: str, protocol: str) -> None:
        self._configs = configs
        self.listener = listener
        self.protocol = protocol

    def __repr__(self) -> str:
        return f"<ListenerSecurityConfig of {self.listener}: {self.protocol}>"

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def authenticates(self) -> bool:
        """Whether every client has a principal."""
        return self.uses_sasl or (self.uses_tls and self.get("ssl.client.auth") == "required")

    @property
    def trusts_everybody(self) -> bool:
        """Whether clients are who they say: without authentication, or by unsigned tokens."""
        return not self.authenticates or (
            self.uses_sasl
            and OAUTHBEARER in self.mechanisms
            and self.get("sasl.oauthbearer.unsecured.tokens")
        )

    def get(self, name: str) -> Any:
        """Return the value of a config."""
        text = self._configs.listener_configs.get(listener_config_name(self.listener, name))
        if text is not None:
            return LISTENER_CONFIGS[name].parse(text)
        return getattr(self._configs, name.replace(".", "_"))

    def items(self, name: str) -> list[str]:
        """Return the values of a list config."""
        return [item.strip() for item in self.get(name).split(",") if item.strip()]

    def name_of(self, name: str) -> str:
        """Return the name by which a config of this listener is set; for error messages."""
        full_name = listener_config_name(self.listener, name)
        return full_name if full_name in self._configs.listener_configs else name

    def jaas_config(self, mechanism: str) -> str:
        """Return sasl.jaas.config of a mechanism; empty if it is not set."""
        name = listener_config_name(self.listener, f"{mechanism.lower()}.sasl.jaas.config")
        return self._configs.listener_configs.get(name, "")

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The enabled SASL mechanisms. Raises ConfigError."""
        mechanisms = tuple(self.items("sasl.enabled.mechanisms"))
        for mechanism in mechanisms:
            if mechanism not in SASL_MECHANISMS:
                raise ConfigError(
                    f"Invalid value {mechanism} for {self.name_of('sasl.enabled.mechanisms')}:"
                    f" expected some of {', '.join(SASL_MECHANISMS)}"
                )
        return mechanisms
