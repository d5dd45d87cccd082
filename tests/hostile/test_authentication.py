"""Attacks on TLS and authentication: a bystander does not notice, and nobody gets in."""

from __future__ import annotations

import base64
import concurrent.futures
import datetime
import json
import re
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from harness.bystander import Bystanders
from harness.daemon import free_port, shown_on_failure
from harness.sasl import ScramClient, bearer, plain_token, unsecured_token
from harness.secure_broker import SecureBroker
from harness.secure_kafka import PASSWORD, USER
from harness.wire import BlockingWireClient, frame_of
from ottla.client import AuthenticationError, SecurityConfig
from ottla.client.blocking import Admin
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.envelope import EnvelopeRequest
from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import ScramMechanism

HALF_OPEN = 2000
#: The listener whose certificate has an RSA key: only then are there ciphers with RSA to refuse.
RSA_LISTENER = "ELSEWHERE"
ISSUER, AUDIENCE = "https://issuer.example", "ottla"
#: The first bytes of a ClientHello that never ends.
PARTIAL_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def write_certificate(key: rsa.RSAPrivateKey, path: Path) -> None:
    """Write a key and a certificate that it has signed itself."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, key: rsa.RSAPrivateKey
) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secured")
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}))
    listener = "listener.name.sasl_plaintext.sasl.oauthbearer."
    metrics_port = free_port()
    write_certificate(key, folder / "rsa.pem")
    with SecureBroker(
        folder,
        {
            f"listener.name.{RSA_LISTENER.lower()}.ssl.keystore.location": folder / "rsa.pem",
            "connection.failed.authentication.delay.ms": 10,
            listener + "unsecured.tokens": "false",
            listener + "jwks.endpoint.url": jwks.as_uri(),
            listener + "expected.issuer": ISSUER,
            listener + "expected.audience": AUDIENCE,
            "metrics.listener": f"127.0.0.1:{metrics_port}",
        },
    ) as broker:
        broker.metrics_port = metrics_port  # type: ignore[attr-defined]
        yield broker


@pytest.fixture
def broker(secured: SecureBroker, request: pytest.FixtureRequest) -> Iterator[SecureBroker]:
    with shown_on_failure(request, [secured]):
        yield secured


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = HALF_OPEN + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"requires {needed} file descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def log_in(broker: SecureBroker, listener: str, mechanism: str | None) -> None:
    with Admin(broker.addresses[listener], security=broker.security(listener, mechanism)) as admin:
        admin.list_topics()


def sasl_connection(broker: SecureBroker, mechanism: str) -> BlockingWireClient:
    client = BlockingWireClient(broker.addresses["SASL_PLAINTEXT"])
    response = client.request(SaslHandshakeRequest(mechanism=mechanism), 1)
    assert response.error_code == 0, response
    return client


def authenticate(client: BlockingWireClient, message: bytes) -> Any:
    return client.request(SaslAuthenticateRequest(auth_bytes=message), 2)


def test_half_open_handshakes(broker: SecureBroker, tmp_path: Path, many_descriptors: None) -> None:
    host, _, port = broker.addresses["SSL"].rpartition(":")
    # The connections are closed after the measurement.
    with ExitStack() as stack, Bystanders(broker, tmp_path) as bystanders:
        for number in range(HALF_OPEN):
            connection = socket.create_connection((host, int(port)))
            stack.callback(connection.close)
            connection.sendall(PARTIAL_HELLO if number % 2 else PARTIAL_HELLO[:1])
            if number % 500 == 0:
                log_in(broker, "SSL", None)  # Others are served meanwhile.
        log_in(broker, "SASL_SSL", "SCRAM-SHA-256")
    bystanders.result().check_latency()


def client_hello(broker: SecureBroker) -> bytes:
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=broker.certificates.ca)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


@pytest.mark.parametrize("burst", ["hellos", "ends"])
def test_bursts_of_handshakes(
    broker: SecureBroker, tmp_path: Path, many_descriptors: None, burst: str
) -> None:
    """What 900 clients do at once is spread: the longest round trip of a bystander counts."""
    host, _, port = broker.addresses["SSL"].rpartition(":")
    hello = client_hello(broker)
    with ExitStack() as stack, Bystanders(broker, tmp_path) as bystanders:
        connections = []
        for _ in range(900):
            connections.append(socket.create_connection((host, int(port))))
            stack.callback(connections[-1].close)
            connections[-1].sendall(hello[:100])
        log_in(broker, "SSL", None)
        began = time.monotonic()
        for connection in connections:
            if burst == "hellos":
                connection.sendall(hello[100:])
            else:
                connection.close()
        log_in(broker, "SSL", None)
        ended = time.monotonic()
    bystanders.result(began, ended).check_latency()


def test_oversized_and_slow_authentication(broker: SecureBroker, tmp_path: Path) -> None:
    announced = struct.pack(">i", 500 * 1024)
    refused = struct.pack(">i", 600 * 1024)
    with Bystanders(broker, tmp_path) as bystanders, ExitStack() as stack:
        slow = [stack.enter_context(sasl_connection(broker, "PLAIN")) for _ in range(200)]
        for client in slow:
            client.send(announced + bytes(1000))
        for _ in range(50):
            for client in slow[:20]:
                client.send(b"\0")
        with BlockingWireClient(broker.addresses["SASL_PLAINTEXT"]) as client:
            client.send(refused + bytes(100))
            assert client.is_closed()
        with sasl_connection(broker, "PLAIN") as client:
            assert authenticate(client, b"\0" * 400_000).error_code == 58
            assert client.is_closed()
    bystanders.result().check_latency()


def test_wrong_passwords_and_tampered_messages_of_many_clients(
    broker: SecureBroker, tmp_path: Path
) -> None:
    mechanism = ScramMechanism.SHA_256

    def attack(number: int) -> int:
        with sasl_connection(broker, "SCRAM-SHA-256") as client:
            user = USER if number % 2 else f"nobody-{number}"
            exchange = ScramClient(mechanism, user, PASSWORD if number % 4 == 1 else "guess")
            challenge = authenticate(client, exchange.first())
            assert challenge.error_code == 0, challenge
            server_first = bytes(challenge.auth_bytes)
            tampered = f"{exchange.nonce}elsewhere" if number % 8 == 1 else None
            if number % 8 == 5:  # Of somebody in between, to learn the password more cheaply.
                server_first = re.sub(rb"i=\d+", b"i=1", server_first)
            final = exchange.final(server_first, tampered)
            code: int = authenticate(client, final).error_code
            return code

    with Bystanders(broker, tmp_path) as bystanders:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            assert set(pool.map(attack, range(200))) == {58}
        log_in(broker, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    bystanders.result().check_latency()


def token(key: rsa.RSAPrivateKey, **changed: Any) -> str:
    now = int(time.time())
    claims = {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, **changed}
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key, algorithm="RS256", headers={"kid": "one"})


def signed_with_the_public_key(key: rsa.RSAPrivateKey) -> str:
    """Return a token with HMAC, whose secret is the public key: the algorithm is confused."""
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header, claims = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (
            {"alg": "HS256", "typ": "JWT", "kid": "one"},
            {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600},
        )
    )
    import hmac  # noqa: PLC0415

    signature = hmac.digest(pem, header + b"." + claims, "sha256")
    return b".".join([header, claims, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_expired_and_forged_tokens(
    broker: SecureBroker, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    other = rsa.generate_private_key(65537, 2048)
    valid = token(key)
    header, claims, signature = valid.split(".")
    forged = {
        "expired": token(key, exp=int(time.time()) - 3600),
        "not yet valid": token(key, nbf=int(time.time()) + 3600),
        "no expiry": token(key, exp=None),
        "no subject": token(key, sub=None),
        "issuer": token(key, iss="https://other.example"),
        "audience": token(key, aud="other"),
        "another key": token(other),
        "no signature": unsecured_token(sub=USER, iss=ISSUER, aud=AUDIENCE),
        "stripped": f"{header}.{claims}.",
        "damaged": f"{header}.{claims}.{signature[::-1]}",
        "confused": signed_with_the_public_key(key),
        "unknown key": jwt.encode({"sub": USER}, other, "RS256", headers={"kid": "two"}),
        "no token": "nonsense",
        "huge": "a" * 100_000,
    }
    with Bystanders(broker, tmp_path) as bystanders:
        with sasl_connection(broker, "OAUTHBEARER") as client:
            assert not authenticate(client, bearer(valid)).auth_bytes
        for name, text in forged.items():
            with sasl_connection(broker, "OAUTHBEARER") as client:
                response = authenticate(client, bearer(text))
                if response.error_code == 0:
                    assert b"invalid_token" in bytes(response.auth_bytes), name
                    response = authenticate(client, b"\x01")
                assert response.error_code == 58, name
                assert client.is_closed(), name
        for _ in range(100):  # None of them may fetch the keys again.
            with sasl_connection(broker, "OAUTHBEARER") as client:
                authenticate(client, bearer(forged["unknown key"]))
    bystanders.result().check_latency()


def test_envelopes_of_clients_carry_no_rights(broker: SecureBroker, tmp_path: Path) -> None:
    principal = b"\0\0\x05User\x06admin\0\0"
    inner = frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1)[4:]
    envelope = EnvelopeRequest(
        request_data=inner, request_principal=principal, client_host_address=bytes(4)
    )
    with Bystanders(broker, tmp_path) as bystanders, sasl_connection(broker, "PLAIN") as client:
        assert authenticate(client, plain_token("bob", "bob-secret")).error_code == 0
        for _ in range(200):  # All but the first are replays.
            response = client.request(envelope, 0)
            assert (response.error_code, response.response_data) == (31, None)
    bystanders.result().check_latency()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_names_cannot_forge_lines_of_the_log(
    broker: SecureBroker, tmp_path: Path, mechanism: str
) -> None:
    name = "eve\n2026-01-01T00:00:00Z INFO  forged line\r\x1b[31mred\u2028end"
    before = broker.log.read_text(encoding="utf-8").count("\n")
    with Bystanders(broker, tmp_path) as bystanders, sasl_connection(broker, mechanism) as client:
        message = plain_token(name, "guess")
        if mechanism != "PLAIN":
            exchange = ScramClient(ScramMechanism.SHA_256, name, "guess")
            challenge = authenticate(client, exchange.first())
            message = exchange.final(bytes(challenge.auth_bytes))
        assert authenticate(client, message).error_code == 58
    bystanders.result().check_latency()

    written = broker.log.read_text(encoding="utf-8")
    assert "\x1b" not in written
    assert "\u2028" not in written
    assert not any(line.startswith("2026-01-01") for line in written.splitlines())
    assert written.count("\n") <= before + 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_another_listener_is_no_client_certificate(
    broker: SecureBroker, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=broker.certificates.ca)
    context.minimum_version = context.maximum_version = version

    def request(
        listener: str, session: ssl.SSLSession | None = None
    ) -> tuple[ssl.SSLSession | None, bool | None]:
        host, port = broker.addresses[listener].split(":")
        with (
            socket.create_connection((host, int(port)), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=host, session=session) as secured,
        ):
            secured.sendall(frame_of(ApiVersionsRequest(), 0))
            if not secured.recv(4):
                raise ConnectionResetError
            return secured.session, secured.session_reused

    sessions = [request("SSL")[0] for _ in range(2)]
    assert request("SSL", sessions[0])[1]
    with pytest.raises((ssl.SSLError, ConnectionError)):
        request("MTLS", sessions[1])


def test_renegotiation_and_compression_are_refused(broker: SecureBroker) -> None:
    command = ["openssl", "s_client", "-connect", broker.addresses["SSL"], "-tls1_2", "-comp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"R\n")
        client.stdin.flush()
        text = client.stdout.read().decode()
    assert client.returncode == 1
    assert "RENEGOTIATING" in text
    assert "no renegotiation" in text
    assert "Compression: NONE" in text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("listener", ["SSL", RSA_LISTENER])
def test_old_versions_and_weak_ciphers_are_refused(
    broker: SecureBroker, tmp_path: Path, listener: str
) -> None:
    def connects(*options: str) -> tuple[bool, str]:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", broker.addresses[listener], *options],
            input=b"",
            capture_output=True,
            timeout=30,
            check=False,
        )
        text = done.stdout.decode()
        return "Cipher is (NONE)" not in text and "Cipher is" in text, text

    authority = broker.certificates.ca if listener == "SSL" else str(broker.folder / "rsa.pem")
    trusted = ("-CAfile", authority, "-verify_return_error")
    for version in ("-tls1_2", "-tls1_3"):
        is_connected, text = connects(version, *trusted)
        assert is_connected, text
        assert "Verify return code: 0 (ok)" in text
        assert "Secure Renegotiation IS NOT" not in text or version == "-tls1_3"
    refused = (
        ("-tls1", "-cipher", "DEFAULT:@SECLEVEL=0"),
        ("-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"),
        *(
            ("-tls1_2", "-cipher", f"{suite}:@SECLEVEL=0")
            for suite in ("aNULL", "eNULL", "3DES", "RC4", "MD5", "EXPORT", "kRSA")
        ),
    )
    with Bystanders(broker, tmp_path) as bystanders:
        for options in refused:
            is_connected, text = connects(*options)
            assert not is_connected, f"{options}: {text[-1500:]}"
    bystanders.result().check_latency()


def test_secrets_are_shown_nowhere(broker: SecureBroker, key: rsa.RSAPrivateKey) -> None:
    secrets = [PASSWORD, "bob-secret", "guess-1234"]
    security = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password="guess-1234",
    )
    with (
        pytest.raises(AuthenticationError) as failed,
        Admin(broker.addresses["SASL_PLAINTEXT"], security=security) as admin,
    ):
        admin.list_topics()
    with sasl_connection(broker, "OAUTHBEARER") as client:
        secrets.append(expired := token(key, exp=1))
        authenticate(client, bearer(expired))
    with Admin(broker.addresses["PLAINTEXT"]) as admin:
        described = repr(admin.describe_broker_configs(0))
    metrics = urllib.request.urlopen(
        f"http://127.0.0.1:{broker.metrics_port}/metrics",  # type: ignore[attr-defined]
        timeout=30,
    ).read()

    shown = broker.log.read_text() + described + metrics.decode() + str(failed.value)
    shown += (Path("/proc") / str(broker.pid) / "cmdline").read_text()
    assert "Authentication failed" in shown
    assert [secret for secret in secrets if secret in shown] == []
