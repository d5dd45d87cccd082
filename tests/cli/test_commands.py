"""What all commands share: help, examples, --json, lazy imports."""

import subprocess
import sys

import click
import pytest

from ottla.__main__ import ottla

QUIET = {
    "console",
    *("completion", "profile set", "profile use", "profile delete"),
    *("broker start", "cluster up", "cluster drain"),
    *("cluster reassign plan", "cluster reassign execute", "cluster reassign cancel"),
}


def commands(group=ottla, path=()):
    context = click.Context(ottla)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_help_of_every_command_has_an_example(name):
    command = ALL[name]

    assert command.help
    assert f"ottla {name}" in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", [name for name in ALL if " " in name and "broker" not in name])
def test_short_help_fits_a_terminal_of_80_columns(name):
    noun = name.split()[0]
    longest = max(len(other.split()[1]) for other in ALL if other.startswith(f"{noun} "))

    # The width click leaves in a terminal of 80 columns.
    assert not ALL[name].get_short_help_str(78 - 6 - longest).endswith("...")


@pytest.mark.parametrize("name", sorted(ALL.keys() - QUIET))
def test_commands_with_a_result_have_a_json_option(name):
    assert "--json" in {option for one in ALL[name].params for option in one.opts}


def test_help_does_not_import_the_sdk():
    script = (
        "import sys\n"
        "from ottla.__main__ import ottla\n"
        "for words in (['topic'], ['group'], ['produce'], ['consume'], ['config', 'set']):\n"
        "    ottla([*words, '--help'], standalone_mode=False)\n"
        "heavy = {'construct', 'rich', 'cramjam', 'ottla.client.cluster', 'ottla.protocol'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE)


def test_admin_commands_do_not_import_producer_and_consumer(run):
    script = (
        "import sys\n"
        "from ottla.__main__ import ottla\n"
        f"ottla(['topic', 'list', '-b', '{run.address}'], standalone_mode=False)\n"
        "heavy = {'rich', 'cramjam', 'ottla.client.producer.producer',\n"
        "    'ottla.client.consumer.consumer'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE)
