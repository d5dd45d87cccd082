"""One record to a secured listener and back, with every client.

`round_trip` of a client produces a value to a topic and returns the values that it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.clients.agents import JAVA
from harness.clients.base import TIMEOUT_SECONDS, kafka_libs, node_modules
from ottla.client import Consumer, Producer
from ottla.client.security import SecurityConfig

RoundTrip = Callable[[str, SecurityConfig, str, Path], list[bytes]]
_HERE = Path(__file__).parent


def sdk(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    async def run() -> list[bytes]:
        async with Producer(address, security=security) as producer:
            await producer.send(topic, b"sdk")
        async with Consumer(address, topic, security=security) as consumer:
            return [(await anext(aiter(consumer))).value or b""]

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def librdkafka_configs(security: SecurityConfig) -> dict[str, str]:
    """Return the configs of librdkafka, which are those of kcat, too."""
    configs = {"security.protocol": security.security_protocol}
    if security.sasl_mechanism is not None:
        configs["sasl.mechanism"] = security.sasl_mechanism
    if security.sasl_mechanism == "OAUTHBEARER":
        configs["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
        configs["sasl.oauthbearer.config"] = "principal=alice"
    elif security.sasl_username and security.sasl_password:
        configs["sasl.username"] = security.sasl_username
        configs["sasl.password"] = security.sasl_password
    if security.ssl_truststore_location:
        configs["ssl.ca.location"] = security.ssl_truststore_location
    if security.ssl_keystore_location:
        configs["ssl.certificate.location"] = security.ssl_keystore_location
        configs["ssl.key.location"] = security.ssl_keystore_location
    return configs


def librdkafka(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    import confluent_kafka  # noqa: PLC0415

    configs = {"bootstrap.servers": address, **librdkafka_configs(security)}
    failures: list[object] = []
    producer = confluent_kafka.Producer({**configs, "error_cb": failures.append})
    producer.produce(topic, b"librdkafka")
    assert producer.flush(TIMEOUT_SECONDS) == 0, failures
    consumer = confluent_kafka.Consumer({**configs, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        return [message.value()]
    finally:
        consumer.close()


def kcat(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    options = [f"-X{name}={value}" for name, value in librdkafka_configs(security).items()]
    command = ["kcat", "-b", address, "-t", topic, "-p", "0", *options]
    # The librdkafka of many distributions, before 2.6.1, sends its nonce twice in SCRAM's last
    # message, which brokers reject since CVE-2024-56128.
    environ = {**os.environ, "LD_PRELOAD": _librdkafka_of_confluent()}

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            [*command, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT_SECONDS,
            env=environ,
        ).stdout

    run("-P", stdin=b"kcat\n")
    return run("-C", "-o", "beginning", "-c", "1", "-e", "-q").split()


def _librdkafka_of_confluent() -> str:
    """Return the path of the librdkafka in confluent-kafka; empty if it is not a file."""
    import confluent_kafka  # noqa: PLC0415

    packages = Path(confluent_kafka.__file__).parents[1]
    return next(map(str, packages.glob("confluent_kafka.libs/librdkafka*")), "")


def _context(security: SecurityConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ssl_truststore_location)
    if security.ssl_keystore_location:
        context.load_cert_chain(security.ssl_keystore_location)
    return context


def aiokafka(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: PLC0415
    from aiokafka.abc import AbstractTokenProvider  # noqa: PLC0415

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            assert security.sasl_oauth_token is not None
            return str(security.sasl_oauth_token())

    async def run() -> list[bytes]:
        configs = {
            "bootstrap_servers": address,
            "security_protocol": security.security_protocol,
            "ssl_context": _context(security) if security.uses_tls else None,
            "sasl_mechanism": security.sasl_mechanism or "PLAIN",
            "sasl_plain_username": security.sasl_username,
            "sasl_plain_password": security.sasl_password,
            "sasl_oauth_token_provider": Provider() if security.sasl_oauth_token else None,
        }
        async with AIOKafkaProducer(**configs) as producer:
            await producer.send_and_wait(topic, b"aiokafka")
        consumer = AIOKafkaConsumer(**configs, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return [(await consumer.getone()).value]

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def kafka_python(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: PLC0415
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            assert security.sasl_oauth_token is not None
            return str(security.sasl_oauth_token())

    configs: dict[str, object] = {
        "bootstrap_servers": address,
        "security_protocol": security.security_protocol,
    }
    if security.uses_tls:
        configs["ssl_context"] = _context(security)
    if security.uses_sasl:
        configs["sasl_mechanism"] = security.sasl_mechanism
        configs["sasl_plain_username"] = security.sasl_username
        configs["sasl_plain_password"] = security.sasl_password
        if security.sasl_oauth_token:
            configs["sasl_oauth_token_provider"] = Provider()
    producer = KafkaProducer(**configs)
    try:
        producer.send(topic, b"kafka-python").get(TIMEOUT_SECONDS)
    finally:
        producer.close()
    consumer = KafkaConsumer(**configs, auto_offset_reset="earliest")
    try:
        consumer.assign([TopicPartition(topic, 0)])
        fetched = consumer.poll(TIMEOUT_SECONDS * 1000)
        return [record.value for records in fetched.values() for record in records]
    finally:
        consumer.close()


def kafkajs(address: str, security: SecurityConfig, topic: str, _folder: Path) -> list[bytes]:
    request = {
        "address": address,
        "topic": topic,
        "mechanism": security.sasl_mechanism,
        "username": security.sasl_username,
        "password": security.sasl_password,
        "token": str(security.sasl_oauth_token()) if security.sasl_oauth_token else None,
        "ca": security.ssl_truststore_location,
        "keystore": security.ssl_keystore_location,
    }
    done = subprocess.run(
        ["node", str(_HERE / "kafkajs_security.js"), json.dumps(request)],
        capture_output=True,
        check=False,
        timeout=2 * TIMEOUT_SECONDS,
        env=_node_environment(),
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout.split()


def _node_environment() -> dict[str, str]:
    folder = node_modules()
    assert folder is not None
    return {**os.environ, "NODE_PATH": folder, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


def java_properties(address: str, security: SecurityConfig) -> Mapping[str, str]:
    """Return the configs of Kafka's clients."""
    properties = {
        "bootstrap.servers": address,
        "security.protocol": security.security_protocol,
    }
    package = "org.apache.kafka.common.security"
    if security.sasl_mechanism is not None:
        properties["sasl.mechanism"] = security.sasl_mechanism
        kind = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
        module = kind.get(security.sasl_mechanism, "scram.Scram")
        options = f'username="{security.sasl_username}" password="{security.sasl_password}"'
        if security.sasl_mechanism == "OAUTHBEARER":
            options = 'unsecuredLoginStringClaim_sub="alice"'
        properties["sasl.jaas.config"] = f"{package}.{module}LoginModule required {options};"
    if security.ssl_truststore_location:
        properties["ssl.truststore.type"] = "PEM"
        properties["ssl.truststore.location"] = security.ssl_truststore_location
    if security.ssl_keystore_location:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = security.ssl_keystore_location
    return properties


