"""ottla group …"""

import json

import pytest

from ottla.client import GroupConfig
from ottla.client.blocking import Consumer


@pytest.fixture
def group(run, topic, name):
    """A group that has read two of three records in partition 0, and nothing in partition 1."""
    run("produce", topic, "-p", "0", "-q", stdin="a\nb\nc\n")
    run("consume", topic, "--group", f"g-{name}", "--max-count", "2")
    return f"g-{name}"


def committed(run, group):
    (found,) = run.json("group", "describe", group)
    return {row["partition"]: row["offset"] for row in found["partitions"]}


def test_group_list_shows_state_and_coordinator(run, group):
    (listed,) = [row for row in run.json("group", "list") if row["group"] == group]
    assert (listed["state"], listed["coordinator"]) == ("Empty", 0)

    assert group in run("group", "list")
    assert group in run("group", "list", "--quiet").splitlines()
    assert group in run("group", "list", "-q", "--state", "empty").splitlines()
    assert group not in run("group", "list", "-q", "--state", "Stable").splitlines()


def test_group_describe_shows_the_lag(run, group, topic):
    (found,) = run.json("group", "describe", group)

    assert (found["state"], found["lag"], found["members"]) == ("Empty", 1, [])
    (row,) = [row for row in found["partitions"] if row["partition"] == 0]
    assert (row["topic"], row["offset"], row["end"], row["lag"]) == (topic, 2, 3, 1)
    text = run("group", "describe", group)
    assert "lag          1\n" in text
    assert f"{topic}          0       2    3    1  -       -" in text
    assert "ottla group list" in run.fails(5, "group", "describe", f"{group}-missing")


def test_a_group_with_members_is_described_and_cannot_be_reset_or_deleted(run, group, topic):
    quick = GroupConfig(heartbeat_interval=0.1)
    with Consumer(run.address, topic, group=group, group_config=quick) as one:
        one.getone()
        with Consumer(run.address, topic, group=group, group_config=quick) as two:
            while len(one.assignment) != 1 or len(two.assignment) != 1:
                one.getone(0.02)
                two.getone(0.02)
            (found,) = run.json("group", "describe", group)
            said = run.fails(7, "group", "reset", group, "--to", "start", "--yes")
            assert "show its members: ottla group describe" in said
            run.fails(7, "group", "delete", group, "--yes")
            text = run("group", "describe", group)

    assert (found["state"], found["assignor"]) == ("Stable", "range")
    members = {member["member_id"]: member for member in found["members"]}
    assert {row["member_id"] for row in found["partitions"]} == set(members)
    for member in members.values():
        assert (member["host"], member["topics"]) == ("127.0.0.1", [topic])
        assert member["member_id"] in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "start"], {0: 0, 1: 0}),
        (["--to", "end"], {0: 3, 1: 0}),
        (["--to", "1"], {0: 1, 1: 0}),
        (["--to", "-1"], {0: 2, 1: 0}),
        (["--to", "@0"], {0: 0, 1: 0}),
        (["--from", "start"], {0: 0, 1: 0}),
        (["--from", "@-1h"], {0: 0, 1: 0}),
        (["--by", "-1"], {0: 1, 1: 0}),
        (["--by", "99"], {0: 3, 1: 0}),
    ],
)
def test_group_reset_commits_the_requested_offsets(run, group, topic, options, expected):
    run("group", "reset", group, "--to", "2", "--topic", topic, "--yes")

    before = committed(run, group)
    run("group", "reset", group, *options, "--dry-run")
    assert committed(run, group) == before
    run("group", "reset", group, *options, "--yes")

    assert committed(run, group) == expected


def test_group_reset_of_selected_partitions(run, group, topic):
    rows = run.json("group", "reset", group, "--to", "start", "-t", f"{topic}:0", "--yes")

    assert rows == [{"topic": topic, "partition": 0, "offset_before": 2, "offset": 0}]


def test_group_reset_reads_offsets_from_a_file(run, group, topic, tmp_path):
    file = tmp_path / "offsets"
    rows = run("group", "reset", group, "--to", "1", "-t", f"{topic}:0", "--dry-run", "--json")
    file.write_text(rows)
    run("group", "reset", group, "--file", str(file), "--yes")
    assert committed(run, group)[0] == 1

    run("group", "reset", group, "--file", "-", "--yes", stdin=f"{topic},0,3\n\n")
    assert committed(run, group)[0] == 3

    for text in ("nonsense", f"{topic},0", f"{topic},x,1", '[{"topic": "t"}]', "[7]"):
        file.write_text(text)
        said = run.fails(2, "group", "reset", group, "--file", str(file), "--yes")
        assert "expected TOPIC,PARTITION,OFFSET lines or a JSON array" in said


def test_group_reset_like_another_group_and_group_clone(run, group, topic):
    copy, other = f"{group}-copy", f"{group}-other"

    assert run.json("group", "clone", group, copy)[0]["offset"] == 2
    assert "with --overwrite" in run.fails(6, "group", "clone", group, copy)
    run("group", "clone", group, copy, "--overwrite")
    run("group", "reset", other, "--like", group, "--yes")

    assert committed(run, copy) == committed(run, other) == committed(run, group)
    run.fails(5, "group", "clone", f"{group}-missing", copy)


def test_group_reset_rejects_incomplete_options(run, group):
    assert "give exactly one of" in run.fails(2, "group", "reset", group)
    assert "give exactly one of" in run.fails(
        2, "group", "reset", group, "--to", "start", "--by", "1"
    )
    assert "--topic" in run.fails(5, "group", "reset", f"{group}-new", "--to", "start", "--yes")
    assert "confirm with --yes" in run.fails(2, "group", "reset", group, "--to", "start")
    said = run.fails(5, "group", "reset", group, "--like", f"{group}-missing", "--yes")
    assert "No partition selected" in said
    assert "expected TOPIC or TOPIC:0,1" in run.fails(
        2, "group", "reset", group, "--to", "1", "-t", "t:x"
    )


def test_group_delete_offsets_and_group_delete(run, group, topic):
    done = run.json("group", "delete-offsets", group, f"{topic}:0", "--yes")
    assert done == [{"topic": topic, "partition": 0}]
    run.fails(5, "group", "delete-offsets", group, f"{topic}:0", "--yes")

    run("group", "reset", group, "--to", "start", "--topic", topic, "--yes")
    done = run.run("group", "delete", f"{group}-missing", group, "--yes")
    assert (done.exit_code, done.stdout) == (9, f"{group}: deleted\n")
    assert done.stderr.startswith(f"error: {group}-missing: Unknown group")
    assert group not in json.dumps(run.json("group", "list"))
