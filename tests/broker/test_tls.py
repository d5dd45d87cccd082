"""TLS listeners: versions, client certificates, reloading, and who speaks the wrong protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.brokers import on_both_loops
from harness.certificates import Authority
from harness.daemon import Daemon, free_ports
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.sasl import log_in
from harness.waiting import wait_until
from harness.wire import (
    WireClient,
    batches_of,
    connect,
    fetch_request,
    fetched_partitions,
    frame_of,
    produce_request,
    produce_results,
)
from ottla.broker import Broker, BrokerConfig
from ottla.broker.observability.logging import RateLimiter
from ottla.broker.security.certificates import parse_rules, principal_of_subject
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.configdef import ConfigError

_VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")


@pytest.fixture(autouse=True)
def unlimited_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the lines of other tests: the tenth of a kind in ten seconds is the last."""
    limiter = RateLimiter(10, window_seconds=10)
    monkeypatch.setattr("ottla.broker.observability.logging._RATE_LIMITER", limiter)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    authority.issue("broker")
    authority.issue("alice", [("C", "DE"), ("O", "Example, Inc."), ("CN", "alice")])
    return authority


@pytest.fixture
def configs(tmp_path: Path, authority: Authority) -> dict[str, str]:
    return {
        "log.dir": str(tmp_path / "data"),
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.directory / "broker.pem"),
    }


@pytest.fixture
def mutual(configs: dict[str, str], authority: Authority) -> dict[str, str]:
    return configs | {
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(authority.path),
    }


