"""The public names of ottla.client, and their lazy import."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from ottla import client
from ottla.client import KafkaError, admin, errors, types
from ottla.client.producer import producer


def test_every_exported_name_exists_and_is_sorted():
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    assert client.__all__ == sorted(client.__all__)
    assert set(client.__all__) <= set(dir(client))


def kinds(error):
    """Yield an error class of the SDK and all its subclasses."""
    yield error
    for kind in error.__subclasses__():
        if kind.__module__.startswith("ottla."):
            yield from kinds(kind)


def test_all_errors_are_exported_and_documented():
    for module in pkgutil.walk_packages(client.__path__, "ottla.client."):
        if ".spark" not in module.name:
            importlib.import_module(module.name)
    names = {kind.__name__ for top in (client.ClientError, KafkaError) for kind in kinds(top)}

    assert names >= set(errors.__all__) - {"error_of", "ErrorCode"}
    assert names <= set(client.__all__)
    assert {name for name in names if f" {name} " not in errors.__doc__} == set()


def test_argument_and_result_types_are_exported():
    for module in (admin, producer, types):
        names = set(getattr(module, "__all__", ())) or {
            name for name, value in vars(module).items() if inspect.isclass(value)
        }
        assert names - {"Any", "Callable", "IntEnum", "Mapping", "NamedTuple", "Sequence"} <= set(
            client.__all__
        )


def test_internal_names_are_not_exported():
    with pytest.raises(AttributeError, match=r"ottla\.client.*'Cluster'"):
        client.Cluster  # noqa: B018


def test_unused_modules_are_not_imported():
    script = (
        "import sys, ottla.client\n"
        "modules = {m for m in sys.modules if m.startswith('ottla.')}\n"
        "assert modules == {'ottla.client'}, modules\n"
        "assert 'asyncio' not in sys.modules\n"
        "from ottla.client import TopicPartition, ClientConfig\n"
        "assert 'asyncio' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)
