"""`ottla cluster up`: a local cluster in the foreground, with and without a terminal."""

import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from click.testing import CliRunner

from harness.daemon import HOST, Daemon, free_ports
from harness.etcd import etcd_program
from ottla.__main__ import ottla
from ottla.client.blocking import Admin, Consumer, Producer

pytestmark = pytest.mark.real_time

TIMEOUT_SECONDS = 60
# Makes stdin the controlling terminal, as a shell in a new window does.
ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Up:
    """The command, as a process."""

    def __init__(self, folder, *arguments, count=3, **environ):
        self.data = folder / "data"
        self.log = folder / "log"
        self.count = count
        self.port = free_ports(count + 2)  # etcd has the last two
        location = ("--port", str(self.port), "--data-dir", str(self.data))
        self.arguments = ["-m", "ottla", "cluster", "up", "--brokers", str(count), *location]
        self.arguments += arguments
        self.environ = {
            name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")
        } | environ
        self.process = None

    @property
    def bootstrap(self):
        return ",".join(f"{HOST}:{self.port + number}" for number in range(self.count))

    def start(self, **options):
        with self.log.open("ab") as log:
            options = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": log,
            } | options
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments], env=self.environ, **options
            )
        return self

    def wait_until_up(self):
        """Wait until it prints the bootstrap servers."""
        assert self.process.stdout.readline().decode() == self.bootstrap + "\n", self.output()
        return self

    def output(self):
        return self.log.read_text()

    def pid_of(self, number):
        for line in subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,args="]).splitlines():
            pid, parent, *words = line.decode().split()
            if int(parent) == self.process.pid and ["--id", str(number)] == words[5:7]:
                return int(pid)
        raise AssertionError(f"no process of broker-{number}")

    def children(self):
        """Return the processes of brokers and of etcd."""
        for line in subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="]).splitlines():
            pid, parent = map(int, line.split())
            if parent == self.process.pid:
                yield pid

    def end(self):
        code = self.process.wait(TIMEOUT_SECONDS)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.end()

    def are_clean(self):
        return [
            (self.data / f"broker-{number}" / "clean-shutdown").exists()
            for number in range(self.count)
        ]

    def is_gone(self):
        """Whether no broker listens."""
        for port in range(self.port, self.port + self.count):
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return False
        return True


@pytest.fixture
def up(tmp_path):
    """Prepare the command; processes that are left are killed after the test."""
    commands = []

    def prepare(*arguments, folder="a", **options):
        (tmp_path / folder).mkdir(exist_ok=True)
        commands.append(Up(tmp_path / folder, *arguments, **options))
        return commands[-1]

    yield prepare
    for command in commands:
        if command.process is not None:
            if command.process.poll() is None:
                for pid in command.children():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                command.process.kill()
            command.end()
        if command.log.exists():
            print(f"--- {command.log}", command.output()[-8000:], sep="\n")


def values(bootstrap, topic, count):
    with Consumer(bootstrap, topic) as consumer:
        return sorted(consumer.getone(timeout=30).value for _ in range(count))


def test_the_cluster_stops_cleanly_and_restarts_with_its_data(up):
    # The environment's identity configs do not apply to these brokers, all others do.
    ignored = {"OTTLA_BROKER_ID": "7", "OTTLA_LISTENERS": "PLAINTEXT://127.0.0.1:1"}
    applied = {"OTTLA_NUM_PARTITIONS": "4", "OTTLA_LOG_LEVEL": "ERROR"}
    cluster = up("--log-level", "info", **ignored, **applied).start().wait_until_up()
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        assert [node.id for node in admin.describe_cluster().brokers] == [0, 1, 2]
        admin.create_topic("t", partitions=6)
        assert admin.create_topic("u").partitions == 4
        for partition in range(6):
            producer.send("t", b"%d" % partition, partition=partition)
    leaders = {path.parent.name for path in cluster.data.glob("broker-*/t-*")}
    assert leaders == {"broker-0", "broker-1", "broker-2"}

    assert cluster.stop() == 0

    assert cluster.are_clean() == [True] * 3
    lines = cluster.output().splitlines()
    assert "\x1b" not in cluster.output()
    for number in range(3):
        broker_lines = [line for line in lines if line.startswith(f"broker-{number} | 20")]
        assert "  ready  broker_id=" in "".join(broker_lines)
        assert "  stopped  " in broker_lines[-1]
    assert "3 brokers are up; Ctrl-C stops them. Bootstrap servers:" in lines

    cluster.start().wait_until_up()
    assert values(cluster.bootstrap, "t", 6) == [b"%d" % partition for partition in range(6)]
    assert cluster.stop(signal.SIGTERM) == 0