def write_properties(path: Path, address: str, security: SecurityConfig) -> Path:
    """Write a client.properties file."""
    lines = (f"{name}={value}\n" for name, value in java_properties(address, security).items())
    path.write_text("".join(lines))
    return path


def java(rounds: list[tuple[str, Path]], *, reauthentications: int = 0) -> list[str]:
    """Make round trips by topic and properties, in one JVM; return a line for each.

    Or send records until the client has authenticated again so often, and return their number.
    """
    command = [*JAVA, f"-Dreauthentications={reauthentications}", "-cp", f"{kafka_libs()}/*"]
    arguments = [f"{topic}={path}" for topic, path in rounds]
    done = subprocess.run(
        [*command, str(_HERE / "JavaSecurity.java"), *arguments],
        capture_output=True,
        check=False,
        timeout=4 * TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode().splitlines()


#: The clients whose round trips are calls of their own, and why one is not available.
CLIENTS: dict[str, RoundTrip] = {
    "sdk": sdk,
    "librdkafka": librdkafka,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
    "kcat": kcat,
    "kafkajs": kafkajs,
}


def missing(client: str) -> str | None:
    """Return why a client is not available here; None: it is."""
    if client == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed"
    if client == "kafkajs" and (shutil.which("node") is None or node_modules() is None):
        return "node is not installed, or TEST_NODE_MODULES does not name a folder with kafkajs"
    return None
