"""@platformatic/kafka, which consumes with topic ids only: groups, and transactions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from harness.clients.base import node_modules

SCRIPT = Path(__file__).with_name("platformatic.mjs")
PARTITIONS = 2
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def run(broker, topic):
    """Return a function that runs a function of the script with two new topics."""
    modules = node_modules("@platformatic/kafka")
    if modules is None or shutil.which("node") is None:
        pytest.skip("neither TEST_NODE_MODULES nor NODE_PATH has @platformatic/kafka, or no node")
    source, target = f"{topic}-in", f"{topic}-out"
    admin = AdminClient({"bootstrap.servers": broker.address})
    created = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)])
    for future in created.values():
        future.result(TIMEOUT_SECONDS)

    def run_function(name, **options):
        options |= {"address": broker.address, "source": source, "target": target}
        done = subprocess.run(
            ["node", SCRIPT, name, json.dumps(options | {"partitions": PARTITIONS})],
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_function


def test_a_group_consumes_and_resumes_at_its_commits(run):
    first, second = run("group", count=50, more=5)

    assert first == sorted(f"v{n}" for n in range(50))
    assert second == sorted(f"again{n}" for n in range(5))


def test_two_members_share_the_partitions(run):
    result = run("members", count=20)

    assert sorted(result["assigned"]) == [[0], [1]]
    assert result["received"] == sorted(f"v{n}" for n in range(20))


def test_transactions_commit_abort_and_carry_offsets(run):
    result = run("transactions", count=3)

    assert result["copied"] == ["0-0", "0-1", "2-0", "2-1"]
    # Three records, and the markers between them.
    assert result["offsets"] == [5, 5]
