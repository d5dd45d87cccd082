"""A full disk: one line when it fills and one when it recovers, metrics, and what clients see."""

import sys
from contextlib import suppress
from subprocess import PIPE, Popen
from urllib.request import urlopen

import pytest

from harness.daemon import free_port
from harness.mounts import private_mounts
from harness.waiting import wait_until
from ottla.cli.errors import failure_of
from ottla.client import ClientConfig, DeadlineError, TimeoutConfig
from ottla.client.blocking import Producer
from ottla.testing import RunningBroker

FULL = "log directory is full: producers get errors until there is space"
RECOVERED = "log directory has space again"


@pytest.fixture
def mount(tmp_path):
    with private_mounts(tmp_path) as mounts:
        mounts.mount_tmpfs("16m")
        yield mounts.path


def lines_of(caplog, *messages):
    return [(line.levelname, line.message) for line in caplog.records if line.message in messages]


def samples_of(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def fill(path):
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(64 * 1024))


def test_a_full_disk_is_logged_once_measured_and_shown_to_clients(mount, caplog):
    caplog.set_level("INFO")
    port = free_port()
    metrics = f"127.0.0.1:{port}"
    with RunningBroker(log_dir=str(mount / "data"), metrics_listener=metrics) as broker:
        broker.produce("t", "before")
        filler = mount / "filler"
        fill(filler)
        value = "x" * 100_000
        short = ClientConfig(timeouts=TimeoutConfig(operation=0.5))

        with (
            Producer(broker.bootstrap, client=short) as producer,
            pytest.raises(DeadlineError, match="Disk error: No space left on device") as failed,
        ):
            producer.send("t", value.encode())

        failure = failure_of(failed.value)
        assert failure.exit_code == 4
        assert "free space on the broker's disk" in failure.message
        assert "--timeout" not in failure.message
        warnings = [line.message for line in caplog.records if line.levelname == "WARNING"]
        (shown,) = [text for text in warnings if text.startswith("Broker error, retrying: ")]
        assert "t-0: Disk error: No space left on device" in shown
        samples = samples_of(port)
        assert float(samples['ottla_storage_errors_total{reason="ENOSPC"}']) > 1
        (free,) = [value for name, value in samples.items() if "log_dir_free_bytes" in name]
        assert float(free) < 1024 * 1024
        assert lines_of(caplog, FULL, RECOVERED) == [("ERROR", FULL)]

        # `ottla produce` shows the reason at once, and goes on when there is space.
        command = [sys.executable, "-m", "ottla", "produce", "t", "-b", broker.bootstrap]
        with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
            process.stdin.write(value)
            process.stdin.close()
            line = process.stderr.readline()
            assert "retrying" in line, line
            assert "No space left on device" in line
            filler.unlink()
            assert process.stdout.read() == "0\t1\n"
        wait_until(lambda: lines_of(caplog, RECOVERED), RECOVERED)

        assert lines_of(caplog, FULL, RECOVERED) == [("ERROR", FULL), ("INFO", RECOVERED)]
        broker.assert_values("t", "before", value)
        assert not list((mount / "data").glob("*.tmp"))
