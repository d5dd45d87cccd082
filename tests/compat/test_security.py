"""Every client over every security protocol and mechanism: one broker, a listener for each."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest

from harness.clients.agents import JAVA
from harness.clients.base import TIMEOUT_SECONDS, kafka_libs
from harness.daemon import shown_on_failure
from harness.secure_broker import SecureBroker
from harness.secure_kafka import LISTENERS, MECHANISMS
from harness.security_matrix import (
    CLIENTS,
    java,
    librdkafka_configs,
    missing,
    write_properties,
)
from ottla.client import Admin as AsyncAdmin
from ottla.client import ClientConfig, NewTopic, Producer, SecurityConfig
from ottla.client.blocking import Admin
from ottla.client.connection import BrokerConnection

COMBINATIONS = [
    (listener, mechanism)
    for listener, protocol in {"PLAINTEXT": "PLAINTEXT", **LISTENERS}.items()
    for mechanism in (MECHANISMS if protocol.startswith("SASL") else (None,))
    if listener not in ("REAUTH", "ELSEWHERE")
]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture
def broker(secured: SecureBroker, request: pytest.FixtureRequest) -> Iterator[SecureBroker]:
    with shown_on_failure(request, [secured]):
        yield secured


@pytest.fixture
def topic(broker: SecureBroker) -> str:
    name = f"t-{uuid4().hex[:12]}"
    with Admin(broker.addresses["PLAINTEXT"]) as admin:
        admin.create_topic(name)
    return name


@pytest.mark.parametrize(
    ("client", "listener", "mechanism"),
    [(client, listener, mechanism) for client in CLIENTS for listener, mechanism in COMBINATIONS],
)
def test_a_record_goes_there_and_back(
    broker: SecureBroker,
    topic: str,
    tmp_path: Path,
    client: str,
    listener: str,
    mechanism: str | None,
) -> None:
    if reason := missing(client):
        pytest.skip(reason)
    security = broker.security(listener, mechanism)

    values = CLIENTS[client](broker.addresses[listener], security, topic, tmp_path)

    assert values == [client.encode()]


def test_java_over_everything(broker: SecureBroker, tmp_path: Path) -> None:
    if shutil.which("java") is None or kafka_libs() is None:
        pytest.skip("java is not installed, or TEST_KAFKA_LIBS does not name Kafka's jars")
    rounds = []
    for listener, mechanism in COMBINATIONS:
        name = f"java-{listener}-{mechanism}"
        path = tmp_path / f"{name}.properties"
        write_properties(path, broker.addresses[listener], broker.security(listener, mechanism))
        rounds.append((name, path))
    with Admin(broker.addresses["PLAINTEXT"]) as admin:
        admin.create_topics(*(NewTopic(name) for name, _ in rounds))

    assert java(rounds) == [f"{name} java" for name, _ in rounds]


def test_java_authenticates_again_while_it_sends(
    broker: SecureBroker, topic: str, tmp_path: Path
) -> None:
    """No send fails, without retries: the connections stay."""
    if shutil.which("java") is None or kafka_libs() is None:
        pytest.skip("java is not installed, or TEST_KAFKA_LIBS does not name Kafka's jars")
    path = write_properties(
        tmp_path / "client.properties",
        broker.addresses["REAUTH"],
        broker.security("REAUTH", "SCRAM-SHA-512"),
    )

    (line,) = java([(topic, path)], reauthentications=3)

    with Admin(broker.addresses["PLAINTEXT"]) as admin:
        assert line == f"{topic} {sum(admin.end_offsets(topic).values())}"


def test_kafkas_own_tools_create_users(broker: SecureBroker, tmp_path: Path) -> None:
    if shutil.which("java") is None or kafka_libs() is None:
        pytest.skip("java is not installed, or TEST_KAFKA_LIBS does not name Kafka's jars")
    address = broker.addresses["SASL_SSL"]
    config = write_properties(
        tmp_path / "admin.properties", address, broker.security("SASL_SSL", "SCRAM-SHA-512")
    )
    command = [*JAVA, "-cp", f"{kafka_libs()}/*", "kafka.admin.ConfigCommand"]
    command += ["--bootstrap-server", address, "--command-config", str(config)]
    command += ["--entity-type", "users", "--entity-name", "carol"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.decode()

    run("--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=carol-secret]")
    assert "SCRAM-SHA-256=iterations=8192" in run("--describe")


async def test_the_sdk_authenticates_again_while_it_sends(
    broker: SecureBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions last 1.5 s: every connection is authenticated anew, and none is closed."""
    authenticated = 0
    opened: list[BrokerConnection] = []
    authenticate, open_connection = BrokerConnection._authenticate, BrokerConnection.open

    async def count(connection: BrokerConnection, security: SecurityConfig) -> None:
        nonlocal authenticated
        await authenticate(connection, security)
        authenticated += 1

    async def note(host: str, port: int, config: ClientConfig) -> BrokerConnection:
        opened.append(await open_connection(host, port, config))
        return opened[-1]

    monkeypatch.setattr(BrokerConnection, "_authenticate", count)
    monkeypatch.setattr(BrokerConnection, "open", note)
    security = broker.security("REAUTH", "SCRAM-SHA-256")
    sent = 0
    async with Producer(broker.addresses["REAUTH"], security=security) as producer:
        while not opened or authenticated < 2 * len(opened):
            await asyncio.gather(*(producer.send(topic, b"x") for _ in range(100)))
            sent += 100
        assert all(connection.is_open for connection in opened)
    async with AsyncAdmin(broker.addresses["PLAINTEXT"]) as admin:
        assert list((await admin.end_offsets(topic)).values()) == [sent]


def test_librdkafka_authenticates_again_while_it_sends(broker: SecureBroker, topic: str) -> None:
    errors: list[object] = []
    security = broker.security("REAUTH", "SCRAM-SHA-512")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.addresses["REAUTH"],
            "error_cb": errors.append,
            **librdkafka_configs(security),
        }
    )
    delivered: list[object] = []
    until = time.monotonic() + 2  # A session and a half.
    while time.monotonic() < until:
        for _ in range(100):
            producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(TIMEOUT_SECONDS) == 0
    assert set(delivered) == {None}
    assert errors == []
