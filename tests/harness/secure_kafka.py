"""Apache Kafka with a listener for each security protocol, as the oracle of security.

    with SecureKafka(tmp_path) as kafka:
        kafka.addresses["SASL_SSL"]          # "localhost:20124"
        kafka.security("SASL_SSL", "SCRAM-SHA-256")

Users: alice with the password "alice-secret", for all mechanisms.
"""

from __future__ import annotations

from pathlib import Path

from harness.apache_kafka import ApacheKafka
from harness.daemon import free_port
from ottla.cli.certificates import CertificateAuthority, write_keystore
from ottla.client.security import SecurityConfig, UnsecuredToken

USER, PASSWORD = "alice", "alice-secret"
#: Names of listeners, and their security protocols. The certificate of ELSEWHERE is for another
#: host.
LISTENERS = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "ELSEWHERE": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "REAUTH": "SASL_SSL",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MODULE = "org.apache.kafka.common.security"
_JAAS = {
    "plain": f'{_MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-256": f"{_MODULE}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULE}.scram.ScramLoginModule required;",
    "oauthbearer": f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required"
    ' unsecuredLoginStringClaim_sub="kafka";',
}


class Certificates:
    """A CA, the keystore of brokers on localhost, and that of the client."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = CertificateAuthority.open(folder)
        self._folder = folder
        self.ca = str(folder / "ca.pem")
        self.broker = str(folder / "broker.pem")
        self.client = str(folder / "client.pem")
        write_keystore(
            folder / "broker.pem", authority.issue("broker", hosts=("localhost", "127.0.0.1"))
        )
        self.elsewhere = str(folder / "elsewhere.pem")
        write_keystore(
            folder / "elsewhere.pem", authority.issue("broker", hosts=("elsewhere.example",))
        )
        write_keystore(folder / "client.pem", authority.issue(USER))

    def read(self, name: str) -> str:
        """Return the content of a PEM file."""
        return (self._folder / f"{name}.pem").read_text()

    def security(self, listener: str, mechanism: str | None = None) -> SecurityConfig:
        """Return the configs of a client."""
        protocol = LISTENERS.get(listener, listener)
        has_sasl = protocol.startswith("SASL")
        has_password = has_sasl and mechanism != "OAUTHBEARER"
        return SecurityConfig(
            security_protocol=protocol,
            sasl_mechanism=mechanism if has_sasl else None,
            sasl_username=USER if has_password else None,
            sasl_password=PASSWORD if has_password else None,
            sasl_oauth_token=UnsecuredToken(USER) if mechanism == "OAUTHBEARER" else None,
            ssl_truststore_location=self.ca if protocol.endswith("SSL") else None,
            ssl_keystore_location=self.client if listener == "MTLS" else None,
        )


class SecureKafka(ApacheKafka):
    """A broker with all security protocols and mechanisms."""

    def __init__(self, folder: Path, **configs: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificates = Certificates(folder / "certificates")
        self.security = self.certificates.security
        ports = {name: free_port() for name in LISTENERS}
        self.addresses = {name: f"localhost:{port}" for name, port in ports.items()}
        controller_port = free_port()
        controller = f"CONTROLLER://localhost:{controller_port}"
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
        plain_port = free_port()
        listeners = [f"PLAINTEXT://localhost:{plain_port}", controller]
        listeners += [f"{name}://localhost:{port}" for name, port in ports.items()]
        secured = {
            "controller.quorum.voters": f"0@localhost:{controller_port}",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates.broker,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.ca,
            "listener.name.elsewhere.ssl.keystore.location": self.certificates.elsewhere,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.reauth.connections.max.reauth.ms": "1500",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        for name, protocol in LISTENERS.items():
            if protocol.startswith("SASL"):
                for mechanism, jaas in _JAAS.items():
                    secured[f"listener.name.{name.lower()}.{mechanism}.sasl.jaas.config"] = jaas
        super().__init__(folder, **secured, **configs)
        self.port = plain_port
        self.format_arguments = tuple(
            argument
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for argument in ("--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]")
        )
