"""Dockerfile and the compose files, tested without a Docker engine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from deploy.dockerfile import parse
from harness.daemon import HOST, Daemon, free_port, shown_on_failure
from ottla.broker.cluster.store.store_url import parse_store_url
from ottla.broker.config.loader import load_broker_config
from ottla.client import ErrorCode, KafkaError, SecurityConfig
from ottla.client.blocking import Admin, Consumer, Producer
from test_house import PACKAGES

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STAGES = parse(ROOT / "Dockerfile")
IMAGE = STAGES["broker"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
REPLICATED = yaml.safe_load((ROOT / "docker-compose.replicated.yml").read_text())
SECURE = yaml.safe_load((ROOT / "docker-compose.secure.yml").read_text())
LOCK = ROOT / "requirements.lock"
BROKERS = {name: service for name, service in SERVICES.items() if "profiles" not in service}
PROFILES = {name: service for name, service in SERVICES.items() if name not in BROKERS}
JOBS = {name: service for name, service in PROFILES.items() if "spark" in service["profiles"]}
HEALTH = IMAGE.last("HEALTHCHECK")

each_broker = pytest.mark.parametrize("name", BROKERS)


def environment_of(name):
    """Return the environment of a service's container."""
    service = {key: str(value) for key, value in BROKERS[name]["environment"].items()}
    return IMAGE.environment | service


def config_of(name):
    return load_broker_config({}, ottla_variables(environment_of(name)), warn=pytest.fail)


def ottla_variables(environ):
    return {key: value for key, value in environ.items() if key.startswith("OTTLA_")}


# The image.


def test_the_build_stage_copies_every_package_and_its_metadata():
    setuptools = PROJECT["tool"]["setuptools"]
    modules = {f"{name}.py" for name in setuptools["py-modules"]}
    documents = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}

    expected = {*PACKAGES, "ottla", "pyproject.toml", LOCK.name, *modules, *documents}

    assert STAGES["build"].copied == expected


def test_the_build_context_contains_only_what_is_copied():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    included = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {name for stage in STAGES.values() for name in stage.copied}

    assert rules[0] == "*"
    assert {name.split("/")[0] for name in copied} == included
    # Locally compiled files are excluded.
    assert rules[-3:] == ["**/__pycache__", "**/*.so", "protocol/*.c"]


def test_the_default_image_is_a_broker_without_a_compiler():
    assert list(STAGES)[-1] == "broker"
    for name in ("broker", "etcd", "spark"):
        assert "gcc" not in " ".join(STAGES[name].all("RUN"))
        assert STAGES[name].all("COPY")[0].startswith("--from=build")
    assert "gcc" in STAGES["build"].all("RUN")[0]
    assert {stage.base for stage in STAGES.values()} <= {"python:3.12-slim", *STAGES}


def test_the_image_uses_a_supported_python_version():
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", STAGES["base"].base)[1]

    assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]


@pytest.mark.parametrize("stage", ["broker", "etcd", "spark"])
def test_a_container_does_not_run_as_root(stage):
    user, group = STAGES[stage].last("USER").split(":")

    # Numeric ids: Kubernetes checks runAsNonRoot by them.
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in STAGES["base"].all("RUN")[0]


def test_signals_reach_the_broker_process():
    assert IMAGE.command("ENTRYPOINT") == ["ottla"]
    assert IMAGE.command("CMD") == ["broker", "start"]
    assert IMAGE.all("STOPSIGNAL") == []  # SIGTERM


def test_the_image_alone_advertises_localhost():
    config = load_broker_config({}, ottla_variables(IMAGE.environment), warn=pytest.fail)

    (listener,) = config.parsed_listeners
    assert (listener.host, listener.port) == ("0.0.0.0", int(IMAGE.last("EXPOSE")))
    assert (listener.advertised_host, listener.advertised_port) == ("localhost", listener.port)
    assert config.log_dir == IMAGE.last("VOLUME")


# Options do not reach the isolated environment of a build; which variable does depends on pip.
CONSTRAINTS = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")


def test_the_image_builds_and_installs_with_the_versions_of_the_lock():
    environment = STAGES["build"].environment

    assert {environment[name] for name in CONSTRAINTS} == {"/source/requirements.lock"}
    assert "FROM build AS build-spark" in (ROOT / "Dockerfile").read_text()


def test_the_development_environment_installs_the_versions_of_the_lock():
    script = (ROOT / ".ci" / "venv").read_text()

    assert all(f"{name}=$PWD/requirements.lock" in script for name in CONSTRAINTS)


