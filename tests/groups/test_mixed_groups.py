"""Different clients in one group: they can, if they know an assignor by the same name."""

from __future__ import annotations

import pytest

from groups.company import Company, check, create_topic, missing, producing, settle

PARTITIONS = 8


@pytest.mark.parametrize(
    ("assignor", "clients"),
    [
        ("range", ["confluent", "kafka-python", "aiokafka", "java"]),
        # Which kafkajs has under another name, and so must be told.
        ("roundrobin", ["aiokafka", "confluent", "kafka-python", "kafkajs"]),
        ("cooperative-sticky", ["kafka-python", "confluent", "java"]),
    ],
)
def test_clients_of_different_people_share_a_topic(broker, tmp_path, name, assignor, clients):
    create_topic(broker.address, name, PARTITIONS)
    here = [client for client in clients if missing(client) is None]
    with (
        Company(broker.address, tmp_path, name, name, assignors=[assignor]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        for client in here:
            company.start(client, client)
        company.wait_until_shared(PARTITIONS)
        company.wait_until_reading()

        # Whoever leads is the first one: another one has to, of another kind.
        company.kill(here[0])
        company.wait_until_shared(PARTITIONS)
        company.start("again", here[0])
        company.wait_until_reading()

        settle(company, producer)
        company.stop()
        check(company, producer)


def test_one_that_shares_no_assignor_is_refused_and_disturbs_nobody(broker, tmp_path, name):
    create_topic(broker.address, name, PARTITIONS)
    with (
        Company(broker.address, tmp_path, name, name, assignors=["range"]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        # However slow they are while somebody else starts: nobody is to be missed.
        company.start("a", "confluent", session_ms=15_000)
        company.start("b", "kafka-python", session_ms=15_000)
        company.wait_until_shared(PARTITIONS)
        before = len(company.events.lines)

        with Company(
            broker.address, tmp_path / "other", name, name, assignors=["roundrobin"]
        ) as other:
            other.start("c", "aiokafka")
            other.wait("its end", lambda: "InconsistentGroupProtocol" in other.words_of("c"))
            assert not other.events.got

        company.wait_until_reading("a", "b")
        moved = [line for line in company.events.lines[before:] if line[1] == "revoked"]
        assert moved == []
        settle(company, producer)
        company.stop()
        check(company, producer)
