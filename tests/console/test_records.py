"""Records through the REST API: browsing, filters, tails, export and import."""

import http.client
import json
import re
import threading
import time
import urllib.request
from urllib.parse import urlencode

import pytest

from ottla.client import ProducerRecord

HOSTILE = b"<script>alert(1)</script>\x1b[31m\x00\xff\xfe"


def browse(console, topic, **options):
    return console.api("GET", f"/topics/{topic}/records?{urlencode(options)}")


def values(page):
    return [one["value"]["data"] for one in page["items"]]


def test_pages_cover_every_record_once(console, broker, topic):
    broker.produce(topic, *(f"v{number}" for number in range(25)), partition=0)
    broker.produce(topic, *(f"w{number}" for number in range(5)), partition=1)

    found, cursor, pages = [], None, 0
    while cursor is not None or not pages:
        more = {"cursor": cursor} if cursor else {}
        page = browse(console, topic, start="start", limit=7, **more)
        found += values(page)
        cursor, pages = page["cursor"], pages + 1

    assert sorted(found) == sorted([f"v{n}" for n in range(25)] + [f"w{n}" for n in range(5)])
    assert pages == 5
    assert page["stop"] == "end"


def test_older_records_follow_the_newest(console, broker, topic):
    now = int(time.time() * 1000)
    for number in range(12):
        # The times of the first partition are not in order.
        for name, partition, timestamp in (("a", 0, now - number), ("b", 1, now + number)):
            value = f"{name}{number}".encode()
            broker.produce(topic, ProducerRecord(value, partition=partition, timestamp=timestamp))

    for options in ({"limit": 5}, {"limit": 5, "filter": "1"}):
        found, cursor, pages = [], None, 0
        while cursor is not None or not pages:
            page = browse(console, topic, **options, **({"cursor": cursor} if cursor else {}))
            found = values(page) + found
            cursor, pages = page["cursor"], pages + 1
        # Each once, in the order of its partition.
        assert len(found) == len(set(found))
        for name in "ab":
            wanted = [f"{name}{n}" for n in range(12) if "filter" not in options or "1" in str(n)]
            assert [one for one in found if one.startswith(name)] == wanted
    assert values(browse(console, topic, limit=3)) == ["b9", "b10", "b11"]


def test_where_a_query_starts(console, broker, topic):
    for number in range(10):
        broker.produce(topic, f"v{number}", partition=0)
    middle = browse(console, topic, start="5", partition=0, limit=1)["items"][0]

    assert values(browse(console, topic, start="newest", limit=3)) == ["v7", "v8", "v9"]
    assert values(browse(console, topic, start="8", partition=0)) == ["v8", "v9"]
    assert values(browse(console, topic, start="start", limit=2, partition=0)) == ["v0", "v1"]
    by_time = values(browse(console, topic, start=f"@{middle['timestamp']}", partition=0))
    assert "v5" in by_time
    assert values(browse(console, topic, start=middle["time"], partition=0)) == by_time
    console.api("GET", f"/topics/{topic}/records?start=noon", status=422)
    console.api("GET", f"/topics/{topic}/records?partition=9", status=404)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter": "TEA"}, [0, 1]),
        ({"filter": "tea", "filter_field": "key"}, [1]),
        ({"filter": "\u00e4RGER"}, [5]),
        ({"filter": "x-trace", "filter_field": "headers"}, [2]),
        ({"filter": "^te.$", "filter_kind": "regex"}, [0, 1]),
        ({"filter": "$.user.age > 30", "filter_kind": "json"}, [4]),
        ({"filter": '$.tags[0] == "b"', "filter_kind": "json"}, [3]),
        ({"filter": "$.user.name ~ nn", "filter_kind": "json"}, [3, 4]),
        ({"filter": "$.user", "filter_kind": "json"}, [3, 4]),
    ],
)
def test_filters(console, broker, options, expected):
    topic = "filtered"
    if topic not in broker.topics():
        broker.create_topic(topic)
        broker.produce(topic, "tea")
        broker.produce(topic, "milk", key="tea")
        broker.produce(topic, "cake", headers={"x-trace": b"7"})
        broker.produce(topic, '{"user": {"name": "ann", "age": 5}, "tags": ["b"]}')
        broker.produce(topic, '{"user": {"name": "Hannah", "age": 31}, "tags": []}')
        broker.produce(topic, "\u00c4rger")

    page = browse(console, topic, start="start", **options)

    assert [one["offset"] for one in page["items"]] == expected
    assert [one["offset"] for one in browse(console, topic, **options)["items"]] == expected


def test_an_invalid_filter_is_explained(console, topic):
    for options in (
        {"filter": "(", "filter_kind": "regex"},
        {"filter": "user.name", "filter_kind": "json"},
        {"filter": "$.a[x]", "filter_kind": "json"},
    ):
        answer = console.request("GET", f"/api/v1/topics/{topic}/records?{urlencode(options)}")
        assert answer.status == 422
        assert "Invalid" in answer.json["detail"]


