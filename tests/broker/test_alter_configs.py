"""AlterConfigs and IncrementalAlterConfigs."""

import asyncio

import pytest

from harness.brokers import broker_and_client
from harness.logs import a_batch
from harness.requests import create_topic, topic_metadata
from harness.wire import connect
from ottla.protocol.api import alter_configs
from ottla.protocol.api import incremental_alter_configs as incremental
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from ottla.storage.config import LogConfig

TOPIC, BROKER = 2, 4
DYNAMIC_DEFAULT = 3
SET, DELETE, APPEND, SUBTRACT = range(4)


async def dynamic_configs(client, resource_type, name, source=None):
    """Return the configs of a resource that come from its own dynamic configs, or a source."""
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    response = await client.request(DescribeConfigsRequest(resources=[resource]))
    source = source or {TOPIC: 1, BROKER: 2}[resource_type]
    return {
        config.name: config.value
        for config in response.results[0].configs
        if config.config_source == source
    }


def full_resource(resource_type, name, *configs):
    return alter_configs.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in configs],
    )


def incremental_resource(resource_type, name, *edits):
    return incremental.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in edits
        ],
    )


async def alter(client, *resources, version=1, **options):
    request = alter_configs.AlterConfigsRequest(resources=resources, **options)
    return (await client.request(request, version)).responses


async def alter_incrementally(client, *resources, version=1, **options):
    request = incremental.IncrementalAlterConfigsRequest(resources=resources, **options)
    return (await client.request(request, version)).responses


async def result_of(responses):
    [response] = await responses
    return response.error_code, response.error_message or ""


DONE = (ErrorCode.NONE, "")


