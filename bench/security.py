"""Security compared with Apache Kafka: TLS, the authorizer, and connections that authenticate.

    python bench/security.py [--quick] [--kafka-libs DIR] [--dir DIR] [--only PART…]

Needs Linux (/proc), cryptography, and a confluent-kafka with TLS. broker.py --help says how to get
Kafka's jars. Contenders take turns; the median of the rounds counts.

- tls: produce, then consume, 100-byte records in 12 partitions, in plain text and over TLS 1.3,
  with the same ECDSA certificate
- authorizer: one record per request, without an authorizer, and with one that has 1,000 ACLs. The
  median round counts: the difference is small
- connections: connect, authenticate, and close, with some connections at a time. The client has
  derived its key from the password before
- checks: the time of a check, when the decision is remembered, and when it is not, by the number of
  ACLs
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import (
    best_seconds,
    command_line,
    data_directory,
    median_throughput,
    progress,
    recording,
    run_parts,
    spread_of,
    turns,
)
from driver import Driver
from ottla.cli.certificates import CertificateAuthority, write_keystore
from ottla.coord.acls import AclBinding, Acls, acl_key
from ottla.coord.principal import user
from ottla.protocol.acls import AclOperation, PatternType, PermissionType, ResourceType
from servers import Kafka, Ottla, Server, ServerError, free_port

SIZE = 100
PARTITIONS = 12
IN_FLIGHT = 1000
USER, PASSWORD, MECHANISM = "bench", "bench-secret", "SCRAM-SHA-256"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: Other principals' ACLs, which a check has to pass over.
OTHER_ACLS = 1000

Run = dict[str, Any]

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    warm_up_seconds: float
    seconds: float
    max_records: int
    authorizer_rounds: int
    connections: int
    acls: Sequence[int]


FULL = Plan(
    rounds=8,
    warm_up_seconds=3.0,
    seconds=1.0,
    max_records=1_500_000,
    authorizer_rounds=12,
    connections=600,
    acls=(10, 1000, 100_000),
)
QUICK = Plan(
    rounds=1,
    warm_up_seconds=0.5,
    seconds=0.3,
    max_records=300_000,
    authorizer_rounds=2,
    connections=40,
    acls=(10, 1000),
)


class Contender:
    """A server by one of its listeners."""

    def __init__(
        self, label: str, server: Server, port: int, protocol: str, ca: Path, client: Driver
    ) -> None:
        self.label = label
        self.server = server
        self.port = port
        self.protocol = protocol
        self._ca = str(ca)
        self._client = client

    @property
    def baseline(self) -> str:
        """The label of Kafka's contender with the same protocol."""
        return f"kafka, {self.protocol}"

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command on the server."""
        configs = {"security.protocol": self.protocol, "ssl.ca.location": self._ca}
        if not self.protocol.endswith("SSL"):
            del configs["ssl.ca.location"]
        self._client.call("rdkafka.use", configs=configs)
        return self._client.call(command, address=f"127.0.0.1:{self.port}", **arguments)

    def throughput(self, seconds: float, max_records: int) -> dict[str, Run]:
        """Produce to a new topic, and consume it."""
        topic = self._create_topic(PARTITIONS)
        common = {"pid": self.server.pid, "topic": topic, "partitions": PARTITIONS}
        limits = {"size": SIZE, "seconds": seconds, "max_records": max_records}
        produced = self.call("rdkafka.produce", **common, **limits, acks="1")
        consumed = self.call("rdkafka.consume", **common, records=produced["records"])
        self.call("rdkafka.delete_topic", topic=topic)
        return {"produce": produced, "consume": consumed}

    def single(self, seconds: float) -> Run:
        """Produce one record per request."""
        topic = self._create_topic(1)
        limits = {"size": SIZE, "seconds": seconds, "in_flight": IN_FLIGHT, "acks": "1"}
        run: Run = self.call("rdkafka.single", pid=self.server.pid, topic=topic, **limits)
        self.call("rdkafka.delete_topic", topic=topic)
        return run

    def connect(self, count: int) -> Run:
        """Open and close connections."""
        run: Run = self._client.call(
            "secure_connections.connect",
            port=self.port,
            pid=self.server.pid,
            count=count,
            ca=self._ca if self.protocol.endswith("SSL") else None,
            user=USER if self.protocol.startswith("SASL") else None,
            password=PASSWORD,
            mechanism=MECHANISM,
        )
        return run

    def _create_topic(self, partitions: int) -> str:
        topic = f"bench-{next(_topic_numbers)}"
        self.call("rdkafka.create_topic", topic=topic, partitions=partitions, config={})
        return topic


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    plan: Plan
    #: By protocol.
    contenders: Mapping[str, list[Contender]]
    authorizers: list[Contender]


# -- parts -----------------------------------------------------------------------------------------


def bench_tls(bench: Bench) -> list[Run]:
    """Measure throughput in plain text and over TLS."""
    plan = bench.plan
    contenders = [*bench.contenders["PLAINTEXT"], *bench.contenders["SSL"]]
    runs: dict[str, dict[str, list[Run]]] = {}
    for number, contender in turns(contenders, plan.rounds):
        progress(f"tls, round {number + 1}: {contender.label}")
        for operation, run in contender.throughput(plan.seconds, plan.max_records).items():
            runs.setdefault(operation, {}).setdefault(contender.label, []).append(run)
    results = []
    for operation, found in runs.items():
        rows = {label: median_throughput(rounds) for label, rounds in found.items()}
        for contender in contenders:
            row, kafka = rows[contender.label], rows.get(contender.baseline)
            if kafka:
                row["versus_kafka"] = row["records_per_second"] / kafka["records_per_second"]
        results.append({"operation": operation, "contenders": rows})
    return results


def bench_authorizer(bench: Bench) -> dict[str, Run]:
    """Measure small requests with and without an authorizer."""
    plan = bench.plan
    runs: dict[str, list[Run]] = {}
    for number, contender in turns(bench.authorizers, plan.authorizer_rounds):
        progress(f"authorizer, round {number + 1}: {contender.label}")
        runs.setdefault(contender.label, []).append(contender.single(plan.seconds))
    results = {}
    for label, found in runs.items():
        cpu = [run["server_cpu"] / run["requests"] for run in found]
        rates = [run["requests"] / run["seconds"] for run in found]
        results[label] = {
            "requests_per_second": statistics.median(rates),
            "server_cpu": statistics.median(cpu),
            "best_cpu": min(cpu),
            "spread": spread_of(cpu),
        }
    return results


def bench_connections(bench: Bench) -> list[Run]:
    """Measure connections per second, and the broker's CPU for each."""
    plan, results = bench.plan, []
    for protocol, contenders in bench.contenders.items():
        runs: dict[str, list[Run]] = {}
        for number, contender in turns(contenders, plan.rounds):
            progress(f"connections, {protocol}, round {number + 1}: {contender.label}")
            runs.setdefault(contender.label, []).append(contender.connect(plan.connections))
        rows = {label: median_throughput(found) for label, found in runs.items()}
        for contender in contenders:
            row, kafka = rows[contender.label], rows.get(contender.baseline)
            if kafka:
                row["versus_kafka"] = row["records_per_second"] / kafka["records_per_second"]
        results.append({"protocol": protocol, "contenders": rows})
    return results


