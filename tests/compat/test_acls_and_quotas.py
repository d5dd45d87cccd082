"""ACLs and client quotas with the admin clients and the command line tools of others."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import admin as confluent
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from harness.apache_kafka import ApacheKafka
from harness.clients.agents import JAVA
from harness.clients.base import kafka_libs
from ottla.client import AclFilter, QuotaEntity
from ottla.client.blocking import Admin

TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def broker_flags():
    configs = ("authorizer.class.name=acl", "super.users=User:ANONYMOUS")
    return tuple(flag for config in configs for flag in ("--set", config))


@pytest.fixture
def admin(broker):
    with Admin(broker.address) as client:
        yield client
        client.delete_acls(AclFilter())


def described(admin):
    """Return each ACL as text."""
    return sorted(
        f"{one.permission.name} {one.principal}@{one.host} {one.operation.name} on"
        f" {one.resource_type.name} {one.pattern_type.name} {one.resource_name}"
        for one in admin.describe_acls()
    )


def test_librdkafka_manages_acls(broker, admin):
    client = confluent.AdminClient({"bootstrap.servers": broker.address})
    created = [
        confluent.AclBinding(
            confluent.ResourceType.TOPIC,
            "orders",
            confluent.ResourcePatternType.PREFIXED,
            "User:alice",
            "*",
            confluent.AclOperation.WRITE,
            confluent.AclPermissionType.ALLOW,
        ),
        confluent.AclBinding(
            confluent.ResourceType.GROUP,
            "app",
            confluent.ResourcePatternType.LITERAL,
            "User:bob",
            "10.0.0.1",
            confluent.AclOperation.READ,
            confluent.AclPermissionType.DENY,
        ),
    ]
    for result in client.create_acls(created).values():
        result.result(TIMEOUT_SECONDS)

    assert described(admin) == [
        "ALLOW User:alice@* WRITE on TOPIC PREFIXED orders",
        "DENY User:bob@10.0.0.1 READ on GROUP LITERAL app",
    ]
    everything = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    found = client.describe_acls(everything).result(TIMEOUT_SECONDS)
    assert {(one.name, one.principal) for one in found} == {
        ("orders", "User:alice"),
        ("app", "User:bob"),
    }
    (deletion,) = client.delete_acls([everything]).values()
    assert len(deletion.result(TIMEOUT_SECONDS)) == 2
    assert described(admin) == []


def test_kafka_python_manages_acls(broker, admin):
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        acl = ACL(
            principal="User:alice",
            host="*",
            operation=ACLOperation.READ,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(
                ResourceType.TOPIC, "orders", ACLResourcePatternType.PREFIXED
            ),
        )
        result = client.create_acls([acl])
        assert not result["failed"]
        assert described(admin) == ["ALLOW User:alice@* READ on TOPIC PREFIXED orders"]

        wanted = ACLFilter(
            principal=None,
            host=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(
                ResourceType.TOPIC, "orders-1", ACLResourcePatternType.MATCH
            ),
        )
        found, _error = client.describe_acls(wanted)
        assert found == [acl]
        ((_filter, deleted, _error),) = client.delete_acls([wanted])
        assert len(deleted) == 1
        assert described(admin) == []
    finally:
        client.close()


def kafka_tool(main, broker, *arguments):
    """Run one of Kafka's command line tools; return what it prints."""
    missing = ApacheKafka.missing()
    if missing is not None:
        pytest.skip(missing)
    command = [*JAVA, "-cp", f"{kafka_libs()}/*", main, "--bootstrap-server", broker.address]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"


def test_kafka_acls_manages_acls(broker, admin):
    consumer = ("--consumer", "--topic", "orders", "--group", "app", "--allow-principal", "User:a")
    kafka_tool(ACL_COMMAND, broker, "--add", *consumer)

    assert described(admin) == [
        "ALLOW User:a@* DESCRIBE on TOPIC LITERAL orders",
        "ALLOW User:a@* READ on GROUP LITERAL app",
        "ALLOW User:a@* READ on TOPIC LITERAL orders",
    ]
    listed = kafka_tool(ACL_COMMAND, broker, "--list", "--topic", "orders")
    assert "principal=User:a, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "GROUP" not in listed
    kafka_tool(ACL_COMMAND, broker, "--remove", "--force", *consumer)
    assert described(admin) == []


def test_kafka_configs_manages_quotas(broker, admin):
    entity = ("--entity-type", "users", "--entity-name", "alice")
    default = ("--entity-type", "clients", "--entity-default")
    quotas = "producer_byte_rate=1024,request_percentage=12.5"
    altered = kafka_tool(CONFIG_COMMAND, broker, "--alter", "--add-config", quotas, *entity)

    assert "Completed updating" in altered
    alice = QuotaEntity(user="alice")
    assert admin.describe_client_quotas() == {
        alice: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    }
    kafka_tool(CONFIG_COMMAND, broker, "--alter", "--add-config", "consumer_byte_rate=5", *default)
    shown = kafka_tool(CONFIG_COMMAND, broker, "--describe", "--entity-type", "clients")
    assert "consumer_byte_rate=5.0" in shown
    admin.alter_client_quotas(alice, unset=["producer_byte_rate", "request_percentage"])
    for quota in admin.describe_client_quotas():
        admin.alter_client_quotas(quota, unset=["consumer_byte_rate"])
