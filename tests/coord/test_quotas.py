"""Client quotas: entities, their order, edits and filters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.metadata_image import MetadataImage
from ottla.coord.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    FilterComponent,
    InvalidQuotaError,
    MatchType,
    QuotaEdit,
    check_filter,
    quota_entity,
    quota_record,
)

#: The parts of each entity that matches alice's client "app", in the order in which they count, and
#: the counter.
LEVELS = [
    ({USER: "alice", CLIENT_ID: "app"}, ("alice", "app")),
    ({USER: "alice", CLIENT_ID: None}, ("alice", "app")),
    ({USER: "alice"}, ("alice", None)),
    ({USER: None, CLIENT_ID: "app"}, ("alice", "app")),
    ({USER: None, CLIENT_ID: None}, ("alice", "app")),
    ({USER: None}, ("alice", None)),
    ({CLIENT_ID: "app"}, (None, "app")),
    ({CLIENT_ID: None}, (None, "app")),
]


def entity(**parts):
    return quota_entity((kind.replace("_", "-"), name) for kind, name in parts.items())


def quotas_of(*entries):
    """Return replayed quotas of (parts, quotas) pairs."""
    image = MetadataImage()
    for parts, quotas in entries:
        image.replay(*quota_record(quota_entity(parts.items()), quotas))
    return image.quotas


@given(st.sets(st.integers(0, len(LEVELS) - 1)))
def test_the_first_matching_entity_with_a_limit_counts(levels):
    quotas = quotas_of(*((LEVELS[n][0], {PRODUCER_BYTE_RATE: float(n + 1)}) for n in levels))

    limit = quotas.limit_of(PRODUCER_BYTE_RATE, "alice", "app")

    if levels:
        assert limit == (min(levels) + 1, LEVELS[min(levels)][1])
    else:
        assert limit is None


def test_each_key_has_its_own_first_entity():
    quotas = quotas_of(
        ({USER: "alice"}, {PRODUCER_BYTE_RATE: 1.0}),
        ({USER: None}, {PRODUCER_BYTE_RATE: 2.0, REQUEST_PERCENTAGE: 50.0}),
    )

    assert quotas.limit_of(PRODUCER_BYTE_RATE, "alice", "app").limit == 1
    assert quotas.limit_of(REQUEST_PERCENTAGE, "alice", "app").limit == 50
    assert quotas.limit_of(PRODUCER_BYTE_RATE, "bob", "app").limit == 2


def test_addresses_have_a_default():
    quotas = quotas_of(
        ({IP: "10.0.0.1"}, {CONNECTION_CREATION_RATE: 5.0}),
        ({IP: None}, {CONNECTION_CREATION_RATE: 50.0}),
    )

    assert quotas.connection_rate_of("10.0.0.1") == 5
    assert quotas.connection_rate_of("10.0.0.2") == 50
    assert quotas_of().connection_rate_of("10.0.0.1") is None


def test_edits_change_single_quotas():
    quotas = quotas_of(({USER: "alice"}, {PRODUCER_BYTE_RATE: 1.0, REQUEST_PERCENTAGE: 50.0}))

    edited = quotas.edited(
        entity(user="alice"),
        [
            QuotaEdit(PRODUCER_BYTE_RATE, None),
            QuotaEdit(REQUEST_PERCENTAGE, 0.5),
            QuotaEdit(CONTROLLER_MUTATION_RATE, None),
        ],
    )

    assert edited == {REQUEST_PERCENTAGE: 0.5}


def test_an_entity_without_quotas_is_forgotten():
    quotas = quotas_of(({USER: "alice"}, {PRODUCER_BYTE_RATE: 1.0}), ({USER: "alice"}, {}))

    assert quotas.by_entity == {}


@pytest.mark.parametrize(
    ("parts", "edits", "problem"),
    [
        ([(USER, "a")], [("nonsense", 1.0)], "Unknown quota"),
        ([(USER, "a")], [(CONNECTION_CREATION_RATE, 1.0)], "Unknown quota"),
        ([(IP, None)], [(PRODUCER_BYTE_RATE, 1.0)], "Unknown quota"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, 0.0)], "greater than 0"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, -1.0)], "greater than 0"),
        ([(USER, "a")], [(REQUEST_PERCENTAGE, float("nan"))], "greater than 0"),
        ([(USER, "a")], [(REQUEST_PERCENTAGE, float("inf"))], "greater than 0"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, 1.5)], "integer"),
        ([(IP, None)], [(CONNECTION_CREATION_RATE, 1.5)], "integer"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, 1.0)] * 2, "Duplicate quota key"),
        ([], [], "entity is empty"),
        ([("group", "g")], [], "Unknown quota entity type"),
        ([(USER, "a"), (USER, "b")], [], "Duplicate quota entity type"),
        ([(USER, "")], [], "Empty name"),
        ([(IP, "10.0.0.1"), (USER, "a")], [], "cannot be combined"),
        ([(IP, "example.org")], [], "expected an address"),
    ],
)
def test_an_invalid_quota_is_named(parts, edits, problem):
    with pytest.raises(InvalidQuotaError, match=problem):
        quotas_of().edited(quota_entity(parts), [QuotaEdit(*edit) for edit in edits])


EXACT, DEFAULT, ANY = MatchType
ENTITIES = [
    {USER: "alice"},
    {USER: "alice", CLIENT_ID: "app"},
    {USER: None},
    {CLIENT_ID: "app"},
    {IP: "10.0.0.1"},
]


@pytest.mark.parametrize(
    ("components", "is_strict", "expected"),
    [
        ([], False, [0, 1, 2, 3, 4]),
        ([], True, []),
        ([(USER, EXACT, "alice")], False, [0, 1]),
        ([(USER, EXACT, "alice")], True, [0]),
        ([(USER, DEFAULT, None)], False, [2]),
        ([(USER, ANY, None)], False, [0, 1, 2]),
        ([(USER, ANY, None)], True, [0, 2]),
        ([(USER, ANY, None), (CLIENT_ID, EXACT, "app")], False, [1]),
        ([(IP, ANY, None)], True, [4]),
    ],
)
def test_a_filter_matches_entities_with_all_its_components(components, is_strict, expected):
    quotas = quotas_of(*((parts, {}) for parts in ENTITIES))
    for parts in ENTITIES:
        key = CONNECTION_CREATION_RATE if IP in parts else PRODUCER_BYTE_RATE
        quotas.by_entity[quota_entity(parts.items())] = {key: 1.0}

    wanted = [FilterComponent(*component) for component in components]
    found = [dict(entity) for entity, _ in quotas.matching(wanted, is_strict=is_strict)]

    assert found == [ENTITIES[number] for number in expected]


@pytest.mark.parametrize(
    ("components", "problem"),
    [
        ([(USER, EXACT, None)], "needs a name"),
        ([(USER, DEFAULT, "a")], "must have no name"),
        ([(USER, ANY, "a")], "must have no name"),
        ([(USER, ANY, None), (USER, ANY, None)], "Duplicate"),
        ([(USER, ANY, None), (IP, ANY, None)], "cannot be combined"),
    ],
)
def test_an_invalid_filter_is_named(components, problem):
    with pytest.raises(InvalidQuotaError, match=problem):
        check_filter([FilterComponent(*component) for component in components])


def test_a_snapshot_restores_the_quotas():
    quotas = quotas_of(*((parts, {"k": 1.5}) for parts in ENTITIES))
    image = MetadataImage()

    for record in quotas.records():
        image.replay(*record)

    assert image.quotas.by_entity == quotas.by_entity