def bench_checks(bench: Bench) -> list[Run]:
    """Measure checks of the authorizer, without a broker."""
    return [measure_checks(count, is_quick=bench.plan is QUICK) for count in bench.plan.acls]


def measure_checks(count: int, *, is_quick: bool) -> Run:
    """Return the seconds of a check with so many ACLs."""
    from ottla.broker.security.authorizer import Authorizer  # noqa: PLC0415  # Only needed here.

    progress(f"checks: {count} ACLs")
    acls = Acls()
    for number in range(count):
        binding = AclBinding(
            ResourceType.TOPIC,
            f"topic-{number}",
            PatternType.PREFIXED if number % 2 else PatternType.LITERAL,
            f"User:{number % 100}",
            "*",
            AclOperation.WRITE,
            PermissionType.ALLOW,
        )
        acls.replay(acl_key(binding).decode().removeprefix("acl/"), {})
    authorizer = Authorizer(acls, [user("admin")], allows_if_none=False)
    client: Any = Client()
    name = f"topic-{count // 2}"
    question = (client.principal, client.client_host, AclOperation.WRITE, ResourceType.TOPIC, name)
    contenders: dict[str, Callable[[], object]] = {
        "remembered": lambda: authorizer.allows(client, *question[2:]),
        "decided": lambda: authorizer._decide(question),
    }
    return {"acls": count} | best_seconds(contenders, is_quick=is_quick)


class Client:
    """What an authorizer has to know of a request."""

    principal = user("1")
    client_host = "10.0.0.1"


PARTS: dict[str, Callable[[Bench], Any]] = {
    "tls": bench_tls,
    "authorizer": bench_authorizer,
    "connections": bench_connections,
    "checks": bench_checks,
}


# -- servers ---------------------------------------------------------------------------------------


