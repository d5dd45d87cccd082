"""Commands while one broker of three is down: what the others have is served."""

import json
import time

import pytest

from harness.command import Command
from harness.daemon import Cluster

pytestmark = pytest.mark.real_time


def test_commands_serve_the_partitions_of_the_live_brokers(tmp_path):
    with Cluster(tmp_path / "data", 3) as cluster:
        run = Command(cluster[0].address, str(tmp_path))
        run("topic", "create", "t", "--partitions", "3")
        for partition in "012":
            run("produce", "t", "-p", partition, "-q", stdin=f"in {partition}\n")
        described = run.json("topic", "describe", "t")[0]["partitions"]
        # Not the broker that the command connects to.
        (lost,) = [one["partition"] for one in described if one["leader"] == 2]
        left = sorted({0, 1, 2} - {lost})
        run("consume", "t", "--group", "g", "--exit-at-end")
        # The group must be readable: its coordinator must live.
        if run.json("group", "describe", "g")[0]["coordinator"] == 2:
            for name in ("h", "i", "j", "k"):
                run("group", "clone", "g", name)
        group = next(one["group"] for one in run.json("group", "list") if one["coordinator"] != 2)
        cluster[2].kill()

        # At once, while the others still think it is alive.
        done = run.run("consume", "t", "--timeout", "1")
        assert sorted(done.stdout.splitlines()) == [f"in {partition}" for partition in left]
        warnings = [line for line in done.stderr.splitlines() if "is not available" in line]
        assert len(warnings) == 1, done.stderr
        assert warnings[0].startswith(f"warning: partition {lost} of t is not available: ")
        assert done.stderr.splitlines()[-1].startswith("error: 1 of 3 partitions not available")
        assert done.exit_code == 9

        done = run.run("group", "describe", group, "--timeout", "1")
        rows = [line.split() for line in done.stdout.splitlines()]
        (row,) = [row for row in rows if row[:2] == ["t", str(lost)]]
        assert row[2:5] == ["1", "-", "-"]
        assert f"warning: partition {lost} of t is not available: " in done.stderr
        assert "error: 1 of 3 partitions not available" in done.stderr
        assert done.exit_code == 9

        done = run.run("perf", "consume", "t", "--timeout", "1", "--json")
        assert json.loads(done.stdout)["records"] == 2
        assert f"warning: partition {lost} of t is not available: " in done.stderr
        assert done.exit_code == 9

        deadline = time.monotonic() + 60
        while [one["state"] for one in run.json("cluster", "describe")["brokers"]] != [
            *("up", "up", "down")
        ]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        down = run.json("cluster", "describe")["brokers"][2]
        assert f"{down['host']}:{down['port']}" == cluster[2].address

        done = run.run("topic", "offsets", "t", "--timeout", "1")
        assert done.exit_code == 9
        assert f"warning: partition {lost} of t is not available: no leader" in done.stderr
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        assert [row[3] for row in rows] == [
            "-" if partition == lost else "1" for partition in range(3)
        ]
        assert run.run("topic", "describe", "t").exit_code == 0
        assert run.run("group", "list").exit_code == 0
