"""`make demo` for a few seconds, without Spark; tests/spark tests its job."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_time

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
TIMEOUT_SECONDS = 60


@pytest.fixture
def start(tmp_path):
    """Start the demo with its own temporary folder."""
    started = []

    def begin(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(DEMO), "--no-spark", *arguments],
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def processes_in(folder):
    """Return the command lines of processes with a data directory in a folder."""
    commands = map(command_of, Path("/proc").glob("[0-9]*/cmdline"))
    return [command for command in commands if f"--data-dir\0{folder}" in command]


def command_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""  # the process has ended


def test_the_demo_ends_and_leaves_no_files_or_processes(start, tmp_path):
    # A producer that was delayed catches up in its next turn, if there is one.
    demo = start("--seconds", "5", "--rate", "1000")

    out, err = demo.communicate(timeout=TIMEOUT_SECONDS)

    assert (demo.returncode, err) == (0, ""), out + err
    sent = re.search(r"([\d,]+) orders sent", out)[1]
    assert int(sent.replace(",", "")) > 1000
    assert f"{sent} read by the group" in out
    assert not list(tmp_path.iterdir())
    assert not processes_in(tmp_path)


def test_ctrl_c_ends_the_demo_and_leaves_no_files_or_processes(start, tmp_path):
    demo = start("--seconds", "60", "--rate", "100")
    while "/s" not in demo.stdout.readline():
        assert demo.poll() is None, demo.communicate()
    if Path("/proc").exists():
        assert len(processes_in(tmp_path)) == 1 + 3  # `ottla cluster up`, and its brokers

    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=TIMEOUT_SECONDS)

    assert demo.returncode == 1
    assert not list(tmp_path.iterdir())
    assert not processes_in(tmp_path)