def test_every_dependency_has_an_upper_bound_and_is_locked():
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *extras]
    lock = LOCK.read_text()

    for requirement in (requirement for group in groups for requirement in group):
        name = re.match(r"[\w-]+", requirement)[0]
        assert re.search(r"<\d", requirement), requirement
        assert re.search(rf"^{name}==\d", lock, re.MULTILINE), name


def test_the_lock_names_versions_only():
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]

    for line in lines:
        assert re.fullmatch(r'[a-z0-9-]+==[\w.]+(; python_version == "3\.\d+")?', line), line
    assert "://" not in LOCK.read_text()


# The brokers.


@each_broker
def test_broker_configs_are_valid(name):
    config = config_of(name)

    assert name == f"broker-{config.broker_id}"
    assert len(config.cluster_file.broker_ids) == len(BROKERS) == 3


@each_broker
def test_the_host_reaches_a_broker_at_its_external_address(name):
    config = config_of(name)
    host, published, inside = BROKERS[name]["ports"][0].split(":")
    external = {listener.name: listener for listener in config.parsed_listeners}["EXTERNAL"]

    assert BROKERS[name]["ports"] == [f"127.0.0.1:{9092 + config.broker_id}:19092"]
    assert host == "127.0.0.1", "brokers have no authentication"
    assert (external.advertised_host, external.advertised_port) == ("localhost", int(published))
    assert (external.host, external.port) == ("0.0.0.0", int(inside))


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_confined(name):
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])


@pytest.mark.parametrize(
    "page", ["Dockerfile", "README.md", "docker-compose*.yml", "docs/**/*.md", "deploy/**/*.*"]
)
def test_no_port_is_published_on_all_interfaces(page):
    for path in ROOT.glob(page):
        for published in re.findall(r"(?:-p|--publish)[ =](\S+:\d+)", path.read_text()):
            assert published.startswith("127.0.0.1:"), f"{path.name}: {published}"


@each_broker
def test_containers_reach_a_broker_at_its_internal_address(name):
    config = config_of(name)
    internal = {listener.name: listener for listener in config.parsed_listeners}["INTERNAL"]

    assert (internal.advertised_host, internal.advertised_port) == (name, internal.port)
    assert internal.host == "0.0.0.0"
    assert config.inter_broker_listener == "INTERNAL"


@each_broker
def test_each_broker_has_its_own_volume(name):
    (volume,) = BROKERS[name]["volumes"]
    source, target = volume.split(":")

    assert target == config_of(name).log_dir == IMAGE.last("VOLUME")
    assert source in COMPOSE["volumes"]
    assert sum(volume in other["volumes"] for other in BROKERS.values()) == 1


@each_broker
def test_the_stop_grace_period_exceeds_the_shutdown_timeout(name):
    grace = re.fullmatch(r"(\d+)s", BROKERS[name]["stop_grace_period"])

    assert int(grace[1]) * 1000 > config_of(name).shutdown_timeout_ms


def test_brokers_differ_only_in_environment_ports_and_volumes():
    individual = ("environment", "ports", "volumes")
    shared = [
        {key: value for key, value in service.items() if key not in individual}
        for service in BROKERS.values()
    ]

    assert shared[0] == shared[1] == shared[2]
    assert shared[0]["build"] == "."
    assert "image" not in shared[0], "concurrent builds would overwrite each other's image"


@each_broker
def test_the_health_check_of_the_image_reaches_each_broker(name):
    assert "healthcheck" not in BROKERS[name]
    assert "OTTLA_BOOTSTRAP" not in environment_of(name)
    # The default bootstrap server is localhost:9092.
    assert 9092 in {listener.port for listener in config_of(name).parsed_listeners}


# The health check.


@pytest.fixture
def check(tmp_path):
    """Run the health check command against an address."""
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


def test_the_health_check_fails_unless_the_broker_answers(check, tmp_path):
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


def test_the_health_check_times_out_before_the_engine_kills_it():
    engine = re.search(r"--timeout=(\d+)s", HEALTH)
    command = re.search(r'"--timeout", "(\d+)"', HEALTH)

    assert int(command[1]) < int(engine[1])


# All three brokers, with their container configs and other addresses.


@pytest.fixture
def start_brokers(tmp_path, request):
    return partial(running, tmp_path, request)


@pytest.fixture
def brokers(start_brokers):
    with start_brokers({name: {} for name in BROKERS}) as addresses:
        yield addresses


