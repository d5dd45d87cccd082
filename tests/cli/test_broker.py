"""The broker commands, and the format of log lines."""

import errno
import io
import json
import logging
import re
import socket
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import ottla as ottla_package
from harness.logs import a_log, append
from ottla.__main__ import COMMANDS, ottla
from ottla.broker.config.broker_config import BROKER_CONFIGS, BrokerConfig, ConfigError
from ottla.broker.observability.logging import RateLimiter, configure_logging, log_limited
from ottla.cli import broker as cli
from ottla.storage.errors import DataDirectoryError


def run(*arguments, env=None):
    return CliRunner().invoke(ottla, list(arguments), env=env, prog_name="ottla")


@pytest.fixture
def daemon(monkeypatch):
    """Replaces the daemon: records the config it is started with, or raises a given error."""
    module = types.ModuleType("ottla.broker.daemon")
    module.config = module.problem = None
    module.warnings = []
    module.exit_code = 0

    def run_daemon(config, warnings):
        module.config, module.warnings = config, warnings
        if module.problem:
            raise module.problem
        return module.exit_code

    module.run = run_daemon
    monkeypatch.setitem(sys.modules, "ottla.broker.daemon", module)
    return module


def test_python_m_ottla_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("ottla 0.")


def test_the_version_of_the_package():
    assert ottla_package.__version__ == version("ottla")
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    releases = re.findall("^## ([0-9.]+)$", changelog, re.MULTILINE)
    assert ottla_package.__version__ == releases[0]


