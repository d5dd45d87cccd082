"""The main commands as processes: pipes, signals, terminals, exit codes."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

pytestmark = pytest.mark.real_time

OTTLA = [sys.executable, "-m", "ottla"]
PATIENCE_SECONDS = 60


@pytest.fixture
def start(run, tmp_path):
    """Start a command that ends with the test."""
    started = []
    environ = {**os.environ, "OTTLA_BOOTSTRAP": run.address, "XDG_CONFIG_HOME": str(tmp_path)}
    environ |= {"TERM": "xterm", "COLUMNS": "100"}

    def begin(*arguments, **options):
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | options
        process = subprocess.Popen(
            [*OTTLA, *arguments],
            env=environ,
            stderr=options.pop("stderr", subprocess.PIPE),
            **options,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):  # unwritten output
                    stream.close()


def test_records_are_piped_through_produce_and_consume(start, topic):
    text = "".join(f"{number}\n" for number in range(20_000)).encode()

    produce = start("produce", topic, "--partition", "0", "--quiet")
    out, err = produce.communicate(text, PATIENCE_SECONDS)
    assert (produce.returncode, out, err) == (0, b"", b"")

    consume = start("consume", topic)
    out, err = consume.communicate(timeout=PATIENCE_SECONDS)
    assert (consume.returncode, out == text, b"error" in err) == (0, True, False)


def test_piped_records_are_sent_as_they_arrive(start, topic):
    produce = start("produce", topic, "--partition", "1")

    produce.stdin.write(b"first\n")
    produce.stdin.flush()
    assert produce.stdout.readline() == b"1\t0\n"
    produce.stdin.write(b"second\n")
    produce.stdin.flush()
    assert produce.stdout.readline() == b"1\t1\n"
    produce.stdin.close()

    assert produce.wait(PATIENCE_SECONDS) == 0


def test_ctrl_c_stops_produce_and_consume(start, run, topic):
    consume = start("consume", topic, "--follow")
    produce = start("produce", topic, "-q")
    produce.stdin.write(b"a\n")
    produce.stdin.flush()
    assert consume.stdout.readline() == b"a\n"

    for process in (consume, produce):
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert b"error" not in process.stderr.read()


def test_group_describe_watches_until_ctrl_c(start, run, topic):
    run("produce", topic, "-q", "-p", "0", stdin="a\n")
    run("consume", topic, "--group", topic, "--exit-at-end")
    watch = start("group", "describe", topic, "--watch", "--interval", "0.05")

    def next_end():
        """Return the end offset of partition 0 in the next table."""
        for line in watch.stdout:
            if line.split()[:2] == [topic.encode(), b"0"]:
                return int(line.split()[3])
        return None

    assert (next_end(), next_end()) == (1, 1)
    run("produce", topic, "-q", "-p", "0", stdin="b\n")
    while next_end() != 2:
        assert watch.poll() is None
    watch.send_signal(signal.SIGINT)

    watch.stdout.read()
    assert watch.wait(PATIENCE_SECONDS) == 130
    assert watch.stderr.read() == b""


def test_a_closed_pipe_exits_with_the_broken_pipe_code(start, run, topic):
    run("perf", "produce", topic, "--records", "20000")

    consume = start("consume", topic)
    consume.stdout.read(10)
    consume.stdout.close()

    assert consume.wait(PATIENCE_SECONDS) == 141
    assert b"rror" not in consume.stderr.read()


def test_exit_codes_of_processes(start, topic):
    missing = start("topic", "describe", "missing")
    wrong = start("topic", "describe")

    assert missing.wait(PATIENCE_SECONDS) == 5
    (line,) = missing.stderr.read().splitlines()
    assert line.startswith(b"error: missing: topic 'missing': ")
    assert wrong.wait(PATIENCE_SECONDS) == 2


def on_a_terminal(start, *arguments, stdout=None):
    """Return the terminal output and the exit code of a command."""
    ours, theirs = pty.openpty()
    process = start(*arguments, stdin=theirs, stdout=stdout or theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 0.1)
        try:
            data = os.read(ours, 65536) if ready else b""
        except OSError:
            break
        if not data and process.poll() is not None:
            break
        shown += data
        if b"[y/N]" in data:
            os.write(ours, b"n\n")
    os.close(ours)
    return shown.decode(), process.wait(PATIENCE_SECONDS)


def test_a_terminal_shows_tables_bars_and_confirmations(start, topic):
    pytest.importorskip("rich")

    shown, code = on_a_terminal(start, "topic", "list", f"^{topic}$")
    assert code == 0
    assert "───" in shown
    assert topic in shown

    shown, code = on_a_terminal(start, "perf", "produce", topic, "--records", "50000")
    assert code == 0
    assert "sending" in shown
    assert "records per second" in shown

    shown, code = on_a_terminal(start, "topic", "delete", topic)
    assert (code, f"Delete {topic} with all records? [y/N]" in shown) == (1, True)


def test_group_reset_shows_its_plan_before_it_asks(start, run, topic):
    run("consume", topic, "--group", topic, "--exit-at-end")

    shown, code = on_a_terminal(start, "group", "reset", topic, "--to", "start", "-t", topic)

    assert code == 1
    assert 0 < shown.index("offset before") < shown.index("[y/N]")


def test_bars_advance_with_a_low_rate(start, topic, tmp_path):
    pytest.importorskip("rich")
    file = tmp_path / "records"
    file.write_text("x\n" * 20)

    for command in (
        ("produce", topic, "-q", "--rate", "20", str(file)),
        ("perf", "produce", topic, "-n", "20", "--rate", "20"),
    ):
        shown, code = on_a_terminal(start, *command)
        assert code == 0
        assert len(set(re.findall(r"(\d+)/", shown))) > 2, shown


def test_long_commands_show_a_bar_unless_they_print_to_the_terminal(
    start, run, ottla_broker_factory, topic, tmp_path
):
    pytest.importorskip("rich")
    run("perf", "produce", topic, "--records", "20000")
    group = ("--group", topic, "--exit-at-end")
    ottla_broker_factory(log_dir=tmp_path / "data").produce("t", *["x" * 100] * 20_000)
    segments = map(str, (tmp_path / "data").glob("t-*/*.log"))

    for command, word in (
        (("consume", topic), "reading"),
        (("consume", topic, *group), "reading"),
        (("topic", "clone", topic, f"{topic}-copy", "--records"), "copying"),
        (("perf", "consume", topic), "reading"),
        (("perf", "latency", topic, "--records", "20"), "measuring"),
        (("log", "dump", *segments), "reading"),
        (("log", "verify", str(tmp_path / "data")), "verifying"),
    ):
        with (tmp_path / "printed").open("wb") as file:
            shown, code = on_a_terminal(start, *command, stdout=file)
        assert (code, word in shown) == (0, True), (command, shown)
        assert word.encode() not in (tmp_path / "printed").read_bytes()

    shown, code = on_a_terminal(start, "consume", topic, "--max-count", "1")
    assert (code, "reading" in shown) == (0, False)
