"""Static members that come back: the others notice nothing, and there is no new generation."""

from __future__ import annotations

import pytest

from groups.company import Company, check, create_topic, kept_of, producing, settle

PARTITIONS = 4
#: Long enough for any of them to start again.
SESSION_MS = 15_000


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka", "java"])
def test_a_static_member_that_starts_again_causes_no_rebalance(broker, tmp_path, name, client):
    create_topic(broker.address, name, PARTITIONS)
    with (
        Company(broker.address, tmp_path, name, name, assignors=["range"]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        for member in ("a", "b"):
            company.start(member, client, instance=member, session_ms=SESSION_MS)
        company.wait_until_shared(PARTITIONS)
        company.wait_until_reading("a", "b")
        shares = {member: set(company.events.assigned[member]) for member in ("a", "b")}
        generation = kept_of(broker.address, name).groups[-1].generation

        # One of them leads; killed, and as it should be.
        for member, other in (("a", "b"), ("b", "a")):
            for end in (company.kill, company.stop):
                before = len(company.events.lines)
                end(member)
                company.start(member, client, instance=member, session_ms=SESSION_MS)
                company.wait_until_reading(member, other)
                assert company.events.assigned[member] == shares[member]
                told = [verb for who, verb, _ in company.events.lines[before:] if who == other]
                assert {"assigned", "revoked", "lost"}.isdisjoint(told)

        kept = kept_of(broker.address, name)
        assert kept.groups[-1].generation == generation
        settle(company, producer)
        company.stop()
        check(company, producer)


def test_a_static_member_that_stays_away_is_missed_when_its_session_ends(broker, tmp_path, name):
    create_topic(broker.address, name, PARTITIONS)
    with (
        Company(broker.address, tmp_path, name, name, assignors=["range"]) as company,
        producing(broker.address, name, PARTITIONS) as producer,
    ):
        for member in ("a", "b"):
            company.start(member, "confluent", instance=member)
        company.wait_until_shared(PARTITIONS)
        company.stop("b")
        company.wait_until_shared(PARTITIONS)
        assert company.events.assigned["a"] == set(range(PARTITIONS))

        settle(company, producer)
        company.stop()
        check(company, producer)
