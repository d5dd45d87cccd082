"""ottla produce and ottla consume."""

import base64
import json
import threading
import time

import pytest

from ottla.client.blocking import Producer

LAYOUT = ("--format", r"%p:%k=%s\n")


def lines(text):
    return sorted(text.splitlines())


def test_lines_are_produced_and_consumed(run, topic):
    printed = run("produce", topic, "--partition", "1", stdin="one\ntwo\nthree")

    assert printed == "1\t0\n1\t1\n1\t2\n"
    assert run("consume", topic) == "one\ntwo\nthree\n"


def test_keys_headers_and_tombstones_are_produced(run, topic):
    run("produce", topic, "-K", "=>", "-Z", "-H", "a=1", "-H", "b", stdin="k=>v\nk=>\n")

    first, second = run.rows("consume", topic)
    assert (first["key"], first["value"], second["value"]) == ("k", "v", None)
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": None}]
    assert first["partition"] == second["partition"]
    assert run("consume", topic, "-K", "=") == "k=v\nk=\n"

    run("produce", topic, "--key", "fixed", "--quiet", stdin="x\n")
    assert run.rows("consume", topic, "--key", "fixed")[0]["value"] == "x"

    said = run.fails(1, "produce", topic, "-K", ":", stdin="no separator\n")
    assert said == (
        "error: stdin: line 1: no separator ':' between key and value"
        " (0 records sent, 1 failed, the rest of the input was not sent)\n"
    )


def test_offsets_are_printed_in_the_order_of_the_records(run, topic):
    text = "".join(f"{number % 7}:{number}\n" for number in range(500))

    acknowledged = run.rows("produce", topic, "-K", ":", stdin=text)

    found = {(row["partition"], row["offset"]): row["value"] for row in run.rows("consume", topic)}
    assert [found[row["partition"], row["offset"]] for row in acknowledged] == [
        str(number) for number in range(500)
    ]


def test_json_rows_round_trip(run, topic):
    rows = [
        {"key": "k", "value": "text", "headers": {"a": "b"}, "partition": 1, "timestamp": 1234},
        {"value_base64": base64.b64encode(b"\xff\x00").decode(), "partition": 1},
        {"key": {"id": 7}, "value": [1, "ä"], "partition": 1},
        {"value": None, "headers": [{"name": "n", "value": "1"}, {"name": "n", "value": "2"}]},
    ]

    run("produce", topic, "--rows", stdin="\n".join(map(json.dumps, rows)))

    found = run.rows("consume", topic, "--partition", "1")
    assert [row.get("value") for row in found[:3]] == ["text", None, '[1,"ä"]']
    assert (found[0]["timestamp"], found[0]["headers"]) == (1234, [{"name": "a", "value": "b"}])
    assert base64.b64decode(found[1]["value_base64"]) == b"\xff\x00"
    assert found[2]["key"] == '{"id":7}'
    (tombstone,) = [row for row in run.rows("consume", topic) if row.get("value", "") is None]
    assert tombstone["headers"] == [{"name": "n", "value": "1"}, {"name": "n", "value": "2"}]

    copy = f"{topic}-copy"
    run("produce", copy, "--create", "--rows", "--partition", "0", "-q", stdin="")
    printed = run("consume", topic, "--json", "--partition", "1")
    rows = "".join(
        json.dumps({**json.loads(line), "partition": 0}) + "\n" for line in printed.splitlines()
    )
    run("produce", copy, "--rows", "--quiet", stdin=rows)
    assert [row["timestamp"] for row in run.rows("consume", copy)] == [
        row["timestamp"] for row in found
    ]


@pytest.mark.parametrize(
    ("row", "message_part"),
    [
        ("7", "expected a JSON object"),
        ("{", "invalid JSON at column 2: Expecting property name"),
        ('{"key": "k"}', "value is missing; use null for a tombstone"),
        ('{"value": 1, "vlaue": 2}', "unknown keys vlaue; allowed: headers, key"),
        ('{"value_base64": "?"}', "value_base64: "),
        ('{"value": 1, "partition": "0"}', "invalid partition '0': expected a number"),
        ('{"value": 1, "headers": 7}', "invalid headers: expected an object"),
    ],
)
def test_an_invalid_row_is_reported_with_its_number(run, topic, row, message_part):
    said = run.fails(9, "produce", topic, "--rows", "-q", stdin='{"value": "good"}\n' + row)

    assert "error: stdin: line 2: " in said
    assert "(1 record sent, 1 failed, " in said
    assert message_part in said


def test_everything_before_an_invalid_line_is_sent(run, topic, tmp_path):
    # More than is read at once, so that the invalid line is in the middle of a later chunk.
    good = "".join(f"key:{number:06}\n" for number in range(60_000))
    file = tmp_path / "records"
    file.write_text(f"{good}bad\nkey:after\nkey:last\n")

    done = run.run("produce", topic, "-K", ":", "-q", str(file))

    assert done.exit_code == 9
    assert done.stderr == (
        f"error: {file}: line 60,001: no separator ':' between key and value"
        " (60,000 records sent, 1 failed, 2 not sent)\n"
    )
    assert sum(row["end"] for row in run.json("topic", "offsets", topic)) == 60_000


