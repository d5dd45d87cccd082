"""CreateAcls, DescribeAcls and DeleteAcls over a socket, and with the SDK."""

import pytest

from harness.acls import ADMIN, an_authorized_broker, connect_as
from harness.brokers import a_broker
from harness.wire import connect
from ottla.broker import BrokerConfig
from ottla.broker.config.broker_config import ConfigError
from ottla.client import AclBinding, AclFilter, Admin, ErrorCode, KafkaError, PartialError
from ottla.protocol.acls import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from ottla.protocol.api.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.api.describe_acls import DescribeAclsRequest

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH
VERSIONS = (1, 2, 3)


def creation(name="orders", **fields):
    values = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": PermissionType.ALLOW,
    }
    return AclCreation(**(values | fields))


def describing(name=None, pattern_type=PatternType.ANY, **fields):
    values = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": name,
        "pattern_type_filter": pattern_type,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": PermissionType.ANY,
    }
    return DescribeAclsRequest(**(values | fields))


def deleting(**fields):
    request = describing(**fields)
    return DeleteAclsFilter(**{name: getattr(request, name) for name in DeleteAclsFilter.fields})


async def create(client, *creations, version=3):
    response = await client.request(CreateAclsRequest(creations=list(creations)), version)
    return [result.error_code for result in response.results]


async def described(client, request, version=3):
    """Return the described patterns and principals, in order."""
    response = await client.request(request, version)
    assert response.error_code == 0
    return [
        (one.resource_name, one.pattern_type, acl.principal)
        for one in response.resources
        for acl in one.acls
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_acls_are_created_described_and_deleted(tmp_path, version):
    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        creations = [creation("a"), creation("b", resource_pattern_type=PREFIXED)]
        assert await create(client, *creations, version=version) == [0, 0]
        assert await create(client, creation("a"), version=version) == [0]

        found = await described(client, describing(), version)
        assert found == [("a", LITERAL, "User:alice"), ("b", PREFIXED, "User:alice")]

        request = DeleteAclsRequest(filters=[deleting(name="a"), deleting(name="nothing")])
        first, second = (await client.request(request, version)).filter_results
        assert [acl.resource_name for acl in first.matching_acls] == ["a"]
        assert not second.matching_acls
        assert await described(client, describing(), version) == [("b", PREFIXED, "User:alice")]


async def test_acls_outlast_a_restart(tmp_path):
    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        await create(client, creation("a"), creation("b"))
        await client.request(DeleteAclsRequest(filters=[deleting(name="a")]), 3)

    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        assert await described(client, describing()) == [("b", LITERAL, "User:alice")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (describing("ab"), ["ab", "ab"]),
        (describing("ab", LITERAL), ["ab"]),
        (describing("ab", PREFIXED), ["ab"]),
        (describing("ab", MATCH), ["*", "a", "ab", "ab"]),
        (describing("*", LITERAL), ["*"]),
        (describing(principal_filter="User:bob"), []),
        (describing(host_filter="*", operation=READ), ["*", "a", "ab", "ab", "c"]),
        (describing(resource_type_filter=GROUP), []),
        (describing(operation=99), []),
        (describing(permission_type=0), []),
    ],
)
async def test_filters_match_as_kafkas_do(tmp_path, wanted, expected):
    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        prefixed = [creation(name, resource_pattern_type=PREFIXED) for name in ("a", "ab")]
        await create(client, creation("ab"), creation("c"), creation("*"), *prefixed)

        found = await described(client, wanted)

        assert sorted(name for name, _type, _principal in found) == expected


@pytest.mark.parametrize(
    "invalid",
    [
        creation(""),
        creation("other", resource_type=CLUSTER),
        creation(principal="alice"),
        creation(resource_type=ResourceType.ANY),
        creation(resource_pattern_type=MATCH),
        creation(resource_pattern_type=PatternType.ANY),
        creation(operation=AclOperation.ANY),
        creation(permission_type=PermissionType.ANY),
        creation(operation=99),
        creation(resource_type=0),
    ],
)
async def test_an_invalid_acl_fails_alone(tmp_path, invalid):
    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        codes = await create(client, creation("a"), invalid, creation("b"))

        assert codes == [0, ErrorCode.INVALID_REQUEST, 0]
        assert [name for name, *_ in await described(client, describing())] == ["a", "b"]


async def test_a_filter_with_an_unknown_number_deletes_nothing(tmp_path):
    async with an_authorized_broker(tmp_path) as broker, connect_as(broker, "admin") as client:
        await create(client, creation("a"))
        request = DeleteAclsRequest(filters=[deleting(operation=99), deleting(name="a")])

        first, second = (await client.request(request, 3)).filter_results

        assert first.error_code == ErrorCode.INVALID_REQUEST
        assert second.error_code == 0
        assert len(second.matching_acls) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_an_authorizer_security_is_disabled(tmp_path, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(describing(), version)
        assert response.error_code == ErrorCode.SECURITY_DISABLED
        assert "authorizer.class.name" in response.error_message
        assert await create(client, creation(), version=version) == [ErrorCode.SECURITY_DISABLED]
        request = DeleteAclsRequest(filters=[deleting()])
        (result,) = (await client.request(request, version)).filter_results
        assert result.error_code == ErrorCode.SECURITY_DISABLED


async def test_the_sdk_manages_acls(tmp_path):
    everybody = an_authorized_broker(tmp_path, super_users="User:ANONYMOUS")
    async with everybody as broker, Admin(broker.address) as admin:
        reading = AclBinding(TOPIC, "orders", "User:alice", READ)
        describing_all = AclBinding(
            GROUP, "app-", "User:*", DESCRIBE, PermissionType.DENY, "10.0.0.1", PREFIXED
        )
        await admin.create_acls(reading, describing_all)

        assert await admin.describe_acls() == [reading, describing_all]
        assert await admin.describe_acls(AclFilter(resource_type=GROUP)) == [describing_all]
        matching = AclFilter(GROUP, "app-1", pattern_type=MATCH)
        assert await admin.describe_acls(matching) == [describing_all]

        with pytest.raises(PartialError) as partial:
            await admin.create_acls(reading, AclBinding(TOPIC, "", "User:alice", READ))
        assert [error.code for error in partial.value.failed.values()] == [
            ErrorCode.INVALID_REQUEST
        ]

        deleted = await admin.delete_acls(AclFilter.of(reading))
        assert deleted == {AclFilter.of(reading): [reading]}
        assert await admin.describe_acls() == [describing_all]


async def test_the_sdk_reports_that_security_is_disabled(tmp_path):
    async with a_broker(tmp_path) as broker, Admin(broker.address) as admin:
        for attempt in (
            admin.describe_acls(),
            admin.create_acls(AclBinding(CLUSTER, CLUSTER_NAME, ADMIN, READ)),
            admin.delete_acls(AclFilter()),
        ):
            with pytest.raises(KafkaError) as error:
                await attempt
            assert error.value.code == ErrorCode.SECURITY_DISABLED


def test_super_users_are_principals():
    config = BrokerConfig(super_users="User:admin; User:CN=broker,O=Example;")

    assert {str(one) for one in config.super_user_principals} == {
        "User:admin",
        "User:CN=broker,O=Example",
    }
    with pytest.raises(ConfigError, match=r"'admin' for super\.users"):
        BrokerConfig(super_users="admin")


def test_kafkas_name_of_the_authorizer_is_accepted():
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

    assert BrokerConfig.of({"authorizer.class.name": name}).authorizer_class_name == name
    with pytest.raises(ConfigError, match="expected one of"):
        BrokerConfig(authorizer_class_name="com.example.Mine")