@pytest.mark.parametrize("version", [*ALTER_CONFIGS.versions])
async def test_alter_configs_replaces_all_configs_of_a_topic(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1", flush_ms="2")

        resource = full_resource(TOPIC, "t", ("flush.ms", "3"), ("retention.bytes", "4"))
        [response] = await alter(client, resource, version=version)

        assert (response.resource_type, response.resource_name) == (TOPIC, "t")
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        assert await dynamic_configs(client, TOPIC, "t") == {
            "flush.ms": "3",
            "retention.bytes": "4",
        }

        await alter(client, full_resource(TOPIC, "t"), version=version)
        assert await dynamic_configs(client, TOPIC, "t") == {}


@pytest.mark.parametrize("version", [*INCREMENTAL_ALTER_CONFIGS.versions])
async def test_incremental_alter_configs_changes_single_configs(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1", flush_ms="2")

        resource = incremental_resource(
            TOPIC,
            "t",
            (SET, "flush.ms", "3"),
            (DELETE, "retention.ms", None),
            (DELETE, "segment.ms", None),
        )
        [response] = await alter_incrementally(client, resource, version=version)

        assert (response.resource_type, response.resource_name) == (TOPIC, "t")
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        assert await dynamic_configs(client, TOPIC, "t") == {"flush.ms": "3"}


async def test_append_and_subtract_on_list_configs(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        async def policy(operation, value):
            resource = incremental_resource(TOPIC, "t", (operation, "cleanup.policy", value))
            code, _message = await result_of(alter_incrementally(client, resource))
            return code or (await dynamic_configs(client, TOPIC, "t")).get("cleanup.policy")

        assert await policy(APPEND, "compact") == "delete,compact"  # The default is "delete".
        assert await policy(APPEND, "compact") == "delete,compact"
        assert await policy(SUBTRACT, "delete") == "compact"
        assert (
            await policy(SUBTRACT, "compact") == ErrorCode.INVALID_CONFIG
        )  # The list would be empty.
        assert await policy(APPEND, "burn") == ErrorCode.INVALID_CONFIG
        assert (await dynamic_configs(client, TOPIC, "t"))["cleanup.policy"] == "compact"


async def test_an_altered_config_takes_effect_at_once(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)

        async def produced(partition):
            data = PartitionProduceData(index=partition, records=bytes(a_batch(10)))
            topic = TopicProduceData(name="t", partition_data=[data])
            request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
            response = await client.request(request)
            return response.responses[0].partition_responses[0].error_code

        for target in ((TOPIC, "t", "max.message.bytes"), (BROKER, "0", "message.max.bytes")):
            resource_type, name, key = target
            assert await produced(1) == ErrorCode.NONE
            resource = incremental_resource(resource_type, name, (SET, key, "100"))
            assert await result_of(alter_incrementally(client, resource)) == DONE
            assert await produced(1) == ErrorCode.MESSAGE_TOO_LARGE
            resource = incremental_resource(resource_type, name, (DELETE, key, None))
            assert await result_of(alter_incrementally(client, resource)) == DONE


async def test_dynamic_broker_configs_can_be_altered(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        resource = incremental_resource(
            BROKER, "0", (SET, "num.partitions", "6"), (SET, "log.retention.ms", "9")
        )
        assert await result_of(alter_incrementally(client, resource)) == DONE

        assert broker.config.num_partitions == 6
        assert await dynamic_configs(client, BROKER, "0") == {
            "num.partitions": "6",
            "log.retention.ms": "9",
        }
        topic = (await topic_metadata(client, "new", create=True))["new"]
        assert len(topic.partitions) == 6

        resource = incremental_resource(BROKER, "0", (APPEND, "log.cleanup.policy", "compact"))
        assert await result_of(alter_incrementally(client, resource)) == DONE
        assert broker.config.topic_defaults.cleanup_policy == "delete,compact"

        resource = incremental_resource(BROKER, "0", (SET, "log.dir", "/elsewhere"))
        code, message = await result_of(alter_incrementally(client, resource))
        assert code == ErrorCode.INVALID_CONFIG
        assert "log.dir" in message

        assert await result_of(alter(client, full_resource(BROKER, "0"))) == DONE
        assert broker.config.num_partitions == 1
        assert await dynamic_configs(client, BROKER, "0") == {}


async def test_configs_of_all_brokers_are_below_those_of_one(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        edits = (SET, "num.partitions", "6"), (SET, "log.retention.ms", "9")
        assert (
            await result_of(alter_incrementally(client, incremental_resource(BROKER, "", *edits)))
            == DONE
        )
        one = incremental_resource(BROKER, "0", (SET, "num.partitions", "2"))
        assert await result_of(alter_incrementally(client, one)) == DONE

        assert broker.config.num_partitions == 2
        assert broker.config.topic_defaults.retention_ms == 9
        of_all = {"num.partitions": "6", "log.retention.ms": "9"}
        assert await dynamic_configs(client, BROKER, "", source=DYNAMIC_DEFAULT) == of_all
        assert await dynamic_configs(client, BROKER, "0") == {"num.partitions": "2"}
        inherited = await dynamic_configs(client, BROKER, "0", source=DYNAMIC_DEFAULT)
        assert inherited == {"log.retention.ms": "9"}

        none = incremental_resource(BROKER, "0", (DELETE, "num.partitions", None))
        assert await result_of(alter_incrementally(client, none)) == DONE
        assert broker.config.num_partitions == 6
        code, message = await result_of(
            alter_incrementally(client, incremental_resource(BROKER, "", (SET, "log.dir", "x")))
        )
        assert code == ErrorCode.INVALID_CONFIG
        assert "log.dir" in message

    async with broker_and_client(tmp_path) as (broker, client):
        assert broker.config.num_partitions == 6


async def test_altered_configs_survive_a_restart(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1")
        await alter_incrementally(
            client,
            incremental_resource(TOPIC, "t", (SET, "flush.ms", "5")),
            incremental_resource(BROKER, "0", (SET, "num.partitions", "6")),
        )

    async with broker_and_client(tmp_path) as (broker, client):
        assert await dynamic_configs(client, TOPIC, "t") == {"retention.ms": "1", "flush.ms": "5"}
        assert await dynamic_configs(client, BROKER, "0") == {"num.partitions": "6"}
        assert broker.config.num_partitions == 6


async def test_validate_only_changes_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t", flush_ms="2")

        for resource, code in (
            (incremental_resource(TOPIC, "t", (SET, "flush.ms", "3")), ErrorCode.NONE),
            (incremental_resource(TOPIC, "t", (SET, "flush.ms", "x")), ErrorCode.INVALID_CONFIG),
            (incremental_resource(BROKER, "0", (SET, "num.partitions", "3")), ErrorCode.NONE),
            (incremental_resource(BROKER, "0", (SET, "broker.id", "3")), ErrorCode.INVALID_CONFIG),
        ):
            response = alter_incrementally(client, resource, validate_only=True)
            assert (await result_of(response))[0] == code
        resource = full_resource(TOPIC, "t")
        assert await result_of(alter(client, resource, validate_only=True)) == DONE

        assert await dynamic_configs(client, TOPIC, "t") == {"flush.ms": "2"}
        assert broker.config.num_partitions == 1


@pytest.mark.parametrize(
    ("edits", "code", "text"),
    [
        ([(SET, "retention.mss", "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        ([(DELETE, "retention.mss", None)], ErrorCode.INVALID_CONFIG, "did you mean"),
        ([(SET, "retention.ms", "-9")], ErrorCode.INVALID_CONFIG, "the minimum is -1"),
        ([(SET, "retention.ms", None)], ErrorCode.INVALID_REQUEST, "Missing value"),
        ([(APPEND, "retention.ms", "1")], ErrorCode.INVALID_CONFIG, "type long, not list"),
        ([(SUBTRACT, "retention.ms", "1")], ErrorCode.INVALID_CONFIG, "type long, not list"),
        ([(4, "retention.ms", "1")], ErrorCode.INVALID_REQUEST, "Unknown operation 4"),
        (
            [(SET, "flush.ms", "1"), (DELETE, "flush.ms", None)],
            ErrorCode.INVALID_REQUEST,
            "Duplicate config",
        ),
        ([(SET, "x" * 32_000, "1")], ErrorCode.INVALID_CONFIG, "Unknown config"),
        ([(SET, "num.partitions", "1")], ErrorCode.INVALID_CONFIG, "Unknown config"),
    ],
)
async def test_an_invalid_change_is_refused_with_a_message(tmp_path, edits, code, text):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        good = (SET, "retention.bytes", "7")

        for version in INCREMENTAL_ALTER_CONFIGS.versions:
            resource = incremental_resource(TOPIC, "t", good, *edits)
            actual_code, message = await result_of(
                alter_incrementally(client, resource, version=version)
            )
            assert actual_code == code
            assert text in message
        assert await dynamic_configs(client, TOPIC, "t") == {}  # Nothing is applied.


async def test_topic_configs_are_unknown_to_the_broker_resource(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        resource = incremental_resource(BROKER, "0", (SET, "retention.ms", "1"))

        code, message = await result_of(alter_incrementally(client, resource))

        assert code == ErrorCode.INVALID_CONFIG
        assert "log.retention.ms" in message


async def test_alter_configs_validates_like_incremental_alter_configs(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", flush_ms="2")

        for configs, code in (
            ([("retention.mss", "1")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        ):
            resource = full_resource(TOPIC, "t", *configs)
            assert (await result_of(alter(client, resource)))[0] == code
        assert await dynamic_configs(client, TOPIC, "t") == {"flush.ms": "2"}


async def test_an_unknown_or_duplicate_resource_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("t", "twice"):
            await create_topic(client, name)
        change = (SET, "flush.ms", "3")

        responses = await alter_incrementally(
            client,
            incremental_resource(TOPIC, "missing", change),
            incremental_resource(TOPIC, "no name", change),
            incremental_resource(TOPIC, "twice", change),
            incremental_resource(TOPIC, "twice", change),
            incremental_resource(BROKER, "8", change),
            incremental_resource(BROKER, "", change),  # flush.ms is no broker config.
            incremental_resource(16, "t", change),
            incremental_resource(TOPIC, "t", change),
        )

        assert [(response.resource_name, response.error_code) for response in responses] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("no name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("8", ErrorCode.INVALID_REQUEST),
            ("", ErrorCode.INVALID_CONFIG),
            ("t", ErrorCode.INVALID_REQUEST),
            ("t", ErrorCode.NONE),
        ]
        assert all(response.error_message for response in responses if response.error_code)
        assert await dynamic_configs(client, TOPIC, "t") == {"flush.ms": "3"}
        assert await dynamic_configs(client, TOPIC, "twice") == {}


async def test_concurrent_changes_do_not_overwrite_each_other(tmp_path):
    async with (
        broker_and_client(tmp_path) as (broker, client),
        connect(broker.address) as other_client,
    ):
        await create_topic(client, "t")

        await asyncio.gather(
            alter_incrementally(client, incremental_resource(TOPIC, "t", (SET, "flush.ms", "1"))),
            alter_incrementally(
                other_client, incremental_resource(TOPIC, "t", (SET, "retention.ms", "2"))
            ),
        )

        assert await dynamic_configs(client, TOPIC, "t") == {"flush.ms": "1", "retention.ms": "2"}


async def test_configs_that_damage_an_internal_topic_are_refused(tmp_path):
    name = "__consumer_offsets"
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.groups.ensure_topic()
        for edit in (
            (SET, "cleanup.policy", "delete"),
            (SET, "cleanup.policy", "compact,delete"),
            (APPEND, "cleanup.policy", "delete"),
            (DELETE, "cleanup.policy", None),
            (SET, "max.message.bytes", "10"),
            (SET, "segment.bytes", "1024"),
            (SET, "segment.ms", "1"),
            (SET, "segment.index.bytes", "48"),
            (SET, "message.timestamp.before.max.ms", "0"),
        ):
            for options in ({}, {"validate_only": True}):
                resource = incremental_resource(TOPIC, name, edit)
                (result,) = await alter_incrementally(client, resource, **options)
                assert result.error_code == ErrorCode.INVALID_CONFIG, edit
        (result,) = await alter(client, full_resource(TOPIC, name))
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert broker.topics.find(name, 0).log.config.cleanup_policy == "compact"

        resource = incremental_resource(TOPIC, name, (SET, "durability", "fsync"))
        (result,) = await alter_incrementally(client, resource)
        assert result.error_code == ErrorCode.NONE

        # Nor does the broker's default for other topics.
        edits = [(SET, "message.max.bytes", "20"), (SET, "log.roll.ms", "1")]
        edits.append((SET, "log.index.size.max.bytes", "48"))
        resource = incremental_resource(BROKER, "0", *edits)
        (result,) = await alter_incrementally(client, resource)
        assert result.error_code == ErrorCode.NONE
        config = broker.topics.find(name, 0).log.config
        assert config.max_message_bytes == LogConfig().max_message_bytes
        assert (config.segment_ms, config.segment_index_bytes) == (60_000, 65_536)