def _context(authority: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


@asynccontextmanager
async def _connect(broker: Broker | str, context: ssl.SSLContext) -> AsyncIterator[WireClient]:
    address = broker if isinstance(broker, str) else broker.address
    host, port = address.rsplit(":", 1)
    streams = await asyncio.open_connection(host, int(port), ssl=context, limit=2**30)
    client = WireClient(*streams)
    try:
        yield client
    finally:
        client.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await client.writer.wait_closed()


async def _is_served(client: WireClient) -> bool:
    return bool((await client.request(MetadataRequest(topics=[]), 12)).brokers)


@on_both_loops
async def test_records_of_all_sizes(configs: dict[str, str], authority: Authority) -> None:
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        await client.request(create_topics_request("t"))
        for size in (10, 100_000, 900_000):
            produced = await client.request(produce_request(a_batch(value=os.urandom(size))))
            assert [result.error_code for result in produce_results(produced)] == [0]
        large = fetch_request(0, partition_max_bytes=50_000_000)
        [partition] = fetched_partitions(await client.request(large))

        assert len(batches_of(partition)) == 3
        assert not broker.server._handshakes


@on_both_loops
async def test_requests_in_the_first_packet_after_the_handshake(
    configs: dict[str, str], authority: Authority
) -> None:
    async with Broker(BrokerConfig.of(configs)) as broker:
        for _ in range(20):
            async with _connect(broker, _context(authority)) as client:
                client.send(_VERSIONS)
                client.send(MetadataRequest(topics=[]), 12)
                assert (await client.response()).error_code == 0
                assert (await client.response()).brokers


@pytest.mark.parametrize(
    ("version", "minimum", "maximum", "works"),
    [
        ("TLSv1.2,TLSv1.3", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, True),
        ("TLSv1.2,TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, True),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, False),
        ("TLSv1.2", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, False),
    ],
)
async def test_enabled_versions(
    configs: dict[str, str],
    authority: Authority,
    version: str,
    minimum: ssl.TLSVersion,
    maximum: ssl.TLSVersion,
    works: bool,
) -> None:
    context = _context(authority)
    context.minimum_version, context.maximum_version = minimum, maximum
    configs["ssl.enabled.protocols"] = version
    async with Broker(BrokerConfig.of(configs)) as broker:
        if works:
            async with _connect(broker, context) as client:
                assert await _is_served(client)
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with _connect(broker, context):
                    pass


@pytest.mark.parametrize(
    ("suites", "expected"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"),
    ],
)
async def test_cipher_suites(
    configs: dict[str, str], authority: Authority, suites: str, expected: str
) -> None:
    configs["ssl.cipher.suites"] = suites
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        assert client.writer.get_extra_info("cipher")[0] == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ssl.keystore.location": ""}, "a TLS listener needs a certificate"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "/nowhere.pem: No such file"),
        ({"ssl.keystore.location": "/k.jks"}, "only PEM is supported; convert"),
        ({"ssl.keystore.type": "JKS"}, "Invalid value JKS for ssl.keystore.type"),
        ({"ssl.keystore.location": __file__}, "expected a PEM file with the certificate chain"),
        ({"ssl.client.auth": "required"}, "set ssl.truststore.location"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "expected TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "RC4"}, "Invalid value RC4 for ssl.cipher.suites"),
        ({"ssl.keystore.key": "x"}, "need each other"),
        ({"listener.name.ssl.ssl.truststore.location": "/t", "ssl.client.auth": "requested"}, "/t"),
        ({"listener.name.ssl.ssl.keystore.locatoin": "/t"}, "did you mean listener.name.ssl.ssl.k"),
        ({"ssl.truststore.location": __file__, "ssl.client.auth": "requested"}, "PEM certificates"),
    ],
)
async def test_configs_that_cannot_work_are_errors(
    configs: dict[str, str], changes: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        async with Broker(BrokerConfig.of(configs | changes)):
            pass


async def test_encrypted_keys(configs: dict[str, str], authority: Authority) -> None:
    encrypted = authority.issue("encrypted", password="s3cret")
    configs["ssl.keystore.location"] = str(encrypted)
    for password, problem in (("", "set ssl.key.password"), ("x", "cannot be decrypted")):
        with pytest.raises(ConfigError, match=problem) as refused:
            async with Broker(BrokerConfig.of(configs | {"ssl.key.password": password})):
                pass
        assert "s3cret" not in str(refused.value)
    configs["ssl.key.password"] = "s3cret"
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        assert await _is_served(client)


async def test_inline_certificates(
    configs: dict[str, str], authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    pem = (authority.directory / "broker.pem").read_text()
    key, begin, chain = pem.partition("-----BEGIN CERTIFICATE")
    del configs["ssl.keystore.location"]
    configs["ssl.keystore.key"] = key.replace("\n", "\\n")
    configs["listener.name.ssl.ssl.keystore.certificate.chain"] = begin + chain
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        assert await _is_served(client)
    assert not list(temporary.iterdir())


# Client certificates.


@on_both_loops
async def test_the_subject_of_a_client_certificate_is_the_principal(
    mutual: dict[str, str], authority: Authority
) -> None:
    async with Broker(BrokerConfig.of(mutual)) as broker:
        context = _context(authority, authority.directory / "alice.pem")
        async with _connect(broker, context) as client:
            assert await _is_served(client)
            [connection] = broker.server._connections
            assert str(connection.principal) == r"User:CN=alice,O=Example\, Inc.,C=DE"
            assert len(broker.server._unauthenticated) == 0


async def test_principals_are_mapped_by_rules(mutual: dict[str, str], authority: Authority) -> None:
    mutual["ssl.principal.mapping.rules"] = "RULE:^CN=(.*?),.*C=(..)$/$1@$2/U"
    async with Broker(BrokerConfig.of(mutual)) as broker:
        context = _context(authority, authority.directory / "alice.pem")
        async with _connect(broker, context) as client:
            assert await _is_served(client)
            [connection] = broker.server._connections
            assert str(connection.principal) == "User:ALICE@DE"
        context = _context(authority, authority.directory / "broker.pem")
        async with _connect(broker, context) as client:
            assert await client.is_closed()
        assert broker.metrics.connections["unauthenticated"] == 1


@pytest.mark.parametrize("client_auth", ["requested", "required"])
async def test_clients_without_a_certificate(
    mutual: dict[str, str], authority: Authority, client_auth: str
) -> None:
    mutual["ssl.client.auth"] = client_auth
    async with (
        Broker(BrokerConfig.of(mutual)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        if client_auth == "requested":
            assert await _is_served(client)
            [connection] = broker.server._connections
            assert str(connection.principal) == "User:ANONYMOUS"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await _is_served(client)
            assert broker.metrics.connections["handshake_failed"] == 1


async def test_certificates_of_another_authority_are_refused(
    mutual: dict[str, str], authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    async with Broker(BrokerConfig.of(mutual)) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with _connect(broker, _context(authority, stranger)) as client:
                await _is_served(client)
        await _until(lambda: broker.metrics.connections["handshake_failed"] == 1)
    assert "the client's certificate is not accepted" in _reasons(caplog)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "CN=Alice,O=b", "alice"),
        ("RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "O=b", "O=b"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/, RULE:CN=(.*)/$1/U", "CN=a,OU=b", "a@b"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/, RULE:CN=(.*)/$1/U", "CN=a", "A"),
        ("RULE:^CN=a$/x/", "CN=ab", None),
        ("RULE:CN=a/x/", "CN=ab", None),
        (r"RULE:CN=(\w+)\/(.*)/$2/", "CN=a/b", "b"),
        ("RULE:CN=(a)|CN=(b)/$1.$2/", "CN=b", ".b"),
        # Patterns for which Python's matching takes years.
        ("RULE:CN=(a+)+/$1/", f"CN={'a' * 1000}b", None),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1/",
            "CN=a" + ",OU=,O=,L=,ST=" * 70,
            None,
        ),
    ],
)
def test_rules(rules: str, subject: str, name: str | None) -> None:
    principal = principal_of_subject(parse_rules(rules), subject)

    assert (principal and principal.name) == name


@pytest.mark.parametrize("rules", ["RULE", "RULE:a", "RULE:(/b/", "RULE:a/$1/", "X", "DEFAULTX"])
def test_malformed_rules(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules(rules)


# Renewal.


def _serial(client: WireClient) -> str:
    certificate: dict[str, Any] = client.writer.get_extra_info("peercert")
    return str(certificate["serialNumber"])


async def test_certificates_are_reloaded_for_new_connections(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    authority = Authority(tmp_path)
    configs["ssl.keystore.location"] = str(authority.issue("broker"))
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as old,
    ):
        before = _serial(old)
        (tmp_path / "broker.pem").write_text("half a certificate")
        assert broker.server.security is not None
        await broker.server.security.reload()
        async with _connect(broker, _context(authority)) as client:
            assert _serial(client) == before
        authority.issue("broker")
        await broker.server.security.reload()
        async with _connect(broker, _context(authority)) as client:
            assert _serial(client) != before
        assert await _is_served(old)


async def test_altering_the_location_reloads(tmp_path: Path, configs: dict[str, str]) -> None:
    authority = Authority(tmp_path)
    configs["ssl.keystore.location"] = str(authority.issue("broker"))
    other = authority.issue("other")
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        change = AlterableConfig(name="listener.name.ssl.ssl.keystore.location", value=str(other))
        resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[change])
        response = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        assert [result.error_code for result in response.responses] == [0]
        before = _serial(client)

        async def is_reloaded() -> bool:
            async with _connect(broker, _context(authority)) as new:
                return _serial(new) != before

        while not await is_reloaded():
            await asyncio.sleep(0.01)


def test_sighup_reloads_under_load(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    location = authority.issue("broker")
    port = free_ports(1)
    daemon = Daemon(
        tmp_path / "broker",
        *("--listen", f"SSL://127.0.0.1:{port}"),
        *("--set", f"ssl.keystore.location={location}"),
        port=port,
    )
    daemon.launch()
    wait_until(lambda: "ready" in daemon.log_tail(), 30)

    async def run() -> None:
        address = f"127.0.0.1:{port}"
        is_done = False

        async def connect_again_and_again() -> int:
            count = 0
            while not is_done:
                async with _connect(address, _context(authority)) as client:
                    assert await _is_served(client)
                    count += 1
            return count

        async with asyncio.TaskGroup() as tasks:
            load = [tasks.create_task(connect_again_and_again()) for _ in range(4)]
            serials = set()
            for _ in range(5):
                authority.issue("broker")
                reloads = daemon.log.read_text().count("certificates reloaded")
                daemon.send(signal.SIGHUP)
                while daemon.log.read_text().count("certificates reloaded") == reloads:
                    await asyncio.sleep(0.01)
                async with _connect(address, _context(authority)) as client:
                    serials.add(_serial(client))
            is_done = True
        assert len(serials) == 5
        assert all(task.result() for task in load)

    try:
        asyncio.run(run())
        assert daemon.stop() == 0
    finally:
        daemon.kill()


# The wrong protocol, and clients that stall.


def _reasons(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(str(getattr(record, "reason", "")) for record in caplog.records)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@on_both_loops
async def test_a_plain_client_on_a_tls_port_is_named(
    configs: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Broker(BrokerConfig.of(configs)) as broker:
        for data, reason in (
            (frame_of(_VERSIONS, 3), "the client does not speak TLS"),
            (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP, not TLS"),
        ):
            async with connect(broker) as client:
                client.writer.write(data)
                with suppress(ConnectionError):
                    await client.reader.read()
            await _until(lambda reason=reason: reason in _reasons(caplog))  # type: ignore[misc]
        async with connect(broker):
            pass
        await _until(lambda: "the client closed the connection" in _reasons(caplog))
        assert broker.server.connection_count == 0
        assert not broker.server._count_by_peer


async def test_a_tls_client_on_a_plain_port_is_named(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {"log.dir": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(BrokerConfig.of(configs)) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with _connect(broker, _context(authority)):
                pass
        await _until(lambda: "the peer speaks TLS" in _reasons(caplog))


@on_both_loops
async def test_handshakes_that_stall_are_limited_and_keep_nobody_out(
    configs: dict[str, str], authority: Authority
) -> None:
    configs["max.unauthenticated.connections"] = "10"
    async with Broker(BrokerConfig.of(configs)) as broker:
        host, port = broker.address.rsplit(":", 1)
        streams = [await asyncio.open_connection(host, port) for _ in range(30)]
        await _until(lambda: broker.metrics.connections["unauthenticated"] >= 20)
        assert broker.server.connection_count <= 30
        async with _connect(broker, _context(authority)) as client:
            assert await _is_served(client)
        for _reader, writer in streams:
            writer.close()
        await _until(lambda: broker.server.connection_count == 0)
        assert not broker.server._count_by_peer


def _client_hello(authority: Authority) -> bytes:
    sent = ssl.MemoryBIO()
    client = _context(authority).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@on_both_loops
async def test_a_handshake_begins_when_its_client_hello_is_complete(
    configs: dict[str, str], authority: Authority
) -> None:
    hello = _client_hello(authority)
    async with Broker(BrokerConfig.of(configs)) as broker, connect(broker) as client:
        for part in (hello[:1], hello[1:7], hello[7:100], hello[100:-1]):
            client.writer.write(part)
            await asyncio.sleep(0.02)
            assert [handshake.task for handshake in broker.server._handshakes] == [None]
        client.writer.write(hello[-1:])
        assert await client.reader.readexactly(1) == b"\x16"


@on_both_loops
async def test_few_handshakes_begin_at_once(configs: dict[str, str], authority: Authority) -> None:
    hello = _client_hello(authority)
    async with Broker(BrokerConfig.of(configs)) as broker:
        host, port = broker.address.rsplit(":", 1)
        with ExitStack() as stack:
            for _ in range(30):
                client = stack.enter_context(socket.create_connection((host, int(port))))
                client.sendall(hello)
            begun: set[object] = set()
            async with asyncio.timeout(30):
                while len(begun) < 30:
                    await asyncio.sleep(0)
                    now = {one for one in broker.server._handshakes if one.task is not None}
                    assert len(now - begun) <= 2
                    begun |= now
        await _until(lambda: broker.server.connection_count == 0)
        assert not broker.server._count_by_peer


async def test_handshakes_count_as_connections(
    configs: dict[str, str], authority: Authority
) -> None:
    configs["max.connections.per.ip"] = "3"
    async with Broker(BrokerConfig.of(configs)) as broker:
        host, port = broker.address.rsplit(":", 1)
        streams = [await asyncio.open_connection(host, port) for _ in range(4)]
        assert await streams[3][0].read() == b""
        await _until(lambda: broker.metrics.connections["refused"] == 1)
        for _reader, writer in streams:
            writer.close()
        await _until(lambda: broker.server.connection_count == 0)
        async with _connect(broker, _context(authority)) as client:
            assert await _is_served(client)


async def test_a_handshake_does_not_take_for_ever(
    configs: dict[str, str], authority: Authority
) -> None:
    configs["connections.authentication.timeout.ms"] = "50"
    async with Broker(BrokerConfig.of(configs)) as broker, connect(broker) as client:
        assert await client.is_closed()
        await _until(lambda: broker.server.connection_count == 0)


async def test_a_stop_does_not_wait_for_handshakes(configs: dict[str, str]) -> None:
    async with Broker(BrokerConfig.of(configs)) as broker:
        client = await asyncio.open_connection(*broker.address.rsplit(":", 1))
        await _until(lambda: broker.server.connection_count == 1)
    client[1].close()


async def test_sasl_over_tls(configs: dict[str, str], authority: Authority) -> None:
    configs |= {
        "listeners": "SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "SECURE:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.bootstrap.users": "SCRAM-SHA-512=[name=alice,password=secret]",
    }
    async with (
        Broker(BrokerConfig.of(configs)) as broker,
        _connect(broker, _context(authority)) as client,
    ):
        assert not (await log_in(client, "alice", "secret", "SCRAM-SHA-512")).error_code
        assert await _is_served(client)
        [connection] = broker.server._connections
        assert str(connection.principal) == "User:alice"
