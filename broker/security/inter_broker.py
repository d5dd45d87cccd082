"""How brokers authenticate to each other, and which clients are brokers.

Brokers connect to each other as clients do, over the inter-broker listener, with its certificates
and the credentials of its login module. Requests that only brokers may send are accepted on that
listener from these principals:

- with an authorizer, those that may do CLUSTER_ACTION on the cluster;
- without one, the principal that this broker itself has there, and super.users. A broker knows its
  own: it is its user, or the subject of its certificate. With OAUTHBEARER it is in a token, which
  it may have to request first: super.users is required then;
- if the listener does not authenticate, everybody who can reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.client.oauth_tokens import TOKEN_URL, TokenProvider, token_provider
from ottla.client.security import SecurityConfig
from ottla.coord.principal import KafkaPrincipal, user
from ottla.protocol.configdef import ConfigError

from ..config.security_configs import (
    OAUTHBEARER,
    PLAIN,
    PLAINTEXT,
    ListenerSecurityConfig,
    listener_config_name,
)
from .plain import parse_login_module

if TYPE_CHECKING:
    from ..config.broker_config import BrokerConfig


def inter_broker_security(config: BrokerConfig) -> SecurityConfig | None:
    """Return how this broker connects to others; None in plain text. Raises ConfigError."""
    security = config.security_of(config.inter_broker_listener)
    if security.protocol == PLAINTEXT:
        return None
    mechanism = username = password = token = None
    if security.uses_sasl:
        mechanism = _mechanism(config, security)
        if mechanism == OAUTHBEARER:
            token = _token_provider(config, security)
        else:
            username, password = _credentials(security, mechanism)
    try:
        return SecurityConfig(
            security_protocol=security.protocol,
            sasl_mechanism=mechanism,
            sasl_username=username,
            sasl_password=password,
            sasl_oauth_token=token,
            ssl_truststore_location=security.get("ssl.truststore.location") or None,
            ssl_truststore_certificates=_pem(security, "ssl.truststore.certificates"),
            ssl_keystore_location=security.get("ssl.keystore.location") or None,
            ssl_keystore_certificate_chain=_pem(security, "ssl.keystore.certificate.chain"),
            ssl_keystore_key=_pem(security, "ssl.keystore.key"),
            ssl_key_password=security.get("ssl.key.password") or None,
            ssl_endpoint_identification_algorithm=security.get(
                "ssl.endpoint.identification.algorithm"
            ),
            ssl_enabled_protocols=tuple(security.items("ssl.enabled.protocols")),
        )
    except ValueError as error:
        raise ConfigError(f"Inter-broker listener {security.listener}: {error}") from None


def own_user(config: BrokerConfig) -> KafkaPrincipal | None:
    """Return the user as which this broker authenticates at others; None if it has no password."""
    security = config.security_of(config.inter_broker_listener)
    if not security.uses_sasl:
        return None
    mechanism = _mechanism(config, security)
    if mechanism == OAUTHBEARER:
        return None
    username, _password = _credentials(security, mechanism)
    return user(username)


def _mechanism(config: BrokerConfig, security: ListenerSecurityConfig) -> str:
    listener, mechanism = security.listener, config.sasl_mechanism_inter_broker_protocol
    if not mechanism:
        raise ConfigError(
            f"Inter-broker listener {listener} has security protocol {security.protocol}: set"
            " sasl.mechanism.inter.broker.protocol"
        )
    if mechanism not in security.mechanisms:
        raise ConfigError(
            f"Invalid value {mechanism} for sasl.mechanism.inter.broker.protocol: listener"
            f" {listener} has {', '.join(security.mechanisms)}"
        )
    return mechanism


def _options(
    security: ListenerSecurityConfig, mechanism: str, module: str
) -> tuple[str, Mapping[str, str]]:
    """Return the name of a mechanism's sasl.jaas.config, and the options in it."""
    name = listener_config_name(security.listener, f"{mechanism.lower()}.sasl.jaas.config")
    text = security.jaas_config(mechanism)
    return name, parse_login_module(name, text, module).options if text else {}


def _credentials(security: ListenerSecurityConfig, mechanism: str) -> tuple[str, str]:
    module = "PlainLoginModule" if mechanism == PLAIN else "ScramLoginModule"
    name, options = _options(security, mechanism, module)
    if not options.get("username") or not options.get("password"):
        raise ConfigError(
            f"Brokers authenticate at each other with {mechanism}: set {name}, with the options"
            ' username="NAME" and password="PASSWORD"'
        )
    return options["username"], options["password"]


def _token_provider(config: BrokerConfig, security: ListenerSecurityConfig) -> TokenProvider:
    name, options = _options(security, OAUTHBEARER, "OAuthBearerLoginModule")
    try:
        provider = token_provider(security.get(TOKEN_URL), options)
    except ValueError as error:
        raise ConfigError(f"{error} ({name})") from None
    if provider is None:
        raise ConfigError(
            f"Brokers authenticate at each other with {OAUTHBEARER}: set"
            f" {security.name_of(TOKEN_URL)} to where their tokens come from"
        )
    if not config.authorizer_class_name and not config.super_user_principals:
        raise ConfigError(
            f"Brokers authenticate at each other with {OAUTHBEARER}: set super.users to the"
            " subjects of their tokens, which no config but this one has"
        )
    return provider


def _pem(security: ListenerSecurityConfig, name: str) -> str | None:
    text: str = security.get(name)
    return text.replace("\\n", "\n") or None
