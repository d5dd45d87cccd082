"""Selecting a cluster: flags, environment, profiles; unreachable clusters."""

import asyncio
import time

import pytest

from harness.command import Command
from harness.daemon import free_port
from harness.scripted_broker import ScriptedCluster
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.loader import load_broker_config
from ottla.cli.target import VARIABLES
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.errors import ErrorCode


@pytest.fixture
def nowhere(tmp_path):
    """The command line without a broker and with an empty environment."""
    command = Command("", str(tmp_path))
    command.environ["OTTLA_BOOTSTRAP"] = None
    return command


def test_flags_take_precedence_over_the_environment(run, nowhere):
    nobody = f"127.0.0.1:{free_port()}"

    assert run.run("topic", "list", OTTLA_BOOTSTRAP=run.address).exit_code == 0
    done = run.run("topic", "list", "-b", run.address, OTTLA_BOOTSTRAP=nobody)
    assert done.exit_code == 0
    assert nowhere.run("topic", "list", "--bootstrap", run.address).exit_code == 0


def test_an_unreachable_broker_is_reported_within_the_timeout(nowhere):
    nobody = f"127.0.0.1:{free_port()}"

    said = nowhere.fails(3, "topic", "list", "-b", nobody, "--timeout", "0.2")

    warning, error = said.splitlines()
    assert warning == f"warning: Cannot connect to {nobody}: Connection refused; retrying"
    assert error.startswith(f"error: Cannot connect to {nobody}")
    assert said.endswith("--bootstrap HOST:PORT, or start one: ottla broker start\n")
    for command in (
        ["produce", "t"],
        ["consume", "t"],
        ["group", "list"],
        ["perf", "consume", "t"],
    ):
        nowhere.fails(3, *command, "-b", nobody, "--timeout", "0.1")


def test_an_invalid_address_is_a_usage_error(nowhere):
    assert "expected host:port" in nowhere.fails(2, "topic", "list", "-b", "a:b:c")


def test_profiles_select_a_cluster(nowhere, run, tmp_path):
    nobody = f"127.0.0.1:{free_port()}"
    nowhere("profile", "set", "here", "-b", run.address, "--client-id", "me")
    nowhere("profile", "set", "nobody", "-b", nobody, "--timeout", "0.1")

    assert nowhere.run("topic", "list").exit_code == 0  # the first profile is the default
    assert nowhere.run("topic", "list", "--profile", "nobody").exit_code == 3
    assert nowhere.run("topic", "list", OTTLA_PROFILE="nobody").exit_code == 3
    done = nowhere.run("topic", "list", "--profile", "here", OTTLA_BOOTSTRAP=nobody)
    assert done.exit_code == 0
    done = nowhere.run("topic", "list", "--profile", "here", "-b", nobody)
    assert (done.exit_code, "mutually exclusive" in done.stderr) == (2, True)

    found = nowhere.json("profile", "list")
    assert found["default"] == "here"
    assert found["profiles"]["nobody"] == {"bootstrap": nobody, "timeout": 0.1}
    assert found["file"] == str(tmp_path / "ottla" / "profiles.toml")

    nowhere("profile", "use", "nobody")
    assert nowhere.run("topic", "list").exit_code == 3
    nowhere("profile", "set", "here", "-b", run.address, "--use")
    assert nowhere.run("topic", "list").exit_code == 0
    nowhere("profile", "delete", "nobody")
    assert "here" in nowhere("profile", "list")
    assert "nobody" not in nowhere("profile", "list")


def test_an_unknown_profile_is_a_usage_error(nowhere):
    said = nowhere.fails(2, "topic", "list", "--profile", "staging")

    assert "create one: ottla profile set staging --bootstrap" in said
    nowhere.fails(2, "profile", "use", "staging")
    nowhere.fails(2, "profile", "delete", "staging")
    nowhere.fails(2, "profile", "set", "a b", "-b", "localhost")
    nowhere.fails(2, "profile", "set", "a", "-b", "localhost:nine")


@pytest.mark.parametrize(
    ("text", "message_part"),
    [
        ("= 7", "Invalid"),
        ('default = "gone"', "unknown default profile 'gone'"),
        ("[profiles.a]", "profile 'a': bootstrap is missing"),
        ('[profiles.a]\nbootstrap = "b"\ntimeout = "5"', "invalid entry timeout = '5'"),
        (
            '[profiles.a]\nbootstrap = "b"\nuser = "c"',
            "invalid entry user = 'c', allowed: bootstrap, client_id",
        ),
    ],
)
def test_an_invalid_profile_file_is_reported(nowhere, tmp_path, text, message_part):
    file = tmp_path / "ottla" / "profiles.toml"
    file.parent.mkdir()
    file.write_text(text)

    said = nowhere.fails(2, "topic", "list")

    assert str(file) in said
    assert message_part in said


def test_a_broker_ignores_the_environment_variables_of_clients():
    environ = dict.fromkeys(VARIABLES, "x")

    assert load_broker_config({}, environ) == BrokerConfig()


def test_bootstrap_servers_are_given_before_or_after_the_command(nowhere, run):
    before = nowhere.run("-b", run.address, "topic", "list", "--json", OTTLA_BOOTSTRAP="")
    after = nowhere.run("topic", "list", "--json", "-b", run.address, OTTLA_BOOTSTRAP="")

    assert before.exit_code == after.exit_code == 0
    assert before.stdout == after.stdout


def test_short_help_option_of_every_level(nowhere):
    for words in ((), ("topic",), ("topic", "create"), ("consume",)):
        assert "Usage: ottla" in nowhere(*words, "-h")


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_a_given_timeout_limits_the_delivery_of_records(tmp_path, code):
    async with ScriptedCluster(topics={"orders": 1}) as cluster:
        cluster.always(ProduceRequest, lambda call: call.error_response(code))
        run = Command(cluster.address, str(tmp_path))
        started = time.monotonic()
        done = await asyncio.to_thread(
            run.run, "produce", "orders", "--timeout", "0.5", stdin="1\n"
        )

    # Not the minute of the SDK's default.
    assert time.monotonic() - started < 30
    assert done.exit_code == 4
    assert f"orders-0: not acknowledged within 0.5 s: {code.name}" in done.stderr
