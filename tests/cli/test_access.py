"""`ottla user`, `acl` and `quota`, and what the commands say to users without rights."""

from collections.abc import Iterator

import pytest

from harness.command import Command
from harness.daemon import shown_on_failure
from harness.secure_broker import SecureBroker

SECRET = "a secret; with = everything"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secured")
    configs = {"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"}
    with SecureBroker(folder, configs) as broker:
        yield broker


@pytest.fixture
def admin(secured: SecureBroker, tmp_path, request) -> Iterator[Command]:
    """The command line of somebody who may do everything."""
    with shown_on_failure(request, [secured]):
        yield Command(secured.addresses["PLAINTEXT"], str(tmp_path))


@pytest.fixture
def as_user(secured: SecureBroker, tmp_path):
    """Return a function that returns the command line of a user."""

    def login(name: str) -> Command:
        path = tmp_path / f"{name}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\n"
            "sasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.username={name}\n"
            "sasl.password=${env:USER_SECRET}\n"
            f"ssl.truststore.location={secured.certificates.ca}\n"
        )
        command = Command(secured.addresses["SASL_SSL"], str(tmp_path))
        command.environ |= {"OTTLA_COMMAND_CONFIG": str(path), "USER_SECRET": SECRET}
        return command

    return login


def test_users_are_created_listed_and_deleted(admin, tmp_path):
    (tmp_path / "secret").write_text("first\n")

    created = admin("user", "create", "zoe", "--password-file", str(tmp_path / "secret"))
    assert created == "zoe: created for SCRAM-SHA-256 and SCRAM-SHA-512\n"
    admin(
        *("user", "create", "yan", "--mechanism", "scram-sha-512", "--iterations", "5000"),
        stdin="second\n",
    )

    listed = [row for row in admin.json("user", "list") if row["user"] in ("zoe", "yan")]
    assert listed == [
        {"user": "yan", "mechanism": "SCRAM-SHA-512", "iterations": 5000},
        {"user": "zoe", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "zoe", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    assert "confirm with --yes" in admin.fails(2, "user", "delete", "zoe")
    assert admin("user", "delete", "zoe", "yan", "-y") == "zoe: deleted\nyan: deleted\n"
    failure = admin.fails(5, "user", "delete", "zoe", "-y")
    assert "'zoe' has no SCRAM credentials; list users: ottla user list" in failure


@pytest.mark.parametrize("arguments", [(), ("--password-env", "NO_SUCH_VARIABLE")])
def test_a_user_needs_a_password(admin, arguments):
    failure = admin.fails(2, "user", "create", "zoe", *arguments)
    assert "password is empty" in failure or "NO_SUCH_VARIABLE is not set" in failure


def test_acls_decide_what_a_new_user_may_do(admin, as_user):
    admin("topic", "create", "orders")
    admin("user", "create", "dora", stdin=SECRET + "\n")
    dora = as_user("dora")

    assert dora("topic", "list", "-q") == ""
    assert "ask for an ACL: ottla acl create" in dora.fails(7, "topic", "describe", "orders")

    admin("acl", "create", "dora", "--topic", "ord", "--prefixed", "--operation", "read")
    assert dora("topic", "list", "-q") == "orders\n"
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
    admin("acl", "create", "dora", "--topic", "*", "--operation", "describe", "--deny")
    assert dora("topic", "list", "-q") == ""

    admin("acl", "delete", "--principal", "dora", "--topic", "*", "--yes")
    assert dora("topic", "list", "-q") == "orders\n"
    admin("acl", "delete", "--principal", "dora", "--yes")
    assert "No ACL matches" in admin.fails(5, "acl", "delete", "--principal", "dora", "--yes")


def test_a_wrong_password_is_reported_with_advice(as_user, monkeypatch):
    command = as_user("alice")
    command.environ["USER_SECRET"] = "wrong-secret"

    failure = command.fails(7, "topic", "list")
    assert "Authentication of user 'alice' at localhost:" in failure
    assert "check sasl_username and sasl_password" in failure
    assert "--command-config or the profile" in failure
    assert "wrong-secret" not in failure


def test_a_profile_logs_in(admin, secured, tmp_path):
    admin("user", "create", "emil", stdin=SECRET + "\n")
    (tmp_path / "emil.secret").write_text(SECRET)
    command = Command(secured.addresses["SASL_SSL"], str(tmp_path))
    command.environ["OTTLA_BOOTSTRAP"] = None
    command(
        *("profile", "set", "emil", "-b", secured.addresses["SASL_SSL"]),
        *("--security-protocol", "SASL_SSL", "--sasl-mechanism", "SCRAM-SHA-512"),
        *("--sasl-username", "emil", "--sasl-password-file", str(tmp_path / "emil.secret")),
        *("--ssl-truststore-location", secured.certificates.ca),
    )

    assert command("topic", "list", "-q", "--profile", "emil") == ""
