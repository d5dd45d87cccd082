"""The security of the listeners: their TLS contexts, and their SASL mechanisms.

Imported only if a listener uses TLS or SASL.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.coord.principal import ANONYMOUS, KafkaPrincipal
from ottla.protocol.configdef import ConfigError
from ottla.protocol.scram import ScramMechanism

from ..config.security_configs import OAUTHBEARER, PLAIN, ListenerSecurityConfig
from ..requests.authorization import is_broker
from .certificates import PrincipalRule, load_subject_parser, parse_rules, principal_of_subject
from .exchange import Exchange
from .inter_broker import inter_broker_security, own_user
from .plain import PlainExchange, parse_login_module, plain_passwords
from .sasl import SaslSession
from .scram import ScramExchange, ScramUsers
from .tls import ListenerTls

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..requests.dispatch import RequestContext


class ListenerSecurity:
    """How the clients of one listener are protected and identified. Raises ConfigError."""

    def __init__(self, config: ListenerSecurityConfig, users: ScramUsers) -> None:
        self.config = config
        self.tls: ListenerTls | None = None
        self._rules: tuple[PrincipalRule, ...] = ()
        self._subject_of: Callable[[bytes], str] | None = None
        if config.uses_tls:
            self.tls = ListenerTls(config)
            if config.get("ssl.client.auth") != "none" and not config.uses_sasl:
                self._rules = parse_rules(config.get("ssl.principal.mapping.rules"))
                self._subject_of = load_subject_parser()
        self._exchanges: dict[str, Callable[[], Exchange]] = {}
        if config.uses_sasl:
            self._exchanges = self._make_exchanges(users)

    def new_session(self) -> SaslSession | None:
        """Return the SASL session of a new connection; None without SASL."""
        if not self.config.uses_sasl:
            return None
        return SaslSession(self._exchanges, self.config.get("connections.max.reauth.ms"))

    @property
    def identifies(self) -> bool:
        """Whether clients have principals because of their certificates."""
        return self._subject_of is not None

    async def principal_of(self, tls_object: ssl.SSLObject | None) -> KafkaPrincipal | None:
        """Return the principal of a client's certificate; None if no rule matches it."""
        if self._subject_of is None or tls_object is None:
            return ANONYMOUS
        certificate = tls_object.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        # The patterns are regular expressions, and may be slow.
        return await asyncio.to_thread(self._map, certificate)

    def own_principal(self) -> KafkaPrincipal:
        """Return the principal of this listener's own certificate. Blocks. Raises ConfigError."""
        assert self.tls is not None
        principal = self._map(self.tls.own_certificate())
        if principal is None:
            raise ConfigError(
                f"Listener {self.config.listener}: other brokers would refuse it, as no rule of"
                f" {self.config.name_of('ssl.principal.mapping.rules')} matches the subject of"
                " its own certificate"
            )
        return principal

    def _map(self, certificate: bytes) -> KafkaPrincipal | None:
        assert self._subject_of is not None
        return principal_of_subject(self._rules, self._subject_of(certificate))

    def _make_exchanges(self, users: ScramUsers) -> dict[str, Callable[[], Exchange]]:
        config = self.config
        exchanges: dict[str, Callable[[], Exchange]] = {}
        for mechanism in config.mechanisms:
            scram = ScramMechanism.of(mechanism)
            if scram is not None:
                exchanges[mechanism] = lambda scram=scram: ScramExchange(scram, users.find)  # type: ignore[misc]
            elif mechanism == PLAIN:
                passwords = self._plain_passwords()
                exchanges[mechanism] = lambda: PlainExchange(passwords)  # noqa: B023
            else:
                from .oauth import OAuthBearerExchange, verifier_of  # noqa: PLC0415

                assert mechanism == OAUTHBEARER
                verifier = verifier_of(config)
                exchanges[mechanism] = lambda: OAuthBearerExchange(verifier)  # noqa: B023
        if not exchanges:
            raise ConfigError(
                f"Listener {config.listener} has security protocol {config.protocol}: set"
                " sasl.enabled.mechanisms"
            )
        return exchanges

    def _plain_passwords(self) -> dict[str, str]:
        config = self.config
        text = config.jaas_config(PLAIN)
        name = f"listener.name.{config.listener.lower()}.plain.sasl.jaas.config"
        passwords = (
            plain_passwords(parse_login_module(name, text, "PlainLoginModule")) if text else {}
        )
        if not passwords:
            raise ConfigError(
                f"Listener {config.listener} has no users for PLAIN: set {name}, with an option"
                ' user_NAME="PASSWORD" for each'
            )
        return passwords


class BrokerSecurity:
    """The security of all listeners that have any."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.users = ScramUsers(
            lambda: broker.topics.image.scram_credentials, lambda: broker.topics.image.scram_secret
        )
        self._listeners: dict[str, ListenerSecurity] = {}
        for name in broker.config.listener_names:
            config = broker.config.security_of(name)
            if config.uses_tls or config.uses_sasl:
                self._listeners[name] = ListenerSecurity(config, self.users)
        self._inter_broker: ListenerSecurityConfig | None = None
        self._brokers: frozenset[KafkaPrincipal] = frozenset()
        if broker.config.is_clustered:
            self._inter_broker = broker.config.security_of(broker.config.inter_broker_listener)
            inter_broker_security(broker.config)  # Raises ConfigError.
            own = own_user(broker.config)
            self._brokers = broker.config.super_user_principals | ({own} if own else set())

    def of(self, listener: str) -> ListenerSecurity | None:
        """Return the security of a listener; None if it has none."""
        return self._listeners.get(listener)

    def is_broker(self, context: RequestContext) -> bool:
        """Whether a request over the inter-broker listener comes from a broker."""
        if self._broker.authorizer is not None:
            return is_broker(self._broker, context)
        assert self._inter_broker is not None
        return not self._inter_broker.authenticates or context.principal in self._brokers

    def load(self) -> None:
        """Read all certificates. Blocks. Raises ConfigError."""
        for listener in self._listeners.values():
            if listener.tls is not None:
                listener.tls.load()
        if self._inter_broker is not None:
            inter_broker = self._listeners.get(self._inter_broker.listener)
            if inter_broker is not None and inter_broker.identifies:
                self._brokers |= {inter_broker.own_principal()}

    async def reload(self) -> None:
        """Read the certificates again that have changed, on disk or in the configs."""
        config: BrokerConfig = self._broker.config
        for name, listener in self._listeners.items():
            if listener.tls is not None:
                await listener.tls.reload(config.security_of(name))
