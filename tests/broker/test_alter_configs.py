"""AlterConfigs and IncrementalAlterConfigs: what changes while the broker runs, and stays."""

import asyncio

import pytest

from harness.brokers import broker_and_client
from harness.logs import a_batch
from harness.requests import create_topic, topic_metadata
from harness.wire import connect
from ottla.protocol.api import alter_configs as whole
from ottla.protocol.api import incremental_alter_configs as incremental
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def own(client, kind, name):
    """The settings that something has of its own, as a client sees them."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    answer = await client.request(DescribeConfigsRequest(resources=[resource]))
    sources = {TOPIC: 1, BROKER: 2}
    return {
        config.name: config.value
        for config in answer.results[0].configs
        if config.config_source == sources[kind]
    }


def replacing(kind, name, *settings):
    return whole.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[whole.AlterableConfig(name=key, value=value) for key, value in settings],
    )


def editing(kind, name, *edits):
    return incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in edits
        ],
    )


async def replace(client, *resources, version=1, **options):
    request = whole.AlterConfigsRequest(resources=resources, **options)
    return (await client.request(request, version)).responses


async def edit(client, *resources, version=1, **options):
    request = incremental.IncrementalAlterConfigsRequest(resources=resources, **options)
    return (await client.request(request, version)).responses


async def outcome(answers):
    [answer] = await answers
    return answer.error_code, answer.error_message or ""


DONE = (ErrorCode.NONE, "")


@pytest.mark.parametrize("version", [*ALTER_CONFIGS.versions])
async def test_altering_replaces_all_settings_of_a_topic(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1", flush_ms="2")

        wanted = replacing(TOPIC, "t", ("flush.ms", "3"), ("retention.bytes", "4"))
        [answer] = await replace(client, wanted, version=version)

        assert (answer.resource_type, answer.resource_name) == (TOPIC, "t")
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert await own(client, TOPIC, "t") == {"flush.ms": "3", "retention.bytes": "4"}

        await replace(client, replacing(TOPIC, "t"), version=version)
        assert await own(client, TOPIC, "t") == {}


@pytest.mark.parametrize("version", [*INCREMENTAL_ALTER_CONFIGS.versions])
async def test_editing_changes_single_settings_of_a_topic(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1", flush_ms="2")

        wanted = editing(
            TOPIC,
            "t",
            (SET, "flush.ms", "3"),
            (DELETE, "retention.ms", None),
            (DELETE, "segment.ms", None),
        )
        [answer] = await edit(client, wanted, version=version)

        assert (answer.resource_type, answer.resource_name) == (TOPIC, "t")
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert await own(client, TOPIC, "t") == {"flush.ms": "3"}


async def test_a_list_can_be_appended_to_and_subtracted_from(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        async def policy(operation, value):
            wanted = editing(TOPIC, "t", (operation, "cleanup.policy", value))
            code, _message = await outcome(edit(client, wanted))
            return code or (await own(client, TOPIC, "t")).get("cleanup.policy")

        assert await policy(APPEND, "compact") == "delete,compact"  # "delete" is the default
        assert await policy(APPEND, "compact") == "delete,compact"
        assert await policy(SUBTRACT, "delete") == "compact"
        assert await policy(SUBTRACT, "compact") == ErrorCode.INVALID_CONFIG  # nothing is left
        assert await policy(APPEND, "burn") == ErrorCode.INVALID_CONFIG
        assert (await own(client, TOPIC, "t"))["cleanup.policy"] == "compact"


async def test_a_setting_counts_at_once(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)

        async def produced(partition):
            data = PartitionProduceData(index=partition, records=bytes(a_batch(10)))
            topic = TopicProduceData(name="t", partition_data=[data])
            request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
            answer = await client.request(request)
            return answer.responses[0].partition_responses[0].error_code

        for target in ((TOPIC, "t", "max.message.bytes"), (BROKER, "0", "message.max.bytes")):
            kind, name, key = target
            assert await produced(1) == ErrorCode.NONE
            assert await outcome(edit(client, editing(kind, name, (SET, key, "100")))) == DONE
            assert await produced(1) == ErrorCode.MESSAGE_TOO_LARGE
            assert await outcome(edit(client, editing(kind, name, (DELETE, key, None)))) == DONE


async def test_settings_of_the_broker_can_be_altered_if_they_are_dynamic(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        wanted = editing(BROKER, "0", (SET, "num.partitions", "6"), (SET, "log.retention.ms", "9"))
        assert await outcome(edit(client, wanted)) == DONE

        assert broker.config.num_partitions == 6
        assert await own(client, BROKER, "0") == {"num.partitions": "6", "log.retention.ms": "9"}
        topic = (await topic_metadata(client, "new", create=True))["new"]
        assert len(topic.partitions) == 6

        wanted = editing(BROKER, "0", (APPEND, "log.cleanup.policy", "compact"))
        assert await outcome(edit(client, wanted)) == DONE
        assert broker.config.topic_defaults.cleanup_policy == "delete,compact"

        wanted = editing(BROKER, "0", (SET, "log.dir", "/elsewhere"))
        code, message = await outcome(edit(client, wanted))
        assert code == ErrorCode.INVALID_CONFIG
        assert "log.dir" in message

        assert await outcome(replace(client, replacing(BROKER, "0"))) == DONE
        assert broker.config.num_partitions == 1
        assert await own(client, BROKER, "0") == {}


async def test_what_was_altered_survives_a_restart(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", retention_ms="1")
        await edit(
            client,
            editing(TOPIC, "t", (SET, "flush.ms", "5")),
            editing(BROKER, "0", (SET, "num.partitions", "6")),
        )

    async with broker_and_client(tmp_path) as (broker, client):
        assert await own(client, TOPIC, "t") == {"retention.ms": "1", "flush.ms": "5"}
        assert await own(client, BROKER, "0") == {"num.partitions": "6"}
        assert broker.config.num_partitions == 6


async def test_validating_only_says_the_same_and_changes_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t", flush_ms="2")

        for resource, code in (
            (editing(TOPIC, "t", (SET, "flush.ms", "3")), ErrorCode.NONE),
            (editing(TOPIC, "t", (SET, "flush.ms", "x")), ErrorCode.INVALID_CONFIG),
            (editing(BROKER, "0", (SET, "num.partitions", "3")), ErrorCode.NONE),
            (editing(BROKER, "0", (SET, "broker.id", "3")), ErrorCode.INVALID_CONFIG),
        ):
            assert (await outcome(edit(client, resource, validate_only=True)))[0] == code
        wanted = replacing(TOPIC, "t")
        assert await outcome(replace(client, wanted, validate_only=True)) == DONE

        assert await own(client, TOPIC, "t") == {"flush.ms": "2"}
        assert broker.config.num_partitions == 1


@pytest.mark.parametrize(
    ("edits", "code", "words"),
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
async def test_what_cannot_be_is_refused_with_a_reason(tmp_path, edits, code, words):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        good = (SET, "retention.bytes", "7")

        for version in INCREMENTAL_ALTER_CONFIGS.versions:
            wanted = editing(TOPIC, "t", good, *edits)
            found, message = await outcome(edit(client, wanted, version=version))
            assert found == code
            assert words in message
        assert await own(client, TOPIC, "t") == {}  # all of it, or nothing


async def test_the_broker_knows_a_topic_s_setting_by_another_name(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        wanted = editing(BROKER, "0", (SET, "retention.ms", "1"))

        code, message = await outcome(edit(client, wanted))

        assert code == ErrorCode.INVALID_CONFIG
        assert "log.retention.ms" in message


async def test_replacing_refuses_what_editing_does(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", flush_ms="2")

        for settings, code in (
            ([("retention.mss", "1")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        ):
            wanted = replacing(TOPIC, "t", *settings)
            assert (await outcome(replace(client, wanted)))[0] == code
        assert await own(client, TOPIC, "t") == {"flush.ms": "2"}


async def test_a_resource_that_is_not_there_or_there_twice_harms_no_other(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("t", "twice"):
            await create_topic(client, name)
        change = (SET, "flush.ms", "3")

        answers = await edit(
            client,
            editing(TOPIC, "missing", change),
            editing(TOPIC, "no name", change),
            editing(TOPIC, "twice", change),
            editing(TOPIC, "twice", change),
            editing(BROKER, "8", change),
            editing(BROKER, "", change),
            editing(16, "t", change),
            editing(TOPIC, "t", change),
        )

        assert [(answer.resource_name, answer.error_code) for answer in answers] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("no name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("8", ErrorCode.INVALID_REQUEST),
            ("", ErrorCode.INVALID_REQUEST),
            ("t", ErrorCode.INVALID_REQUEST),
            ("t", ErrorCode.NONE),
        ]
        assert all(answer.error_message for answer in answers if answer.error_code)
        assert await own(client, TOPIC, "t") == {"flush.ms": "3"}
        assert await own(client, TOPIC, "twice") == {}


async def test_of_two_who_edit_at_once_neither_undoes_what_the_other_did(tmp_path):
    async with broker_and_client(tmp_path) as (broker, one), connect(broker.address) as other:
        await create_topic(one, "t")

        await asyncio.gather(
            edit(one, editing(TOPIC, "t", (SET, "flush.ms", "1"))),
            edit(other, editing(TOPIC, "t", (SET, "retention.ms", "2"))),
        )

        assert await own(one, TOPIC, "t") == {"flush.ms": "1", "retention.ms": "2"}
