"""Brokers that authenticate to each other, and forward requests in the name of their clients."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from harness.acls import allow, binding
from harness.certificates import Authority
from harness.daemon import free_ports
from harness.requests import create_topics_request
from harness.sasl import log_in, unsecured_token
from harness.wire import WireClient
from ottla.broker import Broker, BrokerConfig
from ottla.broker.requests.errors import ApiError
from ottla.client import (
    AclBinding,
    Admin,
    ClientConfig,
    Consumer,
    Producer,
    SecurityConfig,
    TopicPartition,
)
from ottla.coord.principal import user
from ottla.coord.quotas import REQUEST_PERCENTAGE, USER, quota_entity, quota_record
from ottla.protocol.acls import AclOperation, ResourceType
from ottla.protocol.api.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.api.broker_registration import BrokerRegistrationRequest
from ottla.protocol.api.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.api.create_topics import CreateTopicsResponse
from ottla.protocol.api.envelope import EnvelopeRequest
from ottla.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.principal import decode_principal, encode_principal
from ottla.protocol.schema import Message

_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PROTOCOLS = "INTERNAL:SASL_SSL,EXTERNAL:SASL_PLAINTEXT"
_LOGIN = "org.apache.kafka.common.security.{}LoginModule required username={} password={};"


def _dotted(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


class _Cluster:
    """Two brokers: INTERNAL is SASL_SSL with SCRAM, EXTERNAL is SASL_PLAINTEXT with PLAIN."""

    def __init__(self, path: Path, *rights: AclBinding, **configs: str) -> None:
        self._rights = rights
        self.authority = authority = Authority(path)
        for number in range(2):
            authority.issue(f"broker-{number}")
        self.context = ssl.create_default_context(cafile=authority.path)
        first = free_ports(4)
        self.internal = [f"127.0.0.1:{first + 2 * number}" for number in range(2)]
        self.external = [f"127.0.0.1:{first + 2 * number + 1}" for number in range(2)]
        listeners = [
            f"{number}@{name}://{addresses[number]}"
            for number in range(2)
            for name, addresses in (("INTERNAL", self.internal), ("EXTERNAL", self.external))
        ]
        external = 'org.P.PlainLoginModule required user_alice="secret" user_admin="secret";'
        self.brokers = [
            Broker(
                BrokerConfig.of(
                    {
                        "broker.id": str(number),
                        "log.dir": str(path / str(number)),
                        "cluster.brokers": ",".join(listeners),
                        "listener.security.protocol.map": _PROTOCOLS,
                        "ssl.keystore.location": str(authority.issue("broker")),
                        "ssl.truststore.location": str(authority.path),
                        "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-256",
                        "listener.name.external.sasl.enabled.mechanisms": "PLAIN",
                        "listener.name.external.plain.sasl.jaas.config": external,
                        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
                        "listener.name.internal.scram-sha-256.sasl.jaas.config": _LOGIN.format(
                            "scram.Scram", "broker", "secret"
                        ),
                        "sasl.bootstrap.users": (
                            "SCRAM-SHA-256=[name=broker,password=secret];"
                            "SCRAM-SHA-256=[name=alice,password=secret]"
                        ),
                        "connection.failed.authentication.delay.ms": "1",
                        **{
                            _dotted(name): value.format(authority=authority, number=number)
                            for name, value in configs.items()
                        },
                    }
                )
            )
            for number in range(2)
        ]

    async def __aenter__(self) -> _Cluster:
        controller, other = self.brokers
        await controller.start()
        await allow(controller, *self._rights)
        await other.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for broker in reversed(self.brokers):
            await broker.stop()

    @asynccontextmanager
    async def client(
        self, number: int, user_name: str, *, is_internal: bool = False
    ) -> AsyncIterator[WireClient]:
        """Connect to a broker as a user."""
        address = (self.internal if is_internal else self.external)[number]
        host, port = address.split(":")
        context = self.context if is_internal else None
        client = WireClient(*await asyncio.open_connection(host, int(port), ssl=context))
        try:
            mechanism = "SCRAM-SHA-256" if is_internal else "PLAIN"
            response = await log_in(client, user_name, "secret", mechanism)
            assert response.error_code == 0, response.error_message
            yield client
        finally:
            client.writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await client.writer.wait_closed()


def _authorized() -> dict[str, str]:
    return {"authorizer_class_name": _AUTHORIZER, "super_users": "User:broker;User:admin"}


def _envelope(
    request: Message,
    version: int,
    principal: bytes | None = None,
    host: bytes = b"\x7f\0\0\1",
) -> EnvelopeRequest:
    data = b"".join(encode_request(request, version, 7, "client"))[4:]
    return EnvelopeRequest(
        request_data=data,
        request_principal=encode_principal("User", "admin") if principal is None else principal,
        client_host_address=host,
    )


async def _create(client: WireClient, name: str) -> int:
    (result,) = (await client.request(create_topics_request(name))).topics
    return int(result.error_code)


async def test_forwarded_requests_have_the_rights_of_the_client(tmp_path: Path) -> None:
    async with _Cluster(tmp_path, **_authorized()) as cluster:
        assert not cluster.brokers[1].cluster.is_controller
        async with (
            cluster.client(1, "alice") as alice,
            cluster.client(1, "admin") as admin,
        ):
            assert await _create(alice, "mine") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert await _create(admin, "theirs") == 0
            creation = AclCreation(
                resource_type=ResourceType.TOPIC,
                resource_name="mine",
                principal="User:alice",
                host="127.0.0.1",
                operation=AclOperation.CREATE,
                permission_type=3,
            )
            response = await alice.request(CreateAclsRequest(creations=[creation]))
            assert response.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            response = await admin.request(CreateAclsRequest(creations=[creation]))
            assert response.results[0].error_code == 0
            assert await _create(alice, "mine") == 0
        topics = cluster.brokers[0].topics.image.topics
        assert {"mine", "theirs"} <= topics.keys()


async def test_brokers_need_no_other_right_than_cluster_action(tmp_path: Path) -> None:
    """Transactions end on all brokers, and groups know the ends of all partitions."""
    right = binding("User:broker", AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    configs = {**_authorized(), "super_users": "User:admin"}
    admin = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="admin",
        sasl_password="secret",
    )
    async with _Cluster(tmp_path, right, **configs) as cluster:
        bootstrap = cluster.external[1]
        async with Admin(bootstrap, security=admin) as client:
            await client.create_topic("orders", partitions=2)
        async with (
            Producer(bootstrap, security=admin, transactional_id="transfer") as producer,
            Consumer(bootstrap, "orders", security=admin, isolation="read_committed") as consumer,
        ):
            async with producer.transaction():
                for partition in range(2):
                    await producer.send("orders", b"record", partition=partition)
            async with asyncio.timeout(30):
                found = {(await consumer.getone()).partition for _partition in range(2)}
        assert found == {0, 1}
        async with Admin(bootstrap, security=admin) as client:
            offsets = {TopicPartition("orders", partition): 0 for partition in range(2)}
            await client.alter_share_group_offsets("shared", offsets)
            described = await client.list_share_group_offsets("shared")
            assert [described[tp].lag for tp in offsets] == [2, 2]
        leaders = [cluster.brokers[0].topics.image.topics["orders"].replicas[i][0] for i in (0, 1)]
        assert {*leaders} == {0, 1}


@pytest.mark.parametrize("has_authorizer", [False, True])
async def test_no_client_can_send_what_only_brokers_may(
    tmp_path: Path, has_authorizer: bool
) -> None:
    configs = _authorized() if has_authorizer else {}
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with _Cluster(tmp_path, **configs) as cluster:
        controller = cluster.brokers[0]
        for is_internal in (False, True):
            async with cluster.client(0, "alice", is_internal=is_internal) as client:
                envelope = _envelope(create_topics_request("stolen"), 5)
                response = await client.request(envelope)
                assert (response.error_code, response.response_data) == (denied, None)
                registration = BrokerRegistrationRequest(
                    broker_id=1,
                    cluster_id=controller.cluster_id,
                    incarnation_id=cluster.brokers[1].cluster.incarnation,
                )
                assert (await client.request(registration)).error_code == denied
                ids = AllocateProducerIdsRequest(broker_id=1, broker_epoch=0)
                assert (await client.request(ids)).error_code == denied
                topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
                marker = WritableTxnMarker(producer_id=1, topics=[topic])
                response = await client.request(WriteTxnMarkersRequest(markers=[marker]))
                (partition,) = response.markers[0].topics[0].partitions
                assert partition.error_code == denied
        assert "stolen" not in controller.topics.image.topics


async def test_a_client_cannot_claim_to_be_a_broker_to_escape_its_quota(tmp_path: Path) -> None:
    async with _Cluster(tmp_path) as cluster:
        controller = cluster.brokers[0]
        record = quota_record(quota_entity([(USER, None)]), {REQUEST_PERCENTAGE: 1000.0})
        await controller.controller.change(lambda: [record])
        security = SecurityConfig(
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="alice",
            sasl_password="secret",
            ssl_truststore_certificates=cluster.authority.path.read_text(),
        )
        config = ClientConfig(client_id="ottla-broker-1")
        async with Admin(cluster.internal[0], client=config, security=security) as admin:
            await admin.list_topics()
        quotas = controller.dispatcher.quotas
        assert quotas is not None
        assert list(quotas._rates[REQUEST_PERCENTAGE]) == [("alice", None)]


async def test_envelopes_of_brokers(tmp_path: Path) -> None:
    async with (
        _Cluster(tmp_path, **_authorized()) as cluster,
        cluster.client(0, "broker", is_internal=True) as broker,
    ):
        response = await broker.request(_envelope(create_topics_request("t"), 5))
        assert response.error_code == 0
        correlation_id, created = decode_response(CreateTopicsResponse, 5, response.response_data)
        assert (correlation_id, created.topics[0].error_code) == (7, 0)

        alice = encode_principal("User", "alice")
        response = await broker.request(_envelope(create_topics_request("u"), 5, alice))
        _id, created = decode_response(CreateTopicsResponse, 5, response.response_data)
        assert created.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

        nested = _envelope(_envelope(create_topics_request("v"), 5), 0)
        for envelope, code in (
            (nested, ErrorCode.INVALID_REQUEST),
            (_envelope(AllocateProducerIdsRequest(), 0), ErrorCode.INVALID_REQUEST),
            (_envelope(create_topics_request("v"), 5, host=b""), ErrorCode.INVALID_REQUEST),
            (
                _envelope(create_topics_request("v"), 5, b"\0\1x"),
                ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
            ),
            (
                _envelope(create_topics_request("v"), 5, b""),
                ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
            ),
        ):
            response = await broker.request(envelope)
            assert (response.error_code, response.response_data) == (code, None)
        garbage = EnvelopeRequest(
            request_data=b"garbage", request_principal=alice, client_host_address=b"\x7f\0\0\1"
        )
        assert (await broker.request(garbage)).error_code == ErrorCode.INVALID_REQUEST
        assert "v" not in cluster.brokers[0].topics.image.topics


_TLS = {
    "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SASL_PLAINTEXT",
    "listener.name.internal.ssl.client.auth": "required",
}
_OWN = {"ssl.keystore.location": "{authority.directory}/broker-{number}.pem"}


@pytest.mark.parametrize(
    "configs",
    [
        {},  # The same certificate: the other broker has this one's principal.
        {**_OWN, "super.users": "User:CN=broker-0;User:CN=broker-1"},
        {
            **_OWN,
            "listener.name.internal.ssl.principal.mapping.rules": "RULE:CN=(broker)-.*/$1/",
        },
    ],
)
async def test_brokers_with_certificates_know_each_other(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    async with (
        _Cluster(tmp_path, **_TLS, **configs) as cluster,
        cluster.client(1, "alice") as alice,
    ):
        assert await _create(alice, "orders") == 0
        assert "orders" in cluster.brokers[0].topics.image.topics


async def test_brokers_with_different_certificates_have_to_be_super_users(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path, **_TLS, **_OWN, controller_wait_ms="1")
    async with cluster.brokers[0], cluster.brokers[1] as broker:
        with pytest.raises(ApiError, match="User:CN=broker-1 is none"):
            await broker.controller_channel.send(
                AllocateProducerIdsRequest(broker_id=1, broker_epoch=0), AllocateProducerIdsResponse
            )


async def test_a_certificate_that_no_rule_matches_is_an_error(tmp_path: Path) -> None:
    rules = {"listener.name.internal.ssl.principal.mapping.rules": "RULE:CN=other/x/"}
    with pytest.raises(ConfigError, match=r"no rule of .* its own certificate"):
        await _Cluster(tmp_path, **_TLS, **rules).brokers[0].start()


_TOKENS = {
    "listener.name.internal.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.internal.sasl.oauthbearer.unsecured.tokens": "true",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "listener.name.internal.oauthbearer.sasl.jaas.config": "x.OAuthBearerLoginModule required;",
}


@pytest.mark.parametrize("authorizer", ["acl", ""])
async def test_brokers_authenticate_with_tokens(tmp_path: Path, authorizer: str) -> None:
    path = tmp_path / "token"
    path.write_text(unsecured_token(sub="broker"))
    configs = {
        **_TOKENS,
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        "authorizer.class.name": authorizer,
        "listener.name.internal.connections.max.reauth.ms": "1500",
        "super.users": "User:broker;User:admin",
    }
    async with _Cluster(tmp_path, **configs) as cluster, cluster.client(1, "admin") as admin:
        assert await _create(admin, "before") == 0
        # Before its session ends, the connection authenticates again with another token.
        path.write_text(unsecured_token(sub="broker", exp=time.time() + 7200))
        await asyncio.sleep(1.6)
        assert await _create(admin, "after") == 0
        assert {"before", "after"} <= cluster.brokers[0].topics.image.topics.keys()
        assert cluster.brokers[0].metrics.connections["unauthenticated"] == 0


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ({}, "set sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///t"}, "set super.users to the subjects"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x"}, "clientSecret="),
        ({"sasl.oauthbearer.token.endpoint.url": "http://x"}, "expected https"),
    ],
)
async def test_tokens_that_brokers_cannot_have_are_errors(
    tmp_path: Path, configs: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        await _Cluster(tmp_path, **_TOKENS, **configs).brokers[0].start()


async def test_a_broker_with_another_password_is_not_let_in(tmp_path: Path) -> None:
    name = "listener.name.internal.scram-sha-256.sasl.jaas.config"
    cluster = _Cluster(tmp_path)
    static = dict(cluster.brokers[1].config.static_configs)
    static[name] = _LOGIN.format("scram.Scram", "broker", "wrong")
    async with cluster.brokers[0] as controller:
        starting = asyncio.create_task(Broker(BrokerConfig.of(static)).start())
        async with asyncio.timeout(30):
            while not controller.metrics.connections["unauthenticated"]:
                await asyncio.sleep(0.01)
        assert not starting.done()  # It tries again until the controller lets it in.
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        assert 1 not in controller.topics.image.registrations


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ({"sasl_mechanism_inter_broker_protocol": ""}, "set sasl.mechanism.inter.broker.protocol"),
        ({"sasl_mechanism_inter_broker_protocol": "PLAIN"}, "listener INTERNAL has SCRAM-SHA-256"),
        (
            {"listener.name.internal.scram-sha-256.sasl.jaas.config": ""},
            "with the options username=",
        ),
        (
            {"listener.name.internal.scram-sha-256.sasl.jaas.config": "x.Y required secret=x;"},
            "Invalid login module",
        ),
    ],
)
async def test_configs_that_cannot_work_are_errors(
    tmp_path: Path, configs: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        await _Cluster(tmp_path, **configs).brokers[1].start()
    assert "secret" not in str(refused.value).replace("PASSWORD", "")


def test_principals_in_envelopes() -> None:
    data = encode_principal("User", "al\u00efce")

    assert data == b"\0\0\5User\7al\xc3\xafce\0\0"
    assert decode_principal(data) == ("User", "al\u00efce")
    assert str(user("x")) == "User:x"
