"""Who may send which request."""

import asyncio
import base64
import http.client
import re
from urllib.parse import urlencode

import pytest

from harness.console import Console
from harness.secure_broker import SecureBroker
from harness.secure_kafka import PASSWORD, USER
from ottla.console.app import openapi
from ottla.console.config import ConsoleConfig
from ottla.console.reference import operations
from ottla.console.sessions import Sessions

TOKEN = "a-token-of-tests-0123"


def test_responses_forbid_scripts_frames_and_caches(console):
    headers = console.request("GET", "/api/v1/cluster").headers

    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_only_known_host_names_are_answered(console):
    for host in ("evil.example", f"evil.example:{console.port}", "127.0.0.1.evil.example", ""):
        assert console.request("GET", "/api/v1/cluster", host=host).status == 421
    for host in ("localhost", f"LOCALHOST:{console.port}", "127.0.0.1:80", "[::1]:8080"):
        assert console.request("GET", "/api/v1/cluster", host=host).status == 200


def test_two_host_headers_are_rejected(console):
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
    connection.putrequest("GET", "/health", skip_host=True)
    for host in ("localhost", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    with connection.getresponse() as response:
        assert response.status in (400, 421)
    connection.close()


def test_requests_of_other_sites_are_rejected(console, broker):
    topic = {"name": "cross-site"}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[evil"},
        {"origin": f"http://localhost:{console.port}"},  # not the name that was asked for
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "same-site"},
        {"origin": console.address},  # of our page, but without its token
        {"origin": console.address, "x_csrf_token": "guess"},
        {"cookie": "a=b"},
        {"referer": console.address},
    ):
        assert console.request("POST", "/api/v1/topics", topic, **headers).status == 403, headers

    assert "cross-site" not in broker.topics()
    assert console.request("GET", "/api/v1/topics", origin="http://evil.example").status == 403


def test_a_read_only_console_changes_nothing(broker, topic):
    with Console(broker.bootstrap, "--read-only") as console:
        changes = [one for one in operations(openapi()) if one.method != "GET"]
        assert len(changes) > 15
        for one in changes:
            if (one.method, one.path) == ("POST", "/api/v1/groups/{group}/offsets"):
                continue  # a dry run changes nothing
            path = one.path.replace("{topic}", topic).replace("{broker}", "0")
            answer = console.request(one.method, path, one.body.encode() or None)
            assert answer.status == 403, (one.method, one.path, answer.text)
            assert "read-only" in answer.text
        reset = {"to": "end", "topics": [topic]}
        console.api("POST", "/groups/g/offsets", reset)
        console.api("POST", "/groups/g/offsets", {**reset, "dry_run": False}, status=403)
        console.api("GET", "/groups/g", status=404)


def test_a_token_is_required(broker):
    with Console(broker.bootstrap, "--token", TOKEN) as console:
        answer = console.request("GET", "/api/v1/cluster")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        wrong = console.request("GET", "/api/v1/cluster", authorization="Bearer nearly")
        assert wrong.status == 401
        right = console.request("GET", "/api/v1/cluster", authorization=f"Bearer {TOKEN}")
        assert right.status == 200
        made = console.request(
            "POST", "/api/v1/topics", {"name": "by-token"}, authorization=f"Bearer {TOKEN}"
        )
        assert made.status == 201
        assert console.request("GET", "/health").status == 200
        assert console.request("GET", "/ready").status == 200
        redirect = console.request("GET", "/topics?search=a")
        assert (redirect.status, redirect.headers["location"]) == (
            303,
            "/login?next=/topics%3Fsearch%3Da",
        )


async def count_sessions(bootstrap, requests):
    """Return how many sessions concurrent requests with the same credentials open."""
    sessions = Sessions(ConsoleConfig(bootstrap=bootstrap, login_mechanism="SCRAM-SHA-256"))
    logins = (sessions.of_credentials(USER, PASSWORD) for _ in range(requests))
    opened = await asyncio.gather(*logins)
    await sessions.close()
    return len(set(map(id, opened)))


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_users_log_in_with_their_credentials_of_the_cluster(tmp_path):
    with SecureBroker(tmp_path / "broker") as broker:
        address = broker.addresses["SASL_PLAINTEXT"]
        with Console(address, "--login", "SCRAM-SHA-256") as console:
            assert console.request("GET", "/ready").status == 200
            assert console.request("GET", "/api/v1/cluster").status == 401
            for user, password in ((USER, "wrong"), ("nobody", PASSWORD), ("", ""), (USER, "\0")):
                denied = console.request(
                    "GET", "/api/v1/cluster", authorization=basic(user, password)
                )
                assert denied.status == 401
                assert "www-authenticate" not in denied.headers  # no prompt of the browser
            for _ in range(2):
                answer = console.request(
                    "GET", "/api/v1/cluster", authorization=basic(USER, PASSWORD)
                )
                assert answer.json["brokers_alive"] == 1
            malformed = console.request("GET", "/api/v1/cluster", authorization="Basic %%%")
            assert malformed.status == 401
        assert asyncio.run(count_sessions(address, 4)) == 1