def test_help_imports_no_package_and_broker_commands_no_daemon():
    script = (
        "import sys\n"
        "from ottla.__main__ import ottla\n"
        "def packages():\n"
        "    return {m for m in sys.modules if m.startswith('ottla.') and m[6:7] != '_'}\n"
        "ottla(['--help'], standalone_mode=False)\n"
        "assert not packages(), packages()\n"
        "ottla(['broker', 'start', '--help'], standalone_mode=False)\n"
        "assert not {'asyncio', 'uvloop', 'construct'} & set(sys.modules)\n"
        "assert packages() == {'ottla.broker', 'ottla.cli.broker',\n"
        "    'ottla.broker.config', 'ottla.broker.config.broker_config',\n"
        "    'ottla.broker.config.kafka_properties',\n"
        "    'ottla.broker.config.loader', 'ottla.broker.config.time_units',\n"
        "    'ottla.broker.config.security_configs',\n"
        "    'ottla.broker.net', 'ottla.broker.net.listeners',\n"
        "    'ottla.broker.cluster', 'ottla.broker.cluster.cluster_file',\n"
        "    'ottla.broker.cluster.store', 'ottla.broker.cluster.store.store_url',\n"
        "    'ottla.cli', 'ottla.cli.errors', 'ottla.cli.local_console',\n"
        "    'ottla.coord', 'ottla.coord.principal',\n"
        "    'ottla.protocol', 'ottla.protocol.configdef',\n"
        "    'ottla.storage', 'ottla.storage.config',\n"
        "    'ottla.storage.throttled_replicas'}, packages()\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE)


def test_top_level_help_matches_the_help_of_each_command():
    for name, (_, purpose) in COMMANDS.items():
        assert ottla.get_command(None, name).help.splitlines()[0] == purpose
    assert run("nonsense").exit_code == 2


def test_flags_set_configs(daemon):
    done = run(
        *("broker", "start", "--id", "4", "--data-dir", "d", "--num-partitions", "3"),
        *("--listen", "127.0.0.1:0", "--listen", "OUT://:1", "--advertise", "OUT://example.org:2"),
        *("--log-level", "debug", "--log-format", "json", "--set", "log.retention.hours=1"),
    )

    assert done.exit_code == 0, done.output
    assert daemon.config.static_configs == {
        "broker.id": "4",
        "log.dir": "d",
        "num.partitions": "3",
        "listeners": "PLAINTEXT://127.0.0.1:0,OUT://:1",
        "advertised.listeners": "OUT://example.org:2",
        "log.level": "DEBUG",
        "log.format": "json",
        "log.retention.hours": "1",
    }


def test_port_is_short_for_a_listener_on_loopback(daemon):
    assert run("broker", "start", "--port", "19093").exit_code == 0
    assert daemon.config.static_configs == {"listeners": "PLAINTEXT://127.0.0.1:19093"}

    both = run("broker", "start", "--port", "19093", "--listen", "0.0.0.0:9092")
    assert both.exit_code == 2
    assert "Conflicting values for listeners: --port PLAINTEXT://127.0.0.1:19093" in both.output
    assert run("broker", "start", "--port", "65536").exit_code == 2


def test_precedence_of_flags_environment_and_file(daemon, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nnum.partitions=1\nfetch.max.bytes=1111\n")
    environ = {"OTTLA_BROKER_ID": "2", "OTTLA_NUM_PARTITIONS": "2"}

    run("broker", "start", "--config", str(file), "--id", "3", env=environ)

    config = daemon.config
    assert (config.broker_id, config.num_partitions, config.fetch_max_bytes) == (3, 2, 1111)


def test_unknown_variables_and_those_of_kubernetes_are_ignored_with_a_warning(daemon):
    injected = {
        "OTTLA_PORT": "tcp://10.0.0.1:9092",
        "OTTLA_SERVICE_HOST": "10.0.0.1",
        "OTTLA_SERVICE_PORT": "9092",
        "OTTLA_SERVICE_PORT_KAFKA": "9092",
        "OTTLA_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "OTTLA_PORT_9092_TCP_PROTO": "tcp",
        "OTTLA_PORT_9092_TCP_PORT": "9092",
        "OTTLA_PORT_9092_TCP_ADDR": "10.0.0.1",
        "OTTLA_HEADLESS_SERVICE_HOST": "10.0.0.2",
    }

    done = run("broker", "start", env={**injected, "OTTLA_NUM_PARTITION": "3"})

    assert done.exit_code == 0, done.output
    assert daemon.config == BrokerConfig()
    unknown, of_services = daemon.warnings
    assert "OTTLA_NUM_PARTITION; did you mean OTTLA_NUM_PARTITIONS?" in unknown
    assert of_services.startswith("Ignored environment variables that Kubernetes sets for a Servi")
    assert of_services.split(": ")[1].split(", ") == sorted(injected)


def test_without_flags_configs_have_their_defaults(daemon):
    run("broker", "start")

    assert daemon.config == BrokerConfig()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "num.partition=3"], "Unknown config num.partition; did you mean num.part"),
        (["--set", "num.partitions"], "--set num.partitions: expected KEY=VALUE"),
        (
            ["--num-partitions", "many"],
            "'many' for num.partitions: expected type int",
        ),
        (["--id", "1", "--set", "broker.id=2"], "broker.id: --id 1 and --set 2"),
        (["--set", "broker.id=1", "--set", "broker.id=2"], "--set 1 and --set 2"),
        (["--listen", "9092"], "'PLAINTEXT://9092' in listeners: expected NAME://HOST:PORT"),
        (["--listen", ":1", "--listen", ":2"], "Duplicate listener name PLAINTEXT in listeners"),
        (["--data-dir", ""], "Invalid value for log.dir: it must name a directory"),
        (["--config", "missing"], "missing: No such file or directory"),
    ],
)
def test_an_invalid_config_is_one_line_and_exit_code_2(daemon, arguments, message):
    done = run("broker", "start", *arguments)

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert daemon.config is None


def test_equal_values_do_not_conflict(daemon):
    assert run("broker", "start", "--id", "1", "--set", "broker.id=1").exit_code == 0


