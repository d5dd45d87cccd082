"""SASL on a listener: which requests are answered when, the mechanisms, and re-authentication."""

from __future__ import annotations

import asyncio
import struct
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from harness.brokers import on_both_loops
from harness.daemon import free_port
from harness.sasl import (
    ScramClient,
    bearer,
    handshake,
    log_in,
    plain_token,
    token,
    unsecured_token,
)
from harness.wire import WireClient, connect, frame_of, framed
from ottla.broker import Broker, BrokerConfig
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.broker.security.exchange import Accepted, Challenge
from ottla.broker.security.sasl import SaslSession, SaslState
from ottla.broker.security.scram import ScramUsers
from ottla.protocol.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from ottla.protocol.api.list_groups import ListGroupsRequest
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.codec import decode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from ottla.protocol.scram import ScramCredential, ScramMechanism, parse_server_first

_MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
_LISTENER = "listener.name.sasl_plaintext."
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_alice="secret" user_bob="other";'
)
_SHA256 = ScramMechanism.SHA_256
_VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")


def _configs(path: Any, **configs: Any) -> dict[str, str]:
    return {
        "log.dir": str(path),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": _MECHANISMS,
        _LISTENER + "plain.sasl.jaas.config": _JAAS,
        "sasl.bootstrap.users": (
            "SCRAM-SHA-256=[name=alice,password=s,e]=cret];"
            "SCRAM-SHA-512=[name=alice,iterations=8192,password=secret]"
        ),
        "sasl.oauthbearer.unsecured.tokens": "true",
        "connection.failed.authentication.delay.ms": "1",
    } | {name.replace("_", "."): str(value) for name, value in configs.items()}


@asynccontextmanager
async def _sasl_broker(path: Any, **configs: Any) -> AsyncIterator[Broker]:
    async with Broker(BrokerConfig.of(_configs(path, **configs))) as broker:
        yield broker


async def _is_served(client: WireClient) -> bool:
    response = await client.request(MetadataRequest(topics=[]), 12)
    return bool(response.brokers)


def _principals(broker: Broker) -> list[str]:
    return sorted(str(connection.principal) for connection in broker.server._connections)


# The states of a connection.


