"""What programs may count on: the names of ottla.client, and that they cost nothing unused."""

import subprocess
import sys

import pytest

from ottla import client
from ottla.client import errors


def test_every_name_is_there_and_in_order():
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    assert client.__all__ == sorted(client.__all__)
    assert set(client.__all__) <= set(dir(client))


def test_all_errors_can_be_caught():
    assert set(errors.__all__) - {"error_of"} <= set(client.__all__)


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
