"""Security configs of commands: files, profiles, and secrets that stay where they are."""

import tomllib

import pytest

from ottla.cli.errors import Failure
from ottla.cli.security import security_of

CONFIG = """
# Other client configs do not matter.
bootstrap.servers=ignored:9092
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" password="${env:ALICE_SECRET}";
"""


def test_a_file_of_client_configs_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ALICE_SECRET", "hunter2")
    path = tmp_path / "client.properties"
    path.write_text(CONFIG)

    security = security_of({"command_config": str(path)})

    assert security.security_protocol == "SASL_PLAINTEXT"
    assert (security.sasl_username, security.sasl_password) == ("alice", "hunter2")


def test_secrets_come_from_files_and_variables(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("hunter2\n")
    monkeypatch.setenv("KEY_SECRET", "hunter3")

    security = security_of(
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password_file": str(tmp_path / "password"),
            "ssl_key_password_env": "KEY_SECRET",
        }
    )

    assert (security.sasl_password, security.ssl_key_password) == ("hunter2", "hunter3")


def test_a_directory_of_secrets_is_read(tmp_path):
    (tmp_path / "password").write_text("hunter2")
    path = tmp_path / "client.properties"
    path.write_text(CONFIG.replace("${env:ALICE_SECRET}", f"${{directory:{tmp_path}:password}}"))

    assert security_of({"command_config": str(path)}).sasl_password == "hunter2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol", "1: expected NAME=VALUE"),
        ("security.protocol=TLS", "Invalid security_protocol 'TLS'"),
        ("sasl.password=${env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE is not set"),
        ("sasl.password=${vault:secret}", "unknown provider 'vault'"),
        ("sasl.password=${directory:/nowhere:secret}", "Cannot read the secret in /nowhere/secret"),
        ("ssl.keystore.type=JKS", "only PEM is supported"),
    ],
)
def test_invalid_files_are_usage_errors(tmp_path, text, message):
    path = tmp_path / "client.properties"
    path.write_text(text)

    with pytest.raises(Failure, match=message) as raised:
        security_of({"command_config": str(path)})
    assert raised.value.exit_code == 2


def test_a_missing_file_is_a_usage_error(run):
    failure = run.fails(2, "topic", "list", "--command-config", "/no/such.properties")
    assert "/no/such.properties: No such file" in failure


def test_a_profile_has_no_secrets(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ALICE_SECRET", "hunter2")
    run(
        *("profile", "set", "prod", "-b", "localhost:1", "--security-protocol", "SASL_SSL"),
        *("--sasl-mechanism", "SCRAM-SHA-256", "--sasl-username", "alice"),
        *("--sasl-password-env", "ALICE_SECRET", "--ssl-truststore-location", "certs/ca.pem"),
    )

    text = (tmp_path / "ottla" / "profiles.toml").read_text()
    saved = tomllib.loads(text)["profiles"]["prod"]
    assert saved["sasl_password_env"] == "ALICE_SECRET"
    assert saved["ssl_truststore_location"].endswith("/certs/ca.pem")
    assert saved["ssl_truststore_location"].startswith("/")
    assert "hunter2" not in text
    assert "hunter2" not in run("profile", "list", "--json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sasl-username", "a"), "--sasl-username requires --security-protocol"),
        (("--sasl-password-env", "A", "--sasl-password-file", "b"), "mutually exclusive"),
    ],
)
def test_profiles_that_cannot_work_are_usage_errors(run, options, message):
    assert message in run.fails(2, "profile", "set", "x", "-b", "localhost:1", *options)


def test_the_variable_of_a_profile_is_missing(run, monkeypatch):
    monkeypatch.delenv("ALICE_SECRET", raising=False)
    run(
        *("profile", "set", "prod", "-b", "localhost:1", "--security-protocol", "SASL_PLAINTEXT"),
        *("--sasl-mechanism", "PLAIN", "--sasl-username", "alice"),
        *("--sasl-password-env", "ALICE_SECRET"),
    )
    failure = run.fails(2, "topic", "list", "--profile", "prod")
    assert "the environment variable ALICE_SECRET is not set" in failure
