"""Dockerfile and docker-compose.yml, as far as they can be tried without a Docker engine."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from deploy.dockerfile import parse
from harness.daemon import HOST, Daemon, free_port, shown_on_failure
from ottla.broker.config.loader import load_broker_config
from ottla.client.blocking import Admin, Consumer, Producer
from test_house import ROOMS

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STAGES = parse(ROOT / "Dockerfile")
IMAGE = STAGES["broker"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
BROKERS = {name: service for name, service in SERVICES.items() if "profiles" not in service}
JOBS = {name: service for name, service in SERVICES.items() if name not in BROKERS}
HEALTH = IMAGE.last("HEALTHCHECK")

each_broker = pytest.mark.parametrize("name", BROKERS)


def environment_of(name):
    """Give what a container of a service has in its environment."""
    given = {key: str(value) for key, value in BROKERS[name]["environment"].items()}
    return IMAGE.environment | given


def config_of(name):
    ours = {key: value for key, value in environment_of(name).items() if key.startswith("OTTLA_")}
    # It refuses a variable that stands for no setting.
    return load_broker_config({}, ours)


# The image.


def test_the_image_has_every_room_and_all_that_is_needed_to_install_them():
    setuptools = PROJECT["tool"]["setuptools"]
    modules = {f"{name}.py" for name in setuptools["py-modules"]}
    papers = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}

    wanted = {*ROOMS, "ottla", "pyproject.toml", *modules, *papers}

    assert STAGES["build"].copied == wanted


def test_the_context_is_what_is_copied_and_no_more():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {name for stage in STAGES.values() for name in stage.copied}

    assert rules[0] == "*"
    assert {name.split("/")[0] for name in copied} == let_in
    # What was compiled here is not for there.
    assert rules[-3:] == ["**/__pycache__", "**/*.so", "protocol/*.c"]


def test_what_is_built_without_saying_more_is_a_broker_without_a_compiler():
    assert list(STAGES)[-1] == "broker"
    for name in ("broker", "spark"):
        assert "gcc" not in " ".join(STAGES[name].all("RUN"))
        assert STAGES[name].all("COPY")[0].startswith("--from=build")
    assert "gcc" in STAGES["build"].all("RUN")[0]
    assert {stage.base for stage in STAGES.values()} <= {"python:3.12-slim", *STAGES}


def test_the_python_of_the_image_is_one_that_is_supported():
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", STAGES["base"].base)[1]

    assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]


@pytest.mark.parametrize("stage", ["broker", "spark"])
def test_a_container_does_not_run_as_root(stage):
    user, group = STAGES[stage].last("USER").split(":")

    # Numbers: Kubernetes knows by them that it is not root.
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in STAGES["base"].all("RUN")[0]


def test_signals_come_to_the_broker_itself():
    assert IMAGE.command("ENTRYPOINT") == ["ottla"]
    assert IMAGE.command("CMD") == ["broker", "start"]
    assert IMAGE.all("STOPSIGNAL") == []  # SIGTERM


def test_the_image_alone_is_a_broker_for_this_machine():
    ours = {key: text for key, text in IMAGE.environment.items() if key.startswith("OTTLA_")}

    config = load_broker_config({}, ours)

    (listener,) = config.parsed_listeners
    assert (listener.host, listener.port) == ("0.0.0.0", int(IMAGE.last("EXPOSE")))
    assert (listener.advertised_host, listener.advertised_port) == ("localhost", listener.port)
    assert config.log_dir == IMAGE.last("VOLUME")


# The brokers.


@each_broker
def test_a_broker_has_settings_that_can_be(name):
    config = config_of(name)

    assert name == f"broker-{config.broker_id}"
    assert len(config.cluster_file.broker_ids) == len(BROKERS) == 3


@each_broker
def test_the_host_reaches_a_broker_where_it_is_told(name):
    config = config_of(name)
    host, published, inside = BROKERS[name]["ports"][0].split(":")
    external = {one.name: one for one in config.parsed_listeners}["EXTERNAL"]

    assert BROKERS[name]["ports"] == [f"127.0.0.1:{9092 + config.broker_id}:19092"]
    assert host == "127.0.0.1", "whoever reaches a broker may do everything"
    assert (external.advertised_host, external.advertised_port) == ("localhost", int(published))
    assert (external.host, external.port) == ("0.0.0.0", int(inside))


@each_broker
def test_containers_reach_a_broker_where_they_are_told(name):
    config = config_of(name)
    internal = {one.name: one for one in config.parsed_listeners}["INTERNAL"]

    assert (internal.advertised_host, internal.advertised_port) == (name, internal.port)
    assert internal.host == "0.0.0.0"
    assert config.inter_broker_listener == "INTERNAL"


@each_broker
def test_a_broker_keeps_its_data_in_a_volume_of_its_own(name):
    (volume,) = BROKERS[name]["volumes"]
    source, target = volume.split(":")

    assert target == config_of(name).log_dir == IMAGE.last("VOLUME")
    assert source in COMPOSE["volumes"]
    assert sum(volume in other["volumes"] for other in BROKERS.values()) == 1


@each_broker
def test_a_stop_is_given_the_time_that_it_may_take(name):
    grace = re.fullmatch(r"(\d+)s", BROKERS[name]["stop_grace_period"])

    assert int(grace[1]) * 1000 > config_of(name).shutdown_timeout_ms


def test_brokers_differ_in_nothing_else():
    own = ("environment", "ports", "volumes")
    shared = [{k: v for k, v in one.items() if k not in own} for one in BROKERS.values()]

    assert shared[0] == shared[1] == shared[2]
    assert shared[0]["build"] == "."
    assert "image" not in shared[0], "builds that run at once would contend for one name"


@each_broker
def test_a_broker_has_the_health_check_of_the_image_at_a_listener_of_its_own(name):
    assert "healthcheck" not in BROKERS[name]
    assert "OTTLA_BOOTSTRAP" not in environment_of(name)
    # Where commands ask if nobody says where: localhost:9092.
    assert 9092 in {one.port for one in config_of(name).parsed_listeners}


# The health check.


@pytest.fixture
def check(tmp_path):
    """Run the health check as a container does, but for the address."""
    _, _, command = HEALTH.partition(" CMD ")
    program, *arguments = yaml.safe_load(command)
    assert program == "ottla"

    def run(address):
        environ = {**os.environ, "OTTLA_BOOTSTRAP": address, "XDG_CONFIG_HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-m", "ottla", *arguments],
            env=environ,
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode

    return run


def test_the_health_check_tells_a_broker_that_answers_from_one_that_does_not(check, tmp_path):
    with Daemon(tmp_path) as broker:
        assert check(broker.address) == 0

        broker.send(signal.SIGSTOP)
        try:
            assert check(broker.address) != 0
        finally:
            broker.send(signal.SIGCONT)
        assert check(broker.address) == 0

        broker.stop()
        assert check(broker.address) != 0


def test_the_health_check_gives_up_before_it_is_killed():
    engine = re.search(r"--timeout=(\d+)s", HEALTH)
    own = re.search(r'"--timeout", "(\d+)"', HEALTH)

    assert int(own[1]) < int(engine[1])


# All three, with the settings that they have in containers, and other addresses.


@pytest.fixture
def brokers(tmp_path, request):
    inside = {name: f"{HOST}:{free_port()}" for name in BROKERS}
    outside = {name: f"{HOST}:{free_port()}" for name in BROKERS}
    made = []
    for name in BROKERS:
        environ = environment_of(name) | {"OTTLA_LOG_DIR": str(tmp_path / name / "data")}
        del environ["PATH"]
        for number, other in enumerate(BROKERS):
            listed = environ["OTTLA_CLUSTER_BROKERS"]
            listed = listed.replace(f"//{other}:9092", f"//{inside[other]}")
            listed = listed.replace(f"//localhost:{9092 + number}", f"//{outside[other]}")
            environ["OTTLA_CLUSTER_BROKERS"] = listed
        listeners = environ["OTTLA_LISTENERS"]
        listeners = listeners.replace("//:9092", f"//{inside[name]}")
        environ["OTTLA_LISTENERS"] = listeners.replace("//:19092", f"//{outside[name]}")
        port = int(inside[name].rpartition(":")[2])
        made.append(Plain(tmp_path / name, port=port, **environ))
    with shown_on_failure(request, made):
        try:
            for broker in made:
                broker.launch()
            for broker in made:
                broker.wait_until_it_answers()
            yield list(inside.values()), list(outside.values())
        finally:
            for broker in made:
                broker.kill()


class Plain(Daemon):
    """A broker that is told everything by its environment."""

    def spawn(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *self.program, *IMAGE.command("CMD")]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)


def test_a_cluster_of_these_settings_serves_by_both_listeners(brokers):
    inside, outside = brokers

    for number, (here, there) in enumerate(zip(inside, outside, strict=True)):
        topic = f"topic-{number}"
        with Admin(here) as admin:
            admin.create_topic(topic)
            assert addresses(admin) == inside
        with Admin(there) as admin:
            assert addresses(admin) == outside
        with Producer(there) as producer, Consumer(here, topic) as consumer:
            producer.send(topic, b"hello")
            assert consumer.getone(timeout=30).value == b"hello"


def addresses(admin):
    return [f"{one.host}:{one.port}" for one in admin.describe_cluster().brokers]


# The jobs of Spark.


def test_jobs_wait_for_all_brokers_and_run_only_when_asked():
    assert set(JOBS) == {"readings", "spark"}
    assert all(job["profiles"] == ["spark"] for job in JOBS.values())
    assert JOBS["readings"]["depends_on"] == {
        name: {"condition": "service_healthy"} for name in BROKERS
    }
    assert JOBS["spark"]["depends_on"] == {
        "readings": {"condition": "service_completed_successfully"}
    }


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_an_example_that_there_is_with_options_that_it_has(name):
    job = JOBS[name]
    script, *options = job["command"]
    assert STAGES[job["build"]["target"]].command("ENTRYPOINT") == ["python"]
    assert "examples/spark /opt/examples" in STAGES["spark"].all("COPY")
    path = ROOT / "examples" / "spark" / Path(script).relative_to("/opt/examples")

    shown = subprocess.run(
        [sys.executable, str(path), *options, "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert options[0] in shown
    config = config_of("broker-0")
    internal = [
        config.cluster_file.brokers[number]["INTERNAL"] for number in config.cluster_file.broker_ids
    ]
    assert options[1] == ",".join(f"{one.host}:{one.port}" for one in internal)


# What the documentation says.


def test_pages_speak_of_what_there_is():
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/cluster.md")]
    commands = [
        re.split(r"\s{2,}", line)[0].split()[1:]
        for page in pages
        for line in re.findall(r"^docker .*", page, re.MULTILINE)
    ]
    profiles = {name for job in JOBS.values() for name in job["profiles"]}

    assert ["compose", "up"] in commands
    for words in commands:
        for word, following in pairwise(words):
            assert word != "--profile" or following in profiles, words
            assert word != "-v" or following.endswith(f":{IMAGE.last('VOLUME')}"), words
        assert all(word in SERVICES for word in words if word.startswith("broker-")), words
    published = {BROKERS[name]["ports"][0].split(":")[1] for name in BROKERS}
    for page in pages:
        assert "localhost:9092, 9093 and 9094" in page
        assert set(re.findall(r"localhost:(90\d\d)", page)) <= published
