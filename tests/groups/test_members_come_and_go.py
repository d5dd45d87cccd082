"""Members that join, are killed and leave, while a producer goes on: nobody misses a record."""

from __future__ import annotations

import pytest

from groups.company import CLIENTS, Company, assignor_of, check, create_topic, producing, settle

PARTITIONS = 6


@pytest.mark.parametrize(
    ("client", "assignor"),
    [
        ("confluent", "range"),
        ("confluent", "roundrobin"),
        ("confluent", "cooperative-sticky"),
        ("kafka-python", "range"),
        ("kafka-python", "roundrobin"),
        ("kafka-python", "sticky"),
        ("kafka-python", "cooperative-sticky"),
        ("aiokafka", "range"),
        ("aiokafka", "roundrobin"),
        ("aiokafka", "sticky"),
        ("kafkajs", "RoundRobinAssigner"),
        ("java", "range"),
        ("java", "roundrobin"),
        ("java", "sticky"),
        ("java", "cooperative-sticky"),
    ],
)
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
