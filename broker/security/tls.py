"""TLS contexts of listeners, from PEM certificates and keys, and their renewal.

Certificates are in files or inline. OpenSSL reads its own certificate and key from files only:
inline ones go through a temporary file that only this user can read.

When a file changes, new connections use the new certificates, and open ones keep theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ottla.protocol.configdef import ConfigError

from ..config.security_configs import ListenerSecurityConfig

logger = logging.getLogger(__name__)

PEM = "PEM"
_CONVERT = (
    "only PEM is supported; convert the store with keytool -importkeystore … -deststoretype PKCS12,"
    " and then with openssl pkcs12 -in …"
)
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_SUITES = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)
# The suites of TLS 1.2 that can be chosen.
_OFFERED_SUITES = "HIGH:!aNULL:!eNULL:!PSK:!SRP:!DSS:!CAMELLIA:!ARIA:!AESCCM"


_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """One side's certificate and key, and the certificates it trusts. Names as Kafka's `ssl.…`."""

    keystore_location: str = ""
    keystore_certificate_chain: str = ""
    keystore_key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    truststore_location: str = ""
    truststore_certificates: str = ""
    keystore_type: str = PEM
    truststore_type: str = PEM
    enabled_protocols: Sequence[str] = tuple(_VERSIONS)
    #: By their IANA names, as in Java. Empty: OpenSSL's defaults.
    cipher_suites: Sequence[str] = ()

    @property
    def has_certificate(self) -> bool:
        """Whether this side has a certificate."""
        return bool(self.keystore_location or self.keystore_certificate_chain)

    @classmethod
    def of(cls, config: ListenerSecurityConfig) -> TlsConfig:
        """Return the part of a listener's configs that its context is made of."""
        return cls(
            keystore_location=config.get("ssl.keystore.location"),
            keystore_certificate_chain=config.get("ssl.keystore.certificate.chain"),
            keystore_key=config.get("ssl.keystore.key"),
            key_password=config.get("ssl.key.password"),
            truststore_location=config.get("ssl.truststore.location"),
            truststore_certificates=config.get("ssl.truststore.certificates"),
            keystore_type=config.get("ssl.keystore.type"),
            truststore_type=config.get("ssl.truststore.type"),
            enabled_protocols=tuple(config.items("ssl.enabled.protocols")),
            cipher_suites=tuple(config.items("ssl.cipher.suites")),
        )

    @property
    def files(self) -> list[str]:
        """The files that a context is made of."""
        return [name for name in (self.keystore_location, self.truststore_location) if name]

    def check(self) -> None:
        """Raise ConfigError if configs contradict each other, without reading the files."""
        for name, kind in (
            ("ssl.keystore.type", self.keystore_type),
            ("ssl.truststore.type", self.truststore_type),
        ):
            if kind.upper() != PEM:
                raise ConfigError(f"Invalid value {kind} for {name}: {_CONVERT}")
        for name, location in (
            ("ssl.keystore.location", self.keystore_location),
            ("ssl.truststore.location", self.truststore_location),
        ):
            if location.lower().endswith((".jks", ".p12", ".pfx")):
                raise ConfigError(f"Invalid value {location} for {name}: {_CONVERT}")
        if self.keystore_location and self.keystore_certificate_chain:
            raise ConfigError(
                "ssl.keystore.location and ssl.keystore.certificate.chain are both set: use one"
            )
        if self.truststore_location and self.truststore_certificates:
            raise ConfigError(
                "ssl.truststore.location and ssl.truststore.certificates are both set: use one"
            )
        if bool(self.keystore_certificate_chain) != bool(self.keystore_key):
            raise ConfigError(
                "ssl.keystore.certificate.chain and ssl.keystore.key need each other: set both"
            )
        for version in self.enabled_protocols:
            if version not in _VERSIONS:
                raise ConfigError(
                    f"Invalid value {version} for ssl.enabled.protocols: expected"
                    f" {', '.join(_VERSIONS)}"
                )
        if not self.enabled_protocols:
            raise ConfigError("Invalid value for ssl.enabled.protocols: at least one is required")


