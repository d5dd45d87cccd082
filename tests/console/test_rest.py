"""Every endpoint of the REST API, against a broker."""

import json
import re
import shlex
import subprocess
import time
import urllib.request

import pytest

from harness.snippets import ROOT
from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Producer
from ottla.console.app import openapi
from ottla.console.reference import markdown, operations


class Recorded:
    """A console that notes which endpoints were used."""

    def __init__(self, console):
        self._console = console
        self.used = set()
        self._patterns = {
            (one.method, one.path): re.compile(re.sub(r"\\{\w+\\}", "[^?]+", re.escape(one.path)))
            for one in operations(openapi())
        }

    @property
    def unused(self):
        return self._patterns.keys() - self.used

    def __call__(self, method, path, body=None, *, status=200):
        name = path.partition("?")[0]
        found = [
            key
            for key, one in self._patterns.items()
            if key[0] == method and one.fullmatch(f"/api/v1{name}")
        ]
        self.used.add(min(found, key=lambda key: key[1].count("{") * 1000 - len(key[1])))
        return self._console.api(method, path, body, status=status)


def test_every_endpoint_works(console, broker):
    api = Recorded(console)

    # Topics.
    assert api("POST", "/topics", {"name": "rest", "validate_only": True}, status=201)
    api("GET", "/topics/rest", status=404)
    api("POST", "/topics", {"name": "rest", "partitions": 1}, status=201)
    assert api("POST", "/topics", {"name": "rest"}, status=409)["code"] == "TOPIC_ALREADY_EXISTS"
    api("POST", "/topics/rest/partitions", {"total": 2})
    assert len(api("GET", "/topics/rest/partitions")["items"]) == 2
    configs = api("PATCH", "/topics/rest/configs", {"set": {"retention.ms": "60000"}})
    assert configs[0]["name"] in ("durability", "retention.ms")
    api("PATCH", "/topics/rest/configs", {"set": {"retention.ms": "soon"}}, status=422)
    values = {one["name"]: one["value"] for one in api("GET", "/topics/rest/configs")}
    assert values["retention.ms"] == "60000"

    # Records.
    records = [{"key": "a", "value": f"v{number}", "partition": 1} for number in range(4)]
    written = api("POST", "/topics/rest/records", {"records": records}, status=201)
    assert [one["offset"] for one in written] == [0, 1, 2, 3]
    assert len(api("GET", "/topics/rest/records")["items"]) == 4
    assert api("DELETE", "/topics/rest/records", {"before": {"1": 2}}) == {"1": 2}
    listed = api("GET", "/topics?search=REST&sort=records&order=descending")["items"]
    assert [(one["name"], one["records"]) for one in listed] == [("rest", 2)]
    assert api("GET", "/topics/rest")["partition_details"][1]["first_offset"] == 2
    points = api("GET", "/live/end-offsets?topic=rest")["points"]
    assert points[-1][1] == 4
    assert api("GET", f"/live/end-offsets?topic=rest&since={points[-1][0]}")["points"] == []
    assert api("GET", "/live/size")["points"]
    (activity,) = api("GET", "/live/topics?topic=rest&topic=missing")
    assert (activity["name"], activity["records"]) == ("rest", 2)

    # Groups.
    reset = {"to": "start", "topics": ["rest"]}
    planned = api("POST", "/groups/a%2Fb/offsets", reset)
    assert planned["dry_run"]
    api("GET", "/groups/a%2Fb", status=404)
    api("POST", "/groups/a%2Fb/offsets", {**reset, "dry_run": False})
    assert api("GET", "/groups/a%2Fb")["state"] == "Empty"
    assert api("GET", "/groups/a%2Fb/offsets")["lag"] == 2
    assert api("GET", "/groups?search=A/&state=empty")["total"] == 1
    assert api("GET", "/topics/rest/consumers")[0] == {
        "group_id": "a/b",
        "state": "Empty",
        "type": "classic",
        "lag": 2,
        "partitions": 2,
    }
    assert api("GET", "/live/lag?group=a/b")["points"][-1][1] == 2
    (activity,) = api("GET", "/live/groups?group=a/b")
    assert (activity["members"], activity["lag"]) == (0, 2)
    shifted = {"to": "shift", "value": "1", "dry_run": False}
    after = [one["after"] for one in api("POST", "/groups/a%2Fb/offsets", shifted)["items"]]
    assert after == [0, 3]
    gone = {"partitions": [{"topic": "rest", "partition": 0}]}
    api("DELETE", "/groups/a%2Fb/offsets", gone, status=204)
    assert len(api("GET", "/groups/a%2Fb/offsets")["items"]) == 1
    api("DELETE", "/groups/a%2Fb", status=204)

    # Brokers.
    assert api("GET", "/cluster")["brokers_alive"] == 1
    assert api("GET", "/brokers")["items"][0]["size_bytes"] > 0
    assert api("GET", "/brokers/0")["is_controller"]
    api("GET", "/brokers/7", status=404)
    assert any(one["name"] == "num.partitions" for one in api("GET", "/brokers/0/configs"))
    changed = api("PATCH", "/brokers/0/configs", {"set": {"log.retention.ms": "7200000"}})
    assert any(one["value"] == "7200000" for one in changed)

    # Transactions.
    with_transaction(broker, "txn-1", "rest")
    assert api("GET", "/transactions?search=txn")["items"][0]["state"] == "Ongoing"
    assert api("GET", "/transactions/txn-1")["partitions"][0]["topic"] == "rest"
    api("DELETE", "/transactions/txn-1", status=204)
    assert api("GET", "/transactions/txn-1")["state"] != "Ongoing"

    # ACLs, users, quotas.
    acl = {
        "resource_type": "TOPIC",
        "resource_name": "rest",
        "principal": "User:rest",
        "operation": "READ",
    }
    created = api("POST", "/acls", acl, status=201)
    assert api("GET", "/acls?search=User:rest")["items"] == [created]
    assert api("DELETE", "/acls", acl) == [created]
    api("PUT", "/users/ann", {"password": "secret"}, status=204)
    assert api("GET", "/users")["items"][0]["name"] == "ann"
    api("DELETE", "/users/ann", status=204)
    quota = {"entity": {"client_id": "<default>"}, "set": {"producer_byte_rate": 5e6}}
    api("PUT", "/quotas", quota, status=204)
    assert api("GET", "/quotas")["items"][0]["quotas"] == {"producer_byte_rate": 5e6}
    api("PUT", "/quotas", {**quota, "set": {}, "unset": ["producer_byte_rate"]}, status=204)

    # The rest.
    assert console.request("GET", "/health").json == {"status": "ok"}
    assert console.request("GET", "/ready").json == {"status": "ready"}
    api.used |= {("GET", "/health"), ("GET", "/ready")}
    api("DELETE", "/topics/rest", status=204)
    streams = {("GET", f"/api/v1/topics/{{topic}}/records/{one}") for one in ("tail", "export")}
    assert api.unused <= streams  # test_records.py


