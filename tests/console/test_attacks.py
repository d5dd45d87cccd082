"""What somebody who can reach the console, or write records, cannot do."""

import http.client
import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from harness.console import Console
from ottla.console import regex_worker
from ottla.console.rendering import show

pytestmark = pytest.mark.real_time

TOKEN = "a-token-of-tests-0123"
LIMITS = {"head_seconds": 1, "request_seconds": 2, "queries": 1, "tails": 1, "session_seconds": 2}


@pytest.fixture(scope="module")
def hurried(broker):
    """A console whose time limits are short."""
    with Console(broker.bootstrap, "--token", TOKEN, limits=LIMITS) as started:
        yield started


def connected(stack, console, text):
    """Open a connection and send the beginning of a request."""
    connection = stack.enter_context(socket.socket())
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", console.port))
    connection.sendall(text.format(port=console.port, token=TOKEN).encode())
    return connection


def authorized(console, method, path, body=None):
    return console.request(method, path, body, authorization=f"Bearer {TOKEN}")


def test_connections_without_a_request_are_closed(hurried):
    with ExitStack() as stack:
        head = "GET /health HTTP/1.1\r\nHost: localhost\r\n"
        silent = [
            connected(stack, hurried, text) for text in ("", "GET /hea", head, f"{head}\r\n{head}")
        ]
        for one in silent:
            while one.recv(4096):
                pass


