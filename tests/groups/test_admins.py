"""Admin clients: they see groups as they are, move them, and delete what nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType

from groups.admins import ADMINS, Admin, RefusedError
from groups.company import Company, admin_of, create_topic, missing, producing
from ottla.protocol.errors import ErrorCode

PARTITIONS = 4
TOPIC = "watched"
BUSY = "busy"
#: Long enough to be removed before it is missed.
SESSION_MS = 30_000


@pytest.fixture(scope="module")
def company(broker_of_the_module, tmp_path_factory) -> Iterator[Company]:
    """Two members that read."""
    address = broker_of_the_module.address
    create_topic(address, TOPIC, PARTITIONS)
    folder = tmp_path_factory.mktemp("members")
    with (
        Company(address, folder, BUSY, TOPIC, assignors=["range"]) as company,
        producing(address, TOPIC, PARTITIONS, per_second=100),
    ):
        for member in ("a", "b"):
            company.start(member, "confluent", instance=member, session_ms=SESSION_MS)
        company.wait_until_shared(PARTITIONS)
        company.wait_until_commits_of_all(PARTITIONS, but="nobody")
        yield company
        company.stop()


@pytest.fixture(scope="module")
def admins(broker_of_the_module) -> Iterator[dict[str, Admin]]:
    made: dict[str, Admin] = {}
    yield made
    for admin in made.values():
        admin.close()


@pytest.fixture
def admin(request, broker, admins) -> Admin:
    if reason := missing(request.param):
        pytest.skip(reason)
    if request.param not in admins:
        admins[request.param] = ADMINS[request.param](broker.address)
    return admins[request.param]


def told_of(*verbs: str) -> pytest.MarkDecorator:
    """Let a test have `admin`, one after the other all that have these verbs."""
    names = [
        name for name, kind in ADMINS.items() if all(getattr(kind, verb, None) for verb in verbs)
    ]
    return pytest.mark.parametrize("admin", names, indirect=True)


@pytest.fixture
def idle(broker, name) -> str:
    """A group that has committed, and has no members."""
    ADMINS["confluent"](broker.address).alter(name, TOPIC, {0: 10, 1: 11})
    return name


@told_of("groups", "describe")
def test_groups_are_listed_and_described(company, admin, idle):
    assert {BUSY, idle} <= admin.groups()
    busy = admin.describe(BUSY)
    assert (busy.state, busy.assignor) == ("Stable", "range")
    assert {name: sorted(share[TOPIC]) for name, share in busy.shares.items()} == {
        name: sorted(company.events.assigned[name]) for name in ("a", "b")
    }
    assert admin.describe(idle).state == "Empty"


@told_of("offsets")
def test_offsets_are_listed(company, admin, idle):
    assert admin.offsets(idle, TOPIC) == {0: 10, 1: 11}
    company.events.read()
    before = dict(company.events.committed)

    found = admin.offsets(BUSY, TOPIC)

    company.events.read()
    assert all(before[number] <= found[number] for number in before)
    assert found.keys() == set(range(PARTITIONS))


@told_of("alter")
def test_offsets_of_a_group_without_members_can_be_altered(company, admin, idle):
    admin.alter(idle, TOPIC, {1: 5, 2: 7})

    assert admin.offsets(idle, TOPIC) == {0: 10, 1: 5, 2: 7}
    with pytest.raises(RefusedError):
        admin.alter(BUSY, TOPIC, {0: 0})
    assert admin.offsets(BUSY, TOPIC)[0] > 0


@told_of("forget")
def test_offsets_can_be_deleted_where_nobody_reads(company, admin, idle):
    admin.forget(idle, TOPIC, [1, 2])

    assert admin.offsets(idle, TOPIC) == {0: 10}
    with pytest.raises(RefusedError) as refused:
        admin.forget(BUSY, TOPIC, [0])
    assert refused.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


@told_of("delete")
def test_groups_without_members_can_be_deleted(company, admin, idle):
    admin.delete(idle)

    assert idle not in admin.groups()
    assert admin.offsets(idle, TOPIC) == {}
    for group, code in (
        (idle, ErrorCode.GROUP_ID_NOT_FOUND),
        (BUSY, ErrorCode.NON_EMPTY_GROUP),
    ):
        with pytest.raises(RefusedError) as refused:
            admin.delete(group)
        assert refused.value.code == code


@told_of("remove")
def test_a_static_member_can_be_removed(broker, company, admin, name, tmp_path):
    with Company(broker.address, tmp_path, name, TOPIC, assignors=["range"]) as others:
        for member in ("c", "d"):
            others.start(member, "confluent", instance=member, session_ms=SESSION_MS)
        others.wait_until_shared(PARTITIONS)
        others.kill("c")  # nobody would miss it for a long time

        admin.remove(name, "c")

        others.wait_until_shared(PARTITIONS)
        assert others.events.assigned["d"] == set(range(PARTITIONS))
        with pytest.raises(RefusedError) as refused:
            admin.remove(name, "c")
        assert refused.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, -1)


def test_groups_can_be_listed_by_what_they_are(broker, company, idle):
    admin = admin_of(broker.address)

    def names(**filters):
        return {group.group_id for group in admin.list_consumer_groups(**filters).result(20).valid}

    assert BUSY in names(states={ConsumerGroupState.STABLE})
    assert idle not in names(states={ConsumerGroupState.STABLE})
    assert idle in names(states={ConsumerGroupState.EMPTY})
    assert {BUSY, idle} <= names(types={ConsumerGroupType.CLASSIC})
    assert names(types={ConsumerGroupType.CONSUMER}) == set()
