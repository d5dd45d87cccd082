"""What programs may count on: the names of ottla.client, and that they cost nothing unused."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from ottla import client
from ottla.client import KafkaError, admin, errors, types
from ottla.client.producer import producer


def test_every_name_is_there_and_in_order():
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    assert client.__all__ == sorted(client.__all__)
    assert set(client.__all__) <= set(dir(client))


def kinds(error):
    """Give a class of errors of the SDK, and all below it."""
    yield error
    for kind in error.__subclasses__():
        if kind.__module__.startswith("ottla."):
            yield from kinds(kind)


def test_all_errors_can_be_caught_and_are_in_the_tree():
    for module in pkgutil.walk_packages(client.__path__, "ottla.client."):
        if ".spark" not in module.name:
            importlib.import_module(module.name)
    names = {kind.__name__ for top in (client.ClientError, KafkaError) for kind in kinds(top)}

    assert names >= set(errors.__all__) - {"error_of", "ErrorCode"}
    assert names <= set(client.__all__)
    assert {name for name in names if f" {name} " not in errors.__doc__} == set()


def test_whatever_a_verb_takes_or_gives_has_a_name():
    for module in (admin, producer, types):
        names = set(getattr(module, "__all__", ())) or {
            name for name, value in vars(module).items() if inspect.isclass(value)
        }
        assert names - {"Any", "Callable", "Mapping", "NamedTuple", "Sequence"} <= set(
            client.__all__
        )


def test_other_names_are_not():
    with pytest.raises(AttributeError, match=r"ottla\.client.*'Cluster'"):
        client.Cluster  # noqa: B018


def test_what_is_not_used_is_not_imported():
    script = (
        "import sys, ottla.client\n"
        "rooms = {m for m in sys.modules if m.startswith('ottla.')}\n"
        "assert rooms == {'ottla.client'}, rooms\n"
        "assert 'asyncio' not in sys.modules\n"
        "from ottla.client import TopicPartition, ClientConfig\n"
        "assert 'asyncio' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)