def server_context(config: TlsConfig, client_auth: str) -> ssl.SSLContext:
    """Return the context of a listener; `client_auth` is none, requested or required.

    Reads files. Raises ConfigError.
    """
    config.check()
    if not config.has_certificate:
        raise ConfigError(
            "a TLS listener needs a certificate: set ssl.keystore.location, or"
            " ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A client cannot make the server compute new keys again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.options |= ssl.OP_NO_COMPRESSION
    _apply(context, config)
    if client_auth != "none":
        if not (config.truststore_location or config.truststore_certificates):
            raise ConfigError(
                f"ssl.client.auth is {client_auth}: set ssl.truststore.location, or"
                " ssl.truststore.certificates, to the certificates that sign those of clients"
            )
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context


class ListenerTls:
    """The current context of a listener."""

    def __init__(self, config: ListenerSecurityConfig) -> None:
        self._config = config
        #: For new connections.
        self.context: ssl.SSLContext
        self._loaded: object = None
        self._reloading = asyncio.Lock()

    def load(self) -> None:
        """Read the certificates. Blocks. Raises ConfigError."""
        tls = TlsConfig.of(self._config)
        loaded = _state_of(tls)  # Before they are read: a change in between is read again.
        try:
            self.context = server_context(tls, self._config.get("ssl.client.auth"))
        except ConfigError as error:
            raise ConfigError(f"Listener {self._config.listener}: {error}") from None
        self._loaded = loaded

    def own_certificate(self) -> bytes:
        """Return the certificate in DER format. Blocks. `load` has checked it."""
        tls = TlsConfig.of(self._config)
        if tls.keystore_location:
            pem = Path(tls.keystore_location).read_text(encoding="utf-8", errors="replace")
        else:
            pem = _unescape_newlines(tls.keystore_certificate_chain)
        return ssl.PEM_cert_to_DER_cert(_CERTIFICATE.findall(pem)[0])

    async def reload(self, config: ListenerSecurityConfig | None = None) -> None:
        """Read the certificates if the files or the configs have changed.

        If they cannot be read, new connections use the old ones, and the next call tries again.
        """
        async with self._reloading:
            if config is not None:
                self._config = config
            if await asyncio.to_thread(self._is_current):
                return
            try:
                await asyncio.to_thread(self.load)
            except ConfigError as error:
                logger.error("certificates not reloaded", extra={"reason": str(error)})
            else:
                logger.info("certificates reloaded", extra={"listener": self._config.listener})

    def _is_current(self) -> bool:
        return _state_of(TlsConfig.of(self._config)) == self._loaded


def _state_of(tls: TlsConfig) -> object:
    """Return what changes when the certificates do."""
    return tls, [_version_of(location) for location in tls.files]


def _version_of(location: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(location)
    except OSError:
        return None  # Reading it says what is wrong.
    return status.st_ino, status.st_mtime_ns, status.st_size


def _apply(context: ssl.SSLContext, config: TlsConfig) -> None:
    versions = [_VERSIONS[version] for version in config.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if config.cipher_suites:
        _set_cipher_suites(context, config.cipher_suites)
    if config.has_certificate:
        _load_certificate(context, config)
    if config.truststore_location:
        _load_truststore(context, config.truststore_location)
    elif config.truststore_certificates:
        try:
            context.load_verify_locations(cadata=_unescape_newlines(config.truststore_certificates))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"Invalid value for ssl.truststore.certificates: expected PEM ({error})"
            ) from None


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    name = "ssl.keystore.location" if config.keystore_location else "ssl.keystore.key"
    subject = f"{name} {config.keystore_location}".rstrip()

    def password() -> str:
        # Without one, OpenSSL would ask on the terminal.
        if not config.key_password:
            raise ConfigError(f"{subject}: the private key is encrypted; set ssl.key.password")
        return config.key_password

    try:
        with _pem_file(config) as path:
            context.load_cert_chain(path, password=password)
    except OSError as error:
        if not isinstance(error, ssl.SSLError):
            raise ConfigError(f"{subject}: {error.strerror}") from None
        problem = _keystore_problem(error, has_password=bool(config.key_password))
        raise ConfigError(f"{subject}: {problem}") from None


def _keystore_problem(error: ssl.SSLError, *, has_password: bool) -> str:
    reason = (error.reason or "").upper()
    if "KEY_VALUES_MISMATCH" in reason:
        return "the private key does not belong to the first certificate"
    problem = (
        "expected a PEM file with the certificate chain, its own certificate first, and the"
        f" private key ({error.reason or error})"
    )
    if has_password:
        problem += "; or the private key cannot be decrypted with ssl.key.password"
    return problem


def _load_truststore(context: ssl.SSLContext, location: str) -> None:
    try:
        context.load_verify_locations(cafile=location)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl.truststore.location {location}: expected PEM certificates"
            f" ({error.reason or error})"
        ) from None
    except OSError as error:
        raise ConfigError(f"ssl.truststore.location {location}: {error.strerror}") from None


@contextmanager
def _pem_file(config: TlsConfig) -> Iterator[str]:
    if config.keystore_location:
        yield config.keystore_location
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")  # Mode 0600.
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            for pem in (config.keystore_key, config.keystore_certificate_chain):
                file.write(_unescape_newlines(pem).strip() + "\n")
        yield path
    finally:
        Path(path).unlink()


def _unescape_newlines(pem: str) -> str:
    r"""Return PEM text that stands in one line, with \n for its line ends."""
    return pem.replace("\\n", "\n")


def _set_cipher_suites(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Restrict the suites.

    Python cannot choose among those of TLS 1.3. Without any of them, TLS 1.3 is not used.
    """
    context.set_ciphers(_OFFERED_SUITES)
    openssl_names = {_iana_name(cipher["name"]): cipher["name"] for cipher in context.get_ciphers()}
    for suite in suites:
        if suite not in openssl_names and suite not in _TLS_1_3_SUITES:
            known = ", ".join(sorted({*openssl_names, *_TLS_1_3_SUITES}))
            raise ConfigError(
                f"Invalid value {suite} for ssl.cipher.suites: expected some of {known}"
            )
    names = [openssl_names[suite] for suite in suites if suite not in _TLS_1_3_SUITES]
    if len(names) == len(suites):
        if context.minimum_version > ssl.TLSVersion.TLSv1_2:
            raise ConfigError("ssl.cipher.suites has no suite of TLSv1.3")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if names:
        context.set_ciphers(":".join(names))
    elif context.maximum_version > ssl.TLSVersion.TLSv1_2:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        raise ConfigError("ssl.cipher.suites has no suite of TLSv1.2")


def _iana_name(openssl_name: str) -> str:
    """Return the IANA name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    if openssl_name.startswith("TLS_"):
        return openssl_name
    parts = openssl_name.split("-")
    exchange: list[str] = []
    while parts and parts[0] in ("ECDHE", "DHE", "RSA", "ECDSA"):
        exchange.append(parts.pop(0))
    text = "_".join(parts).replace("AES128", "AES_128").replace("AES256", "AES_256")
    for size in ("128", "256"):
        # A hash by itself says that the mode is CBC.
        if text.startswith(f"AES_{size}_SHA"):
            text = text.replace(f"AES_{size}_", f"AES_{size}_CBC_")
    if text == "CHACHA20_POLY1305":
        text += "_SHA256"
    return f"TLS_{'_'.join(exchange or ['RSA'])}_WITH_{text}"
