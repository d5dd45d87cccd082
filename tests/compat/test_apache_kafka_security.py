"""TLS and SASL of the SDK against Apache Kafka: what works, and what each failure says."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from harness.secure_kafka import LISTENERS, MECHANISMS, Certificates, SecureKafka
from ottla.client import Admin, AuthenticationError, ClientConfig, Producer, SecurityConfig
from ottla.client.blocking import Admin as BlockingAdmin
from ottla.client.config import TimeoutConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ConnectionLostError, DeadlineError
from ottla.client.security import UnsecuredToken
from ottla.protocol.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

TIMEOUTS = TimeoutConfig(connect=10, request=10, operation=3)
COMBINATIONS = [
    (listener, mechanism)
    for listener, protocol in LISTENERS.items()
    for mechanism in (MECHANISMS if protocol.startswith("SASL") else (None,))
    if listener not in ("REAUTH", "ELSEWHERE")
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    if reason := SecureKafka.missing():
        pytest.skip(reason)
    with SecureKafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


async def connect(address: str, security: SecurityConfig | None) -> None:
    config = ClientConfig(timeouts=TIMEOUTS, security=security)
    host, _, port = address.rpartition(":")
    connection = await BrokerConnection.open(host, int(port), config)
    try:
        await connection.send(DescribeClusterRequest(), DescribeClusterResponse)
    finally:
        connection.close()


@pytest.mark.parametrize(("listener", "mechanism"), COMBINATIONS)
async def test_the_sdk_connects(kafka: SecureKafka, listener: str, mechanism: str | None) -> None:
    security = kafka.security(listener, mechanism)
    async with Admin(kafka.addresses[listener], security=security) as admin:
        assert (await admin.describe_cluster()).controller == 0


def test_the_blocking_client_connects(kafka: SecureKafka) -> None:
    security = kafka.security("SASL_SSL", "SCRAM-SHA-512")
    with BlockingAdmin(kafka.addresses["SASL_SSL"], security=security) as admin:
        assert admin.describe_cluster().controller == 0


async def test_certificates_may_be_text(kafka: SecureKafka) -> None:
    certificates = kafka.certificates
    key, end, chain = certificates.read("client").partition("-----END PRIVATE KEY-----\n")
    await connect(
        kafka.addresses["MTLS"],
        SecurityConfig(
            security_protocol="SSL",
            ssl_truststore_certificates=certificates.read("ca"),
            ssl_keystore_key=key + end,
            ssl_keystore_certificate_chain=chain,
        ),
    )


async def test_the_token_may_come_from_a_coroutine(kafka: SecureKafka) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return UnsecuredToken("alice")()

    security = kafka.security("SASL_SSL", "OAUTHBEARER")
    await connect(
        kafka.addresses["SASL_SSL"], dataclasses.replace(security, sasl_oauth_token=token)
    )


async def test_producers_authenticate_again_while_they_send(
    kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = kafka.security("REAUTH", "SCRAM-SHA-256")
    authenticated = 0
    authenticate = BrokerConnection._authenticate

    async def count(connection: BrokerConnection, config: SecurityConfig) -> None:
        nonlocal authenticated
        await authenticate(connection, config)
        authenticated += 1

    monkeypatch.setattr(BrokerConnection, "_authenticate", count)
    async with Admin(kafka.addresses["REAUTH"], security=security) as admin:
        await admin.create_topic("again")
        opened = []
        open_connection = BrokerConnection.open.__func__  # type: ignore[attr-defined]

        async def note(*arguments: object) -> BrokerConnection:
            opened.append(await open_connection(BrokerConnection, *arguments))
            return opened[-1]

        monkeypatch.setattr(BrokerConnection, "open", note)
        async with Producer(kafka.addresses["REAUTH"], security=security) as producer:
            sent = 0
            while authenticated < 2 * len(opened) + 2 or not opened:
                await asyncio.gather(*(producer.send("again", b"x") for _ in range(100)))
                sent += 100
            assert all(connection.is_open for connection in opened)
        assert list((await admin.end_offsets("again")).values()) == [sent]


async def failure_of(address: str, security: SecurityConfig | None) -> str:
    with pytest.raises((AuthenticationError, ConnectionLostError)) as raised:
        await connect(address, security)
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_named(kafka: SecureKafka, mechanism: str) -> None:
    security = dataclasses.replace(
        kafka.security("SASL_SSL", mechanism), sasl_password="not-the-password"
    )
    failure = await failure_of(kafka.addresses["SASL_SSL"], security)

    assert failure.startswith("AuthenticationError: Authentication of user 'alice' at localhost:")
    assert f"with {mechanism} failed" in failure
    assert failure.endswith("check sasl_username and sasl_password")
    assert "not-the-password" not in failure


async def test_an_expired_token_is_named(kafka: SecureKafka) -> None:
    security = dataclasses.replace(
        kafka.security("SASL_SSL", "OAUTHBEARER"),
        sasl_oauth_token=UnsecuredToken("alice", lifetime_seconds=-3600),
    )
    failure = await failure_of(kafka.addresses["SASL_SSL"], security)

    assert "Authentication of a token at localhost:" in failure
    assert "check the token's issuer, audience and expiry" in failure


async def test_a_client_without_sasl_on_a_sasl_listener(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.addresses["SASL_SSL"], kafka.security("SSL"))
    assert failure.startswith("ConnectionLostError")
    assert "the listener may require SASL: set security_protocol to SASL_SSL" in failure


async def test_a_client_with_sasl_on_a_listener_without(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.addresses["SSL"], kafka.security("SASL_SSL", "PLAIN"))
    assert failure.startswith("AuthenticationError")
    assert "does not use SASL on this listener: set security_protocol to SSL" in failure


async def test_a_client_with_tls_on_a_plain_port(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.address, kafka.security("SSL"))
    assert failure.startswith("ConnectionLostError")
    assert "is the listener PLAINTEXT or SASL_PLAINTEXT?" in failure


async def test_a_plain_client_on_a_port_with_tls(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.addresses["SSL"], None)
    assert failure.startswith("ConnectionLostError")
    assert "set security_protocol to SSL or SASL_SSL" in failure


async def test_a_certificate_of_an_unknown_ca(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.addresses["SSL"], SecurityConfig(security_protocol="SSL"))
    assert failure.startswith("AuthenticationError: TLS handshake failed: cannot verify")
    assert "set ssl_truststore_location to the certificate of its CA" in failure


async def test_a_certificate_for_another_host(kafka: SecureKafka) -> None:
    address, security = kafka.addresses["ELSEWHERE"], kafka.security("ELSEWHERE")
    failure = await failure_of(address, security)
    assert failure.startswith("AuthenticationError: TLS handshake failed: the certificate of")
    assert "is for another host" in failure
    await connect(address, dataclasses.replace(security, ssl_endpoint_identification_algorithm=""))


async def test_a_missing_client_certificate(kafka: SecureKafka) -> None:
    failure = await failure_of(kafka.addresses["MTLS"], kafka.security("SSL"))
    assert failure.startswith("AuthenticationError")
    assert "set ssl_keystore_location to a PEM file with certificate and key" in failure


async def test_a_client_certificate_of_another_ca(
    kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    foreign = Certificates(tmp_path_factory.mktemp("foreign"))
    security = dataclasses.replace(kafka.security("MTLS"), ssl_keystore_location=foreign.client)
    failure = await failure_of(kafka.addresses["MTLS"], security)
    assert failure.startswith("AuthenticationError")
    assert "the broker rejected the client's certificate" in failure


async def test_an_operation_fails_at_once_for_a_wrong_password(kafka: SecureKafka) -> None:
    security = dataclasses.replace(kafka.security("SASL_SSL", "PLAIN"), sasl_password="wrong")
    config = ClientConfig(timeouts=TimeoutConfig(operation=60))
    async with Admin(kafka.addresses["SASL_SSL"], client=config, security=security) as admin:
        with pytest.raises(AuthenticationError):
            await asyncio.wait_for(admin.list_topics(), 30)


async def test_a_missing_tls_is_reported_when_the_retries_end(kafka: SecureKafka) -> None:
    config = ClientConfig(timeouts=TIMEOUTS)
    async with Admin(kafka.addresses["SSL"], client=config) as admin:
        with pytest.raises(DeadlineError, match="set security_protocol to SSL or SASL_SSL"):
            await admin.list_topics()