@on_both_loops
async def test_what_closes_a_new_connection_without_an_answer(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker:
        for requests in (
            [MetadataRequest(topics=[])],
            [SaslAuthenticateRequest(auth_bytes=plain_token("alice", "secret"))],
        ):
            async with connect(broker) as client:
                for request in requests:
                    client.send(request)
                assert await client.is_closed()
        async with connect(broker) as client:
            await client.request(_VERSIONS)
            client.send(_VERSIONS)
            assert await client.is_closed()
        async with connect(broker) as client:
            await client.request(_VERSIONS)
            client.send(ListGroupsRequest())
            assert await client.is_closed()
        assert broker.metrics.connections["unauthenticated"] == 4


async def test_no_api_is_served_before_authentication(tmp_path: Any) -> None:
    """Nothing comes back but an error in the place of the API, if it has one."""
    async with _sasl_broker(tmp_path) as broker:
        for api in SUPPORTED_APIS.values():
            if api in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
                continue
            for version in {api.versions.first, api.versions.last}:
                frame = frame_of(api.request(), version)
                async with connect(broker) as client:
                    client.writer.write(frame)
                    assert await client.reader.read() == b"", api
                async with connect(broker) as client:
                    await handshake(client, "PLAIN")
                    client.writer.write(frame)
                    answer = await client.reader.read()
                    if answer:
                        _header, response = decode_response(api.response, version, answer[4:])
                        refused = api.response(error_code=ErrorCode.ILLEGAL_SASL_STATE)
                        assert response == refused, api
        assert broker.dispatcher._handlers.keys() == {SASL_HANDSHAKE.key}


async def test_a_request_before_authentication_is_not_decoded(tmp_path: Any) -> None:
    """Decoding half a megabyte takes longer than others should wait for somebody unknown."""
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        assert (await handshake(client, "PLAIN")).error_code == 0
        header = struct.pack(">hhihB", DESCRIBE_CLUSTER.key, 0, 7, -1, 0)
        client.writer.write(framed(header + b"\xff" * 500_000))
        frame = await client.frame()
        # The correlation id, no tags, the throttle time.
        assert struct.unpack_from(">ibih", frame) == (7, 0, 0, ErrorCode.ILLEGAL_SASL_STATE)
        assert await client.is_closed()


async def test_an_unexpected_error_ends_the_authentication() -> None:
    class Faulty:
        async def receive(self, _message: bytes) -> Challenge | Accepted:
            raise ZeroDivisionError

    session = SaslSession({"PLAIN": Faulty})
    session.handshake("PLAIN", 1, 0.0)
    with pytest.raises(ZeroDivisionError):
        await session.receive(b"")
    assert session.state is SaslState.FAILED


async def test_api_versions_may_be_asked_again_after_an_unsupported_version(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        header = struct.pack(">hhih", API_VERSIONS.key, 99, 7, -1)
        client.writer.write(framed(header))
        frame = await client.frame()
        assert struct.unpack(">ih", frame[:6]) == (7, ErrorCode.UNSUPPORTED_VERSION)

        assert (await client.request(_VERSIONS)).error_code == 0
        assert (await log_in(client, "alice", "secret")).error_code == 0
        assert await _is_served(client)


async def test_other_requests_after_the_handshake_are_answered_and_the_connection_closed(
    tmp_path: Any,
) -> None:
    async with _sasl_broker(tmp_path) as broker:
        async with connect(broker) as client:
            await handshake(client, "PLAIN")
            assert (await client.request(ListGroupsRequest())).error_code == (
                ErrorCode.ILLEGAL_SASL_STATE
            )
            assert await client.is_closed()
        async with connect(broker) as client:
            await handshake(client, "PLAIN")
            client.send(MetadataRequest(topics=[]), version=12)  # It has no place for an error.
            assert await client.is_closed()


async def test_a_mechanism_that_is_not_enabled(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        response = await handshake(client, "GSSAPI")

        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert list(response.mechanisms) == _MECHANISMS.split(",")
        assert await client.is_closed()


@on_both_loops
async def test_tokens_without_requests_after_version_0_of_the_handshake(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker:
        async with connect(broker) as client:
            assert (await handshake(client, "PLAIN", version=0)).error_code == 0
            client.writer.write(framed(plain_token("alice", "secret")))
            assert await client.frame() == b""
            assert await _is_served(client)
            assert _principals(broker) == ["User:alice"]
        async with connect(broker) as client:
            await handshake(client, "SCRAM-SHA-256", version=0)
            exchange = ScramClient(_SHA256, "alice", "s,e]=cret")
            client.writer.write(framed(exchange.first()))
            client.writer.write(framed(exchange.final(await client.frame())))
            assert await client.frame() == b"v=" + b64encode(exchange.signature)
            assert await _is_served(client)
        async with connect(broker) as client:
            await handshake(client, "PLAIN", version=0)
            client.writer.write(framed(plain_token("alice", "wrong")))
            assert await client.is_closed()


async def test_requests_may_be_pipelined_behind_the_authentication(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        client.send(_VERSIONS)
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.send(SaslAuthenticateRequest(auth_bytes=plain_token("alice", "secret")))
        client.send(MetadataRequest(topics=[]), 12)

        codes = [(await client.response()).error_code for _ in range(3)]

        assert codes == [0, 0, 0]
        assert (await client.response()).brokers


async def test_requests_before_the_authentication_are_small(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path, sasl_server_max_receive_size=2000) as broker:
        async with connect(broker) as client:
            await handshake(client, "PLAIN")
            client.send(SaslAuthenticateRequest(auth_bytes=b"x" * 2100))
            assert await client.is_closed()
        async with connect(broker) as client:
            await log_in(client, "alice", "secret")
            names = [UserName(name="x" * 100) for _ in range(100)]
            response = await client.request(DescribeUserScramCredentialsRequest(users=names))
            assert response.results[0].error_code == ErrorCode.DUPLICATE_RESOURCE


async def test_a_listener_without_sasl_says_so(tmp_path: Any) -> None:
    configs = {"log.dir": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(BrokerConfig.of(configs)) as broker, connect(broker) as client:
        assert (await handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await token(client, b"x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await _is_served(client)


async def test_connections_that_do_not_authenticate_are_closed_in_time(tmp_path: Any) -> None:
    async with (
        _sasl_broker(tmp_path, connections_authentication_timeout_ms=100) as broker,
        connect(broker) as silent,
        connect(broker) as slow,
    ):
        slow.writer.write(frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1)[:10])
        assert await silent.is_closed()
        assert await slow.is_closed()
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await _is_served_after_login(client)
        assert len(broker.server._unauthenticated) == 0


async def _is_served_after_login(client: WireClient) -> None:
    await log_in(client, "alice", "secret")
    assert await _is_served(client)


async def test_too_many_unauthenticated_connections_keep_nobody_out(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path, max_unauthenticated_connections=5) as broker:
        streams = [await asyncio.open_connection(*broker.address.rsplit(":", 1)) for _ in range(20)]
        async with connect(broker) as client:
            assert (await log_in(client, "alice", "secret")).error_code == 0
            assert await _is_served(client)
        for reader, _writer in streams[:14]:
            assert await reader.read() == b""
        assert broker.metrics.connections["unauthenticated"] >= 15
        for _reader, writer in streams:
            writer.close()


# Mechanisms.


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain(tmp_path: Any, version: int) -> None:
    async with _sasl_broker(tmp_path) as broker:
        async with connect(broker) as client:
            await handshake(client, "PLAIN")
            response = await token(client, plain_token("bob", "other", "bob"), version)
            assert (response.error_code, response.error_message) == (0, "")
            assert (bytes(response.auth_bytes), response.session_lifetime_ms) == (b"", 0)
            assert _principals(broker) == ["User:bob"]
        texts = set()
        for message in (
            *(plain_token("alice", "wrong"), plain_token("nobody", "secret"), b"", b"\0alice"),
            *(plain_token("alice", "secret", "bob"), plain_token("alice", ""), b"\0\xff\0x"),
            plain_token("", "secret"),
        ):
            async with connect(broker) as client:
                await handshake(client, "PLAIN")
                response = await token(client, message, version)
                assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                texts.add(response.error_message)
                assert await client.is_closed()
        assert texts == {"Authentication failed: Invalid username or password"}


@pytest.mark.parametrize(
    ("mechanism", "password"), [("SCRAM-SHA-256", "s,e]=cret"), ("SCRAM-SHA-512", "secret")]
)
async def test_scram(tmp_path: Any, mechanism: str, password: str) -> None:
    scram = ScramMechanism.of(mechanism)
    assert scram is not None
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await handshake(client, mechanism)
        exchange = ScramClient(scram, "alice", password)
        challenge = await token(client, exchange.first())
        response = await token(client, exchange.final(bytes(challenge.auth_bytes)))

        assert response.error_code == 0
        assert bytes(response.auth_bytes) == b"v=" + b64encode(exchange.signature)
        assert _principals(broker) == ["User:alice"]
        assert await _is_served(client)


@pytest.mark.parametrize("scram", list(ScramMechanism))
async def test_unknown_users_cannot_be_told_from_wrong_passwords(
    tmp_path: Any, scram: ScramMechanism
) -> None:
    async def answers(broker: Broker, user: str) -> tuple[Any, Any]:
        async with connect(broker) as client:
            await handshake(client, scram.mechanism)
            exchange = ScramClient(scram, user, "wrong")
            challenge = await token(client, exchange.first())
            assert challenge.error_code == 0
            return (
                parse_server_first(bytes(challenge.auth_bytes)),
                await token(client, exchange.final(bytes(challenge.auth_bytes))),
            )

    async with _sasl_broker(tmp_path) as broker:
        known, known_end = await answers(broker, "alice")
        unknown, unknown_end = await answers(broker, "nobody")
        again, _ = await answers(broker, "nobody")
        other, _ = await answers(broker, "nobody2")
    async with _sasl_broker(tmp_path) as broker:
        restarted, _ = await answers(broker, "nobody")

    assert known_end == unknown_end
    assert unknown_end.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert unknown.salt == again.salt == restarted.salt != other.salt
    assert unknown.iterations == known.iterations
    assert len(unknown.salt) == len(known.salt)


async def test_the_first_users_exist_before_the_first_connection(tmp_path: Any) -> None:
    port = free_port()
    users = [f"SCRAM-SHA-256=[name={n},iterations=16384,password=secret]" for n in range(10)]
    configs = {
        "log.dir": str(tmp_path),
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.bootstrap.users": ";".join(users),
    }
    broker = Broker(BrokerConfig.of(configs))
    starting = asyncio.create_task(broker.start())
    response = None
    while response is None:
        with suppress(ConnectionError):
            async with connect(f"127.0.0.1:{port}") as client:
                response = await log_in(client, "9", "secret", "SCRAM-SHA-256")
        await asyncio.sleep(0.001)
    await starting
    await broker.stop()
    assert response.error_code == 0


def test_iterations_do_not_tell_who_exists() -> None:
    """Those of a user who does not exist are those of some who do."""
    scram, other = ScramMechanism
    credentials = {
        (name, mechanism): ScramCredential(bytes(salt_bytes), iterations, bytes(32), bytes(32))
        for name, mechanism, iterations, salt_bytes in (
            ("alice", scram, 4096, 24),
            ("bob", scram, 8192, 16),
            ("carol", other, 16384, 20),
        )
    }
    users = ScramUsers(lambda: credentials, lambda: b"secret")

    def made_up() -> dict[str, tuple[int, int]]:
        found = {name: users.find(scram, name)[0] for name in map(str, range(50))}
        return {name: (one.iterations, len(one.salt)) for name, one in found.items()}

    before = made_up()
    assert set(before.values()) == {(4096, 24), (8192, 16)}
    credentials["dave", scram] = credentials["alice", scram]
    assert made_up() == before


async def test_tampered_scram_messages(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker:

        async def code(change: Any, nonce: Any = lambda first: None) -> int:
            async with connect(broker) as client:
                await handshake(client, "SCRAM-SHA-256")
                exchange = ScramClient(_SHA256, "alice", "s,e]=cret")
                change(exchange)
                challenge = await token(client, exchange.first())
                if challenge.error_code:
                    return int(challenge.error_code)
                first = bytes(challenge.auth_bytes)
                response = await token(client, exchange.final(first, nonce(first)))
                return int(response.error_code)

        def nothing(_exchange: ScramClient) -> None:
            pass

        def set_header(header: str, binding: bytes) -> Any:
            def change(exchange: ScramClient) -> None:
                exchange.header, exchange.binding = header, binding

            return change

        failed = ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await code(nothing) == 0
        assert await code(set_header("n,a=alice,", b"n,a=alice,")) == 0
        assert await code(set_header("n,a=bob,", b"n,a=bob,")) == failed
        assert await code(set_header("n,,", b"y,,")) == failed
        assert await code(set_header("p=tls-unique,,", b"p=tls-unique,,")) == failed
        for nonce in (
            lambda first: parse_server_first(first).nonce + "x",
            lambda first: parse_server_first(first).nonce[:-1],
            lambda first: "fyko+d2lbbFgONRv9qkxdawL",
        ):
            assert await code(nothing, nonce) == failed


async def test_a_replayed_scram_exchange_fails(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker:
        async with connect(broker) as client:
            await handshake(client, "SCRAM-SHA-256")
            exchange = ScramClient(_SHA256, "alice", "s,e]=cret")
            challenge = await token(client, exchange.first())
            final = exchange.final(bytes(challenge.auth_bytes))
            assert (await token(client, final)).error_code == 0
        async with connect(broker) as client:
            await handshake(client, "SCRAM-SHA-256")
            await token(client, exchange.first())
            assert (await token(client, final)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_tokens_without_a_signature(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker:
        async with connect(broker) as client:
            await handshake(client, "OAUTHBEARER")
            response = await token(client, bearer(unsecured_token(sub="carol"), "carol"))
            assert (response.error_code, bytes(response.auth_bytes)) == (0, b"")
            assert 3_590_000 < response.session_lifetime_ms <= 3_600_000
            assert _principals(broker) == ["User:carol"]
        for message in (
            *(bearer("a.b.c"), bearer(unsecured_token(exp=time.time() - 1))),
            *(bearer(unsecured_token(exp=None)), bearer(unsecured_token(sub=""))),
            *(bearer(unsecured_token(), "bob"), bearer(unsecured_token(iat=time.time() + 9999))),
        ):
            async with connect(broker) as client:
                await handshake(client, "OAUTHBEARER")
                rejected = await token(client, message)
                assert rejected.error_code == 0
                assert bytes(rejected.auth_bytes) == b'{"status": "invalid_token"}'
                response = await token(client, b"\x01")
                assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert await client.is_closed()


# Re-authentication.


def _age(broker: Broker, seconds: float) -> None:
    """Have the sessions of all connections be older."""
    for connection in broker.server._connections:
        assert connection.sasl is not None
        connection.sasl.expires_at -= seconds
        connection.sasl._authenticated_at -= seconds


async def test_an_expired_session_is_closed_with_the_next_request(tmp_path: Any) -> None:
    async with (
        _sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as broker,
        connect(broker) as client,
    ):
        response = await log_in(client, "alice", "secret")
        assert response.session_lifetime_ms == 60_000
        _age(broker, 10)
        assert await _is_served(client)
        _age(broker, 50)
        client.send(MetadataRequest(topics=[]))
        assert await client.is_closed()


async def test_a_session_goes_on_after_a_re_authentication(tmp_path: Any) -> None:
    async with (
        _sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as broker,
        connect(broker) as client,
    ):
        await log_in(client, "alice", "secret")
        _age(broker, -10)
        too_early = await handshake(client, "PLAIN")
        assert too_early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert list(too_early.mechanisms) == []
        assert await _is_served(client)
        _age(broker, 65)
        assert (await log_in(client, "alice", "secret")).session_lifetime_ms == 60_000
        _age(broker, 10)
        assert await _is_served(client)


@pytest.mark.parametrize("changed", ["principal", "mechanism", "password"])
async def test_a_re_authentication_as_somebody_else_fails(tmp_path: Any, changed: str) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await log_in(client, "alice", "secret")
        _age(broker, 2)
        user, password = ("bob", "other") if changed == "principal" else ("alice", "secret")
        mechanism = "SCRAM-SHA-512" if changed == "mechanism" else "PLAIN"
        if changed == "password":
            password = "wrong"

        response = await log_in(client, user, password, mechanism)

        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        if changed != "password":
            assert response.error_message.startswith("Cannot change")
        assert await client.is_closed()


async def test_authenticating_without_a_handshake_is_illegal(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await log_in(client, "alice", "secret")
        response = await token(client, plain_token("bob", "other"))
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()


# Credentials.


def _upsertion(
    name: str,
    password: str = "p",
    mechanism: int = 1,
    iterations: int = 4096,
    salt: bytes = b"salt",
) -> ScramCredentialUpsertion:
    scram = ScramMechanism.SHA_512 if mechanism == 2 else _SHA256
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=scram.salted_password(password, salt or b"x", max(iterations, 1) % 20_000),
    )


async def test_credentials_are_altered_described_and_survive_a_restart(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await log_in(client, "alice", "secret")
        response = await client.request(
            AlterUserScramCredentialsRequest(
                upsertions=[_upsertion("dave", "one"), _upsertion("dave", "two", 2, 5000)],
                deletions=[ScramCredentialDeletion(name="alice", mechanism=2)],
            )
        )
        assert [(r.user, r.error_code) for r in response.results] == [("alice", 0), ("dave", 0)]
        async with connect(broker) as other:
            assert (await log_in(other, "dave", "one", "SCRAM-SHA-256")).error_code == 0
    configs = _configs(tmp_path)
    del configs["sasl.bootstrap.users"]
    async with Broker(BrokerConfig.of(configs)) as broker, connect(broker) as client:
        assert (await log_in(client, "dave", "two", "SCRAM-SHA-512")).error_code == 0
        for users in (None, []):
            described = await client.request(DescribeUserScramCredentialsRequest(users=users))
            assert (described.error_code, described.error_message) == (0, None)
            assert [
                (r.user, [(c.mechanism, c.iterations) for c in r.credential_infos])
                for r in described.results
            ] == [("alice", [(1, 4096)]), ("dave", [(1, 4096), (2, 5000)])]
        names = [UserName(name=name) for name in ("dave", "nobody", "alice", "alice")]
        described = await client.request(DescribeUserScramCredentialsRequest(users=names))
        assert [(r.user, r.error_code) for r in described.results] == [
            ("dave", 0),
            ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
            ("alice", ErrorCode.DUPLICATE_RESOURCE),
        ]


@pytest.mark.parametrize(
    ("upsertions", "deletions", "code"),
    [
        ([_upsertion("eve", iterations=4095)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([_upsertion("eve", iterations=16_385)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([_upsertion("eve", salt=b"")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([_upsertion("")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([_upsertion("eve", mechanism=3)], [], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([], [ScramCredentialDeletion(name="eve", mechanism=1)], ErrorCode.RESOURCE_NOT_FOUND),
        ([_upsertion("eve"), _upsertion("eve", "q")], [], ErrorCode.DUPLICATE_RESOURCE),
        (
            [_upsertion("alice")],
            [ScramCredentialDeletion(name="alice", mechanism=1)],
            ErrorCode.DUPLICATE_RESOURCE,
        ),
        (
            [_upsertion("eve")],
            [ScramCredentialDeletion(name="eve", mechanism=1)],
            ErrorCode.RESOURCE_NOT_FOUND,
        ),
        ([_upsertion("eve"), _upsertion("eve", "q", 2, 1)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
async def test_changes_that_are_refused_change_nothing(
    tmp_path: Any, upsertions: Any, deletions: Any, code: ErrorCode
) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await log_in(client, "alice", "secret")
        before = dict(broker.topics.image.scram_credentials)
        response = await client.request(
            AlterUserScramCredentialsRequest(
                upsertions=[*upsertions, _upsertion("frank")], deletions=deletions
            )
        )

        refused, done = response.results
        assert (refused.error_code, done.user, done.error_code) == (code, "frank", 0)
        after = broker.topics.image.scram_credentials
        assert after.keys() - before.keys() == {("frank", _SHA256)}
        assert all(after[key] == before[key] for key in before)


async def test_replaced_passwords_count_for_new_connections(tmp_path: Any) -> None:
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        await log_in(client, "alice", "s,e]=cret", "SCRAM-SHA-256")
        await client.request(
            AlterUserScramCredentialsRequest(upsertions=[_upsertion("alice", "new")])
        )
        assert await _is_served(client)
        async with connect(broker) as other:
            assert (await log_in(other, "alice", "s,e]=cret", "SCRAM-SHA-256")).error_code
        async with connect(broker) as other:
            assert not (await log_in(other, "alice", "new", "SCRAM-SHA-256")).error_code
    # The bootstrap users do not replace it.
    async with _sasl_broker(tmp_path) as broker, connect(broker) as client:
        assert not (await log_in(client, "alice", "new", "SCRAM-SHA-256")).error_code


def test_frames_of_the_handshake_are_what_kafka_sends() -> None:
    frame = frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1)

    assert frame == bytes.fromhex("00000015 0011 0001 00000001 0004") + b"wire\0\5PLAIN"
