"""The authorizer: super users, remembered decisions, and the log of denied attempts."""

import io
import logging
from types import SimpleNamespace

import pytest

from harness.acls import binding
from ottla.broker.observability.logging import TextFormatter
from ottla.broker.requests.dispatch import RequestContext
from ottla.broker.security import authorizer as module
from ottla.broker.security.authorizer import Authorizer
from ottla.coord.acls import Acls, acl_key
from ottla.coord.principal import KafkaPrincipal, user
from ottla.protocol import registry
from ottla.protocol.acls import AclOperation, PermissionType, ResourceType

READ, WRITE = AclOperation.READ, AclOperation.WRITE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


ALICE = user("alice")


def a_context(principal=ALICE, host="10.0.0.1"):
    connection = SimpleNamespace(principal=principal, client_host=host)
    return RequestContext(registry.PRODUCE, 9, 1, "app", connection, 0.0)


class World:
    """An authorizer and its ACLs."""

    def __init__(self, *bindings, super_users=(), allows_if_none=False):
        self.acls = Acls()
        for one in bindings:
            self.change(one)
        self.authorizer = Authorizer(self.acls, super_users, allows_if_none=allows_if_none)

    def change(self, one, content=True):
        self.acls.replay(acl_key(one).decode().partition("/")[2], content)

    def allows(self, name="orders", *, context=None, operation=WRITE):
        return self.authorizer.allows(context or a_context(), operation, TOPIC, name)


@pytest.fixture
def log():
    """The lines that the authorizer logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    module.logger.addHandler(handler)
    level = module.logger.level
    module.logger.setLevel(logging.INFO)
    yield lambda: stream.getvalue().splitlines()
    module.logger.setLevel(level)
    module.logger.removeHandler(handler)


def test_super_users_may_do_everything():
    world = World(
        binding("User:*", WRITE, TOPIC, "*", permission=PermissionType.DENY),
        super_users=[user("admin")],
    )

    assert world.allows(context=a_context(user("admin")))
    assert not world.allows()
    assert not world.allows(context=a_context(KafkaPrincipal("Group", "admin")))


def test_a_remembered_decision_ends_with_its_acls():
    allowed = binding("User:alice", WRITE, TOPIC, "orders")
    world = World(allowed)
    assert world.allows()
    assert not world.allows("others")

    world.change(allowed, None)
    assert not world.allows()

    world.change(binding("User:*", AclOperation.ALL, TOPIC, "o"))
    assert world.allows("o")


def test_decisions_are_those_of_the_host():
    world = World(binding("User:alice", WRITE, TOPIC, "orders", host="10.0.0.1"))

    assert world.allows()
    assert not world.allows(context=a_context(host="10.0.0.2"))


def test_the_number_of_remembered_decisions_is_limited(monkeypatch):
    monkeypatch.setattr(module, "_MAX_DECISIONS", 100)
    world = World(binding("User:alice", WRITE, TOPIC, "*"))

    for number in range(250):
        assert world.allows(f"topic-{number}")

    assert len(world.authorizer._decisions) <= 100


def test_decisions_about_long_names_are_not_remembered():
    world = World(binding("User:alice", WRITE, TOPIC, "*"))

    for number in range(10):
        assert world.allows(f"{number}" * 10_000)

    assert not world.authorizer._decisions


def test_the_decision_about_any_resource_is_remembered():
    """It looks at all ACLs, of which there may be 100,000."""
    allowed = binding("User:alice", WRITE, TOPIC, "orders")
    world = World(allowed)
    assert world.authorizer.allows_any(a_context(), WRITE, TOPIC)
    assert list(world.authorizer._decisions.values()) == [True]

    world.change(allowed, None)
    assert not world.authorizer.allows_any(a_context(), WRITE, TOPIC)


def test_any_resource_may_be_one_without_acls():
    context = a_context()
    everybody = World(binding("User:bob", READ, TOPIC, "x"), allows_if_none=True).authorizer
    assert everybody.allows_any(context, WRITE, TOPIC)
    all_covered = World(binding("User:bob", READ, TOPIC, "*"), allows_if_none=True).authorizer
    assert not all_covered.allows_any(context, WRITE, TOPIC)
    some = World(binding("User:alice", WRITE, TOPIC, "x")).authorizer
    assert some.allows_any(context, WRITE, TOPIC)
    assert not some.allows_any(context, READ, TOPIC)
    assert not some.allows_any(context, WRITE, GROUP)


def test_denied_attempts_are_logged_and_counted(log):
    world = World()

    world.allows(context=a_context(user("eve")))

    (line,) = log()
    assert line.endswith(
        "INFO  authorizer  denied  principal=User:eve host=10.0.0.1 operation=WRITE"
        " resource=TOPIC resource_name=orders api=Produce"
    )
    assert world.authorizer.denials == {("WRITE", "TOPIC"): 1}


def test_names_cannot_forge_lines(log):
    name = "x\n2026-11-16T12:00:00.000Z INFO  authorizer  allowed  principal=User:eve"
    world = World()

    world.allows(name, context=a_context(user(name)))

    (line,) = log()
    assert 'principal="User:x\\n2026-' in line


def test_a_principal_cannot_fill_the_log_or_hide_others(log):
    world = World()

    for number in range(1000):
        world.allows(f"topic-{number}", context=a_context(user("eve")))
    world.allows(context=a_context(user("mallory")))

    lines = log()
    assert len(lines) == 11
    assert "suppresses" in lines[9]
    assert "User:mallory" in lines[10]
    assert world.authorizer.denials["WRITE", "TOPIC"] == 1001


def test_lists_are_filtered_without_a_word(log):
    world = World()

    assert not world.authorizer.allows(a_context(), READ, TOPIC, "orders", logs=False)

    assert log() == []
    assert not world.authorizer.denials
