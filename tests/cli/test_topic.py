"""ottla topic …"""

import json
import os
import re
import subprocess
import sys


def offsets(run, topic):
    return [(row["start"], row["end"]) for row in run.json("topic", "offsets", topic)]


def test_topic_create_list_and_delete(run, name):
    text = run("topic", "create", name, "-p", "3", "-c", "retention.ms=1000")
    assert text == f"{name}: created with 3 partitions\n"

    (listed,) = run.json("topic", "list", f"^{name}$")
    assert (listed["topic"], listed["partitions"], listed["is_internal"]) == (name, 3, False)
    assert name in run("topic", "list", "--quiet").splitlines()
    assert "__consumer_offsets" not in run("topic", "list", "--quiet")
    assert re.search(rf"^{name} +3 +1 +0$", run("topic", "list"), re.MULTILINE)

    assert run("topic", "delete", name, "--yes") == f"{name}: deleted\n"
    assert run.json("topic", "list", name) == []


def test_internal_topics_are_listed_on_request(run, topic, name):
    run("consume", topic, "--group", name, "--exit-at-end")

    (listed,) = run.json("topic", "list", "^__consumer_offsets$", "--internal")
    assert listed["is_internal"] is True


def test_a_replication_factor_above_one_is_clamped_on_loopback(run, name):
    (made,) = run.json("topic", "create", name, "--replication-factor", "3")

    assert made["replication_factor"] == 1


def test_existing_and_missing_topics(run, topic, name):
    missing = f"{topic}-missing"

    assert "already exists; use another name" in run.fails(6, "topic", "create", topic)
    assert run("topic", "create", topic, "--if-not-exists") == f"{topic}: already exists\n"
    assert "ottla topic list" in run.fails(5, "topic", "describe", missing)
    assert "ottla topic list" in run.fails(5, "topic", "delete", missing, "--yes")
    assert run.json("topic", "delete", missing, topic, "--if-exists", "--yes") == [
        {"topic": missing, "outcome": "missing", "error": None},
        {"topic": topic, "outcome": "deleted", "error": None},
    ]


def test_several_topics_are_created_and_deleted_one_by_one(run, topic):
    other, missing = f"{topic}-b", f"{topic}-missing"

    done = run.run("topic", "create", topic, other)
    assert (done.exit_code, done.stdout) == (9, f"{other}: created with 1 partition\n")
    assert done.stderr.startswith(f"error: {topic}: Topic '{topic}' already exists")

    done = run.run("topic", "describe", missing, other)
    assert (done.exit_code, done.stdout.startswith(f"topic  {other}\n")) == (9, True)

    done = run.run("topic", "delete", other, missing, "--yes", "--json")
    assert done.exit_code == 9
    deleted, failed = json.loads(done.stdout)
    assert deleted == {"topic": other, "outcome": "deleted", "error": None}
    assert (failed["topic"], "does not exist" in failed["error"]) == (missing, True)
    assert run.json("topic", "list", other) == []

    done = run.run("topic", "delete", other, missing, "--yes")
    assert (done.exit_code, done.stdout) == (5, "")
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [other, missing]


def test_a_dry_run_creates_nothing(run, name):
    assert run.json("topic", "create", name, "--dry-run")[0]["dry_run"] is True
    assert run.json("topic", "list", name) == []
    assert "in/valid" in run.fails(7, "topic", "create", "in/valid", "--dry-run")


def test_topic_describe_shows_partitions_offsets_and_configs(run, topic):
    run("topic", "alter", topic, "--set", "retention.ms=1000")
    run("produce", topic, "--partition", "1", "--quiet", stdin="a\nb\n")

    (found,) = run.json("topic", "describe", topic)
    assert found["configs"] == {"retention.ms": "1000"}
    assert [(one["leader"], one["start"], one["end"]) for one in found["partitions"]] == [
        (0, 0, 0),
        (0, 0, 2),
    ]
    text = run("topic", "describe", topic)
    assert text.startswith(f"topic  {topic}\n")
    assert re.search(r"^ +1 +0 +0 +0 +0 +- +0 +2 +2$", text, re.MULTILINE), text
    assert "retention.ms  1000   dynamic topic config" in text
    assert "segment.bytes" in run("topic", "describe", topic, "--all")


def test_topic_alter_sets_and_unsets_configs(run, topic):
    run("topic", "alter", topic, "--set", "retention.ms=1000", "--set", "cleanup.policy=compact")
    run("topic", "alter", topic, "--append", "cleanup.policy=delete", "--unset", "retention.ms")
    assert run.json("topic", "describe", topic)[0]["configs"] == {
        "cleanup.policy": "compact,delete"
    }

    run("topic", "alter", topic, "--subtract", "cleanup.policy=compact")
    done = run.json("topic", "alter", topic, "--set", "retention.ms=1", "--dry-run")
    assert done == [{"topic": topic, "dry_run": True}]
    assert run.json("topic", "describe", topic)[0]["configs"] == {"cleanup.policy": "delete"}

    assert "ottla config describe" in run.fails(7, "topic", "alter", topic, "--set", "nonsense=1")
    assert "nothing to change" in run.fails(2, "topic", "alter", topic)
    assert "expected KEY=VALUE" in run.fails(2, "topic", "alter", topic, "--set", "retention.ms")
    assert "is given twice" in run.fails(2, "topic", "alter", topic, "--set", "a=1", "--set", "a=2")


