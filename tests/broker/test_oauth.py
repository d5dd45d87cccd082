"""OAUTHBEARER with signed tokens, and the key set that verifies them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from harness.sasl import bearer, handshake, token, unsecured_token
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.security.exchange import AuthenticationError
from ottla.broker.security.oauth import KeySet, check_key_set_url, parse_client_message
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import ErrorCode

_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_EC = ec.generate_private_key(ec.SECP256R1())
_OTHER = ec.generate_private_key(ec.SECP256R1())


def _key_set(**keys: Any) -> str:
    described = []
    for key_id, key in keys.items():
        algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        described.append(
            json.loads(algorithm.to_jwk(key.public_key())) | {"kid": key_id, "use": "sig"}
        )
    return json.dumps({"keys": described})


def _token(
    key: Any = _EC,
    key_id: str = "ec",
    algorithm: str = "ES256",
    headers: Mapping[str, Any] | None = None,
    **claims: Any,
) -> str:
    payload = {
        "sub": "alice",
        "iss": "https://issuer",
        "aud": ["ottla", "other"],
        "exp": time.time() + 3600,
        **claims,
    }
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm=algorithm, headers={"kid": key_id, **(headers or {})})


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, str]:
    keys = tmp_path / "keys.json"
    keys.write_text(_key_set(ec=_EC, rsa=_RSA))
    return {
        "log.dir": str(tmp_path / "data"),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "ottla",
        "connection.failed.authentication.delay.ms": "1",
    }


async def _code(broker: Broker, text: str) -> int:
    """Return the code with which a token is answered in the end."""
    async with connect(broker) as client:
        await handshake(client, "OAUTHBEARER")
        response = await token(client, bearer(text))
        assert response.error_code == 0
        if not response.auth_bytes:
            [connection] = broker.server._connections
            assert str(connection.principal) == "User:alice"
            return 0
        return int((await token(client, b"\x01")).error_code)


async def test_signed_tokens(configs: dict[str, str]) -> None:
    now = time.time()
    async with Broker(BrokerConfig.of(configs)) as broker:
        for accepted in (
            *(_token(), _token(_RSA, "rsa", "RS256"), _token(_RSA, "rsa", "PS512")),
            *(_token(aud="ottla"), _token(nbf=now + 10)),
        ):
            assert await _code(broker, accepted) == 0
        header, payload, signature = _token().split(".")
        other_payload = _token(sub="mallory").split(".")[1]
        for rejected in (
            *(_token(iss="https://other"), _token(iss=None), _token(aud="else"), _token(aud=None)),
            *(_token(exp=now - 100), _token(exp=None), _token(nbf=now + 100), _token(sub=None)),
            *(_token(_OTHER), _token(_OTHER, "unknown"), _token(sub=""), unsecured_token()),
            f"{header}.{other_payload}.{signature}",
            f"{header}.{payload}.",
            jwt.encode({"sub": "alice"}, "x" * 32, algorithm="HS256", headers={"kid": "ec"}),
            # Keys that tokens bring along, keys of another kind, and what must be understood.
            _token(_OTHER, headers={"jku": "https://other", "jwk": ECAlgorithm.to_jwk(_OTHER)}),
            *(_token(_RSA, "ec", "RS256"), _token(_EC, "rsa"), _token(headers={"crit": ["new"]})),
            f"{urlsafe_b64encode(b'[' * 30_000).decode()}.{payload}.{signature}",
            *("x", "a.b.c", "é"),
        ):
            assert await _code(broker, rejected) == ErrorCode.SASL_AUTHENTICATION_FAILED, rejected


async def test_a_session_ends_with_the_token(configs: dict[str, str]) -> None:
    configs["connections.max.reauth.ms"] = "7200000"
    async with Broker(BrokerConfig.of(configs)) as broker, connect(broker) as client:
        await handshake(client, "OAUTHBEARER")
        response = await token(client, bearer(_token(exp=time.time() + 600)))
        assert 500_000 < response.session_lifetime_ms <= 600_000


async def test_unknown_keys_do_not_read_the_key_set_each_time(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(_key_set(old=_EC))
    keys = KeySet(path.as_uri(), 3600, 0.001, 3600)
    assert await keys.find("old") is not None
    path.write_text(_key_set(new=_OTHER))

    assert await keys.find("new") is None  # It was read a moment ago.
    keys._read_at -= 4000
    assert await keys.find("new") is not None
    assert await keys.find("old") is None


async def _refreshed(keys: KeySet) -> None:
    keys._retry_at = 0
    await keys.find("old")
    assert keys._refreshing is not None
    await keys._refreshing


async def test_a_key_set_that_cannot_be_read_leaves_the_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(_key_set(old=_EC))
    keys = KeySet(path.as_uri(), 3600, 0.001, 3600)
    assert await keys.find("old") is not None
    for text in ("half a k", "[]", '{"keys": []}', '{"keys": [{"kty": "EC"}]}'):
        path.write_text(text)
        keys._read_at -= 4000
        await _refreshed(keys)
        assert await keys.find("old") is not None
    path.unlink()
    await _refreshed(keys)
    assert await keys.find("old") is not None


async def test_a_provider_that_hangs_delays_no_known_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(_key_set(old=_EC))
    keys = KeySet(path.as_uri(), 3600, 0.001, 3600)
    assert await keys.find("old") is not None
    path.unlink()
    os.mkfifo(path)  # Opening it waits for a writer.
    keys._read_at -= 4000

    assert await keys.find("old") is not None
    assert await keys.find("old") is not None

    await asyncio.to_thread(path.write_text, _key_set(new=_OTHER))
    while await keys.find("old") is not None:
        await asyncio.sleep(0.001)
    assert await keys.find("new") is not None


async def test_a_redirect_to_plain_http_is_not_followed() -> None:
    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://login.example.org/keys")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        keys = KeySet(f"http://127.0.0.1:{server.server_port}/keys", 3600, 0.001, 3600)
        with pytest.raises(ConfigError, match=r"http://login\.example\.org/keys"):
            keys._read()
        assert await keys.find("any") is None
        server.shutdown()


@pytest.mark.parametrize("url", ["http://login.example.org/keys", "ftp://x", "/keys", "file:keys"])
def test_key_sets_that_others_could_change_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        check_key_set_url(url)


@pytest.mark.parametrize("name", ["expected.issuer", "expected.audience", "jwks.endpoint.url"])
async def test_issuer_audience_and_keys_are_required(configs: dict[str, str], name: str) -> None:
    del configs[f"sasl.oauthbearer.{name}"]
    with pytest.raises(ConfigError, match=f"sasl.oauthbearer.{name} is required"):
        await Broker(BrokerConfig.of(configs)).start()


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"n,,", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic x\x01\x01"),
        *(b"n,,\x01auth=Bearer x\x01", b"n,b=x,\x01auth=Bearer x\x01\x01", b"\x01\x01\x01"),
        b"n,,\x01auth=Bearer " + b"x" * 70_000 + b"\x01\x01",
    ],
)
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        parse_client_message(message)


def test_a_message_with_extensions() -> None:
    message = b"n,a=alice,\x01auth=Bearer x.y.z\x01logicalCluster=c\x01\x01"

    assert parse_client_message(message) == ("alice", "x.y.z")
