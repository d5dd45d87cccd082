"""ACLs: the decision and the filters, against models that try every binding."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.acls import (
    ACL_VALUE,
    AclBinding,
    AclFilter,
    Acls,
    InvalidAclError,
    acl_key,
    check_binding,
)
from ottla.coord.metadata_image import MetadataImage
from ottla.protocol.acls import AclOperation, PatternType, PermissionType, ResourceType

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALICE = "User:alice"

NAMES = ("a", "ab", "abc", "b", "*")
OPERATIONS = (
    AclOperation.ALL,
    READ,
    WRITE,
    AclOperation.ALTER,
    DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
bindings = st.builds(
    AclBinding,
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from(NAMES),
    st.sampled_from((LITERAL, PREFIXED)),
    st.sampled_from((ALICE, "User:bob", "User:*")),
    st.sampled_from(("*", "10.0.0.1", "10.0.0.2")),
    st.sampled_from(OPERATIONS),
    st.sampled_from((ALLOW, DENY)),
)
filters = st.builds(
    AclFilter,
    st.sampled_from((ResourceType.ANY, TOPIC, GROUP)),
    st.sampled_from((None, *NAMES)),
    st.sampled_from(PatternType),
    st.sampled_from((None, ALICE, "User:*")),
    st.sampled_from((None, "*", "10.0.0.1")),
    st.sampled_from((AclOperation.ANY, READ, DESCRIBE)),
    st.sampled_from(PermissionType),
)


def acls_of(*created, deleted=()):
    acls = Acls()
    for binding in created:
        replay(acls, binding)
    for binding in deleted:
        replay(acls, binding, deletes=True)
    return acls


def replay(acls, binding, *, deletes=False):
    name = acl_key(binding).decode().partition("/")[2]
    acls.replay(name, None if deletes else json.loads(ACL_VALUE))


def allow(operation=READ, name="orders", pattern=LITERAL, principal=ALICE, host="*", kind=TOPIC):
    return AclBinding(kind, name, pattern, principal, host, operation, ALLOW)


def deny(*arguments, **fields):
    return allow(*arguments, **fields)._replace(permission=DENY)


def may(acls, operation, name="orders", principal=ALICE, host="10.0.0.1", kind=TOPIC, **options):
    return acls.decide(principal, host, operation, kind, name, **options)


def model_decision(created, principal, host, operation, kind, name, allows_if_none):
    """The rules as they are written down, one after the other, over all bindings."""
    of_resource = [
        one
        for one in created
        if one.resource_type == kind
        and (
            name.startswith(one.resource_name)
            if one.pattern_type == PREFIXED
            else one.resource_name in (name, "*")
        )
    ]
    mine = [
        one
        for one in of_resource
        if one.principal in (principal, "User:*") and one.host in (host, "*")
    ]
    implying = {
        DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
    }.get(operation, set())
    if any(one.permission == DENY and one.operation in (operation, 2) for one in mine):
        return False
    if any(one.permission == ALLOW and one.operation in {operation, 2, *implying} for one in mine):
        return True
    return allows_if_none and not of_resource


@given(
    st.lists(bindings),
    st.lists(bindings),
    st.sampled_from((ALICE, "User:bob", "User:eve")),
    st.sampled_from(("10.0.0.1", "10.0.0.3")),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from(("a", "ab", "abcd", "b", "c")),
    st.booleans(),
)
def test_a_decision_is_that_of_the_model(
    created, deleted, principal, host, operation, kind, name, allows_if_none
):
    acls = acls_of(*created, deleted=deleted)
    remaining = [one for one in created if one not in deleted]

    decision = acls.decide(principal, host, operation, kind, name, allows_if_none=allows_if_none)

    assert decision == model_decision(
        remaining, principal, host, operation, kind, name, allows_if_none
    )


@given(st.lists(bindings, max_size=6), st.sampled_from((READ, WRITE, DESCRIBE)))
def test_any_resource_is_decided_as_by_trying_many_names(created, operation):
    acls = acls_of(*created)
    # Each pattern's own name, and one that only its prefix matches.
    names = [name + suffix for name in ("a", "ab", "abc", "b", "c") for suffix in ("", "?", "?!")]

    decision = acls.decide_any(ALICE, "10.0.0.1", operation, TOPIC)

    tried = any(acls.decide(ALICE, "10.0.0.1", operation, TOPIC, name) for name in names)
    assert decision == (tried or (acls.decide(ALICE, "10.0.0.1", operation, TOPIC, "*?")))


@given(st.lists(bindings), filters)
def test_a_filter_returns_each_binding_that_it_matches_once(created, wanted):
    found = acls_of(*created).matching(wanted)

    expected = {
        one
        for one in created
        if wanted.resource_type in (1, one.resource_type)
        and wanted.operation in (1, one.operation)
        and wanted.permission in (1, one.permission)
        and wanted.principal in (None, one.principal)
        and wanted.host in (None, one.host)
        and (wanted.pattern_type in (1, 2, one.pattern_type))
        and (
            wanted.resource_name is None
            or (
                one.matches_resource(wanted.resource_name)
                if wanted.pattern_type == PatternType.MATCH
                else one.resource_name == wanted.resource_name
            )
        )
    }
    assert len(found) == len(expected)
    assert set(found) == expected


@given(st.lists(bindings), st.lists(bindings))
def test_a_snapshot_restores_the_bindings(created, deleted):
    acls = acls_of(*created, deleted=deleted)
    image = MetadataImage()

    for key, value in acls.records():
        image.replay(key, value)

    assert list(image.acls) == list(acls)
    assert image.acls.matching(AclFilter()) == acls.matching(AclFilter())


def test_nothing_is_allowed_without_acls_unless_the_default_says_so():
    assert not may(acls_of(), READ)
    assert may(acls_of(), READ, allows_if_none=True)


def test_an_acl_for_somebody_else_ends_the_default():
    acls = acls_of(allow(principal="User:bob"))

    assert not may(acls, READ, allows_if_none=True)
    assert may(acls, READ, name="other", allows_if_none=True)


def test_a_deny_wins_over_any_allow():
    acls = acls_of(allow(AclOperation.ALL), deny(READ, name="ord", pattern=PREFIXED))

    assert not may(acls, READ)
    assert may(acls, WRITE)


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_allowed_operations_imply_describe_and_denied_ones_do_not(operation):
    assert may(acls_of(allow(operation)), DESCRIBE)
    assert may(acls_of(allow(AclOperation.ALL), deny(operation)), DESCRIBE)


def test_describe_implies_nothing():
    assert not may(acls_of(allow(DESCRIBE)), READ)


def test_a_star_is_special_only_as_the_whole_name():
    assert may(acls_of(allow(name="*")), READ)
    assert not may(acls_of(allow(name="ord*")), READ)
    assert not may(acls_of(allow(name="*", pattern=PREFIXED)), READ)


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),  # As Java writes it.
    ],
)
def test_hosts_are_addresses_in_any_spelling(host, client):
    acls = acls_of(allow(host=host))

    assert may(acls, READ, host=client)
    assert not may(acls, READ, host="10.0.0.2")


def test_the_version_changes_with_the_bindings():
    acls = acls_of(allow())
    before = acls.version

    replay(acls, allow(), deletes=True)

    assert acls.version != before
    assert len(acls) == 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"resource_type": ResourceType.ANY}, "resource type"),
        ({"pattern_type": PatternType.MATCH}, "pattern type"),
        ({"pattern_type": PatternType.ANY}, "pattern type"),
        ({"operation": AclOperation.ANY}, "operation"),
        ({"permission": PermissionType.ANY}, "ALLOW or DENY"),
        ({"resource_name": ""}, "name is empty"),
        ({"resource_type": ResourceType.CLUSTER}, "kafka-cluster"),
        ({"principal": "alice"}, "TYPE:NAME"),
        ({"principal": "User:"}, "TYPE:NAME"),
        ({"host": ""}, "host is empty"),
    ],
)
def test_an_invalid_binding_is_named(fields, problem):
    with pytest.raises(InvalidAclError, match=problem):
        check_binding(allow()._replace(**fields))


def test_an_operation_that_makes_no_sense_is_stored():
    check_binding(allow(AclOperation.IDEMPOTENT_WRITE))