def test_users_have_their_own_rights_only(tmp_path):
    rights = {"authorizer.class.name": "acl", "super.users": f"User:{USER}"}
    with (
        SecureBroker(tmp_path / "broker", rights) as broker,
        Console(broker.addresses["SASL_PLAINTEXT"], "--login", "PLAIN") as console,
    ):
        alice = {"authorization": basic(USER, PASSWORD)}
        bob = {"authorization": basic("bob", "bob-secret")}

        def status(method, path, body=None, **headers):
            return console.request(method, path, body, **headers).status

        assert status("POST", "/api/v1/topics", {"name": "secret"}, **alice) == 201
        records = "/api/v1/topics/secret/records"
        record = {"records": [{"value": "of alice"}]}
        assert status("POST", records, record, **alice) == 201
        # What alice has just read is not kept for bob, whether he comes by the API or a page.
        for path in (
            *("/api/v1/topics?search=secret", "/api/v1/live/topics?topic=secret", "/topics"),
            *("/topics/secret", "/topics/secret/records", "/topics/secret/configs"),
            *(
                records,
                f"{records}/export",
                "/api/v1/topics/secret",
                "/",
                "/acls",
                "/brokers/0",
            ),
        ):
            assert console.request("GET", path, **alice).status == 200, path
            answer = console.request("GET", path, **bob)
            if answer.status == 200:
                assert "secret" not in answer.text.replace("search=secret", ""), path
            else:
                assert answer.status in (403, 404), (path, answer.text)
        live = "/api/v1/live/end-offsets?topic=secret"
        written = [console.request("GET", live, **one).json["points"] for one in (alice, bob)]
        assert [points[-1][1] for points in written] == [1, 0]
        for method, path, body in (
            ("POST", records, record),
            ("DELETE", records, {"before": {"0": None}}),
            ("DELETE", "/api/v1/topics/secret", None),
            ("POST", "/api/v1/topics", {"name": "of-bob"}),
            ("PATCH", "/api/v1/topics/secret/configs", {"set": {"retention.ms": "1000"}}),
            ("PUT", "/api/v1/users/bob", {"password": "more rights"}),
        ):
            assert status(method, path, body, **bob) in (403, 404), (method, path)

        # Credentials come before a cookie, and the token of a page belongs to its session.
        cookie = log_in(console, USER, PASSWORD)
        assert status("GET", "/api/v1/topics/secret", cookie=cookie) == 200
        assert status("GET", "/api/v1/topics/secret", cookie=cookie, **bob) in (403, 404)
        other = page_token(console, log_in(console, "bob", "bob-secret"))
        for token, expected in ((other, 403), (page_token(console, cookie), 204)):
            headers = {"cookie": cookie, "x_csrf_token": token, "origin": console.address}
            assert status("DELETE", "/api/v1/topics/secret", **headers) == expected


def log_in(console, user, password):
    """Log in with the form; return the session cookie."""
    answer = console.request(
        "POST",
        "/login",
        urlencode({"username": user, "password": password}).encode(),
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.status == 303, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


def page_token(console, cookie):
    page = console.request("GET", "/docs", cookie=cookie).text
    return re.search('<meta name="csrf-token" content="([^"]+)">', page)[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"host": "0.0.0.0"}, "listens on loopback only"),
        ({"host": "console.example.org"}, "listens on loopback only"),
        ({"token": "short"}, "too short"),
        ({"token": TOKEN, "login_mechanism": "PLAIN"}, "mutually exclusive"),
        ({"login_mechanism": "GSSAPI"}, "Invalid login mechanism"),
    ],
)
def test_an_unprotected_console_is_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        ConsoleConfig(bootstrap="localhost:9092", **options)


def test_a_console_without_brokers_says_so(tmp_path):
    with Console("127.0.0.1:1", "--timeout", "1") as console:
        assert console.request("GET", "/health").status == 200
        assert console.request("GET", "/ready").status == 503
        answer = console.request("GET", "/api/v1/topics")
        assert answer.status in (503, 504)
        assert "127.0.0.1:1" in answer.json["detail"]
