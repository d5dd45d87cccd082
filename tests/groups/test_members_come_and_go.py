"""Members that join, are killed and leave, while a producer goes on: nobody misses a record.

`TEST_ASSIGNORS=all pytest tests/groups` does it with every assignor of every client.
"""

from __future__ import annotations

import os

import pytest

from groups.company import CLIENTS, Company, assignor_of, check, create_topic, producing, settle

PARTITIONS = 6
SLOWLY = os.environ.get("TEST_ASSIGNORS") == "all"
#: One that revokes everything in a rebalance, and one that does not, of each client that has both.
QUICKLY = [
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "roundrobin"),
    ("kafkajs", "RoundRobinAssigner"),
    ("java", "range"),
    ("java", "cooperative-sticky"),
]
ALL = [
    *QUICKLY,
    ("confluent", "roundrobin"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "sticky"),
    ("java", "roundrobin"),
    ("java", "sticky"),
]


@pytest.mark.parametrize(("client", "assignor"), ALL if SLOWLY else QUICKLY)
def test_every_record_is_seen_whoever_comes_and_goes(broker, tmp_path, name, client, assignor):
    create_topic(broker.address, name, PARTITIONS)
    with (
        Company(broker.address, tmp_path, name, name, assignors=[assignor]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        company.start("a", client)
        company.start("b", client)
        company.wait_until_reading("a", "b")
        company.start("c", client)
        company.wait_until_reading("c")

        company.kill("a")
        company.start("d", client)
        company.wait_until_reading("b", "c", "d")
        company.stop("b")
        company.wait_until_shared(PARTITIONS)
        company.wait_until_reading("c", "d")

        settle(company, producer)
        company.stop()
        check(company, producer)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_that_was_frozen_cannot_take_back_what_others_did(broker, tmp_path, name, client):
    create_topic(broker.address, name, PARTITIONS)
    with (
        Company(broker.address, tmp_path, name, name, assignors=[assignor_of(client)]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        company.start("a", client)
        company.start("b", client)
        company.wait_until_shared(PARTITIONS)
        company.wait_until_reading("a", "b")

        with company.frozen("a"):
            # Its session ends, and its partitions are read from where it had committed.
            company.wait_until_commits_of_all(PARTITIONS, but="a")
        # It goes on as if nothing had happened, with records that it was given long ago.
        company.wait_until_shared(PARTITIONS)
        company.wait_until_reading("a", "b")

        settle(company, producer)
        company.stop()
        check(company, producer)