def test_invalid_and_rejected_records_are_skipped_on_request(run, name):
    run("topic", "create", name, "-c", "max.message.bytes=1000")
    text = f"k:1\nbad\nk:{'x' * 5000}\nk:2\n"

    done = run.run(
        "produce", name, "-K", ":", "-q", "--rate", "50", "--on-error", "skip", stdin=text
    )

    assert done.exit_code == 9
    assert run("consume", name) == "1\n2\n"
    first, second, last = done.stderr.splitlines()
    assert first == "warning: skipped: stdin: line 2: no separator ':' between key and value"
    assert second.startswith("warning: skipped: stdin: line 3: ")
    assert last.endswith("(2 records sent, 2 failed)")
    assert "0 records sent, 1 failed" in run.fails(
        1, "produce", name, "-K", ":", "--on-error", "skip", stdin="bad"
    )


def test_records_before_an_unreadable_file_are_sent(run, topic, tmp_path):
    file = tmp_path / "records"
    file.write_text("a\nb\n")

    done = run.run("produce", topic, "-q", str(file), str(tmp_path / "missing"))

    assert done.exit_code == 9
    assert "missing: No such file or directory (2 records sent, 0 failed, the rest" in done.stderr
    assert lines(run("consume", topic)) == ["a", "b"]


def test_files_are_sent_as_lines_or_as_whole_records(run, topic, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c;d")

    run("produce", topic, "--whole-files", "-p", "0", str(one), str(two))
    run("produce", topic, "-p", "1", str(one), str(one))
    run("produce", topic, "-p", "1", "--delimiter", ";", str(two))

    assert [row["value"] for row in run.rows("consume", topic, "-p", "0")] == ["a\nb\n", "c;d"]
    assert run("consume", topic, "-p", "1") == "a\nb\na\nb\nc\nd\n"
    assert run.fails(1, "produce", topic, str(tmp_path / "missing")).endswith(
        "missing: No such file or directory (0 records sent, 0 failed, the rest of the input was"
        " not sent)\n"
    )
    assert "--whole-files requires at least one FILE" in run.fails(
        2, "produce", topic, "--whole-files"
    )


def test_repeat_and_rate_options(run, topic):
    started = time.monotonic()
    run("produce", topic, "--repeat", "3", "--rate", "50", "--quiet", stdin="a\nb\nc\nd\n")

    assert time.monotonic() - started > 11 / 50
    assert lines(run("consume", topic)) == sorted("abcd" * 3)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_codec(run, topic, codec):
    run("produce", topic, "--compression", codec, "-p", "0", "--acks", "1", stdin="x\n" * 100)

    assert run("consume", topic) == "x\n" * 100


def test_a_mistyped_topic_is_not_created(run, name):
    said = run.fails(5, "produce", name, stdin="x\n")

    assert said.endswith(f"create it: ottla topic create {name}, or use --create\n")
    run("produce", name, "--create", "--quiet", stdin="x\n")
    run("produce", name, "--create", "--quiet", stdin="y\n")
    assert run("consume", name) == "x\ny\n"


def test_a_rejected_record_is_reported_with_the_number_sent(run, name):
    run("topic", "create", name, "-c", "max.message.bytes=1000")

    done = run.run("produce", name, "-q", stdin="small\n" + "x" * 5000 + "\n")

    assert done.exit_code == 9
    assert "(1 record sent, 1 failed" in done.stderr
    assert "max.message.bytes" in done.stderr
    assert "has partitions" in run.fails(2, "consume", name, "-p", "3")
    run.fails(5, "produce", name, "--partition", "3", "--quiet", stdin="x\n")


@pytest.fixture
def numbers(run, topic):
    """A topic with the records 0 to 9, one per second since the epoch, even ones in partition 0."""
    rows = [{"value": str(n), "partition": n % 2, "timestamp": n * 1000} for n in range(10)]
    run("produce", topic, "--rows", "-q", stdin="\n".join(map(json.dumps, rows)))
    return topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--from 3", "6789"),
        ("-o beginning", "0123456789"),
        ("-o -1", "89"),
        ("-o @3000 --to @7000", "3456"),
        ("--from -1", "89"),
        ("--from end", ""),
        ("--until 2", "0123"),
        ("--from 1 --until 3", "2345"),
        ("--from @3000 --until @7000", "3456"),
        ("--from 1970-01-01T00:00:08Z", "89"),
        ("-o @1970-01-01T00:00:08Z", "89"),
        ("-o @-1h", ""),
        ("-o end", ""),
        ("--until 1d", "0123456789"),
        ("--partition 1 --from 2", "579"),
        ("--value [3-5]", "345"),
        ("--header missing", ""),
        ("--last 3", "789"),
        ("--last 100 --max-count 4", "0123"),
    ],
)
def test_consume_between_positions(run, numbers, options, expected):
    assert sorted(run("consume", numbers, *options.split()).split()) == list(expected)