def slowest_while_searching(console, topic, pattern):
    """Return the answer, and the longest time that another request took meanwhile."""
    answers = []

    def search():
        options = urlencode({"filter": pattern, "filter_kind": "regex"})
        answers.append(console.request("GET", f"/api/v1/topics/{topic}/records?{options}"))

    thread = threading.Thread(target=search)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        assert console.request("GET", "/health").status == 200
        slowest = max(slowest, time.monotonic() - began)
    thread.join()
    return answers[0], slowest


def test_an_exponential_regex_ends_and_holds_up_nobody(console, broker, topic):
    broker.produce(topic, "a" * 40 + "!", partition=0)

    answer, slowest = slowest_while_searching(console, topic, "(a+)+$")

    assert answer.status == 422
    assert "takes too long" in answer.json["detail"]
    assert slowest < 1.5


def test_a_regex_that_is_slow_to_compile_holds_up_nobody(console, topic):
    pattern = "(?i)" + "[\u0100-\U0010ffff]" * 198
    began = time.monotonic()
    re.compile(pattern)
    took = time.monotonic() - began

    answer, slowest = slowest_while_searching(console, topic, pattern)

    assert answer.status == 200
    assert slowest < took / 2


def test_a_hostile_record_is_data(console, broker, topic):
    broker.produce(topic, HOSTILE, key=b"\xff", headers={"<b>": b"\x1b]0;x\x07"}, partition=0)
    broker.produce(topic, "é" * 500_000, partition=1)

    small, large = sorted(browse(console, topic)["items"], key=lambda one: one["partition"])

    assert small["value"]["encoding"] == small["key"]["encoding"] == "base64"
    assert small["headers"][0]["name"] == "<b>"
    assert large["value"]["is_truncated"]
    assert large["value"]["size"] == 1_000_000
    assert len(large["value"]["data"]) == 32 * 1024


def test_what_is_exported_can_be_imported(console, broker, topic):
    broker.produce(topic, HOSTILE, key="k", headers={"h": b"\xff"}, partition=1)
    broker.produce(topic, "x" * 100_000, partition=0)
    other = broker.create_topic(partitions=2)

    exported = console.request("GET", f"/api/v1/topics/{topic}/records/export?start=start")
    records = [json.loads(line) for line in exported.text.splitlines()]
    console.api("POST", f"/topics/{other}/records", {"records": records}, status=201)

    again = console.request("GET", f"/api/v1/topics/{other}/records/export?start=start").text
    assert sorted(again.splitlines()) == sorted(exported.text.splitlines())
    assert "attachment" in exported.headers["content-disposition"]
    csv = console.request("GET", f"/api/v1/topics/{topic}/records/export?start=start&format=csv")
    assert csv.text.splitlines()[0] == "partition,offset,time,key,value,headers"
    assert "base64:" in csv.text


def test_a_tail_has_what_is_written_after_it_is_ready(console, broker, topic):
    broker.produce(topic, "before", partition=0)
    url = f"{console.address}/api/v1/topics/{topic}/records/tail"
    with urllib.request.urlopen(url, timeout=20) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert next(events(stream)) == ("ready", {})
        broker.produce(topic, "after", partition=0)
        name, record = next(events(stream))

    assert (name, record["value"]["data"]) == ("record", "after")


def events(stream):
    """Yield the events of a stream, without comments."""
    name = None
    for line in stream:
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def test_a_stream_that_cannot_begin_says_why(console, topic):
    for options, status in (("partition=9", 404), ("filter=(&filter_kind=regex", 422)):
        for stream in ("export", "export?format=csv"):
            path = f"/topics/{topic}/records/{stream}{'&' if '?' in stream else '?'}{options}"
            assert console.api("GET", path, status=status)["status"] == status


def test_what_cannot_be_produced(console, topic):
    path = f"/topics/{topic}/records"
    for record in (
        {"value": {"encoding": "base64", "data": "%"}},
        {"value": "v", "surprise": 1},
    ):
        console.api("POST", path, {"records": [record]}, status=422)
    nowhere = {"records": [{"value": "v", "partition": 99}]}
    console.api("POST", path, nowhere, status=404)
    console.api("POST", path, {"records": []}, status=422)
    console.api("POST", "/topics/missing/records", {"records": [{"value": "v"}]}, status=404)
    # The answer comes before the body is sent.
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
    connection.putrequest("POST", f"/api/v1{path}")
    connection.putheader("Content-Length", str(17 * 1024 * 1024))
    connection.endheaders()
    with connection.getresponse() as response:
        assert response.status == 413
    connection.close()
