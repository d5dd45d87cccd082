"""The transfer jobs of several clients at once: start their workers, kill them, and check.

Each job has a topic of orders and a topic of accounts. An order moves an amount from one account to
another; a worker applies it with two records, in one transaction with the offset of the order.
`Transfers.run` starts a worker for each client, and kills workers and brokers whenever as many
orders as a random threshold have been applied: by progress, not by time. At the end, a consumer
with isolation level read_committed must see both records of every order exactly once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from harness.clients.agents import JAVA
from harness.clients.base import kafka_libs, node_modules
from harness.daemon import Cluster

HERE = Path(__file__).parent
PARTITIONS = 3
ACCOUNTS = 20
BATCH_SIZE = 4
ABORT_RATIO = 0.15
#: Longer than any run of the short form takes on a busy machine.
TIMEOUT_SECONDS = 120.0
#: Workers may end when a broker was killed, but they do not always fail.
MAX_EXITS = 50
#: Kafka's Java client of version 3, which does not know the second transaction protocol.
OLD_LIBS = "TEST_KAFKA_3_LIBS"

#: The value of a record: order, account, amount.
Leg = tuple[int, int, int]


def old_kafka_libs() -> str | None:
    """Return the folder with the jars of Kafka's Java client of version 3, if there is one."""
    folder = os.environ.get(OLD_LIBS, "")
    return folder if folder and list(Path(folder).glob("kafka-clients-3*.jar")) else None


def installed_clients() -> list[str]:
    """Return the clients whose workers can run here."""
    clients = ["confluent", "aiokafka", "kafka-python", "ottla"]
    if node_modules() and shutil.which("node"):
        clients.append("kafkajs")
    if shutil.which("javac"):
        clients += ["java"] if kafka_libs() else []
        clients += ["java-3"] if old_kafka_libs() else []
    return clients


@cache
def _compiled(libs: str) -> tempfile.TemporaryDirectory[str]:
    """Compile the worker in Java, once for all tests."""
    classes = tempfile.TemporaryDirectory()
    source = str(HERE / "TransferWorker.java")
    command = ["javac", "-cp", f"{libs}/*", "-d", classes.name, source]
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)
    return classes