def test_a_body_that_does_not_come_is_not_waited_for(hurried):
    with ExitStack() as stack:
        head = (
            "POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        )
        answer = connected(stack, hurried, head).recv(4096)
    assert answer.startswith(b"HTTP/1.1 504"), answer


@pytest.mark.parametrize("stream", ["tail", "export"])
def test_a_client_that_does_not_read_holds_nothing_for_long(hurried, broker, topic, stream):
    broker.produce(topic, *(["x" * 500_000] * 16))
    path = f"/api/v1/topics/{topic}/records/{stream}?start=start&format=jsonl"
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {{token}}\r\n\r\n"
    with ExitStack() as stack:
        assert connected(stack, hurried, head).recv(15) == b"HTTP/1.1 200 OK"
        assert status_of_stream(hurried, path) == 429
        if stream == "tail":
            # More than the buffers of the kernel.
            broker.produce(topic, *(["x" * 64_000] * 160))
        deadline = time.monotonic() + 20
        while status_of_stream(hurried, path) != 200:
            assert time.monotonic() < deadline, "the stream did not end"
            time.sleep(0.2)


def status_of_stream(console, path):
    """Return the status only: the streams have no end."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=20)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    status = connection.getresponse().status
    connection.close()
    return status


def submit_login(console, token, target="/", cookie=""):
    """Log in as a browser does."""
    return console.request(
        "POST",
        "/login",
        urlencode({"token": token, "next": target}).encode(),
        content_type="application/x-www-form-urlencoded",
        origin=console.address,
        cookie=cookie,
    )


def log_in(console, token, cookie=""):
    """Log in; return the status and the session cookie."""
    answer = submit_login(console, token, cookie=cookie)
    return answer.status, (answer.headers["set-cookie"] or "").partition(";")[0]


def test_sessions_are_new_and_end(hurried):
    def status(cookie):
        return hurried.request("GET", "/docs", cookie=cookie).status

    name = f"ottla_session_{hurried.port}"
    _, first = log_in(hurried, TOKEN, f"{name}=chosen")
    assert (status(f"{name}=chosen"), status(first)) == (303, 200)
    _, second = log_in(hurried, TOKEN, first)
    assert second != first
    assert (status(first), status(second)) == (303, 200)
    # Other programs on this host have cookies, too.
    assert status(f'other={{"a": "b"}}; a b; {second}; [c]=d') == 200
    time.sleep(LIMITS["session_seconds"] + 0.2)
    assert status(second) == 303


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/topics?search=a&page=2", "/topics?search=a&page=2"),
        ("//evil.example", "/"),
        ("///evil.example", "/"),
        ("////evil.example/a", "/"),
        ("/\\evil.example", "/"),
        ("\\\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("/a\r\nX-Injected: 1", "/"),
        ("https:evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_a_page_of_the_console(hurried, target, location):
    headers = submit_login(hurried, TOKEN, target).headers
    assert headers["location"] == location
    assert "x-injected" not in headers
    assert re.search("HttpOnly; Path=/; SameSite=strict$", headers["set-cookie"])


def test_guesses_of_a_token_are_slow(hurried):
    statuses = []

    def guess(number):
        wrong = f"a-wrong-token-{number:04}"
        if number % 2:
            statuses.append(log_in(hurried, wrong)[0])
        else:
            answer = hurried.request("GET", "/docs", authorization=f"Bearer {wrong}")
            statuses.append(answer.status)

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(30)]
    for one in threads:
        one.start()
    # Who knows the token need not wait.
    assert authorized(hurried, "GET", "/docs").status == 200
    for one in threads:
        one.join()
    assert set(statuses) == {401, 429}
    # 8 at a time, for half a second each.
    assert statuses.count(401) < 30


def test_files_outside_of_the_static_ones_are_not_served(console):
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%00",
        "//etc/passwd",
        "/../../../../etc/passwd",
    ):
        answer = console.request("GET", path)
        assert answer.status in (400, 404), path
        assert "import" not in answer.text
        assert "root:" not in answer.text


NESTED = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/topics/%00", None),
        ("GET", "/groups/%0a%0dX-Injected:%201", None),
        ("GET", "/groups/%ff%fe", None),
        ("GET", "/groups/" + "g" * 5000, None),
        ("GET", "/topics?search=%ff&page=99999999999999999999", None),
        ("GET", "/topics?page=%C2%B2&sort=nothing", None),
        ("GET", "/api/v1/topics?offset=" + "9" * 5000, None),
        ("GET", "/brokers/99999999999999999999999", None),
        ("POST", "/api/v1/topics", NESTED),
        ("POST", "/api/v1/topics", '{"name": "a", "partitions": ' + "9" * 5000 + "}"),
        ("POST", "/api/v1/topics", '{"name": "\\ud800"}'),
        ("POST", "/api/v1/groups/g/offsets", '{"to": "shift", "value": "' + "9" * 100 + '"}'),
        ("PUT", "/api/v1/quotas", '{"entity": {"user": "\\ud800"}, "set": {"a": 1e999}}'),
        ("PUT", "/api/v1/users/%F0%9F%92%A9", '{"password": "\\u0000\\ud83d"}'),
        ("PUT", "/api/v1/users/u", '{"password": "\\udfff"}'),
        ("POST", "/api/v1/acls", '{"principal": "\\udfff"}'),
    ],
)
def test_malformed_requests_are_no_internal_errors(console, method, path, body):
    answer = console.request(method, path, body and body.encode())
    assert answer.status != 500, answer.text
    assert "x-injected" not in answer.headers


def test_surrogates_in_records_and_filters(console, topic):
    path = f"/api/v1/topics/{topic}/records"
    for record in ('{"value": "\\udfff"}', '{"value": "", "headers": [{"name": "\\udfff"}]}'):
        answer = console.request("POST", path, f'{{"records": [{record}]}}'.encode())
        assert answer.status == 422, answer.text
    for condition in (
        "%24.a%20%3D%3D%20" + "%5B" * 900,
        "%24" + "%5B0%5D" * 300,
        "%24.a~%ED%BF%BF",
    ):
        query = f"?filter_kind=json&filter={condition}"
        assert console.request("GET", path + query).status in (200, 422)


def test_a_length_that_is_none(console):
    for length in ("9" * 5000, "-1", "1e9", "²"):
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
        connection.putrequest("POST", "/api/v1/topics")
        connection.putheader("Content-Length", length.encode())
        connection.endheaders()
        with connection.getresponse() as response:
            assert response.status in (400, 413), length
        connection.close()


@pytest.mark.parametrize(
    ("path", "max_bytes"),
    [("/login", 16 * 1024), ("/api/v1/acls", 2**20), ("/api/v1/topics/t/records", 2**24)],
)
def test_bodies_are_bounded(console, path, max_bytes):
    """A gigabyte is not read, whether its length is announced or not."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str(2**30))
    connection.endheaders()
    with connection.getresponse() as response:
        assert response.status == 413
    connection.close()

    chunk = b"10000\r\n" + b"[" * 2**16 + b"\r\n"
    sent = 0
    with ExitStack() as stack:
        head = "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection = connected(stack, console, head.replace("{path}", path))
        with suppress(ConnectionError):
            while not select.select([connection], [], [], 0)[0]:
                connection.sendall(chunk)
                sent += 2**16
                assert sent < 2**30
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
    # The rest was in buffers of the kernel.
    assert sent < max_bytes + 16 * 2**20


def test_nested_json_is_not_indented_into_megabytes():
    shown = show(b"[" * 900 + b"]" * 900, 4096)
    assert shown.kind == "text"
    assert len(shown.text) == 1800
    assert show(b'{"a": [1, {"b": null}]}', 4096).kind == "json"


def test_a_page_shows_a_part_of_large_records(console, broker, topic):
    nested = b"[" * 900 + b"]" * 900
    headers = [(f"h{number}", b"v") for number in range(1500)]
    for _ in range(10):
        broker.produce(topic, nested, *(["x" * 100_000] * 2), headers=headers)
    answer = console.request("GET", f"/topics/{topic}/records?limit=500")
    assert answer.status == 200
    assert "1480 more headers" in answer.text.replace("\u2009", "")
    assert len(answer.text) < 6_000_000


def test_an_exported_cell_is_no_formula(console, broker, topic):
    cells = ['=HYPERLINK("http://evil.example")', "+1+1", "-2.5", "@SUM(A1)", "\ttab", "tea"]
    cells += ["\uff1d1+1", "\n=1+1"]
    broker.produce(topic, *cells, partition=0)
    text = console.request(
        "GET", f"/api/v1/topics/{topic}/records/export?start=start&format=csv"
    ).text
    for cell in ("'+1+1", "-2.5", "'@SUM(A1)", "'\ttab", "tea", "'\uff1d1+1", '"\'\n=1+1"'):
        assert f",{cell}," in text
    assert "'=HYPERLINK" in text


def test_a_search_ends_without_the_console():
    """The kernel ends it, even if the console was killed meanwhile."""
    texts = [[["a" * 40 + "!"]]]
    done = subprocess.run(
        [sys.executable, "-I", "-S", regex_worker.__file__, "1"],
        input="".join(json.dumps(one) + "\n" for one in ("(a+)+$", *texts)),
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == -signal.SIGALRM


def test_secrets_are_not_logged(broker, tmp_path):
    log = tmp_path / "log"
    with Console(broker.bootstrap, "--token", TOKEN, log=log) as console:
        assert authorized(console, "GET", "/docs").status == 200
        log_in(console, "another-wrong-secret")
        log_in(console, TOKEN)
        user = {"password": "the secret of a user"}
        assert authorized(console, "PUT", "/api/v1/users/logged", user).status == 204
        authorized(console, "PUT", "/api/v1/users/logged", {"password": user, "token": TOKEN})
        authorized(console, "DELETE", "/api/v1/users/logged")
    text = Path(log).read_text()
    assert not re.search(f"{TOKEN}|secret", text), text