def test_add_partitions(run, topic):
    assert run("topic", "add-partitions", topic, "--more", "1") == f"{topic}: has 3 partitions\n"
    (done,) = run.json("topic", "add-partitions", topic, "--total", "5")
    assert done["partitions"] == 5

    run.fails(7, "topic", "add-partitions", topic, "--total", "2")
    assert "either --total or --more" in run.fails(2, "topic", "add-partitions", topic)


def test_offsets_by_position_and_time(run, topic):
    rows = '{"value": "a", "timestamp": 1000}\n{"value": "b", "timestamp": 2000}\n'
    run("produce", topic, "--rows", "--partition", "0", "--quiet", stdin=rows)

    def at(position):
        return [row["offset"] for row in run.json("topic", "offsets", topic, "--at", position)]

    assert offsets(run, topic) == [(0, 2), (0, 0)]
    assert at("start") == [0, 0]
    assert at("-1") == [1, 0]
    assert at("7") == [2, 0]
    assert at("@1500") == [1, None]
    assert at("1970-01-01T00:00:02Z") == [1, None]
    assert at("1d") == [None, None]
    assert re.search(r"^t-\S+ +0 +0 +2 +2$", run("topic", "offsets", topic), re.MULTILINE)
    assert "invalid position" in run.fails(2, "topic", "offsets", topic, "--at", "noon")


def test_delete_records(run, topic):
    run("produce", topic, "-p", "0", "--quiet", stdin="a\nb\nc\n")

    said = run.fails(2, "topic", "delete-records", topic, "--before", "2")
    assert said == f"error: This would delete 2 offsets of {topic}; confirm with --yes\n"
    run("topic", "delete-records", topic, "--before", "1", "--dry-run")
    assert offsets(run, topic) == [(0, 3), (0, 0)]

    found = run.json("topic", "delete-records", topic, "--before", "2", "-p", "0", "--yes")
    assert found == [{"partition": 0, "start_before": 0, "start": 2}]
    run("topic", "delete-records", topic, "--before", "end", "--yes")
    assert offsets(run, topic) == [(3, 3), (0, 0)]
    run.fails(2, "topic", "delete-records", topic, "--before", "end", "--partition", "2")


def test_topic_clone_copies_records(run, topic):
    run("topic", "alter", topic, "--set", "retention.ms=99999999999")
    run("produce", topic, "-K", ":", "-H", "a=b", "--quiet", stdin="x:1\ny:2\nz:3\n")
    layout = ("--format", r"%p %o %k %s %h %T\n")

    assert run("topic", "clone", topic, f"{topic}-a").endswith("2 partitions, 0 records\n")
    done = run.json("topic", "clone", topic, f"{topic}-b", "--records")

    assert done["records"] == 3
    assert done["configs"] == {"retention.ms": "99999999999"}
    assert sorted(run("consume", f"{topic}-b", *layout).splitlines()) == sorted(
        run("consume", topic, *layout).splitlines()
    )
    run.fails(6, "topic", "clone", topic, f"{topic}-a")
    run.fails(5, "topic", "clone", f"{topic}-missing", f"{topic}-c")


def test_an_invalid_pattern_is_a_usage_error(run):
    assert "invalid regular expression" in run.fails(2, "topic", "list", "(")


def test_topic_describe_shows_log_dirs(run, topic):
    run("produce", topic, "-p", "1", "-q", stdin="abc\n")

    first, second = run.json("topic", "describe", topic, "--log-dirs")[0]["log_dirs"]
    assert (first["partition"], first["broker"], second["partition"]) == (0, 0, 1)
    assert second["size_bytes"] > first["size_bytes"] >= 0
    assert second["log_dir"] in run("topic", "describe", topic, "--log-dirs")
    assert "log_dirs" not in run.json("topic", "describe", topic)[0]


def test_topic_list_imports_only_what_it_needs(run, topic):
    # It is typed all day: about 0.13 s, of which click and asyncio are half.
    script = (
        "import sys\n"
        "from ottla.__main__ import ottla\n"
        "ottla(sys.argv[1:], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    environ = {**os.environ, "OTTLA_BOOTSTRAP": run.address}

    done = subprocess.run(
        [sys.executable, "-c", script, "topic", "list", "-q", topic],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )

    listed, imported = done.stdout.splitlines()
    modules = set(imported.split())
    assert listed == topic
    assert not modules & {"csv", "email", "importlib.metadata", "rich", "tempfile", "tomllib"}
    ours = {module.removeprefix("ottla.") for module in modules if module.startswith("ottla.")}
    assert {module for module in ours if module.startswith("protocol.api.")} == {
        *("protocol.api.api_versions", "protocol.api.metadata", "protocol.api.find_coordinator"),
        *("protocol.api.create_topics", "protocol.api.create_partitions"),
        "protocol.api.delete_topics",
    }
    assert {module for module in ours if module.startswith(("client.", "broker", "storage"))} == {
        *("client.admin", "client.admin.requests", "client.admin.topics"),
        *("client.blocking", "client.blocking.client", "client.blocking.loop_thread"),
        *("client.blocking.topics_admin", "client.cluster", "client.config", "client.connection"),
        *("client.errors", "client.transports", "client.types"),
    }
