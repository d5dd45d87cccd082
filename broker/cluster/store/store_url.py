"""`cluster.store`: where the metadata store is, and how to connect to it.

    etcd://etcd-0:2379,etcd-1:2379,etcd-2:2379/orders       the members, and the name of the cluster
    etcds://…                                               the same, over TLS

Several clusters can share an etcd: all keys of one are under `/ottla/<name>/`.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.configdef import ConfigError

_CONFIG = "cluster.store"
_URL = re.compile(r"(etcds?)://([^/@]+)/([a-zA-Z0-9._-]{1,100})")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):(\d{1,5})")


class StoreUrl(NamedTuple):
    """The addresses of the members of an etcd, and the name of a cluster in it."""

    addresses: tuple[str, ...]
    cluster_name: str
    is_tls: bool

    @property
    def prefix(self) -> bytes:
        """The prefix of all keys of the cluster."""
        return f"/ottla/{self.cluster_name}/".encode()


class StoreCredentials(NamedTuple):
    """How to authenticate to the store, and the store to us. Paths are of PEM files."""

    username: str = ""
    password_file: str = ""
    #: Certificates of the authorities that are trusted; empty: those of the system.
    truststore: str = ""
    #: A client certificate and its key.
    keystore: str = ""

    def password(self) -> str:
        """Return the password. Raises ConfigError if the file cannot be read."""
        if not self.password_file:
            return ""
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"Invalid cluster.store.password.file {self.password_file}: {error}"
            ) from None

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.truststore or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"Invalid cluster.store.ssl.truststore.location {self.truststore}: {error}"
            ) from None
        if self.keystore:
            try:
                context.load_cert_chain(self.keystore)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"Invalid cluster.store.ssl.keystore.location {self.keystore}: {error};"
                    " expected a PEM file with the certificate chain and its private key"
                ) from None
        return context


def parse_store_url(text: str) -> StoreUrl:
    """Parse `cluster.store`. Raises ConfigError."""
    match = _URL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"Invalid {_CONFIG} {text!r}: expected etcd://HOST:PORT,…/NAME or"
            " etcds://HOST:PORT,…/NAME, where NAME is the name of this cluster in the store"
        )
    scheme, members, name = match.groups()
    addresses = tuple(filter(None, (member.strip() for member in members.split(","))))
    for address in addresses:
        parsed = _ADDRESS.fullmatch(address)
        if parsed is None or not 0 < int(parsed[2]) < 65536:
            raise ConfigError(f"Invalid address {address!r} in {_CONFIG}: expected HOST:PORT")
    if not addresses:
        raise ConfigError(f"Invalid {_CONFIG} {text!r}: no addresses")
    return StoreUrl(addresses, name, scheme == "etcds")