def test_last_prints_records_in_timestamp_order(run, numbers):
    assert run("consume", numbers, "--last", "5").split() == list("56789")


def test_max_count_limits_the_records(run, numbers):
    assert len(run("consume", numbers, "-n", "3").split()) == 3
    assert len(run("consume", numbers, "-n", "2", "--value", "[5-9]").split()) == 2


def test_filters_on_keys_values_and_headers(run, topic):
    rows = [
        {"key": "apple", "value": 1, "headers": {"h": "x"}},
        {"key": "pear", "value": 2, "headers": {"h": "y", "i": None}},
        {"value": 3},
    ]
    run("produce", topic, "--rows", "-q", stdin="\n".join(map(json.dumps, rows)))

    assert run("consume", topic, "--key", "^app") == "1\n"
    assert lines(run("consume", topic, "--header", "h")) == ["1", "2"]
    assert run("consume", topic, "--header", "h=y", "--header", "i") == "2\n"
    assert run("consume", topic, "--key", "p", "--value", "2") == "2\n"
    assert "invalid regular expression" in run.fails(2, "consume", topic, "--key", "(")


def test_format_string(run, topic):
    run("produce", topic, "--rows", "-q", stdin='{"value": null, "timestamp": 0, "partition": 1}')
    run("produce", topic, "-H", "a=b", "-p", "0", "-k", "key", "-q", stdin="value\n")

    layout = r"%t|%p|%o|%k|%s|%K|%S|%h|100%%\x21\n"
    found = lines(run("consume", topic, "--format", layout))
    assert found == [f"{topic}|0|0|key|value|3|5|a=b|100%!", f"{topic}|1|0|||-1|-1||100%!"]
    assert run("consume", topic, "-p", "1", "--format", "%T %d").startswith("0 19")
    assert "unknown field %x" in run.fails(2, "consume", topic, "--format", "%x")
    run.fails(2, "consume", topic, "--format", "%s", "--json")


def test_follow_prints_new_records(run, topic):
    run("produce", topic, "-p", "0", "-q", stdin="before\n")

    def later():
        # Not with the command: CliRunner replaces the streams of the whole process.
        time.sleep(0.3)
        with Producer(run.address) as producer:
            producer.send(topic, b"after", partition=0)

    thread = threading.Thread(target=later)
    thread.start()
    printed = run("consume", topic, "--follow", "--max-count", "2")
    thread.join()

    assert printed == "before\nafter\n"


def test_a_group_resumes_at_its_committed_offsets(run, topic, name):
    group = f"group-{name}"
    run("produce", topic, "-p", "0", "-q", stdin="a\nb\nc\n")

    assert run("consume", topic, "--group", group, "-n", "2").split() == ["a", "b"]
    assert run("consume", topic, "--group", group, "--exit-at-end").split() == ["c"]
    assert run("consume", topic, "--group", group, "--exit-at-end") == ""
    assert run("consume", topic, "--group", f"{group}-2", "--from", "end", "-e") == ""

    assert "ottla group reset" in run.fails(2, "consume", topic, "-g", group, "--from", "3")
    for option in (["--until", "3"], ["--last", "3"], ["-p", "0"]):
        assert "cannot be combined with --group" in run.fails(
            2, "consume", topic, "-g", group, *option
        )


def test_topics_are_selected_by_a_regular_expression(run, topic):
    run("topic", "create", f"{topic}-b")
    run("produce", topic, "-q", stdin="a\n")
    run("produce", f"{topic}-b", "-q", stdin="b\n")

    assert lines(run("consume", f"{topic}.*", "--regex")) == ["a", "b"]
    assert run("consume", f"{topic}-.", "--regex") == "b\n"
    assert lines(run("consume", f"{topic}.*", "--regex", "-g", topic, "-e")) == ["a", "b"]
    assert "No topic matches" in run.fails(5, "consume", f"{topic}-missing", "--regex")
    assert "invalid regular expression" in run.fails(2, "consume", "(", "--regex")


def test_contradictory_options_are_rejected(run, topic):
    assert "--last cannot be" in run.fails(2, "consume", topic, "--last", "3", "--from", "3")
    assert "mutually exclusive" in run.fails(2, "consume", topic, "--until", "3", "--follow")
    assert "cannot be combined with --key" in run.fails(2, "produce", topic, "--rows", "--key", "k")
    assert "ottla topic list" in run.fails(5, "consume", f"{topic}-missing")
    assert "ottla topic list" in run.fails(5, "consume", f"{topic}-missing", "--group", "g")
