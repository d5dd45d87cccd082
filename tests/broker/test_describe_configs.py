"""DescribeConfigs: the values, sources and synonyms of configs."""

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic
from ottla.broker.config.broker_config import BROKER_CONFIGS
from ottla.protocol.api.alter_configs import AlterableConfig, AlterConfigsRequest
from ottla.protocol.api.alter_configs import AlterConfigsResource as Altered
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DESCRIBE_CONFIGS
from ottla.storage.config import TOPIC_CONFIGS

TOPIC, BROKER, LOGGER = 2, 4, 8
TOPIC_SOURCE, DYNAMIC, STATIC, DEFAULT = 1, 2, 4, 5


async def describe(client, resource_type, name, *, keys=None, version=4, **options):
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], **options)
    [result] = (await client.request(request, version)).results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


async def configs(client, resource_type, name, **options):
    result = await describe(client, resource_type, name, **options)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    return {config.name: config for config in result.configs}


async def alter_broker(client, **values):
    entries = [
        AlterableConfig(name=name.replace("_", "."), value=value) for name, value in values.items()
    ]
    resource = Altered(resource_type=BROKER, resource_name="0", configs=entries)
    [response] = (await client.request(AlterConfigsRequest(resources=[resource]))).responses
    assert response.error_code == ErrorCode.NONE, response.error_message


@pytest.mark.parametrize("version", [*DESCRIBE_CONFIGS.versions])
async def test_all_topic_configs_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="5", cleanup_policy="compact")

        described = await configs(client, TOPIC, "t", version=version)

        assert set(described) == set(TOPIC_CONFIGS)
        retention, size = described["retention.ms"], described["segment.bytes"]
        assert (retention.value, retention.config_source) == ("5", TOPIC_SOURCE)
        assert (size.value, size.config_source) == (str(2**30), DEFAULT)
        assert not retention.read_only
        assert described["remote.storage.enable"].read_only
        assert not any(config.is_sensitive or config.synonyms for config in described.values())
        if version >= 3:
            types = {name: config.config_type for name, config in described.items()}
            assert types["preallocate"] == 1
            assert types["message.timestamp.type"] == 2
            assert types["segment.bytes"] == 3
            assert types["retention.ms"] == 5
            assert types["min.cleanable.dirty.ratio"] == 6
            assert types["cleanup.policy"] == 7
            assert all(config.documentation is None for config in described.values())


async def test_synonyms_are_listed_in_order_of_precedence(tmp_path):
    async with broker_and_client(tmp_path, {"log.retention.ms": "3"}) as (_broker, client):
        await create_topic(client, "t", retention_ms="1")
        await create_topic(client, "u")
        await alter_broker(client, log_retention_ms="2")

        async def chain(resource_type, name, key):
            described = await configs(
                client, resource_type, name, keys=[key], include_synonyms=True
            )
            return [
                (synonym.name, synonym.value, synonym.source) for synonym in described[key].synonyms
            ]

        week = str(7 * 24 * 60 * 60 * 1000)
        inherited = [
            ("log.retention.ms", "2", DYNAMIC),
            ("log.retention.ms", "3", STATIC),
            ("log.retention.ms", week, DEFAULT),
        ]
        topic_synonym = ("retention.ms", "1", TOPIC_SOURCE)
        assert await chain(TOPIC, "t", "retention.ms") == [topic_synonym, *inherited]
        assert await chain(TOPIC, "u", "retention.ms") == inherited
        assert await chain(BROKER, "0", "log.retention.ms") == inherited
        policy = [("log.cleanup.policy", "delete", DEFAULT)]
        assert await chain(TOPIC, "t", "cleanup.policy") == policy


async def test_a_topic_inherits_the_config_of_the_broker(tmp_path):
    async with broker_and_client(tmp_path, {"log.retention.hours": "1"}) as (_broker, client):
        await create_topic(client, "t")

        described = (await configs(client, TOPIC, "t"))["retention.ms"]
        assert (described.value, described.config_source) == ("3600000", STATIC)

        await alter_broker(client, log_retention_minutes="1")
        described = (await configs(client, TOPIC, "t"))["retention.ms"]
        assert (described.value, described.config_source) == ("60000", DYNAMIC)


async def test_only_requested_configs_are_returned(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        some = await configs(client, TOPIC, "t", keys=["retention.ms", "no.such.key", "flush.ms"])
        assert set(some) == {"retention.ms", "flush.ms"}
        assert len(await configs(client, TOPIC, "t", keys=[])) == len(TOPIC_CONFIGS)


async def test_documentation_is_returned_on_request(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        for resource_type, name in ((TOPIC, "t"), (BROKER, "0")):
            described = await configs(client, resource_type, name, include_documentation=True)
            assert all(config.documentation for config in described.values())


async def test_configs_of_a_broker(tmp_path):
    async with broker_and_client(tmp_path, {"num.partitions": "3"}) as (_broker, client):
        await alter_broker(client, message_max_bytes="2000")

        described = await configs(client, BROKER, "0")

        assert set(described) == {declared.name for declared in BROKER_CONFIGS.values()}
        assert (described["log.dir"].value, described["log.dir"].config_source) == (
            str(tmp_path),
            STATIC,
        )
        assert described["log.dir"].read_only
        assert (described["num.partitions"].value, described["num.partitions"].config_source) == (
            "3",
            STATIC,
        )
        assert not described["num.partitions"].read_only
        size = described["message.max.bytes"]
        assert (size.value, size.config_source) == ("2000", DYNAMIC)
        idle = described["connections.max.idle.ms"]
        assert (idle.value, idle.config_source) == ("600000", DEFAULT)
        assert described["log.retention.hours"].value is None  # log.retention.ms takes precedence.


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "zero", ErrorCode.INVALID_REQUEST),
        (LOGGER, "0", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
        (99, "x" * 30_000, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_unknown_resource_is_an_error(tmp_path, resource_type, name, code):
    async with broker_and_client(tmp_path) as (_broker, client):
        for version in DESCRIBE_CONFIGS.versions:
            result = await describe(client, resource_type, name, version=version)
            assert result.error_code == code
            assert result.error_message
            assert list(result.configs) == []


async def test_configs_of_all_brokers_are_empty_at_first(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        assert await configs(client, BROKER, "") == {}


async def test_resources_are_deduplicated_and_an_unknown_one_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        resources = [
            DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=None
            )
            for resource_type, name in (
                (TOPIC, "missing"),
                (TOPIC, "t"),
                (BROKER, "0"),
                (TOPIC, "t"),
            )
        ]

        response = await client.request(DescribeConfigsRequest(resources=resources))

        assert [(result.resource_name, result.error_code) for result in response.results] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", ErrorCode.NONE),
            ("0", ErrorCode.NONE),
        ]
