"""The systemd unit, and the recipes for the tests of other programs."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from deploy.dockerfile import parse
from harness.daemon import free_port
from ottla.broker.config.loader import load_broker_config
from ottla.broker.daemon import check_listeners

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "ottla.service"
CI = ROOT / "deploy" / "ci"
IMAGE = parse(ROOT / "Dockerfile")["broker"]
#: systemd's own measure, from 0 (confined) to 10; an ordinary unit has 9.6.
MAX_EXPOSURE = 1.5
JAVA_STUBS = {
    "org/testcontainers/containers/FixedHostPortGenericContainer.java": """
package org.testcontainers.containers;
public class FixedHostPortGenericContainer<T> {
  public FixedHostPortGenericContainer(String image) {}
  public T withFixedExposedPort(int host, int container) { return null; }
  public T withEnv(String name, String value) { return null; }
  public T waitingFor(Object strategy) { return null; }
}
""",
    "org/testcontainers/containers/wait/strategy/Wait.java": """
package org.testcontainers.containers.wait.strategy;
public class Wait {
  public static Object forLogMessage(String pattern, int times) { return null; }
}
""",
}


def config_of(environ):
    """Return the config of a container with more variables."""
    variables = IMAGE.environment | {name: str(text) for name, text in environ.items()}
    ottla = {name: text for name, text in variables.items() if name.startswith("OTTLA_")}
    config = load_broker_config({}, ottla, warn=pytest.fail)
    check_listeners(config)
    return config


def systemd_analyze(*arguments):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    command = ["systemd-analyze", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd is too old")
    return done


def test_the_unit_is_valid(tmp_path):
    text = UNIT.read_text()
    command = re.search(r"^ExecStart=(\S+) (.*)$", text, re.MULTILINE)
    # A program that is installed here.
    copy = tmp_path / "ottla.service"
    copy.write_text(text.replace(command[1], "/bin/true"))

    done = systemd_analyze("verify", "--man=no", copy)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_confined():
    done = systemd_analyze("security", "--offline=yes", "--no-pager", UNIT)
    exposure = re.search(r"exposure level for ottla.service: ([\d.]+)", done.stdout)

    assert float(exposure[1]) <= MAX_EXPOSURE, done.stdout


def test_the_unit_starts_a_broker(tmp_path):
    """Its command and environment are those of a broker that can write where it says."""
    lines = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    _program, *words = lines["ExecStart"].split()
    environ = dict(pair.split("=", 1) for pair in lines["Environment"].split())
    properties = Path(words[-1])
    config = load_broker_config({}, environ, warn=pytest.fail)

    assert words == ["broker", "start", "--config", str(properties)]
    assert properties.parent == Path("/etc") / lines["ConfigurationDirectory"]
    assert config.log_dir == f"/var/lib/{lines['StateDirectory']}" == lines["WorkingDirectory"]
    assert int(lines["TimeoutStopSec"]) * 1000 > config.shutdown_timeout_ms
    assert lines["Restart"] == "always"
    # The broker reads /proc/sys.
    assert "ProcSubset" not in lines


# Recipes for tests.


def test_the_broker_of_the_compose_file_for_tests():
    services = yaml.safe_load((CI / "docker-compose.yml").read_text())["services"]
    config = config_of(services["ottla"]["environment"])
    listeners = {listener.name: listener for listener in config.parsed_listeners}

    bootstrap = services["tests"]["environment"]["KAFKA_BOOTSTRAP_SERVERS"]
    inside = listeners["INTERNAL"]
    assert f"{inside.advertised_host}:{inside.advertised_port}" == bootstrap
    assert inside.advertised_host in services
    outside = listeners["EXTERNAL"]
    port = f"127.0.0.1:{outside.advertised_port}:{outside.port}"
    assert services["ottla"]["ports"] == [port]
    assert outside.advertised_host == "localhost"
    uid, gid = IMAGE.last("USER").split(":")
    assert services["ottla"]["tmpfs"] == [f"{config.log_dir}:uid={uid},gid={gid}"]
    assert services["ottla"]["cap_drop"] == ["ALL"]
    assert services["ottla"]["security_opt"] == ["no-new-privileges:true"]
    assert services["ottla"]["mem_limit"] == "2g"
    assert services["tests"]["depends_on"] == {"ottla": {"condition": "service_healthy"}}


@pytest.mark.real_time
def test_the_steps_of_the_workflow_run(tmp_path):
    workflow = yaml.safe_load((CI / "github-actions.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    address = f"127.0.0.1:{free_port()}"
    scripts = {step["name"]: step["run"] for step in steps if "run" in step}
    assert scripts.pop("Install ottla") == "pip install ottla"
    scripts["Test"] = "echo tea | ottla produce orders && ottla consume orders"
    names = ["Start a broker", "Create topics", "Test"]
    assert set(scripts) == {*names, "Show the broker's log"}
    text = "\n".join(["trap 'kill $(jobs -p); wait' EXIT", *(scripts[name] for name in names)])
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "OTTLA_LISTENERS": f"PLAINTEXT://{address}",
        "OTTLA_BOOTSTRAP": address,
    }

    done = subprocess.run(
        ["bash", "-e", "-c", text],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("tea\n")


def test_the_container_for_tests_in_python(monkeypatch):
    """Without testcontainers: what it would start is a broker that clients reach."""
    for name in ("testcontainers", "testcontainers.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    container = types.ModuleType("testcontainers.core.container")
    container.DockerContainer = object
    waiting = types.ModuleType("testcontainers.core.waiting_utils")
    waiting.wait_for_logs = None
    monkeypatch.setitem(sys.modules, container.__name__, container)
    monkeypatch.setitem(sys.modules, waiting.__name__, waiting)
    names = runpy.run_path(str(CI / "testcontainers" / "ottla_container.py"))

    port = names["free_port"]()
    config = config_of(names["environment"](port))

    (listener,) = config.parsed_listeners
    assert (listener.host, listener.port) == ("0.0.0.0", port)
    assert (listener.advertised_host, listener.advertised_port) == ("localhost", port)


def test_the_container_for_tests_in_java(tmp_path):
    source = CI / "testcontainers" / "OttlaContainer.java"
    pairs = dict(re.findall(r'withEnv\("(\w+)", "([^"]*)"', source.read_text()))
    config = config_of({name: f"{t}9092" if t.endswith(":") else t for name, t in pairs.items()})
    assert config.parsed_listeners[0].advertised_host == "localhost"

    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    for name, text in JAVA_STUBS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ["javac", "-Werror", "-d", tmp_path, "-sourcepath", tmp_path, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