@pytest.mark.parametrize(
    ("problem", "exit_code", "message"),
    [
        (ConfigError("cluster.id: another one"), 2, "error: cluster.id: another one\n"),
        (DataDirectoryError("d is locked"), 1, "error: d is locked; fix it, or use another"),
        (
            OSError(errno.EADDRINUSE, "in use"),
            1,
            "in use; stop the process on that port, or use another",
        ),
        (
            PermissionError(errno.EACCES, "Denied", "d"),
            1,
            "error: d: Denied; check the permissions",
        ),
        (OSError(errno.EIO, "bad\ndisk"), 1, "error: bad disk\n"),
        (OSError("no number"), 1, "error: no number\n"),
    ],
)
def test_start_failures_are_one_line_with_advice(daemon, problem, exit_code, message):
    daemon.problem = problem

    done = run("broker", "start")

    assert done.exit_code == exit_code
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_with_advice(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "ottla", "broker", "start", "--listen", address]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert address in line
    assert line.endswith("stop the process on that port, or use another: --listen HOST:PORT")


def test_unexpected_exceptions_keep_their_traceback_and_exit_codes_pass_through(daemon):
    daemon.exit_code = 3
    assert run("broker", "start").exit_code == 3

    daemon.problem = RuntimeError("a bug")
    assert isinstance(run("broker", "start").exception, RuntimeError)


def test_start_help_documents_every_flag():
    text = run("broker", "start", "--help").output

    assert "ottla broker start --listen 0.0.0.0:9092 --advertise" in text
    assert "OTTLA_NUM_PARTITIONS" in text
    assert "ottla broker configs" in " ".join(text.split())
    for flag in cli._FLAGS:
        assert flag in text


def test_broker_configs_lists_every_config():
    done = run("broker", "configs")

    assert done.exit_code == 0
    for config_key in BROKER_CONFIGS.values():
        assert f"{config_key.name}={config_key.default}\n" in done.output
    assert max(map(len, done.output.splitlines())) <= 100


def test_broker_configs_filters_by_name_and_description():
    names = {entry["name"] for entry in json.loads(run("broker", "configs", "--json").output)}
    assert names == {config_key.name for config_key in BROKER_CONFIGS.values()}

    (found,) = json.loads(run("broker", "configs", "--json", "TOMBSTONE").output)
    assert found["name"] == "log.cleaner.delete.retention.ms"
    assert found["default"] == "86400000"
    assert found["topic_name"] == "delete.retention.ms"

    none = run("broker", "configs", "tombola")
    assert none.exit_code == 1
    assert none.stderr == "error: No config contains 'tombola' in its name or description\n"


def a_segment(tmp_path):
    log = a_log(tmp_path)
    append(log, 2)
    append(log, 1)
    log.close()
    return log.active_segment.path(".log")


def test_log_dump_prints_batches_and_records(tmp_path):
    path = a_segment(tmp_path)

    lines = run("log", "dump", str(path)).output.splitlines()
    assert lines[0] == f"{path}:"
    assert lines[1].startswith("  position=0 size=")
    assert "base_offset=0 last_offset=1 records=2" in lines[1]
    assert len(lines) == 3

    with_records = run("log", "dump", "--records", str(path)).output.splitlines()
    assert [line.split()[0] for line in with_records[2:4]] == ["offset=0", "offset=1"]


def test_log_dump_json_reports_damage(tmp_path):
    path = a_segment(tmp_path)
    path.write_bytes(path.read_bytes() + b"rubbish")

    done = run("log", "dump", "--json", "--records", str(path))

    first, second, rest = map(json.loads, done.output.splitlines())
    assert [record["offset"] for record in first["content"]] == [0, 1]
    assert second["base_offset"] == 2
    assert "not a complete batch" in rest["error"]


def test_log_verify_of_a_sound_directory(tmp_path):
    a_segment(tmp_path)
    for arguments in ((str(tmp_path),), ("--data-dir", str(tmp_path), "t-0")):
        done = run("log", "verify", *arguments)
        assert (done.exit_code, done.stdout) == (0, "")
        assert "verified 1 segment of 1 log" in done.stderr
        assert "no damage" in done.stderr


