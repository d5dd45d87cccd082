"""TLS contexts of clients, and what went wrong in a handshake.

A context is built once per configuration, in a thread: reading the system's CAs takes a while. If a
file changes, later connections use the new one, so certificates can be renewed under a running
client.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from functools import lru_cache

from .errors import AuthenticationError, ConnectionLostError
from .security import SecurityConfig

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def client_context(config: SecurityConfig) -> ssl.SSLContext:
    """Return the context for connections. Raises AuthenticationError; blocks."""
    paths = (config.ssl_truststore_location, config.ssl_keystore_location, config.ssl_key_location)
    return _context(config, tuple(map(_version_of, paths)))


def _version_of(path: str | None) -> tuple[int, int, int] | None:
    """Return what changes if a file is replaced."""
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None  # the context says what is wrong with it
    return status.st_ino, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _context(config: SecurityConfig, _files: tuple[object, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = sorted(map(_VERSIONS.__getitem__, config.ssl_enabled_protocols))
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    if config.ssl_cipher_suites:
        try:
            context.set_ciphers(":".join(config.ssl_cipher_suites))
        except ssl.SSLError:
            suites = ", ".join(config.ssl_cipher_suites)
            raise AuthenticationError(
                f"ssl_cipher_suites {suites}: OpenSSL knows none of them; list its names:"
                " openssl ciphers -v"
            ) from None
    _load_truststore(context, config)
    _load_keystore(context, config)
    return context


def _load_truststore(context: ssl.SSLContext, config: SecurityConfig) -> None:
    location, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    name = (
        "ssl_truststore_certificates" if location is None else f"ssl_truststore_location {location}"
    )
    try:
        if location is not None:
            context.load_verify_locations(cafile=location)
        elif text is not None:
            context.load_verify_locations(cadata=text)
        else:
            context.load_default_certs()
    except ssl.SSLError:
        raise AuthenticationError(f"{name}: no certificates in PEM format found") from None
    except OSError as error:
        raise AuthenticationError(f"Cannot read {name}: {error.strerror or error}") from error


def _load_keystore(context: ssl.SSLContext, config: SecurityConfig) -> None:
    # Without one, OpenSSL would ask for it on the terminal.
    password = config.ssl_key_password or ""
    location = config.ssl_keystore_location
    try:
        if location is not None:
            context.load_cert_chain(location, config.ssl_key_location, password)
        elif config.ssl_keystore_certificate_chain is not None:
            # Python reads keys from files only. This one is readable for its owner alone.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{config.ssl_keystore_key}\n{config.ssl_keystore_certificate_chain}\n")
                file.flush()
                context.load_cert_chain(file.name, password=password)
    except ssl.SSLError as error:
        raise AuthenticationError(
            f"ssl_keystore_{'location ' + location if location else 'certificate_chain'}:"
            f" {_keystore_problem(error, has_password=bool(password))}"
        ) from None
    except OSError as error:
        raise AuthenticationError(
            f"Cannot read ssl_keystore_location {location}: {error.strerror or error}"
        ) from error


def _keystore_problem(error: ssl.SSLError, *, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate"
    if error.reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "MAYBE_WRONG_PASSWORD"):
        return (
            f"the private key is encrypted; {'the' if has_password else 'set'} ssl_key_password"
            + (" is wrong" if has_password else "")
        )
    return "no certificate chain with its private key in PEM format found"


def handshake_error(
    address: str, error: OSError, *, has_certificate: bool
) -> ConnectionLostError | AuthenticationError:
    """Return what a handshake that failed means to the user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCHES:
            reason = (
                f"the certificate of {address} is for another host"
                f" ({error.verify_message.rstrip('.')}): connect by a name in the certificate, or"
                " issue one with this name"
            )
        else:
            reason = (
                f"cannot verify the certificate of {address} ({error.verify_message}):"
                " set ssl_truststore_location to the certificate of its CA"
            )
        return AuthenticationError(f"TLS handshake failed: {reason}")
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if advice := _ADVICE.get(reason):
            if advice is _REJECTED and not has_certificate:
                advice = _REQUIRED  # what Java calls a bad certificate
            return AuthenticationError(f"TLS handshake with {address} failed: {advice}")
        if reason in _NO_TLS:
            return ConnectionLostError(
                f"{address} does not speak TLS: is the listener PLAINTEXT or SASL_PLAINTEXT?"
                " Check the port and security_protocol"
            )
        reason = reason.replace("_", " ").lower()
        return ConnectionLostError(f"TLS handshake with {address} failed: {reason}")
    return ConnectionLostError(
        f"{address} closed the connection in the TLS handshake: is the listener PLAINTEXT or"
        " SASL_PLAINTEXT? Check the port and security_protocol"
    )


#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_HOST_MISMATCHES = (62, 64)
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNKNOWN_PROTOCOL",
)
_REJECTED = (
    "the broker rejected the client's certificate: it must be issued by a CA that the broker"
    " trusts, and be valid now"
)
_REQUIRED = (
    "the broker requires a client certificate: set ssl_keystore_location to a PEM file with"
    " certificate and key"
)
_DISJOINT = (
    "no common TLS version or cipher suite: check ssl_enabled_protocols and ssl_cipher_suites"
)
_ADVICE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _REQUIRED,
    "TLSV1_ALERT_UNKNOWN_CA": _REJECTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _REJECTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _REJECTED,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": _REJECTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _REJECTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _REJECTED,
    "TLSV1_ALERT_PROTOCOL_VERSION": _DISJOINT,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _DISJOINT,
    "NO_PROTOCOLS_AVAILABLE": _DISJOINT,
    "UNSUPPORTED_PROTOCOL": _DISJOINT,
}
