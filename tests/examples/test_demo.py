"""`make demo`, for a few seconds and without Spark; the job has a test where there is one."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_time

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
PATIENCE_SECONDS = 60


@pytest.fixture
def start(tmp_path):
    """Start the demo, with a place of its own for temporary files."""
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
    """Give the processes that keep data in a folder."""
    commands = map(command_of, Path("/proc").glob("[0-9]*/cmdline"))
    return [command for command in commands if f"--data-dir\0{folder}" in command]


def command_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended meanwhile


def test_it_ends_by_itself_and_leaves_nothing_behind(start, tmp_path):
    # Who is kept from sending sends what was due meanwhile the next time, if there is time for one.
    demo = start("--seconds", "5", "--rate", "1000")

    out, err = demo.communicate(timeout=PATIENCE_SECONDS)

    assert (demo.returncode, err) == (0, ""), out + err
    sent = re.search(r"([\d,]+) orders were sent", out)[1]
    assert int(sent.replace(",", "")) > 1000
    assert f"{sent} were read by the group" in out
    assert not list(tmp_path.iterdir())
    assert not processes_in(tmp_path)


def test_ctrl_c_ends_it_and_leaves_nothing_behind(start, tmp_path):
    demo = start("--seconds", "60", "--rate", "100")
    while "/s" not in demo.stdout.readline():
        assert demo.poll() is None, demo.communicate()
    if Path("/proc").exists():
        assert len(processes_in(tmp_path)) == 1 + 3  # `ottla cluster up`, and its brokers

    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=PATIENCE_SECONDS)

    assert demo.returncode == 1
    assert not list(tmp_path.iterdir())
    assert not processes_in(tmp_path)
