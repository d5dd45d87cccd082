"""A certificate authority in a directory, and certificates that it issues, for local clusters.

    ca.pem, ca.key     the authority; made when the first certificate is issued
    NAME.pem           a private key and the certificate chain: `ssl.keystore.location`

Keys are ECDSA P-256, and readable for their owner only. Certificates are PEM, as
ottla, Kafka and all clients read them. There is no revocation: for more than local use, take the
certificates of a real authority.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The authority lives this much longer than the longest certificate.
_CA_DAYS = 3650
#: Clocks of other machines may be behind.
_BACKDATED = timedelta(minutes=5)
_MAX_NAME_LENGTH = 64  # of X.509 common names


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A certificate that issues others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def open(cls, directory: Path) -> CertificateAuthority:
        """Read the authority of a directory, or create it. Raises OSError and ValueError."""
        certificate_path, key_path = directory / "ca.pem", directory / "ca.key"
        if not certificate_path.exists() and not key_path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            created = cls._create()
            _write(key_path, _pem_of(created.key), mode=0o600)
            _write(certificate_path, created.certificate.public_bytes(Encoding.PEM), mode=0o644)
            return created
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path}: expected an ECDSA key, as `ottla cert` creates it")
        if certificate.public_key() != key.public_key():
            raise ValueError(f"{key_path} is not the key of {certificate_path}")
        return cls(certificate, key)

    @classmethod
    def _create(cls) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ottla local CA")])
        builder = (
            _builder(name, name, key, days=_CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        """The certificate, for truststores."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(self, name: str, *, hosts: tuple[str, ...] = (), days: int = 365) -> bytes:
        """Return a new key and its certificate chain: for a broker with `hosts`, else a client.

        A broker's certificate is good for its connections to other brokers, too.
        """
        if not 0 < len(name) <= _MAX_NAME_LENGTH:
            raise ValueError(
                f"Invalid name {name[:80]!r}: must have 1 to {_MAX_NAME_LENGTH} characters"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(subject, self.certificate.subject, key, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return _pem_of(key) + certificate.public_bytes(Encoding.PEM) + self.pem


def write_keystore(path: Path, pem: bytes) -> None:
    """Write a key and its certificates, readable for the owner only."""
    _write(path, pem, mode=0o600)


def describe(path: Path) -> dict[str, object]:
    """Return names and expiry of the first certificate in a file. Raises OSError, ValueError."""
    certificate = _read(path)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "hosts": [str(name.value) for name in names],
        "expires": certificate.not_valid_after_utc.isoformat(timespec="seconds"),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def expires(path: Path) -> datetime:
    """Return when the first certificate in a file expires. Raises OSError and ValueError."""
    return _read(path).not_valid_after_utc


def _read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that has `mode` from the start; a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    temporary.replace(path)
