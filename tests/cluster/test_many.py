"""A thousand topics of twelve partitions are created, listed, and survive a restart."""

from __future__ import annotations

from collections import Counter

from harness.requests import metadata, send_request
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.errors import ErrorCode

TOPICS = 1000
PARTITIONS = 12


async def test_a_thousand_topics_of_twelve_partitions(cluster):
    for start in range(0, TOPICS, 250):
        topics = [
            CreatableTopic(name=f"t{number}", num_partitions=PARTITIONS, replication_factor=1)
            for number in range(start, start + 250)
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
        response = await send_request(cluster[start // 250 % 3], request)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}

    for broker in cluster:
        topics = (await metadata(broker)).topics
        assert len(topics) == TOPICS
        leaders = Counter(data.leader_id for topic in topics for data in topic.partitions)
        assert leaders == dict.fromkeys(range(3), TOPICS * PARTITIONS // 3)
    cluster.kill()
    cluster.start()
    for broker in cluster:
        topics = (await metadata(broker)).topics
        assert sum(len(topic.partitions) for topic in topics) == TOPICS * PARTITIONS
