"""How to connect: in plain text or over TLS, and with which credentials.

    SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="alice",
        sasl_password=os.environ["KAFKA_PASSWORD"],
        ssl_truststore_location="/etc/kafka/ca.pem",
    )

Names and meanings are those of Kafka's client configs, with underscores; `from_properties` reads
the dotted form, as in a client.properties file, with Kafka's `sasl.jaas.config`. Certificates and
keys are PEM. Secrets are not part of the `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .jaas import JaasEntry, parse_jaas_config
from .oauth_tokens import TOKEN_URL, FileToken, TokenProvider, UnsecuredToken, token_provider
from .sasl import MECHANISMS

__all__ = ["PROPERTIES", "FileToken", "SecurityConfig", "TokenProvider", "UnsecuredToken"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Security protocol, credentials, certificates. Raises ValueError if they do not fit."""

    #: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as the listener of the brokers has it.
    security_protocol: str = "PLAINTEXT"
    #: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    #: For OAUTHBEARER: called for each authentication, so that it can return a fresh token.
    sasl_oauth_token: TokenProvider | None = field(default=None, repr=False)
    #: PEM file with the certificates of the CAs to trust; without it, those of the system.
    ssl_truststore_location: str | None = None
    #: The same as text.
    ssl_truststore_certificates: str | None = field(default=None, repr=False)
    #: PEM file with the client's certificate chain, and its private key if there is no
    #: `ssl_key_location`.
    ssl_keystore_location: str | None = None
    #: PEM file with the private key.
    ssl_key_location: str | None = None
    #: The client's certificate chain and key as text.
    ssl_keystore_certificate_chain: str | None = field(default=None, repr=False)
    ssl_keystore_key: str | None = field(default=None, repr=False)
    #: For an encrypted key.
    ssl_key_password: str | None = field(default=None, repr=False)
    #: "https": the broker's certificate must be valid for its host name. "": it need not.
    ssl_endpoint_identification_algorithm: str = "https"
    ssl_enabled_protocols: tuple[str, ...] = _TLS_VERSIONS
    #: Cipher suites of TLS 1.2, by the names of OpenSSL. Empty: those that Python considers safe.
    ssl_cipher_suites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            raise ValueError(
                f"Invalid security_protocol {self.security_protocol!r}: use one of"
                f" {', '.join(PROTOCOLS)}"
            )
        self._check_sasl()
        self._check_ssl()

    @property
    def uses_tls(self) -> bool:
        """Whether the security protocol is SSL or SASL_SSL."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the security protocol is SASL_PLAINTEXT or SASL_SSL."""
        return self.security_protocol.startswith("SASL")

    @property
    def has_certificate(self) -> bool:
        """Whether there is a client certificate."""
        return bool(self.ssl_keystore_location or self.ssl_keystore_certificate_chain)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Read Kafka's client configs: {"security.protocol": "SASL_SSL", …}. Raises ValueError.

        Other keys than those of `PROPERTIES` are an error.
        """
        values: dict[str, Any] = {}
        for name, value in properties.items():
            read = PROPERTIES.get(name)
            if read is None:
                known = ", ".join(PROPERTIES)
                raise ValueError(f"Unknown security config {name!r}: use one of {known}")
            values.update(read(value.strip() if "\n" not in value else value))
        if provider := _token_provider(properties):
            values["sasl_oauth_token"] = provider
        return cls(**values)

    def _check_sasl(self) -> None:
        if not self.uses_sasl:
            return
        mechanism = self.sasl_mechanism
        if mechanism not in MECHANISMS:
            problem = "is required" if mechanism is None else f"{mechanism!r} is not supported"
            raise ValueError(
                f"{self.security_protocol}: sasl_mechanism {problem}:"
                f" use one of {', '.join(MECHANISMS)}"
            )
        if mechanism == "OAUTHBEARER":
            if self.sasl_oauth_token is None:
                raise ValueError("OAUTHBEARER requires sasl_oauth_token: a function of a token")
            return
        if not self.sasl_username or self.sasl_password is None:
            raise ValueError(f"{mechanism} requires sasl_username and sasl_password")
        if "\0" in self.sasl_username + self.sasl_password:
            raise ValueError("sasl_username and sasl_password cannot contain NUL characters")

    def _check_ssl(self) -> None:
        _at_most_one(self, "ssl_truststore_location", "ssl_truststore_certificates")
        _at_most_one(self, "ssl_keystore_location", "ssl_keystore_certificate_chain")
        if self.ssl_keystore_certificate_chain is not None and self.ssl_keystore_key is None:
            raise ValueError("ssl_keystore_certificate_chain requires ssl_keystore_key")
        if self.ssl_endpoint_identification_algorithm not in ("https", ""):
            raise ValueError(
                "Invalid ssl_endpoint_identification_algorithm"
                f" {self.ssl_endpoint_identification_algorithm!r}: use 'https', or '' to accept"
                " certificates of other hosts"
            )
        unknown = [name for name in self.ssl_enabled_protocols if name not in _TLS_VERSIONS]
        if unknown or not self.ssl_enabled_protocols:
            raise ValueError(
                f"Invalid ssl_enabled_protocols {', '.join(unknown) or 'nothing'!r}:"
                f" use {' and '.join(_TLS_VERSIONS)}"
            )


def _at_most_one(config: SecurityConfig, *names: str) -> None:
    if all(getattr(config, name) is not None for name in names):
        raise ValueError(f"Use {' or '.join(names)}, not both")


# Kafka's properties.

_Read = Callable[[str], dict[str, Any]]
_OAUTH_MODULE = "OAuthBearerLoginModule"


def _parse_jaas(text: str) -> JaasEntry:
    try:
        return parse_jaas_config(text)
    except ValueError as error:
        raise ValueError(f"Invalid sasl.jaas.config: {error}") from None


def _read_jaas(text: str) -> dict[str, Any]:
    entry = _parse_jaas(text)
    module, options = entry.module_name, entry.options
    if module in ("PlainLoginModule", "ScramLoginModule"):
        if "username" not in options or "password" not in options:
            raise ValueError(f"sasl.jaas.config: {module} requires username and password")
        return {"sasl_username": options["username"], "sasl_password": options["password"]}
    if module == _OAUTH_MODULE:
        return {}  # `_token_provider` reads it.
    raise ValueError(
        f"sasl.jaas.config: login module {module} is not supported: use PlainLoginModule,"
        " ScramLoginModule or OAuthBearerLoginModule"
    )


def _token_provider(properties: Mapping[str, str]) -> TokenProvider | None:
    """Return where tokens come from: a URL, and credentials in the login module."""
    options: Mapping[str, str] = {}
    if text := properties.get("sasl.jaas.config"):
        entry = _parse_jaas(text)
        options = entry.options if entry.module_name == _OAUTH_MODULE else {}
    return token_provider(properties.get(TOKEN_URL, "").strip(), options)


def _text(name: str) -> _Read:
    return lambda value: {name: value}


def _file(name: str) -> _Read:
    """Kafka keeps keystores in formats of Java by default."""

    def read(value: str) -> dict[str, Any]:
        if value.lower().endswith((".jks", ".p12", ".pfx")):
            raise ValueError(
                f"{name.replace('_', '.')} {value!r}: only PEM files are supported; convert it:"
                " keytool -importkeystore … -deststoretype pkcs12, then openssl pkcs12 -nodes"
            )
        return {name: value}

    return read


def _names(name: str) -> _Read:
    return lambda value: {name: tuple(part.strip() for part in value.split(",") if part.strip())}


def _pem_only(name: str) -> _Read:
    def read(value: str) -> dict[str, Any]:
        if value.upper() != "PEM":
            raise ValueError(f"{name}={value}: only PEM is supported")
        return {}

    return read


#: How to read each of Kafka's configs; librdkafka's names of the files are there, too.
PROPERTIES: dict[str, _Read] = {
    "security.protocol": lambda value: {"security_protocol": value.upper()},
    "sasl.mechanism": _text("sasl_mechanism"),
    "sasl.jaas.config": _read_jaas,
    "sasl.username": _text("sasl_username"),
    "sasl.password": _text("sasl_password"),
    TOKEN_URL: lambda _value: {},  # `_token_provider` reads it.
    "ssl.truststore.location": _file("ssl_truststore_location"),
    "ssl.truststore.certificates": _text("ssl_truststore_certificates"),
    "ssl.truststore.type": _pem_only("ssl.truststore.type"),
    "ssl.keystore.location": _file("ssl_keystore_location"),
    "ssl.keystore.certificate.chain": _text("ssl_keystore_certificate_chain"),
    "ssl.keystore.key": _text("ssl_keystore_key"),
    "ssl.keystore.type": _pem_only("ssl.keystore.type"),
    "ssl.key.password": _text("ssl_key_password"),
    "ssl.endpoint.identification.algorithm": _text("ssl_endpoint_identification_algorithm"),
    "ssl.enabled.protocols": _names("ssl_enabled_protocols"),
    "ssl.cipher.suites": _names("ssl_cipher_suites"),
    "ssl.ca.location": _file("ssl_truststore_location"),
    "ssl.certificate.location": _file("ssl_keystore_location"),
    "ssl.key.location": _file("ssl_key_location"),
}
