"""Kafka Streams with exactly_once_v2: a word count that is killed and restarted, and its broker."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from harness.clients.agents import JAVA
from harness.clients.base import kafka_libs
from harness.daemon import Daemon, shown_on_failure

pytestmark = pytest.mark.real_time

SOURCE = Path(__file__).with_name("WordCount.java")
PARTITIONS = 2
TIMEOUT_SECONDS = 90.0
LINES = 120
WORDS = [f"word{number}" for number in range(7)]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory):
    libs = kafka_libs()
    if libs is None or not list(Path(libs).glob("kafka-streams-*.jar")):
        pytest.skip("TEST_KAFKA_LIBS does not name a folder with the jars of Kafka Streams")
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the path")
    classes = tmp_path_factory.mktemp("classes")
    command = ["javac", "-cp", f"{libs}/*", "-d", str(classes), str(SOURCE)]
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)
    return f"{classes}:{libs}/*"


@pytest.fixture
def broker(request, tmp_path):
    configs = ("transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=2")
    flags = [flag for config in configs for flag in ("--set", config)]
    broker = Daemon(tmp_path / "broker", *flags)
    with broker, shown_on_failure(request, [broker]):
        yield broker


class WordCount:
    """The application. Its state directory stays over a restart."""

    def __init__(self, classpath, address, folder):
        self._command = [*JAVA, "-cp", classpath, "WordCount", address, "word-count", "lines"]
        self._command += ["counts", str(folder / "state")]
        self._log = folder / "word-count.log"
        self._process = None

    def start(self):
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def log(self):
        return self._log.read_text(errors="replace")[-4000:]


class CountReader:
    """Reads the committed counts: those of a word must be 1, 2, 3, … without gap or repetition."""

    def __init__(self, address):
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition("counts", index, 0) for index in range(PARTITIONS)]
        )
        self.counts = defaultdict(list)

    def read_until(self, total, application):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while sum(map(len, self.counts.values())) < total:
            assert time.monotonic() < deadline, (dict(self.counts), application.log())
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.counts[message.key().decode()].append(int(message.value()))

    def close(self):
        self._consumer.close()


def produce_lines(producer, first, last):
    for number in range(first, last):
        words = f"{WORDS[number % 7]} {WORDS[number % 3]}"
        producer.produce("lines", words.encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def test_a_word_count_counts_each_word_once_over_kills_and_restarts(broker, tmp_path, classpath):
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("lines", "counts")]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_SECONDS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "log_level": 0})
    application = WordCount(classpath, broker.address, tmp_path)
    reader = CountReader(broker.address)
    third = LINES // 3

    application.start()
    try:
        produce_lines(producer, 0, third)
        reader.read_until(third, application)  # About half of it: two words per line.
        application.kill()
        produce_lines(producer, third, 2 * third)
        application.start()
        reader.read_until(third * 2 + third // 2, application)
        broker.kill()
        broker.start()
        produce_lines(producer, 2 * third, LINES)
        reader.read_until(LINES * 2, application)
    finally:
        application.kill()
        reader.close()

    expected = defaultdict(int)
    for number in range(LINES):
        expected[WORDS[number % 7]] += 1
        expected[WORDS[number % 3]] += 1
    assert {word: list(range(1, count + 1)) for word, count in expected.items()} == reader.counts
