"""The console beside brokers that one command starts."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import pytest
from click.testing import CliRunner

from harness.daemon import HOST, TIMEOUT_SECONDS, Daemon, free_port
from ottla.__main__ import ottla

pytestmark = pytest.mark.real_time


def status(port, path):
    with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}{path}") as response:
        return response.status
    return None


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_console_beside_a_broker_lives_as_long_as_it(tmp_path):
    port = free_port()
    with Daemon(tmp_path, "--console", str(port)) as broker:
        wait_until(lambda: status(port, "/ready") == 200)
        assert f"http://{HOST}:{port}" in broker.log.read_text()
        # Even a broker that cannot stop its console does not leave it behind.
        broker.kill()
        wait_until(lambda: status(port, "/health") is None)
        broker.start()
        wait_until(lambda: status(port, "/ready") == 200)
        assert broker.stop() == 0
        assert status(port, "/health") is None
        assert "Traceback" not in broker.log.read_text()


def test_a_console_beside_a_local_cluster(tmp_path):
    port, console = free_port(), free_port()
    words = ["--brokers", "1", "--port", str(port), "--console", str(console)]
    with subprocess.Popen(
        [sys.executable, "-m", "ottla", "cluster", "up", "--data-dir", str(tmp_path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: status(console, "/ready") == 200)
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=TIMEOUT_SECONDS)
    # Programs read the bootstrap servers from stdout.
    assert out == f"{HOST}:{port}\n"
    assert f"http://{HOST}:{console}" in log
    assert "Traceback" not in log
    assert status(console, "/health") is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "0", "--console"], "fixed port"),
        (["--console", "0"], "not in the range"),
    ],
)
def test_a_console_that_cannot_be_started(arguments, reason, tmp_path):
    command = ["broker", "start", "--data-dir", str(tmp_path), *arguments]
    result = CliRunner().invoke(ottla, command, env=os.environ)
    assert result.exit_code == 2
    assert reason in result.output


def test_a_console_whose_port_is_in_use(tmp_path):
    with socket.create_server((HOST, 0)) as other:
        port = str(other.getsockname()[1])
        command = ["broker", "start", "--data-dir", str(tmp_path), "--console", port]
        result = CliRunner().invoke(ottla, command)
    assert result.exit_code == 1
    assert "use another port" in result.output
