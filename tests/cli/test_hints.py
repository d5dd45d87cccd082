"""Errors suggest commands and options; these must work where they are suggested."""

import re
import shlex

import pytest


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("topic alter {topic} --set foo=1", "ottla config describe topic {topic} --all"),
        ("config set topic {topic} foo=1", "ottla config describe topic {topic} --all"),
        ("config set broker 0 foo=1", "ottla config describe broker 0 --all"),
        ("topic describe missing", "ottla topic list"),
        ("group describe missing", "ottla group list"),
        ("config describe broker 9", "ottla cluster describe"),
        ("produce new-{topic}", "ottla topic create new-{topic}"),
    ],
)
def test_a_suggested_command_works(run, topic, command, hint):
    failed = run.run(*shlex.split(command.format(topic=topic)))
    (suggested,) = re.findall(r": (ottla [^;,\n]*)", failed.stderr)

    assert failed.exit_code not in (0, 2)
    assert suggested == hint.format(topic=topic)
    run(*shlex.split(suggested)[1:])


def test_options_are_suggested_only_to_commands_that_have_them(run, topic):
    create = run.run("topic", "create", topic)
    clone = run.run("topic", "clone", topic, topic)
    invalid = run.run("topic", "create", f"{topic}-2", "-c", "foo=1")

    assert "use another name, or --if-not-exists" in create.stderr
    assert clone.stderr.rstrip().endswith("use another name")
    # The topic does not exist, so its configs cannot be described.
    assert "ottla config" not in invalid.stderr
    assert {create.exit_code, clone.exit_code, invalid.exit_code} == {6, 7}
