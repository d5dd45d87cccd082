"""DescribeClientQuotas and AlterClientQuotas over a socket, and with the SDK."""

import pytest

from harness.brokers import a_broker, broker_and_client
from ottla.client import Admin, ErrorCode, KafkaError, QuotaEntity, QuotaName
from ottla.protocol.api.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    OpData,
)
from ottla.protocol.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
)

EXACT, DEFAULT, ANY = range(3)
RATE = OpData(key="producer_byte_rate", value=1000.0)


def entry(*ops, **parts):
    entity = [
        EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in parts.items()
    ]
    return AlterClientQuotasEntry(entity=entity, ops=list(ops))


async def alter(client, *entries, version=1, validate_only=False):
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return [result.error_code for result in (await client.request(request, version)).entries]


async def described(client, *components, strict=False, version=1):
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ],
        strict=strict,
    )
    response = await client.request(request, version)
    if response.error_code:
        assert response.entries is None
        return response.error_code
    return [
        (
            {part.entity_type: part.entity_name for part in one.entity},
            {value.key: value.value for value in one.values},
        )
        for one in response.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_altered_and_described(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        percentage = OpData(key="request_percentage", value=0.5)
        entries = [entry(RATE, percentage, user="alice"), entry(RATE, user=None, client_id="app")]
        assert await alter(client, *entries, version=version) == [0, 0]

        assert await described(client, version=version) == [
            ({"user": "alice"}, {"producer_byte_rate": 1000.0, "request_percentage": 0.5}),
            ({"user": None, "client-id": "app"}, {"producer_byte_rate": 1000.0}),
        ]
        assert await described(client, ("client-id", EXACT, "app"), version=version) == [
            ({"user": None, "client-id": "app"}, {"producer_byte_rate": 1000.0})
        ]

        removal = entry(OpData(key="producer_byte_rate", remove=True), user=None, client_id="app")
        assert await alter(client, removal, removal, version=version) == [0, 42]
        assert len(await described(client, version=version)) == 1


async def test_quotas_outlast_a_restart(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await alter(client, entry(RATE, user="alice"))

    async with broker_and_client(tmp_path) as (_broker, client):
        assert await described(client) == [({"user": "alice"}, {"producer_byte_rate": 1000.0})]


async def test_an_invalid_entity_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        invalid = [
            entry(RATE),
            entry(RATE, group="g"),
            entry(RATE, ip="10.0.0.1"),
            entry(OpData(key="producer_byte_rate", value=1.5), user="a"),
            entry(OpData(key="producer_byte_rate", value=0.0), user="b"),
            entry(OpData(key="nonsense", value=1.0), user="c"),
            entry(OpData(key="connection_creation_rate", value=1.0), ip="host"),
        ]
        codes = await alter(client, *invalid, entry(RATE, user="alice"))

        assert codes == [ErrorCode.INVALID_REQUEST] * len(invalid) + [0]
        assert [entity for entity, _ in await described(client)] == [{"user": "alice"}]


async def test_a_dry_run_changes_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        entries = [entry(RATE, user="alice"), entry(RATE)]
        assert await alter(client, *entries, validate_only=True) == [0, 42]
        assert await described(client) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", EXACT, None)], 42),
        ([("user", ANY, "alice")], 42),
        ([("user", 7, None)], 42),
        ([("user", ANY, None), ("user", ANY, None)], 42),
        ([("group", ANY, None)], 35),
    ],
)
async def test_an_invalid_filter_is_an_error(tmp_path, components, code):
    async with broker_and_client(tmp_path) as (_broker, client):
        assert await described(client, *components) == code


async def test_the_sdk_manages_quotas(tmp_path):
    alice = QuotaEntity(user="alice")
    everybody = QuotaEntity(user=QuotaName.DEFAULT, client_id="app")
    async with a_broker(tmp_path) as broker, Admin(broker.address) as admin:
        await admin.alter_client_quotas(
            alice, {"producer_byte_rate": 1000, "request_percentage": 5}
        )
        await admin.alter_client_quotas(everybody, {"consumer_byte_rate": 5000})
        await admin.alter_client_quotas(alice, unset=["request_percentage"])

        assert await admin.describe_client_quotas() == {
            alice: {"producer_byte_rate": 1000.0},
            everybody: {"consumer_byte_rate": 5000.0},
        }
        any_user = QuotaEntity(user=QuotaName.ANY)
        assert list(await admin.describe_client_quotas(any_user, strict=True)) == [alice]
        with pytest.raises(KafkaError) as error:
            await admin.alter_client_quotas(alice, {"producer_byte_rate": -1})
        assert error.value.code == ErrorCode.INVALID_REQUEST
        with pytest.raises(ValueError, match="pass set or unset"):
            await admin.alter_client_quotas(alice)
        assert str(everybody) == "user <default>, client-id app"