def with_transaction(broker, transactional_id, topic):
    """Leave a transaction open."""
    with Producer(broker.bootstrap, transactional_id=transactional_id) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.detach()


def test_share_groups(console, broker, topic):
    broker.produce(topic, *(f"v{number}" for number in range(5)), partition=0)
    tps = [TopicPartition(topic, partition) for partition in range(2)]
    with Admin(broker.bootstrap) as admin:
        admin.alter_share_group_offsets("resizing", dict.fromkeys(tps, 0))
    api = console.api

    # A list may be two seconds old.
    while not api("GET", "/groups?type=share&search=resizing")["items"]:
        time.sleep(0.1)
    assert api("GET", "/groups/resizing")["type"] == "share"
    offsets = api("GET", "/groups/resizing/offsets")
    assert (offsets["lag"], offsets["items"][0]["committed"]) == (5, 0)
    assert api("GET", "/live/lag?group=resizing")["points"][-1][1] == 5
    assert [one["type"] for one in api("GET", f"/topics/{topic}/consumers")] == ["share"]
    reset = {"to": "shift", "value": "3", "dry_run": False}
    items = api("POST", "/groups/resizing/offsets", reset)["items"]
    assert [(one["before"], one["after"]) for one in items] == [(0, 3), (0, 0)]
    assert api("GET", "/groups/resizing/offsets")["lag"] == 2
    gone = {"partitions": [{"topic": topic, "partition": 0}]}
    api("DELETE", "/groups/resizing/offsets", gone, status=204)
    assert api("GET", "/groups/resizing/offsets")["items"] == []
    api("DELETE", "/groups/resizing", status=204)
    api("GET", "/groups/resizing", status=404)


def test_errors_are_problem_details(console):
    for path, status in {
        "/api/v1/nothing": 404,
        "/api/v1/topics/a%20b": 422,
        "/api/v1/topics?limit=0": 422,
        "/api/v1/topics/missing/records": 404,
        "/api/v1/topics/missing/records/tail": 404,
    }.items():
        answer = console.request("GET", path)
        assert answer.status == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["status"] == status
        assert answer.json["detail"]
    assert console.request("POST", "/api/v1/topics", b"{").status == 422
    assert console.request("PUT", "/api/v1/topics", {}).status == 405


def test_a_page_of_a_list(console):
    names = [f"paged-{number}" for number in range(5)]
    for name in names:
        console.api("POST", "/topics", {"name": name}, status=201)

    page = console.api("GET", "/topics?search=paged-&offset=2&limit=2")

    assert [one["name"] for one in page["items"]] == names[2:4]
    assert (page["total"], page["offset"], page["limit"]) == (5, 2, 2)


def curl_commands(page):
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^curl .*$", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["console.md", "rest.md"])
def test_the_curl_examples_of_the_documentation(page, console, broker):
    """None fails for a reason of its own: what it speaks of may be missing."""
    commands = curl_commands(page)
    assert len(commands) > 3
    for command in commands:
        words = shlex.split(command.replace("http://localhost:8080", console.address))
        done = subprocess.run(
            [*words, "-s", "-o", "/dev/null", "-w", "%{http_code}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout in ("200", "201", "204", "404", "409"), f"{command}: {done.stdout}"


def test_the_reference_is_generated():
    """Also where docs/generate.py runs without the extra, which then leaves it alone."""
    assert markdown(openapi()) in (ROOT / "docs" / "rest.md").read_text()


def test_the_openapi_document_is_served(console):
    with urllib.request.urlopen(f"{console.address}/api/v1/openapi.json") as response:
        assert json.load(response) == openapi()


def test_no_file_loads_from_another_site():
    outside = re.compile(r"""(src|href|url|import|fetch)[=( ]+["']?(https?:)?//""")
    for path in (ROOT / "console").rglob("*.*"):
        if path.suffix in (".html", ".js", ".css"):
            assert not outside.search(path.read_text()), path