class TransferJob:
    """The job of one client. `legs` are the committed records so far."""

    def __init__(self, client: str, bootstrap: str, count: int, folder: Path) -> None:
        self.client = client
        self.count = count
        self.legs: list[Leg] = []
        self.group = self.orders = f"orders-{client}"
        self.accounts = f"accounts-{client}"
        self._log = folder / f"{client}.log"
        self._fields = {
            "bootstrap": bootstrap,
            "orders": self.orders,
            "accounts": self.accounts,
            "group": self.group,
            "partitions": PARTITIONS,
            "batch_size": BATCH_SIZE,
            "abort_ratio": ABORT_RATIO,
        }
        self._worker: subprocess.Popen[bytes] | None = None
        #: Workers that were killed, and that ended by themselves.
        self.kills = 0
        self.exits = 0

    @property
    def applied(self) -> int:
        """The number of orders of which both records are committed."""
        return sum(number > 1 for number in Counter(leg[0] for leg in self.legs).values())

    def keep_running(self) -> None:
        """Start a worker if there is none."""
        if self._worker is not None and self._worker.poll() is not None:
            self.exits += 1
            self._worker = None
        if self._worker is None:
            with self._log.open("ab") as log:
                self._worker = subprocess.Popen(
                    self._command(), stdout=log, stderr=log, env=self._environ()
                )

    def kill(self) -> None:
        """Kill the worker with SIGKILL."""
        if self._worker is not None:
            self.kills += 1
            self.stop()

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None

    def log_tail(self) -> str:
        """Return the end of the workers' output."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def _libs(self) -> str:
        libs = kafka_libs() if self.client == "java" else old_kafka_libs()
        assert libs is not None
        return libs

    def _environ(self) -> dict[str, str]:
        return {**os.environ, "NODE_PATH": node_modules() or ""}

    def _command(self) -> Sequence[str]:
        fields = json.dumps(self._fields)
        if self.client == "kafkajs":
            return ["node", str(HERE / "kafkajs_worker.js"), fields]
        if self.client.startswith("java"):
            classpath = f"{_compiled(self._libs()).name}:{self._libs()}/*"
            arguments = [str(value) for value in self._fields.values()]
            return [*JAVA, "-cp", classpath, "TransferWorker", *arguments]
        return [sys.executable, str(HERE / "worker.py"), self.client, fields]

    def errors(self, legs: Iterable[Leg]) -> list[str]:
        """Return what is wrong with the committed records."""
        expected = Counter(leg for order in range(self.count) for leg in legs_of(order))
        found = Counter(legs)
        errors = [f"{self.client}: missing {leg}" for leg in expected - found]
        errors += [f"{self.client}: surplus {leg}" for leg in found - expected]
        if balance := sum(amount for _order, _account, amount in found.elements()):
            errors.append(f"{self.client}: the balances add up to {balance}")
        return errors


def legs_of(order: int) -> list[Leg]:
    """Return the two records of an order."""
    payer = order % ACCOUNTS
    receiver = (order * 7 + 1) % ACCOUNTS
    amount = 1 + order % 50
    return [(order, payer, -amount), (order, receiver, amount)]


class Transfers:
    """The jobs of several clients on one cluster."""

    def __init__(
        self, cluster: Cluster, clients: Sequence[str], count: int, seed: int, folder: Path
    ) -> None:
        self.cluster = cluster
        self.jobs = [TransferJob(client, cluster.bootstrap, count, folder) for client in clients]
        self._rng = random.Random(seed)

    def run(self, worker_kills: int, broker_kills: int) -> None:
        """Run the jobs to their end, with so many kills of each worker, and of brokers."""
        self._prepare()
        count = sum(job.count for job in self.jobs)
        worker_thresholds = {
            job.client: sorted(self._rng.sample(range(1, job.count), worker_kills))
            for job in self.jobs
        }
        broker_thresholds = sorted(self._rng.sample(range(1, count), broker_kills))
        consumer = self._consumer("progress")
        deadline = time.monotonic() + TIMEOUT_SECONDS + 2 * count
        try:
            while any(job.applied < job.count for job in self.jobs):
                assert time.monotonic() < deadline, self._describe()
                assert all(job.exits <= MAX_EXITS for job in self.jobs), self._describe()
                for job in self.jobs:
                    thresholds = worker_thresholds[job.client]
                    if thresholds and job.applied >= thresholds[0]:
                        thresholds.pop(0)
                        job.kill()
                    job.keep_running()
                if broker_thresholds and self._applied() >= broker_thresholds[0]:
                    broker_thresholds.pop(0)
                    self._kill_broker()
                self._read(consumer, 0.05)
        finally:
            consumer.close()
            for job in self.jobs:
                job.stop()
        self._check()

    def _prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        topics = [name for job in self.jobs for name in (job.orders, job.accounts)]
        for future in admin.create_topics([NewTopic(n, PARTITIONS, 1) for n in topics]).values():
            future.result(TIMEOUT_SECONDS)
        producer = confluent_kafka.Producer({"bootstrap.servers": self.cluster.bootstrap})
        for job in self.jobs:
            for number in range(job.count):
                (_, payer, amount), (_, receiver, _) = legs_of(number)
                order = {"order": number, "from": payer, "to": receiver, "amount": -amount}
                producer.produce(job.orders, json.dumps(order), partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def _kill_broker(self) -> None:
        broker = self._rng.choice(list(self.cluster))
        broker.kill()
        broker.start()

    def _applied(self) -> int:
        return sum(job.applied for job in self.jobs)

    def _consumer(self, group: str, *, stops_at_end: bool = False) -> Any:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": stops_at_end,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        consumer.assign(
            [
                confluent_kafka.TopicPartition(job.accounts, index, 0)
                for job in self.jobs
                for index in range(PARTITIONS)
            ]
        )
        return consumer

    def _read(self, consumer: Any, seconds: float) -> int:
        """Add what a consumer returns to the jobs; return the number of partitions at their end."""
        ends = 0
        jobs = {job.accounts: job for job in self.jobs}
        for message in consumer.consume(500, seconds):
            if message.error() is None:
                value = json.loads(message.value())
                leg = value["order"], value["account"], value["amount"]
                jobs[message.topic()].legs.append(leg)
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ends += 1
        return ends

    def _check(self) -> None:
        """Read everything again, and compare; the offsets must agree with the records."""
        errors = [error for job in self.jobs for error in job.errors(job.legs)]
        for job in self.jobs:
            job.legs = []
        consumer = self._consumer("check", stops_at_end=True)
        remaining = PARTITIONS * len(self.jobs)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while remaining > 0 and time.monotonic() < deadline:
            remaining -= self._read(consumer, 1.0)
        consumer.close()
        for job in self.jobs:
            errors += job.errors(job.legs)
            errors += self._offset_errors(job)
        assert not errors, "\n".join([*errors, self._describe()])

    def _offset_errors(self, job: TransferJob) -> list[str]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": job.group,
                "isolation.level": "read_committed",
            }
        )
        partitions = [
            confluent_kafka.TopicPartition(job.orders, index) for index in range(PARTITIONS)
        ]
        committed = [tp.offset for tp in consumer.committed(partitions, TIMEOUT_SECONDS)]
        consumer.close()
        expected = [len(range(index, job.count, PARTITIONS)) for index in range(PARTITIONS)]
        return (
            [] if committed == expected else [f"{job.client}: offsets {committed}, not {expected}"]
        )

    def _describe(self) -> str:
        return "\n".join(
            f"{job.client}: {job.applied} of {job.count} applied, {job.kills} workers killed,"
            f" {job.exits} ended\n{job.log_tail()}"
            for job in self.jobs
        )