def make_ottla(directory: Path, ports: Mapping[str, int], certificates: Path) -> Ottla:
    """Return a broker with a listener for each protocol."""
    configs = {
        "ssl.keystore.location": certificates / "broker.pem",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.bootstrap.users": f"{MECHANISM}=[name={USER},password={PASSWORD}]",
        "log.durability": "page-cache",
    }
    options = [word for name, value in configs.items() for word in ("--set", f"{name}={value}")]
    for protocol, port in ports.items():
        options += ["--listen", f"{protocol}://127.0.0.1:{port}"]
    return Ottla(directory, *options)


def make_kafka(directory: Path, libs: Path, ports: Mapping[str, int], certificates: Path) -> Kafka:
    """Return the same broker of Kafka's."""
    kafka = Kafka(directory, libs)
    names = ("PLAINTEXT", "CONTROLLER", *ports)
    protocols = {name: "PLAINTEXT" if name == "CONTROLLER" else name for name in names}
    listeners = "".join(f",{protocol}://127.0.0.1:{port}" for protocol, port in ports.items())
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    kafka.properties = {
        "listeners": f"PLAINTEXT://{kafka.address},CONTROLLER://{kafka.controller}{listeners}",
        "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "sasl.enabled.mechanisms": MECHANISM,
        **{
            f"listener.name.{protocol.lower()}.{MECHANISM.lower()}.sasl.jaas.config": scram
            for protocol in ports
            if protocol.startswith("SASL")
        },
    }
    kafka.format_options = ("--add-scram", f"{MECHANISM}=[name={USER},password={PASSWORD}]")
    return kafka


def main() -> None:
    """Measure all parts, or the selected ones."""
    parser = command_line(__doc__, quick="half a minute", parts=PARTS, disk="1 GiB")
    parser.add_argument("--kafka-libs", type=Path, help="directory of Apache Kafka's jars")
    options = parser.parse_args()
    libs = options.kafka_libs or os.environ.get("KAFKA_LIBS")
    libs = Path(libs).resolve() if libs else None
    plan = QUICK if options.quick else FULL
    with (
        recording("security", options) as results,
        data_directory(options) as directory,
        ExitStack() as stack,
    ):
        client = Driver()
        stack.callback(client.stop)
        authority = CertificateAuthority.open(directory)
        ca = directory / "ca.pem"
        write_keystore(directory / "broker.pem", authority.issue("broker", hosts=("127.0.0.1",)))

        def start(label: str, server: Server) -> None:
            progress(f"start: {label}")
            stack.callback(server.stop)
            server.start()

        contenders: dict[str, list[Contender]] = {name: [] for name in ("PLAINTEXT", *PROTOCOLS)}

        def add(name: str, server: Server, ports: Mapping[str, int]) -> None:
            start(name, server)
            for protocol, port in {"PLAINTEXT": server.port, **ports}.items():
                label = f"{name}, {protocol}"
                contenders[protocol].append(Contender(label, server, port, protocol, ca, client))

        ports = {protocol: free_port() for protocol in PROTOCOLS}
        ottla = make_ottla(directory / "ottla", ports, directory)
        add("ottla", ottla, ports)
        results["versions"] = {"ottla": ottla.version()}
        results["skipped"] = {}
        reason = Kafka.missing(libs)
        if reason is None:
            ports = {protocol: free_port() for protocol in PROTOCOLS}
            kafka = make_kafka(directory / "kafka", libs or Path(), ports, directory)
            try:
                add("kafka", kafka, ports)
                results["versions"]["kafka"] = kafka.version()
            except ServerError as error:
                reason = str(error)
        if reason is not None:
            print(f"kafka is skipped: {reason}", flush=True)
            results["skipped"]["kafka"] = reason
        guarded = Ottla(
            directory / "guarded",
            *("--set", "log.durability=page-cache", "--set", "authorizer.class.name=acl"),
            *("--set", "super.users=User:ANONYMOUS"),
        )
        start("ottla with an authorizer", guarded)
        authorizers = [
            Contender(label, server, server.port, "PLAINTEXT", ca, client)
            for label, server in (("no authorizer", ottla), ("authorizer", guarded))
        ]
        authorizers[1].call("rdkafka.create_acls", count=OTHER_ACLS)
        for contender in (*itertools.chain.from_iterable(contenders.values()), authorizers[1]):
            progress(f"warm up: {contender.label}")
            if not contender.protocol.startswith("SASL"):
                contender.throughput(plan.warm_up_seconds, plan.max_records)
            contender.connect(plan.connections)
        run_parts("security", options, results, PARTS, Bench(plan, contenders, authorizers))


if __name__ == "__main__":
    main()