def test_log_verify_prints_one_line_per_damage(tmp_path):
    log = a_log(tmp_path)
    append(log, 3, times=40)
    log.close()
    path = log.segments[0].path(".log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)

    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 1
    [line] = done.stdout.splitlines()
    assert line.startswith(f"{path}: position 0, 112 bytes, offsets 0 to 2: wrong CRC; restore")

    done = run("log", "verify", "--json", str(log.directory))
    assert done.exit_code == 1
    damage = json.loads(done.stdout)
    assert (damage["file"], damage["position"], damage["last_offset"]) == (str(path), 0, 2)


def test_log_verify_refuses_what_is_not_a_log(tmp_path):
    for target in ("missing-0", str(tmp_path)):
        done = run("log", "verify", "--data-dir", str(tmp_path), target)
        assert done.exit_code == 2
        assert target in done.stderr


@pytest.fixture
def logged():
    """Return a function that configures logging; restores it afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()

    def start(form="text"):
        configure_logging("INFO", form, stream)
        return stream

    yield start
    root.handlers[:] = before
    root.setLevel(level)


logger = logging.getLogger("ottla.broker.test")


def test_text_log_line(logged):
    stream = logged()

    logger.info("listening", extra={"listener": "PLAINTEXT", "address": "127.0.0.1:9092"})
    logger.debug("too fine")

    time, rest = stream.getvalue().split(" ", 1)
    assert rest == "INFO  broker.test  listening  listener=PLAINTEXT address=127.0.0.1:9092\n"
    assert len(time) == len("2026-11-16T12:00:00.123Z")
    assert time.endswith("Z")


def test_log_lines_escape_control_characters(logged):
    stream = logged()

    logger.warning(
        "odd\nmessage", extra={"client": 'a b\n2026 ERROR "x"', "empty": "", "raw": b"\xff"}
    )

    (line,) = stream.getvalue().splitlines()
    assert line.endswith(
        r'WARNING broker.test  "odd\nmessage"  client="a b\n2026 ERROR \"x\"" empty="" raw=b'
        r"'\xff'"
    )


def test_tracebacks_follow_their_log_line(logged):
    stream = logged()

    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("failed", extra={"partition": "t-0"})

    line, *below = stream.getvalue().splitlines()
    assert line.endswith("ERROR broker.test  failed  partition=t-0")
    assert below[0] == "    Traceback (most recent call last):"
    assert all(text.startswith("    ") for text in below)
    assert below[-2:] == ["    ValueError: first", "    second"]


def test_json_log_line_has_the_same_fields(logged):
    logged()
    stream = logged("json")

    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed at %d", 7, extra={"partition": "t-0", "size": 3, "raw": b"x"})

    (line,) = stream.getvalue().splitlines()
    facts = json.loads(line)
    assert facts.pop("time").endswith("Z")
    assert facts.pop("exception").endswith("ValueError: why")
    assert facts == {
        "level": "ERROR",
        "logger": "broker.test",
        "message": "failed at 7",
        "partition": "t-0",
        "size": 3,
        "raw": "b'x'",
    }


def test_events_that_a_peer_can_trigger_are_rate_limited(logged):
    stream = logged()

    for number in range(50):
        log_limited(logger, "a storm", extra={"number": number})
    log_limited(logger, "another kind", extra={})

    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[9].endswith("WARNING broker.test  a storm  number=9")
    assert lines[10].endswith("another kind")


def test_the_rate_limiter_counts_suppressed_events():
    limiter = RateLimiter(2, window_seconds=10)

    assert [limiter.acquire("a", now) for now in (0, 1, 2, 9)] == [0, 0, None, None]
    assert limiter.acquire("b", 9) == 0
    assert [limiter.acquire("a", now) for now in (10, 11, 12)] == [2, 0, None]
    assert [limiter.acquire("a", now) for now in (100, 200)] == [1, 0]
