"""SecurityConfig: what fits together, Kafka's properties, and secrets that are not shown."""

import base64
import json
import pickle
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from ottla.client.security import FileToken, SecurityConfig, UnsecuredToken

SCRAM = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'
)


def test_the_default_is_plaintext():
    config = SecurityConfig()

    assert not config.uses_tls
    assert not config.uses_sasl


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"security_protocol": "TLS"},
            "Invalid security_protocol 'TLS': use one of PLAINTEXT, SSL",
        ),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism is required"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
            "'GSSAPI' is not supported: use one of PLAIN, SCRAM-SHA-256",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a"},
            "PLAIN requires sasl_username and sasl_password",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "OAUTHBEARER requires sasl_oauth_token",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "a\0b",
                "sasl_password": "c",
            },
            "cannot contain NUL",
        ),
        ({"ssl_enabled_protocols": ("TLSv1",)}, "Invalid ssl_enabled_protocols 'TLSv1'"),
        ({"ssl_endpoint_identification_algorithm": "ldaps"}, "use 'https', or ''"),
        ({"ssl_keystore_certificate_chain": "x"}, "requires ssl_keystore_key"),
        (
            {"ssl_truststore_location": "x", "ssl_truststore_certificates": "y"},
            "Use ssl_truststore_location or ssl_truststore_certificates, not both",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        SecurityConfig(**arguments)


def test_kafkas_client_properties_are_understood():
    config = SecurityConfig.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM.format("alice", r"a \"quoted\" ; = \\ secret"),
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "/client.pem",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3",
        }
    )

    assert config == SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="alice",
        sasl_password='a "quoted" ; = \\ secret',
        ssl_truststore_location="/ca.pem",
        ssl_keystore_location="/client.pem",
        ssl_endpoint_identification_algorithm="",
        ssl_enabled_protocols=("TLSv1.3",),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        'PlainLoginModule username="a" password="hunter2";',
        'PlainLoginModule required username="a" password="hunter2',
        'PlainLoginModule required username="a", password="hunter2";',
        'PlainLoginModule required username="a" hunter2;',
        'PlainLoginModule required password="hunter2";',
        'com.sun.security.auth.module.Krb5LoginModule required keyTab="hunter2";',
    ],
)
def test_a_malformed_jaas_line_is_an_error_that_does_not_repeat_it(text):
    with pytest.raises(ValueError, match=r"sasl\.jaas\.config") as raised:
        SecurityConfig.from_properties(
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text}
        )

    assert "hunter2" not in "".join(traceback.format_exception_only(raised.value))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"sasl.kerberos.service.name": "kafka"}, "Unknown security config 'sasl.kerberos"),
        ({"ssl.truststore.type": "JKS"}, "only PEM is supported"),
        ({"ssl.truststore.location": "/client.truststore.jks"}, "only PEM files are supported"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x/token"}, "clientSecret="),
        ({"sasl.oauthbearer.token.endpoint.url": "http://x/token"}, "expected https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1.x/token"}, "expected https://"),
    ],
)
def test_properties_that_are_not_supported_are_errors(properties, message):
    with pytest.raises(ValueError, match=message):
        SecurityConfig.from_properties(properties)


def test_a_token_is_read_from_its_file_each_time(tmp_path):
    path = tmp_path / "a token"
    config = SecurityConfig.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": "x.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    )

    for token in ("first", "second"):
        path.write_text(token + "\n")
        assert config.sasl_oauth_token() == token


_CREDENTIALS = (
    'x.OAuthBearerLoginModule required clientId="a:b" clientSecret="hunter/2" scope="read write";'
)


def test_a_token_is_requested_with_the_credentials_of_a_client():
    seen = []

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers["Authorization"])
            seen.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, text = answers.pop(0)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_arguments):
            """Do not print requests."""

    answers = [(200, '{"access_token": "first"}'), (401, "{}"), (302, ""), (200, "[]"), (200, "{")]
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = SecurityConfig.from_properties(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": _CREDENTIALS,
                "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/t",
            }
        )
        assert config.sasl_oauth_token() == "first"
        for problem in ("answered 401", "answered 302", "without an access_token", "without"):
            with pytest.raises((OSError, ValueError), match=problem) as raised:
                config.sasl_oauth_token()
            assert "hunter" not in "".join(traceback.format_exception_only(raised.value))
        server.shutdown()

    credentials = base64.b64decode(seen[0].removeprefix("Basic ")).decode()
    assert credentials == "a%3Ab:hunter%2F2"
    assert seen[1] == "grant_type=client_credentials&scope=read+write"
    assert "hunter" not in repr(config.sasl_oauth_token)


def test_an_unsecured_token_has_name_and_expiry():
    header, claims, signature = UnsecuredToken("alice")().split(".")

    decoded = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert decoded["sub"] == "alice"
    assert decoded["exp"] == decoded["iat"] + 3600
    assert signature == ""


def test_secrets_are_not_in_the_repr():
    config = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password="hunter2",
        ssl_key_password="hunter2",
        ssl_keystore_certificate_chain="chain",
        ssl_keystore_key="hunter2",
    )

    assert "hunter2" not in repr(config)
    assert "alice" in repr(config)


def test_configs_can_be_pickled():
    config = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token=FileToken("/run/token"),
    )

    assert pickle.loads(pickle.dumps(config)) == config