def test_another_broker_becomes_the_controller_of_a_replicated_cluster(up):
    etcd_program()  # or skips
    cluster = up("--replicated", "--set", "broker.session.timeout.ms=2000").start().wait_until_up()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("before", partitions=3)
        controller = admin.describe_cluster().controller
    os.kill(cluster.pid_of(controller), signal.SIGKILL)
    others = [f"{HOST}:{cluster.port + number}" for number in range(3) if number != controller]
    with Admin(others) as admin:
        admin.create_topic("after")
        assert admin.describe_cluster().controller != controller
    assert cluster.stop() == 1  # a broker was killed
    assert f"broker-{controller} exited (SIGKILL); to restart it: ottla broker start" in (
        cluster.output()
    )
    assert "cluster.store=etcd://" in cluster.output()
    assert cluster.is_gone()

    cluster.start().wait_until_up()
    with Admin(cluster.bootstrap) as admin:
        assert {topic.name for topic in admin.list_topics()} == {"before", "after"}
    assert cluster.stop() == 0
    arguments = ["cluster", "up", "--port", str(cluster.port), "--data-dir", str(cluster.data)]
    refused = CliRunner().invoke(ottla, arguments)
    assert refused.exit_code == 1
    assert "was started with --replicated" in refused.output


def test_on_a_terminal_output_is_coloured_and_ctrl_c_stops(up):
    cluster = up(TERM="xterm")
    terminal, slave = pty.openpty()
    cluster.arguments = ["-c", ON_TERMINAL, *cluster.arguments]
    cluster.start(stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)

    output, has_pressed = b"", False
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            output += os.read(terminal, 65536) if select.select([terminal], [], [], 1)[0] else b""
        except OSError:  # the other end is closed
            break
        if not has_pressed and cluster.bootstrap.encode() in output:
            os.write(terminal, b"\x03")
            has_pressed = True
    os.close(terminal)

    assert cluster.end() == 0
    assert cluster.are_clean() == [True] * 3
    colours = re.findall(rb"(\x1b\[\d+m)broker-(\d)\x1b\[0m \| 20", output)
    assert {number for _, number in colours} == {b"0", b"1", b"2"}
    assert len({colour for colour, _ in colours}) == 3


def test_a_second_ctrl_c_kills_the_brokers(up):
    cluster = up().start().wait_until_up()
    # A stopped process does not handle SIGTERM.
    os.kill(cluster.pid_of(1), signal.SIGSTOP)
    cluster.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while cluster.output().count("  stopped  ") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert cluster.process.poll() is None

    assert cluster.stop() == 130

    assert cluster.are_clean() == [True, False, True]
    assert cluster.is_gone()


def test_a_broker_that_exits_is_reported_and_the_others_keep_running(up):
    cluster = up("--set", "num.partitions=3").start().wait_until_up()
    with Producer(cluster.bootstrap) as producer, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
        producer.send("t", b"before", partition=1)

        os.kill(cluster.pid_of(1), signal.SIGKILL)

        pattern = re.compile(r"^broker-1 exited \(SIGKILL\); to restart it: (ottla .*)$", re.M)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (match := pattern.search(cluster.output())):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        producer.send("t", b"meanwhile", partition=0)
        producer.send("t", b"meanwhile", partition=2)

        # The printed command restarts it.
        command = [sys.executable, "-m", *shlex.split(match[1])]
        with cluster.log.open("ab") as log:
            restarted = subprocess.Popen(command, env=cluster.environ, stdout=log, stderr=log)
        try:
            producer.send("t", b"after", partition=1)
        finally:
            restarted.terminate()
            assert restarted.wait(TIMEOUT_SECONDS) == 0

    assert cluster.stop() == 1, "one broker was killed"
    assert cluster.are_clean() == [True] * 3


