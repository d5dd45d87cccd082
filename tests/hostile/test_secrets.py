"""Secrets are not in logs, metrics, responses, error messages, or the dump of a crash."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import stat
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.command import Command
from harness.daemon import free_port
from harness.sasl import plain_token
from harness.secure_broker import SecureBroker
from harness.secure_kafka import LISTENERS, PASSWORD
from harness.waiting import wait_until
from harness.wire import BlockingWireClient, frame_of
from ottla.broker import Broker, BrokerConfig
from ottla.broker.config.security_configs import LISTENER_CONFIGS, listener_config_name
from ottla.client import Admin as AsyncAdmin
from ottla.client import AuthenticationError
from ottla.client.blocking import Admin
from ottla.protocol.api.alter_configs import AlterableConfig as OldAlterableConfig
from ottla.protocol.api.alter_user_scram_credentials import ScramCredentialUpsertion
from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from ottla.protocol.api.envelope import EnvelopeRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.configdef import ConfigError

SECRET = "hunter2-secret"
#: PLAIN's login module, another one, the users of SCRAM, and an altered password.
SECRETS = [PASSWORD, "bob-secret", "oauth-secret", SECRET, "wrong-guess"]
JAAS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' clientId="ottla" clientSecret="oauth-secret";'
)
SENSITIVE = [name for name, key in LISTENER_CONFIGS.items() if key.is_sensitive]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker that logs as much as it can, and dumps its stacks when it crashes."""
    metrics_port = free_port()
    configs = {
        "log.level": "DEBUG",
        "metrics.listener": f"127.0.0.1:{metrics_port}",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": JAAS,
        "connection.failed.authentication.delay.ms": 10,
    }
    environ = {"PYTHONFAULTHANDLER": "1", "PYTHONASYNCIODEBUG": "1"}
    with SecureBroker(tmp_path_factory.mktemp("secrets"), configs, **environ) as started:
        started.metrics_port = metrics_port  # type: ignore[attr-defined]
        yield started


def authenticate(broker: SecureBroker, name: str, password: str) -> int:
    with BlockingWireClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        client.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        message = SaslAuthenticateRequest(auth_bytes=plain_token(name, password))
        return int(client.request(message, 2).error_code)


def shown(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def test_logs_and_metrics(broker: SecureBroker) -> None:
    assert authenticate(broker, "bob", "bob-secret") == 0
    assert authenticate(broker, "bob", "wrong-guess") == 58
    for mechanism in ("SCRAM-SHA-256", "OAUTHBEARER"):
        security = broker.security("SASL_SSL", mechanism)
        with Admin(broker.addresses["SASL_SSL"], security=security) as admin:
            admin.list_topics()
    with Admin(broker.addresses["PLAINTEXT"]) as admin:
        admin.create_user("carol", SECRET)

    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"  # type: ignore[attr-defined]
    metrics = urllib.request.urlopen(url, timeout=30).read().decode()
    log = broker.log.read_text()
    assert "DEBUG" in log
    assert "Authentication failed" in log
    assert shown(log + metrics) == []


def test_descriptions_and_changes_of_configs(broker: SecureBroker) -> None:
    names = ["sasl.bootstrap.users", *SENSITIVE]
    names = [name for name in names if "jaas" not in name]
    names += [listener_config_name(listener, name) for listener in LISTENERS for name in SENSITIVE]
    with BlockingWireClient(broker.addresses["PLAINTEXT"]) as client:
        resource = DescribeConfigsResource(
            resource_type=4, resource_name="0", configuration_keys=None
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
        described = client.request(request, 4)
        values = {config.name: config for config in described.results[0].configs}
        jaas = values["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
        assert (jaas.is_sensitive, jaas.value) == (True, None)
        assert values["sasl.bootstrap.users"].value is None

        answers = [described]
        for name in names:
            change = AlterableConfig(name=name, value=SECRET)
            altered = AlterConfigsResource(resource_type=4, resource_name="0", configs=[change])
            answers.append(client.request(IncrementalAlterConfigsRequest(resources=[altered]), 1))
            assert answers[-1].responses[0].error_code, name
    assert shown(repr(answers)) == []
    assert shown(broker.log.read_text()) == []


def test_the_data_directory(broker: SecureBroker, tmp_path: Path) -> None:
    """Nobody else may read it, and dumps of the metadata log do not show the keys of SCRAM."""
    assert stat.S_IMODE(broker.data.stat().st_mode) == 0o700
    command = Command(broker.address, str(tmp_path))
    segment = broker.data / "__cluster_metadata-0" / "00000000000000000000.log"
    for format_ in ([], ["--json"]):
        dumped = command("log", "dump", "--records", *format_, str(segment))
        assert "scram/1/alice" in dumped
        assert "salt" not in dumped


@pytest.mark.parametrize("name", ["sasl.bootstrap.users", *SENSITIVE])
async def test_errors_of_the_configs_and_their_tracebacks(tmp_path: Path, name: str) -> None:
    if name.endswith("jaas.config"):
        name = listener_config_name("SASL_SSL", name)
    configs = {
        "log.dir": str(tmp_path),
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER,SCRAM-SHA-256",
        "ssl.keystore.certificate.chain": "none",
        "ssl.keystore.key": "none",
        name: SECRET,
    }
    config = BrokerConfig.of(configs)
    with pytest.raises(ConfigError) as raised:
        async with Broker(config):
            pass
    text = "".join(traceback.format_exception(raised.value)) + repr(config) + repr(raised.value)
    assert SECRET not in text


def test_messages_hide_their_secrets() -> None:
    token = SECRET.encode()
    messages = [
        SaslAuthenticateRequest(auth_bytes=token),
        ScramCredentialUpsertion(name="a", mechanism=1, salted_password=token),
        AlterableConfig(name="ssl.key.password", value=SECRET),
        OldAlterableConfig(name="ssl.key.password", value=SECRET),
        EnvelopeRequest(request_data=token),
    ]
    assert SECRET not in repr(messages)
    assert repr(messages[0]) == "SaslAuthenticateRequest(auth_bytes=[hidden])"


async def test_errors_of_the_sdk(broker: SecureBroker) -> None:
    security = broker.security("SASL_PLAINTEXT", "PLAIN")
    wrong = dataclasses.replace(security, sasl_password="wrong-guess")
    address = broker.addresses["SASL_PLAINTEXT"]
    with pytest.raises(AuthenticationError) as raised:
        async with AsyncAdmin(address, security=wrong) as admin:
            await admin.list_topics()
    tasks = repr(asyncio.all_tasks())
    assert shown("".join(traceback.format_exception(raised.value)) + repr(wrong) + tasks) == []


def test_the_dump_of_a_crash(broker: SecureBroker) -> None:
    with BlockingWireClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        client.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        message = SaslAuthenticateRequest(auth_bytes=plain_token("bob", "wrong-guess"))
        client.send(frame_of(message, 2))
        broker.send(signal.SIGABRT)
        wait_until(lambda: not broker.is_running, 30)
    log = broker.log.read_text()
    assert "Fatal Python error: Aborted" in log
    assert shown(log) == []
