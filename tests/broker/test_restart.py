"""A broker that stops and starts: what there was is there, and as it was."""

from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire import create, metadata, offset_at, produce, serving

TOPIC = 2


async def everything(client):
    """All that a client can find out of topics."""
    topics = await metadata(client)
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in topics
    ]
    configs = await client.ask(DescribeConfigsRequest(resources=resources, include_synonyms=True))
    cluster = await client.ask(DescribeClusterRequest())
    return topics, configs.results, cluster.cluster_id


async def test_topics_ids_settings_and_partitions_are_as_before(tmp_path):
    async with serving(tmp_path) as (_broker, client):
        await create(client, "plain")
        await create(client, "set", 3, retention_ms="5", cleanup_policy="compact")
        await metadata(client, "asked.for", creating=True)
        await create(client, "grown")
        wanted = CreatePartitionsTopic(name="grown", count=4, assignments=None)
        await client.ask(CreatePartitionsRequest(topics=[wanted]))
        await produce(client, "grown", 3, partition=3)
        before = await everything(client)
        assert sorted(before[0]) == ["asked.for", "grown", "plain", "set"]

    for _ in range(2):
        async with serving(tmp_path) as (_broker, client):
            assert await everything(client) == before
            assert (await offset_at(client, "grown", -1, partition=3)).offset == 3


async def test_a_topic_that_was_deleted_stays_away(tmp_path):
    async with serving(tmp_path) as (_broker, client):
        for name in ("gone", "kept"):
            await create(client, name, 2)
        await client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")]))

    async with serving(tmp_path) as (_broker, client):
        assert list(await metadata(client)) == ["kept"]
        await create(client, "gone")
        assert await produce(client, "gone") == 0


async def test_a_topic_has_the_settings_of_the_broker_that_serves_it_now(tmp_path):
    async with serving(tmp_path) as (_broker, client):
        await create(client, "t")

    async with serving(tmp_path, {"log.retention.ms": "77"}) as (broker, client):
        assert broker.topics.find("t", 0).log.config.retention_ms == 77
