"""Certificates for tests: a new authority per directory, and what it issues.

They have the extensions that Python 3.13 and later require.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NAMES = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "C": NameOID.COUNTRY_NAME,
}
_KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority:
    """A certificate authority; its certificate is in `path`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.path = directory / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True}
        builder = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        subject: Sequence[tuple[str, str]] = (),
        *,
        password: str | None = None,
        days: int = 1,
    ) -> Path:
        """Write a key and its certificate to NAME.pem, which replaces an older one at once.

        `subject` is least specific first: [("O", "Example"), ("CN", "alice")].
        """
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(_NAMES[kind], text) for kind, text in subject or [("CN", name)]]
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(x509.Name(parts), self._name, key, days)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(authority, critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ) + certificate.public_bytes(serialization.Encoding.PEM)
        path = self.directory / f"{name}.pem"
        new = path.with_suffix(".new")
        new.write_bytes(pem)
        new.chmod(0o600)
        new.replace(path)
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
