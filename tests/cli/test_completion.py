"""Shell completion of commands, options and names of the cluster."""

import pytest


def complete(run, words, incomplete=""):
    """Return the completions that bash would receive."""
    done = run.run(
        _OTTLA_COMPLETE="bash_complete",
        COMP_WORDS=f"ottla {words} {incomplete}",
        COMP_CWORD=str(len(words.split()) + 1),
    )
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(run, shell):
    script = run("completion", shell)

    assert "_OTTLA_COMPLETE" in script
    assert shell in script
    run.fails(2, "completion", "tcsh")


def test_commands_and_options_are_completed(run):
    assert complete(run, "topic", "del") == ["delete", "delete-records"]
    assert "--bootstrap" in complete(run, "topic list", "--")


def test_topics_and_groups_of_the_cluster_are_completed(run, topic, name):
    run("group", "reset", f"g-{name}", "--to", "start", "--topic", topic, "--yes")

    assert complete(run, "topic describe", topic[:8]) == [topic]
    assert complete(run, f"topic describe {topic}", topic[:8]) == []
    assert complete(run, "consume", topic[:8]) == [topic]
    assert complete(run, "consume x --group", f"g-{name}"[:8]) == [f"g-{name}"]
    assert complete(run, f"group describe -b {run.address}", f"g-{name}") == [f"g-{name}"]


def test_configs_and_brokers_of_the_cluster_are_completed(run, topic):
    assert complete(run, "config describe broker") == ["0"]
    assert topic in complete(run, "config describe topic")
    assert complete(run, f"config set topic {topic}", "retention.m") == ["retention.ms="]
    assert complete(run, f"topic alter {topic} --set", "retention.m") == ["retention.ms="]
    assert "log.level=" in complete(run, "config set broker 0", "log.l")


def test_profiles_are_completed(run):
    run("profile", "set", "staging", "-b", run.address)

    assert complete(run, "topic list --profile", "st") == ["staging"]


def test_an_unreachable_cluster_completes_to_nothing(run):
    assert complete(run, "topic describe -b 127.0.0.1:1") == []
    assert complete(run, "topic describe -b nonsense:x") == []
    assert complete(run, "config set topic t-missing") == []
    assert complete(run, "config set broker none") == []
    assert complete(run, "topic list --profile missing") == []
