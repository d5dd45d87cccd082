"""Who may send which request."""

import asyncio
import base64
import http.client

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
        bodies = 0
        for one in operations(openapi()):
            if one.method == "GET" or one.path.endswith("/offsets"):
                continue
            path = one.path.replace("{topic}", topic).replace("{broker}", "0")
            bodies += bool(one.body)
            answer = console.request(one.method, path, one.body.encode() or None)
            assert answer.status in (403, 422), (one.path, answer.text)
            if one.body or one.method == "DELETE":
                assert "read-only" in answer.text or not one.body, one.path
        reset = {"to": "end", "topics": [topic]}
        assert bodies > 5
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