def test_if_one_broker_does_not_start_the_others_are_stopped(up, tmp_path):
    for folder in ("a", "b"):
        assert up(folder=folder, count=2).start().wait_until_up().stop() == 0
    shutil.rmtree(tmp_path / "a" / "data" / "broker-1")
    (tmp_path / "b" / "data" / "broker-1").rename(tmp_path / "a" / "data" / "broker-1")

    cluster = up(count=2).start()

    assert cluster.end() == 1
    assert re.search(r"broker-1 \| error: The data directory belongs to cluster", cluster.output())
    last_line = cluster.output().splitlines()[-1]
    assert last_line == "error: broker-1 did not start; stopped the other brokers"
    assert cluster.is_gone()
    assert cluster.are_clean()[0]


def test_ctrl_c_during_startup_leaves_no_process_behind(up):
    cluster = up()
    for after in (0.2, 0.4, 0.6):
        before = len(cluster.output()) if cluster.log.exists() else 0
        cluster.start()
        time.sleep(after)
        code = cluster.stop()
        # Before the signal handler is installed the exit code is Python's. A fast machine may have
        # started all brokers by then, and stops them normally.
        is_up = "brokers are up; Ctrl-C stops them" in cluster.output()[before:]
        assert code in ((0,) if is_up else (130, 1, -signal.SIGINT)), cluster.output()
        assert cluster.is_gone()


def test_it_stops_when_stderr_is_closed(up):
    cluster = up().start(stderr=subprocess.PIPE)
    cluster.process.stderr.readline()
    cluster.process.stderr.close()

    assert cluster.end() in (0, 130)
    assert cluster.is_gone()


# Errors before any broker is started.


def refused(*arguments, **environ):
    done = CliRunner().invoke(ottla, ["cluster", "up", *arguments], env=environ, prog_name="ottla")
    assert done.exit_code != 0, done.output
    assert not done.stdout
    (line,) = done.stderr.strip().splitlines()
    return done.exit_code, line


def test_a_port_in_use_is_refused(tmp_path):
    first = free_ports(3)
    with socket.socket() as other:
        other.bind((HOST, first + 1))
        other.listen()

        code, error = refused("--port", str(first), "--data-dir", str(tmp_path / "data"))

    assert (code, f"error: {HOST}:{first + 1} is in use; " in error, "--port" in error) == (
        1,
        True,
        True,
    )
    assert not (tmp_path / "data").exists()


def test_a_foreign_data_directory_is_refused(tmp_path, up):
    with Daemon(tmp_path / "single") as single:
        single.stop()
    cluster = up().start().wait_until_up()
    cluster.stop()
    port = ("--port", str(cluster.port))

    code, error = refused("--data-dir", str(single.data), *port)
    assert (code, f"{single.data} is the data directory of a single broker" in error) == (1, True)

    code, error = refused("--data-dir", str(cluster.data), *port, "--brokers", "1")
    assert (code, "also has the data of broker-1, broker-2" in error) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "broker.id=3"), "broker.id cannot be set here: each broker has its own value"),
        (("--set", "listeners=A://:1"), "listeners cannot be set here"),
        (("--set", "num.partitoins=3"), "num.partitions"),
        (("--set", "num.partitions=0"), "num.partitions: "),
        (("--set", "num.partitions"), "--set num.partitions: expected KEY=VALUE"),
        (("--log-level", "debug", "--set", "log.level=INFO"), "log.level: --log-level DEBUG and"),
        (("--port", "65534"), "3 ports from 65534 on exceed the last port, 65535"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_invalid_configs_are_refused(tmp_path, arguments, message):
    code, error = refused("--data-dir", str(tmp_path / "data"), *arguments)

    assert (code, message in error) == (2, True), error
    assert not (tmp_path / "data").exists()