@contextmanager
def running(tmp_path, request, overrides):
    """Run the brokers, with more variables each; return their internal and external addresses."""
    internal = {name: f"{HOST}:{free_port()}" for name in BROKERS}
    external = {name: f"{HOST}:{free_port()}" for name in BROKERS}
    daemons = []
    for name in BROKERS:
        environ = environment_of(name) | overrides[name]
        environ["OTTLA_LOG_DIR"] = str(tmp_path / name / "data")
        environ["OTTLA_METRICS_LISTENER"] = "127.0.0.1:0"  # On one host here.
        del environ["PATH"]
        for number, other in enumerate(BROKERS):
            listed = environ["OTTLA_CLUSTER_BROKERS"]
            listed = listed.replace(f"//{other}:9092", f"//{internal[other]}")
            listed = listed.replace(f"//localhost:{9092 + number}", f"//{external[other]}")
            environ["OTTLA_CLUSTER_BROKERS"] = listed
        listeners = environ["OTTLA_LISTENERS"]
        listeners = listeners.replace("//:9092", f"//{internal[name]}")
        environ["OTTLA_LISTENERS"] = listeners.replace("//:19092", f"//{external[name]}")
        port = int(internal[name].rpartition(":")[2])
        daemon = EnvironmentDaemon(tmp_path / name, port=port, **environ)
        daemon.uses_tls = "SASL_SSL" in environ.get("OTTLA_LISTENER_SECURITY_PROTOCOL_MAP", "")
        daemons.append(daemon)
    with shown_on_failure(request, daemons):
        try:
            for broker in daemons:
                broker.launch()
            for broker in daemons:
                broker.wait_until_ready()
            yield list(internal.values()), list(external.values())
        finally:
            for broker in daemons:
                broker.kill()


class EnvironmentDaemon(Daemon):
    """A broker configured by its environment only."""

    def spawn(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *self.program, *IMAGE.command("CMD")]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)


def test_the_cluster_serves_clients_on_both_listeners(brokers):
    internal, external = brokers

    for number, addresses in enumerate(zip(internal, external, strict=True)):
        internal_address, external_address = addresses
        topic = f"topic-{number}"
        with Admin(internal_address) as admin:
            admin.create_topic(topic)
            assert node_addresses(admin) == internal
        with Admin(external_address) as admin:
            assert node_addresses(admin) == external
        with (
            Producer(external_address) as producer,
            Consumer(internal_address, topic) as consumer,
        ):
            producer.send(topic, b"hello")
            assert consumer.getone(timeout=30).value == b"hello"


def node_addresses(admin):
    return [f"{node.host}:{node.port}" for node in admin.describe_cluster().brokers]


# The cluster with TLS, users and ACLs.

PASSWORDS = {"ADMIN_PASSWORD": "admin; secret", "BROKER_PASSWORD": "broker-secret"}
CERTIFICATES = SECURE["services"]["certificates"]


