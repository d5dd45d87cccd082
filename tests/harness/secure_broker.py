"""An ottla broker with a listener for each security protocol, as SecureKafka is one of Kafka.

    with SecureBroker(tmp_path) as broker:
        broker.addresses["SASL_SSL"]         # "localhost:20124"
        broker.security("SASL_SSL", "SCRAM-SHA-256")

The user is alice, and for administration there is PLAINTEXT on loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.daemon import HOST, Daemon, free_ports
from harness.secure_kafka import LISTENERS, MECHANISMS, PASSWORD, USER, Certificates

_PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' user_{USER}="{PASSWORD}" user_bob="bob-secret";'
)


class SecureBroker(Daemon):
    """A broker with all security protocols and mechanisms."""

    def __init__(
        self, folder: Path, configs: Mapping[str, Any] | None = None, **environ: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificates = Certificates(folder / "certificates")
        self.security = self.certificates.security
        first = free_ports(len(LISTENERS) + 1)
        ports = {name: first + 1 + number for number, name in enumerate(LISTENERS)}
        self.addresses = {name: f"localhost:{port}" for name, port in ports.items()}
        self.addresses["PLAINTEXT"] = f"{HOST}:{first}"
        protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
        listeners = [f"PLAINTEXT://{HOST}:{first}"]
        listeners += [f"{name}://localhost:{port}" for name, port in ports.items()]
        settings = {
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": self.certificates.broker,
            "ssl.truststore.location": self.certificates.ca,
            "listener.name.elsewhere.ssl.keystore.location": self.certificates.elsewhere,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.reauth.connections.max.reauth.ms": "1500",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.unsecured.tokens": "true",
            "sasl.bootstrap.users": ";".join(
                f"{mechanism}=[name={USER},password={PASSWORD}]"
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            ),
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": _PLAIN
                for name, protocol in LISTENERS.items()
                if protocol.startswith("SASL")
            },
            **{name: str(value) for name, value in (configs or {}).items()},
        }
        file = folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        listen = [argument for each in listeners for argument in ("--listen", each)]
        super().__init__(folder, "--config", str(file), *listen, port=first, **environ)
