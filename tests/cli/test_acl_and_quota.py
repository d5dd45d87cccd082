"""`ottla acl` and `ottla quota`."""

from collections.abc import Iterator

import pytest

from harness.command import Command
from harness.daemon import Daemon, shown_on_failure


@pytest.fixture(scope="module")
def authorizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    configs = ("authorizer.class.name=acl", "super.users=User:ANONYMOUS")
    flags = [flag for config in configs for flag in ("--set", config)]
    with Daemon(tmp_path_factory.mktemp("broker"), *flags) as broker:
        yield broker


@pytest.fixture
def admin(authorizing: Daemon, tmp_path, request) -> Iterator[Command]:
    """The command line of somebody who may do everything."""
    with shown_on_failure(request, [authorizing]):
        yield Command(authorizing.address, str(tmp_path))


def test_acls_are_created_listed_and_deleted(admin):
    admin("acl", "create", "dora", "--topic", "ord", "--prefixed", "--operation", "read")
    admin(
        *("acl", "create", "User:*", "--group", "g", "--operation", "all", "--deny"),
        *("--host", "10.0.0.1"),
    )

    assert admin.json("acl", "list", "--topic", "orders") == [
        {
            "resource": "topic",
            "name": "ord",
            "pattern": "prefixed",
            "principal": "User:dora",
            "permission": "allow",
            "operation": "read",
            "host": "*",
        }
    ]
    assert "deny" in admin("acl", "list", "--group", "g")
    assert "confirm with --yes" in admin.fails(2, "acl", "delete", "--group", "g")
    deleted = admin.json("acl", "delete", "--group", "g", "--host", "10.0.0.1", "--yes")
    assert [row["principal"] for row in deleted] == ["User:*"]
    admin("acl", "delete", "--principal", "dora", "--yes")
    assert admin.json("acl", "list") == []
    assert "No ACL matches" in admin.fails(5, "acl", "delete", "--principal", "dora", "--yes")


def test_a_broker_without_an_authorizer_has_no_acls(run):
    failure = run.fails(8, "acl", "list")
    assert "authorizer.class.name" in failure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("acl", "create", "a", "--operation", "read"), "One of --topic"),
        (("acl", "create", "a", "--topic", "t"), "--operation is required"),
        (("acl", "create", "a", "--topic", "t", "--group", "g"), "only one of them"),
        (
            ("acl", "create", "a", "--topic", "t", "--operation", "read", "--host", "10.0.0.0/8"),
            "Invalid address '10.0.0.0/8'",
        ),
        (("acl", "delete", "--yes"), "--principal or a resource is required"),
        (("quota", "set", "producer_byte_rate=1"), "--user, --client-id or --ip is required"),
        (("quota", "set", "--user", "a", "producer_byte_rate"), "expected QUOTA=VALUE"),
    ],
)
def test_incomplete_commands_are_usage_errors(admin, arguments, message):
    assert message in admin.fails(2, *arguments)


def test_quotas_are_set_listed_and_deleted(admin):
    admin("quota", "set", "--user", "alice", "producer_byte_rate=1000000")
    admin("quota", "set", "--client-id", "<default>", "request_percentage=12.5")

    listed = {row.pop("quota"): row for row in admin.json("quota", "list")}
    assert listed == {
        "request_percentage": {
            "user": None,
            "client_id": "<default>",
            "ip": None,
            "value": 12.5,
        },
        "producer_byte_rate": {
            "user": "alice",
            "client_id": None,
            "ip": None,
            "value": 1000000,
        },
    }
    assert len(admin.json("quota", "list", "--user", "alice")) == 1
    assert "has no x" in admin.fails(5, "quota", "delete", "--user", "alice", "x", "--yes")
    admin("quota", "delete", "--user", "alice", "--yes")
    admin("quota", "delete", "--client-id", "<default>", "request_percentage", "--yes")
    assert admin.json("quota", "list") == []
    assert "greater than 0" in admin.fails(
        7, "quota", "set", "--user", "alice", "producer_byte_rate=-1"
    )