def interpolate(text):
    """Replace ${NAME:?…} as compose does."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: PASSWORDS[match[1]], text)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """The volume with the certificates, made by the command of its container."""
    folder = tmp_path_factory.mktemp("certs")
    command = [word.replace("/etc/ottla/certs", str(folder)) for word in CERTIFICATES["command"]]
    for _start in range(2):
        subprocess.run(
            [sys.executable, "-m", "ottla", *command], check=True, capture_output=True, timeout=60
        )
    return folder


@pytest.fixture
def secured(mounted, start_brokers):
    """The addresses of a cluster, and how the user of the commands in its containers connects."""
    overrides = {}
    for name in BROKERS:
        environment = SECURE["services"][name]["environment"]
        overrides[name] = {
            key: interpolate(str(value)).replace("/etc/ottla/certs", str(mounted))
            for key, value in environment.items()
        }
    with start_brokers(overrides) as (internal, external):
        properties = mounted / "admin.properties"
        text = (ROOT / "examples" / "secure" / "admin.properties").read_text()
        properties.write_text(text.replace("/etc/ottla/certs", str(mounted)))
        yield internal, external, properties


def test_a_secured_cluster_serves_its_users_only(secured, check, monkeypatch):
    internal, external, properties = secured
    assert check(internal[0]) != 0

    monkeypatch.setenv("OTTLA_COMMAND_CONFIG", str(properties))
    monkeypatch.setenv("ADMIN_PASSWORD", PASSWORDS["ADMIN_PASSWORD"])
    assert [check(address) for address in internal] == [0, 0, 0]
    security = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="admin",
        sasl_password=PASSWORDS["ADMIN_PASSWORD"],
        ssl_truststore_location=str(properties.with_name("ca.pem")),
    )
    with Admin(external[1], security=security) as admin:
        admin.create_topic("orders", partitions=3)
        assert node_addresses(admin) == external
        admin.create_user("eve", "eve-secret", mechanisms=["SCRAM-SHA-512"])
    with (
        Producer(external[2], security=security) as producer,
        Consumer(external[0], "orders", security=security) as consumer,
    ):
        producer.send("orders", b"hello")
        assert consumer.getone(timeout=30).value == b"hello"
    eve = replace(security, sasl_username="eve", sasl_password="eve-secret")
    with Producer(external[0], security=eve) as producer, pytest.raises(KafkaError) as denied:
        producer.send("orders", b"hello")
    assert denied.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


@each_broker
def test_secured_brokers_have_no_insecure_listener(name):
    environment = SECURE["services"][name]["environment"]
    environ = environment_of(name) | {k: interpolate(str(v)) for k, v in environment.items()}
    config = load_broker_config({}, ottla_variables(environ), warn=pytest.fail)

    assert not config.allow_insecure_listeners
    for listener in config.listener_names:
        assert config.security_of(listener).protocol == "SASL_SSL"
    assert environ["ADMIN_PASSWORD"] == PASSWORDS["ADMIN_PASSWORD"]
    assert SECURE["services"][name]["depends_on"] == {
        "certificates": {"condition": "service_completed_successfully"}
    }


def test_only_one_container_writes_certificates():
    (volume,) = CERTIFICATES["volumes"]
    source, _, target = volume.partition(":")

    assert source in SECURE["volumes"]
    assert f"--dir={target}" in CERTIFICATES["command"]
    assert f" {target}" in STAGES["base"].all("RUN")[0], "the user of the image must own it"
    hosts = {word.removeprefix("--host=") for word in CERTIFICATES["command"] if "--host" in word}
    assert hosts == {*BROKERS, "localhost", "127.0.0.1"}
    assert CERTIFICATES["network_mode"] == "none"
    assert CERTIFICATES["cap_drop"] == ["ALL"]
    for name in BROKERS:
        mounts = SECURE["services"][name]["volumes"]
        assert mounts[0] == f"{volume}:ro"
        assert all(mount.endswith(":ro") for mount in mounts)
        assert (ROOT / mounts[1].partition(":")[0]).exists()


def test_secrets_have_no_defaults():
    text = (ROOT / "docker-compose.secure.yml").read_text()

    assert set(re.findall(r"\$\{(\w+)", text)) == set(PASSWORDS)
    assert set(re.findall(r"\$\{\w+(..)", text)) == {":?"}


def test_compose_merges_the_files():
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker is not installed")
    files = ("docker-compose.yml", "docker-compose.replicated.yml", "docker-compose.secure.yml")
    command = [docker, "compose", *(word for file in files for word in ("-f", file)), "config"]
    if subprocess.run([*command[:2], "version"], capture_output=True, check=False).returncode:
        pytest.skip("the plugin compose of docker is not installed")

    done = subprocess.run(
        [*command, "--format", "json"],
        cwd=ROOT,
        env=os.environ | PASSWORDS,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    for name in BROKERS:
        environment = services[name]["environment"]
        assert environment["OTTLA_CLUSTER_STORE"].startswith("etcd://")
        assert 'password="broker-secret"' in next(
            value for key, value in environment.items() if key.endswith("JAAS_CONFIG")
        )
        assert {mount["target"] for mount in services[name]["volumes"]} == {
            *("/var/lib/ottla", "/etc/ottla/certs", "/etc/ottla/admin.properties")
        }
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "PASSWORD is missing a value" in refused.stderr


# The replicated cluster.


def merged(name):
    """Return a service of both files, as compose merges them."""
    base, override = SERVICES.get(name, {}), REPLICATED["services"][name]
    environment = base.get("environment", {}) | override["environment"]
    # Volumes are merged by the path in the container.
    mounts = {
        volume.partition(":")[2]: volume
        for service in (base, override)
        for volume in service.get("volumes", ())
    }
    return base | override | {"environment": environment, "volumes": [*mounts.values()]}


def replicated_environment(name):
    service = {key: str(value) for key, value in merged(name)["environment"].items()}
    return IMAGE.environment | service


MEMBERS = [name for name in REPLICATED["services"] if name not in BROKERS]


def test_three_brokers_and_three_members_of_etcd():
    assert MEMBERS == ["etcd-0", "etcd-1", "etcd-2"]
    assert set(REPLICATED["services"]) == {*MEMBERS, *BROKERS}


@each_broker
def test_replicated_brokers_use_every_member_of_the_store(name):
    environ = ottla_variables(replicated_environment(name))
    config = load_broker_config({}, environ, warn=pytest.fail)

    assert name == f"broker-{config.broker_id}"
    assert not config.cluster_brokers
    store = parse_store_url(config.cluster_store)
    assert list(store.addresses) == [f"{member}:2379" for member in MEMBERS]
    assert config.inter_broker_listener == "INTERNAL"
    advertised = {
        one.name: (one.advertised_host, one.advertised_port) for one in config.parsed_listeners
    }
    published = int(BROKERS[name]["ports"][0].split(":")[1])
    assert advertised == {"INTERNAL": (name, 9092), "EXTERNAL": ("localhost", published)}


def test_data_of_a_static_cluster_is_not_mounted_in_a_replicated_one():
    """A data directory of one of them is refused by the other."""
    mounted = [volume for name in REPLICATED["services"] for volume in merged(name)["volumes"]]
    sources = [volume.partition(":")[0] for volume in mounted]

    assert len(set(sources)) == len(mounted) == 6
    assert set(sources) == set(REPLICATED["volumes"])
    assert not set(sources) & set(COMPOSE["volumes"])
    for name in BROKERS:
        assert merged(name)["volumes"][0].endswith(f":{IMAGE.last('VOLUME')}")


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_etcd_know_each_other(name):
    service = merged(name)
    environ = service["environment"]

    assert environ["ETCD_NAME"] == name
    members = dict(one.split("=") for one in environ["ETCD_INITIAL_CLUSTER"].split(","))
    assert members == {member: f"http://{member}:2380" for member in MEMBERS}
    assert environ["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == members[name]
    assert environ["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{name}:2379"
    assert environ["ETCD_DATA_DIR"] == STAGES["etcd"].last("VOLUME")
    assert service["volumes"] == [f"{name}:{environ['ETCD_DATA_DIR']}"]


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_etcd_are_confined_and_not_published(name):
    service = merged(name)

    assert "ports" not in service, "etcd has no authentication here"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["build"]["target"] in STAGES


def test_the_image_has_the_extras_of_brokers():
    install = next(step for step in STAGES["build"].all("RUN") if "pip" in step)
    extras = re.search(r"\.\[([\w,]+)\]", install)[1].split(",")

    assert set(extras) == {"etcd", "security"}
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])


# The Spark jobs.


def test_jobs_wait_for_all_brokers_and_need_a_profile():
    assert set(JOBS) == {"readings", "spark"}
    assert all(job["profiles"] == ["spark"] for job in JOBS.values())
    assert JOBS["readings"]["depends_on"] == {
        name: {"condition": "service_healthy"} for name in BROKERS
    }
    assert JOBS["spark"]["depends_on"] == {
        "readings": {"condition": "service_completed_successfully"}
    }


@pytest.mark.parametrize("name", JOBS)
def test_a_job_runs_an_existing_example_with_valid_options(name):
    job = JOBS[name]
    script, *options = job["command"]
    assert STAGES[job["build"]["target"]].command("ENTRYPOINT") == ["python"]
    assert "examples/spark /opt/examples" in STAGES["spark"].all("COPY")
    path = ROOT / "examples" / "spark" / Path(script).relative_to("/opt/examples")

    help_text = subprocess.run(
        [sys.executable, str(path), *options, "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert options[0] in help_text
    config = config_of("broker-0")
    endpoints = [
        config.cluster_file.brokers[number]["INTERNAL"] for number in config.cluster_file.broker_ids
    ]
    assert options[1] == ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)


# Documentation.


def test_documented_docker_commands_match_the_compose_file():
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/cluster.md")]
    secure = (ROOT / "docs/security.md").read_text()
    commands = [
        re.split(r"\s{2,}", line)[0].split()[1:]
        for page in (*pages, secure)
        for line in re.findall(r"^docker .*", page, re.MULTILINE)
    ]
    profiles = {name for service in PROFILES.values() for name in service["profiles"]}

    assert ["compose", "up"] in commands
    for words in commands:
        for word, following in pairwise(words):
            assert word != "--profile" or following in profiles, words
            assert word != "-v" or following.endswith(f":{IMAGE.last('VOLUME')}"), words
        named = (word.partition(":")[0] for word in words if word.startswith("broker-"))
        assert all(name in SERVICES for name in named), words
        files = (word for word in words if word.endswith(".yml"))
        assert all((ROOT / file).exists() for file in files), words
    published = {BROKERS[name]["ports"][0].split(":")[1] for name in BROKERS}
    for page in pages:
        assert "localhost:9092, 9093 and 9094" in page
        assert set(re.findall(r"localhost:(90\d\d)", page)) <= published
