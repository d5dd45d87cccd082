"""Three broker processes on a real etcd, SASL_SSL everywhere, and an authorizer.

All tests share the cluster; the last one kills a broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.certificates import Authority
from harness.daemon import HOST, Daemon, free_ports, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.waiting import wait_until
from ottla.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    ClientError,
    ErrorCode,
    KafkaError,
    ResourceType,
    SecurityConfig,
)
from ottla.client.blocking import Admin, Consumer, Producer

pytestmark = pytest.mark.real_time

_MECHANISM = "SCRAM-SHA-256"
_WRITE = AclBinding(ResourceType.TOPIC, "orders", "User:alice", AclOperation.WRITE)


class _SecuredDaemon(Daemon):
    """A broker with the listeners INTERNAL and EXTERNAL; clients use the latter."""

    uses_tls = True

    def __init__(self, folder: Path, number: int, url: str, authority: Authority) -> None:
        first = free_ports(2)
        folder.mkdir(parents=True)
        configs = {
            "cluster.store": url,
            "listener.security.protocol.map": "INTERNAL:SASL_SSL,EXTERNAL:SASL_SSL",
            "inter.broker.listener.name": "INTERNAL",
            "ssl.keystore.location": authority.issue(f"broker-{number}"),
            "ssl.truststore.location": authority.path,
            "sasl.enabled.mechanisms": _MECHANISM,
            "sasl.mechanism.inter.broker.protocol": _MECHANISM,
            f"listener.name.internal.{_MECHANISM.lower()}.sasl.jaas.config": (
                'x.ScramLoginModule required username="broker" password="broker-secret";'
            ),
            "sasl.bootstrap.users": (
                f"{_MECHANISM}=[name=broker,password=broker-secret];"
                f"{_MECHANISM}=[name=admin,password=admin-secret]"
            ),
            "authorizer.class.name": "acl",
            "super.users": "User:admin;User:broker",
            "broker.session.timeout.ms": "2000",
            "transaction.state.log.num.partitions": "3",
            "offsets.topic.num.partitions": "3",
        }
        file = folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in configs.items()))
        listeners = (f"INTERNAL://{HOST}:{first}", f"EXTERNAL://{HOST}:{first + 1}")
        listen = (word for listener in listeners for word in ("--listen", listener))
        super().__init__(
            folder, "--id", str(number), "--config", str(file), *listen, port=first + 1
        )


class _SecuredCluster(StoreCluster):
    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, 0)
        authority = Authority(folder)
        self.brokers = [
            _SecuredDaemon(folder / f"broker-{number}", number, url, authority)
            for number in range(3)
        ]
        self.admin = SecurityConfig(
            security_protocol="SASL_SSL",
            sasl_mechanism=_MECHANISM,
            sasl_username="admin",
            sasl_password="admin-secret",
            ssl_truststore_location=str(authority.path),
        )
        self.alice = replace(self.admin, sasl_username="alice", sasl_password="alice-secret")

    def controller_id(self, broker: Daemon) -> int | None:
        with Admin(broker.address, security=self.admin) as admin:
            return admin.describe_cluster().controller


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_SecuredCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        EtcdCluster(tmp_path_factory.mktemp("etcd")) as etcd,
        _SecuredCluster(folder, etcd.url) as cluster,
    ):
        with Admin(cluster.bootstrap, security=cluster.admin) as admin:
            wait_until(lambda: len(admin.describe_cluster().brokers) == 3)
            admin.create_user("alice", "alice-secret", mechanisms=[_MECHANISM])
            admin.create_topic("orders", partitions=3, replication_factor=3)
        yield cluster


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, module_cluster: _SecuredCluster
) -> Iterator[_SecuredCluster]:
    with shown_on_failure(request, module_cluster.brokers):
        yield module_cluster


def _produce(broker: Daemon, security: SecurityConfig) -> ErrorCode | None:
    """Produce a record to each partition with acks=all; return the error, if any."""
    with Producer(broker.address, security=security, acks="all") as producer:
        try:
            for partition in range(3):
                producer.send("orders", b"record", partition=partition)
        except KafkaError as error:
            return error.code
    return None


def _isr_sizes(cluster: _SecuredCluster, broker: Daemon) -> list[int]:
    with Admin(broker.address, security=cluster.admin) as admin:
        (topic,) = admin.describe_topics("orders").values()
    return [len(partition.isr) for partition in topic.partitions]


def test_followers_fetch_and_acls_count_on_every_broker(cluster: _SecuredCluster) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [_produce(broker, cluster.alice) for broker in cluster] == [denied] * 3

    # A broker that is not the controller forwards the request.
    other = cluster[(cluster.controller_id(cluster[0]) or 0) - 1]
    with Admin(other.address, security=cluster.alice) as admin, pytest.raises(KafkaError) as error:
        admin.create_acls(_WRITE)
    assert error.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with Admin(other.address, security=cluster.admin) as admin:
        admin.create_acls(_WRITE)

    assert [_produce(broker, cluster.alice) for broker in cluster] == [None] * 3
    assert _isr_sizes(cluster, cluster[0]) == [3, 3, 3]
    for broker in cluster:
        with Admin(broker.address, security=cluster.admin) as admin:
            assert admin.describe_acls() == [_WRITE]


def test_forwarded_requests_have_the_rights_of_the_client(cluster: _SecuredCluster) -> None:
    for broker in cluster:
        with Admin(broker.address, security=cluster.alice) as admin:
            with pytest.raises(KafkaError) as error:
                admin.create_topic("stolen")
            assert error.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            with pytest.raises(KafkaError) as error:
                admin.create_user("eve", "secret", mechanisms=[_MECHANISM])
            assert error.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with Admin(cluster[0].address, security=cluster.admin) as admin:
        assert "stolen" not in admin.list_topics()
        assert {*admin.describe_user_scram_credentials()} == {"admin", "broker", "alice"}


def test_transactions_end_on_all_brokers(cluster: _SecuredCluster) -> None:
    with (
        Producer(
            cluster.bootstrap, security=cluster.admin, transactional_id="transfer"
        ) as producer,
        Consumer(
            cluster.bootstrap, "orders", security=cluster.admin, isolation="read_committed"
        ) as consumer,
    ):
        for value in (b"aborted", b"committed"):
            with suppress(ZeroDivisionError), producer.transaction():
                for partition in range(3):
                    producer.send("orders", value, partition=partition)
                if value == b"aborted":
                    raise ZeroDivisionError
        found: list[bytes | None] = []
        while found.count(b"committed") < 3:
            found.append(consumer.getone(timeout=30).value)
        assert b"aborted" not in found


def test_rights_and_users_survive_the_loss_of_the_controller(cluster: _SecuredCluster) -> None:
    controller = cluster[cluster.controller_id(cluster[0]) or 0]
    others = [broker for broker in cluster if broker is not controller]
    with Admin(cluster.bootstrap, security=cluster.admin) as admin:
        admin.create_acls(_WRITE)

    controller.kill()
    wait_until(lambda: _produces(others[0], cluster.alice))
    with Admin(others[1].address, security=cluster.admin) as admin:
        admin.create_user("bob", "bob-secret", mechanisms=[_MECHANISM])
        admin.create_acls(replace(_WRITE, principal="User:bob"))
    bob = replace(cluster.admin, sasl_username="bob", sasl_password="bob-secret")
    assert [_produce(broker, bob) for broker in others] == [None, None]
    with Admin(others[0].address, security=cluster.admin) as admin:
        admin.delete_acls(AclFilter(principal="User:alice"))
    assert _produce(others[1], cluster.alice) is ErrorCode.TOPIC_AUTHORIZATION_FAILED

    controller.start()
    wait_until(lambda: _isr_sizes(cluster, others[0]) == [3, 3, 3])
    assert _produce(controller, bob) is None
    assert _produce(controller, cluster.alice) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for broker in cluster:
        assert "not accepted" not in broker.log.read_text()


def _produces(broker: Daemon, security: SecurityConfig) -> bool:
    try:
        return _produce(broker, security) is None
    except ClientError:
        time.sleep(0.1)
        return False
