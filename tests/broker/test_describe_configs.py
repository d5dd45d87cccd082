"""DescribeConfigs: every setting, what it is, and who says so."""

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
OWN, DYNAMIC, STATIC, DEFAULT = 1, 2, 4, 5


async def describe(client, kind, name, *, keys=None, version=4, **options):
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], **options)
    [result] = (await client.request(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def configs(client, kind, name, **options):
    result = await describe(client, kind, name, **options)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    return {config.name: config for config in result.configs}


async def alter_broker(client, **settings):
    entries = [
        AlterableConfig(name=name.replace("_", "."), value=value)
        for name, value in settings.items()
    ]
    resource = Altered(resource_type=BROKER, resource_name="0", configs=entries)
    [answer] = (await client.request(AlterConfigsRequest(resources=[resource]))).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message


@pytest.mark.parametrize("version", [*DESCRIBE_CONFIGS.versions])
async def test_every_version_describes_every_setting_of_a_topic(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="5", cleanup_policy="compact")

        found = await configs(client, TOPIC, "t", version=version)

        assert set(found) == set(TOPIC_CONFIGS)
        retention, size = found["retention.ms"], found["segment.bytes"]
        assert (retention.value, retention.config_source) == ("5", OWN)
        assert (size.value, size.config_source) == (str(2**30), DEFAULT)
        assert not retention.read_only
        assert found["compression.type"].read_only  # batches are stored as they come
        assert not any(config.is_sensitive or config.synonyms for config in found.values())
        if version >= 3:
            types = {name: config.config_type for name, config in found.items()}
            assert types["preallocate"] == 1
            assert types["message.timestamp.type"] == 2
            assert types["segment.bytes"] == 3
            assert types["retention.ms"] == 5
            assert types["min.cleanable.dirty.ratio"] == 6
            assert types["cleanup.policy"] == 7
            assert all(config.documentation is None for config in found.values())


async def test_synonyms_say_who_would_be_next_to_decide(tmp_path):
    async with broker_and_client(tmp_path, {"log.retention.ms": "3"}) as (_broker, client):
        await create_topic(client, "t", retention_ms="1")
        await create_topic(client, "u")
        await alter_broker(client, log_retention_ms="2")

        async def chain(kind, name, key):
            found = await configs(client, kind, name, keys=[key], include_synonyms=True)
            return [(one.name, one.value, one.source) for one in found[key].synonyms]

        week = str(7 * 24 * 60 * 60 * 1000)
        inherited = [
            ("log.retention.ms", "2", DYNAMIC),
            ("log.retention.ms", "3", STATIC),
            ("log.retention.ms", week, DEFAULT),
        ]
        own = ("retention.ms", "1", OWN)
        assert await chain(TOPIC, "t", "retention.ms") == [own, *inherited]
        assert await chain(TOPIC, "u", "retention.ms") == inherited
        assert await chain(BROKER, "0", "log.retention.ms") == inherited
        policy = [("log.cleanup.policy", "delete", DEFAULT)]
        assert await chain(TOPIC, "t", "cleanup.policy") == policy


async def test_a_topic_without_a_setting_of_its_own_has_the_broker_s(tmp_path):
    async with broker_and_client(tmp_path, {"log.retention.hours": "1"}) as (_broker, client):
        await create_topic(client, "t")

        found = (await configs(client, TOPIC, "t"))["retention.ms"]
        assert (found.value, found.config_source) == ("3600000", STATIC)

        await alter_broker(client, log_retention_minutes="1")
        found = (await configs(client, TOPIC, "t"))["retention.ms"]
        assert (found.value, found.config_source) == ("60000", DYNAMIC)


async def test_only_the_keys_that_are_asked_for_are_described(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        some = await configs(client, TOPIC, "t", keys=["retention.ms", "no.such.key", "flush.ms"])
        assert set(some) == {"retention.ms", "flush.ms"}
        assert len(await configs(client, TOPIC, "t", keys=[])) == len(TOPIC_CONFIGS)


async def test_documentation_comes_when_it_is_asked_for(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        for kind, name in ((TOPIC, "t"), (BROKER, "0")):
            found = await configs(client, kind, name, include_documentation=True)
            assert all(config.documentation for config in found.values())


async def test_a_broker_describes_itself(tmp_path):
    async with broker_and_client(tmp_path, {"num.partitions": "3"}) as (_broker, client):
        await alter_broker(client, message_max_bytes="2000")

        found = await configs(client, BROKER, "0")

        assert set(found) == {declared.name for declared in BROKER_CONFIGS.values()}
        assert (found["log.dir"].value, found["log.dir"].config_source) == (str(tmp_path), STATIC)
        assert found["log.dir"].read_only
        assert (found["num.partitions"].value, found["num.partitions"].config_source) == (
            "3",
            STATIC,
        )
        assert not found["num.partitions"].read_only
        size = found["message.max.bytes"]
        assert (size.value, size.config_source) == ("2000", DYNAMIC)
        idle = found["connections.max.idle.ms"]
        assert (idle.value, idle.config_source) == ("600000", DEFAULT)
        assert found["log.retention.hours"].value is None  # it is said in milliseconds


@pytest.mark.parametrize(
    ("kind", "name", "code"),
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
async def test_what_is_not_there_has_no_settings(tmp_path, kind, name, code):
    async with broker_and_client(tmp_path) as (_broker, client):
        for version in DESCRIBE_CONFIGS.versions:
            result = await describe(client, kind, name, version=version)
            assert result.error_code == code
            assert result.error_message
            assert list(result.configs) == []


async def test_there_are_no_settings_for_all_brokers(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        assert await configs(client, BROKER, "") == {}


async def test_each_resource_is_answered_once_and_one_that_is_not_there_harms_no_other(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        asked = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in ((TOPIC, "missing"), (TOPIC, "t"), (BROKER, "0"), (TOPIC, "t"))
        ]

        answer = await client.request(DescribeConfigsRequest(resources=asked))

        assert [(one.resource_name, one.error_code) for one in answer.results] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", ErrorCode.NONE),
            ("0", ErrorCode.NONE),
        ]
