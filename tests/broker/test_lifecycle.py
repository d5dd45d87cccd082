"""The broker process: start, stop, kill, restart, listeners, background work."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from golden.corpus import Record
from harness.checker import check
from harness.clients.base import ConsumedRecord, RequestError
from harness.clients.confluent import Confluent
from harness.daemon import HOST, Daemon, free_port, shown_on_failure
from harness.load import load_on, read_everything
from harness.wire import connect, error_codes, fetch_request, fetched_partitions
from ottla.protocol.api.metadata import MetadataRequest, MetadataResponseTopic

pytestmark = pytest.mark.real_time

RECORDS = tuple(Record(b"key %d" % n, b"value %d" % n) for n in range(5))
MESSAGE_TOO_LARGE = 10
ENDINGS = pytest.mark.parametrize("end", ["stop", "kill"])


@pytest.fixture
def daemons(tmp_path: Path, request) -> Iterator[Callable[..., Daemon]]:
    """Create daemons without starting them; by default all with the same directory."""
    created: list[Daemon] = []

    def make(*arguments: str, folder: Path = tmp_path, port: int | None = None) -> Daemon:
        created.append(Daemon(folder, *arguments, port=port))
        return created[-1]

    with shown_on_failure(request, created):
        yield make
    for daemon in created:
        if daemon.is_running:
            daemon.kill()


def values(client: Confluent, topic: str, count: int, start: int | None = 0) -> list[bytes | None]:
    return [row.value for row in client.consume({(topic, 0): start}, count)[topic, 0]]


def lines_of(broker: Daemon, message: str) -> list[str]:
    """Return the log lines with this message."""
    lines = broker.log.read_text().splitlines()
    return [line for line in lines if f"  {message}  " in f"{line}  "]


def until(condition: Callable[[], bool], description: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds} s: {description}"
        time.sleep(0.02)


async def topics_of(address: str) -> dict[str, MetadataResponseTopic]:
    async with connect(address) as client:
        response = await client.request(MetadataRequest(topics=None), 12)
    for topic in response.topics:
        for partition in topic.partitions:
            partition.leader_epoch = -1  # Rises with each start.
    return {topic.name: topic for topic in response.topics if not topic.is_internal}


# Starting and stopping.


def test_a_start_logs_the_listeners_and_advertised_addresses(daemons):
    broker = daemons()
    started = time.perf_counter()
    broker.start()
    print(f"\nthe broker answers {(time.perf_counter() - started) * 1000:.0f} ms after its start")

    (listening,) = lines_of(broker, "listening")
    (ready,) = lines_of(broker, "ready")
    assert f"listening  listener=PLAINTEXT address={broker.address}" in listening
    assert f"advertised=PLAINTEXT://{broker.address}" in listening
    assert "ready  broker_id=0 cluster_id=" in ready
    assert f"log_dir={broker.data} topics=0" in ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_the_broker_cleanly(daemons, number):
    broker = daemons().start()
    client = Confluent(broker.address)
    client.produce("t", RECORDS, acks="1")
    assert not (broker.data / "clean-shutdown").exists()

    assert broker.stop(number) == 0

    assert (broker.data / "clean-shutdown").exists()
    assert len(lines_of(broker, "stopping")) == len(lines_of(broker, "stopped")) == 1
    broker.start()
    assert not (broker.data / "clean-shutdown").exists()
    assert values(client, "t", 5) == [record.value for record in RECORDS]


async def test_a_stop_completes_delayed_fetches(daemons):
    broker = daemons().start()
    Confluent(broker.address).produce("t", RECORDS)
    async with connect(broker.address) as one, connect(broker.address) as other:
        for client in (one, other):
            client.send(fetch_request(5, max_wait_ms=60_000), 12)
            assert await client.receives_nothing(0.1)

        broker.send(signal.SIGTERM)

        for client in (one, other):
            answer = await client.response()
            assert error_codes(answer) == [0]
            assert not fetched_partitions(answer)[0].records
            assert await client.is_closed()
    assert broker.wait() == 0
    assert (broker.data / "clean-shutdown").exists()


def test_a_restart_under_load_loses_and_duplicates_nothing(daemons):
    broker = daemons().start()
    Confluent(broker.address).create_topic("t", 2)
    producers = ["librdkafka", "librdkafka"]
    with load_on(broker.address, "t", 2, producers=producers, with_readers=False) as load:
        for _ in range(3):
            load.wait_for_acks(25)
            assert broker.stop() == 0
            assert (broker.data / "clean-shutdown").exists()
            broker.start()
    read_everything(broker.address, "t", 2, load.history)

    assert load.problems == []
    assert load.errors == []
    assert check(load.history) == []
    received = load.history.received()
    assert sum(map(len, received.values())) == load.acked == len(list(load.history.all_sends))
    for offsets in received.values():
        assert offsets == list(range(len(offsets)))


def test_a_stop_does_not_wait_for_idle_connections(daemons):
    broker = daemons().start()
    with (
        socket.create_connection((HOST, broker.port)),
        socket.create_connection((HOST, broker.port)) as half,
    ):
        half.sendall(b"\0\0\0")

        assert broker.stop() == 0

    duration = re.search(r"stopped  duration_ms=(\d+)", broker.log.read_text())
    assert duration
    assert int(duration[1]) < 10_000, "the stop waited for shutdown.timeout.ms"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_during_startup_ends_the_process_or_stops_it_cleanly(daemons, number):
    broker = daemons().start()
    client = Confluent(broker.address)
    client.create_topic("t", 500)
    client.produce("t", RECORDS)
    for delay_seconds in (0.2, 0.3, 0.4, 0.5):
        broker.kill()
        before = broker.log.stat().st_size
        process = broker.spawn()
        time.sleep(delay_seconds)
        process.send_signal(number)

        code = process.wait(30)

        logged = broker.log.read_bytes()[before:].decode()
        assert (code == 0) == ("ready" in logged) == ("stopped" in logged), logged
        assert (code == 0) == (broker.data / "clean-shutdown").exists()
    broker.start()
    assert values(client, "t", 5) == [record.value for record in RECORDS]


@pytest.fixture
def first_process(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Run a broker as PID 1, as in a container: signals have no default action."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("PID namespaces are not available")
    started: list[subprocess.Popen[bytes]] = []

    def start(broker: Daemon, message: str) -> tuple[subprocess.Popen[bytes], int]:
        broker.folder.mkdir(exist_ok=True)
        command = [*unshare, sys.executable, "-m", "ottla", "broker", "start", "--data-dir"]
        with broker.log.open("wb") as log:
            started.append(
                subprocess.Popen([*command, str(broker.data), *broker.arguments], stderr=log)
            )
        until(lambda: message in broker.log.read_text(), message)
        parent = started[-1].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return started[-1], int(children)

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="PID namespaces need Linux")
def test_pid_1_of_a_container_handles_signals(daemons, first_process):
    port, controller = free_port(), free_port()
    addresses = f"cluster.brokers=0@{HOST}:{controller},1@{HOST}:{port}"
    follower = daemons("--id", "1", "--set", addresses, port=port)

    # It waits for its controller forever.
    process, pid = first_process(follower, "waiting for the controller")
    os.kill(pid, signal.SIGTERM)

    assert process.wait(20) == 128 + signal.SIGTERM

    broker = daemons("--listen", f"{HOST}:{port}")
    process, pid = first_process(broker, "ready")
    os.kill(pid, signal.SIGTERM)

    assert process.wait(20) == 0
    assert (broker.data / "clean-shutdown").exists()


# State that survives a restart.


@ENDINGS
async def test_a_restart_keeps_topic_ids_configs_and_records(daemons, end):
    broker = daemons().start()
    client = Confluent(broker.address)
    client.create_topic("one", 3, {"retention.ms": "86400000"})
    client.create_topic("two")
    client.create_partitions("two", 2)
    client.produce("one", RECORDS, partition=2, codec="zstd")
    client.produce("two", RECORDS[:2], acks="1")
    client.delete_records("two", 1)
    before, cluster = await topics_of(broker.address), client.cluster()
    rows = client.consume({("one", 2): 0}, 5)

    for _ in range(2):
        getattr(broker, end)()
        broker.start()

        assert await topics_of(broker.address) == before
        assert client.cluster() == cluster
        assert client.configs("one")["retention.ms"] == "86400000"
        assert client.consume({("one", 2): 0}, 5) == rows
        assert client.watermarks("two") == (1, 2)

    client.produce("one", RECORDS[:1], partition=2)
    assert [row.offset for row in client.consume({("one", 2): 4}, 2)["one", 2]] == [4, 5]


@ENDINGS
def test_altered_configs_apply_at_once_and_after_a_restart(daemons, end):
    broker = daemons().start()
    client = Confluent(broker.address)
    client.create_topic("overridden")
    client.create_topic("default")
    large = [Record(None, b"x" * 5000)]

    client.alter_configs("overridden", {"max.message.bytes": "2000"})
    client.alter_broker({"message.max.bytes": "3000", "num.partitions": "3"})

    for _ in range(2):
        for topic in ("overridden", "default"):
            with pytest.raises(RequestError) as refused:
                client.produce(topic, large)
            assert refused.value.code == MESSAGE_TOO_LARGE
        assert client.configs("overridden")["max.message.bytes"] == "2000"
        assert client.configs("default")["max.message.bytes"] == "3000"
        client.produce("default", [Record(None, b"x" * 2500)])
        getattr(broker, end)()
        broker.start()
    client.produce("auto-created", RECORDS)
    assert client.topics()["auto-created"] == 3

    client.alter_configs("overridden", {"max.message.bytes": "10000"})
    client.produce("overridden", large)


def test_log_level_is_dynamic(daemons):
    broker = daemons().start()

    Confluent(broker.address).alter_broker({"log.level": "ERROR"})
    broker.restart()
    assert lines_of(broker, "stopping") == []
    assert len(lines_of(broker, "listening")) == 1, "the second start logged below its level"

    Confluent(broker.address).alter_broker({"log.level": "INFO"})
    broker.stop()
    assert len(lines_of(broker, "stopping")) == 1


@ENDINGS
def test_producer_ids_are_never_reused(daemons, end):
    """A reused id would make the records of a new producer look like duplicates."""
    broker = daemons().start()
    client = Confluent(broker.address)
    for _ in range(2):
        client.produce("t", RECORDS, idempotent=True)
        getattr(broker, end)()
        broker.start()

    assert values(client, "t", 10) == [record.value for record in RECORDS] * 2


# Refused starts.


def test_a_second_broker_in_the_same_directory_is_refused(daemons):
    broker = daemons().start()
    second = daemons(port=free_port())

    assert second.spawn().wait(30) == 1

    assert second.log.read_text().splitlines()[-1] == (
        f"error: {broker.data} is in use by another process; fix it, or use another --data-dir"
    )
    assert broker.responds()
    broker.restart()


def test_a_second_broker_on_the_same_port_is_refused(daemons, tmp_path):
    broker = daemons().start()
    second = daemons(folder=tmp_path / "other", port=broker.port)

    assert second.spawn().wait(30) == 1

    line = second.log.read_text().splitlines()[-1]
    assert line.startswith(f"error: cannot listen on {broker.address}: Address already in use;")
    assert not second.data.exists(), "created a data directory it cannot serve"
    assert broker.responds()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--id", "7"), "has broker id 0, not 7"),
        (("--set", "cluster.id=AAAAAAAAAAAAAAAAAAAAAA"), "not 'AAAAAAAAAAAAAAAAAAAAAA'"),
    ],
)
def test_the_data_directory_of_another_broker_or_cluster_is_refused(daemons, arguments, message):
    broker = daemons().start()
    Confluent(broker.address).produce("t", RECORDS)
    broker.stop()

    assert broker.spawn(*arguments).wait(30) == 1

    error = broker.log.read_text().splitlines()[-1]
    assert error.startswith(f"error: {broker.data} has ")
    assert message in error
    assert (broker.data / "clean-shutdown").exists(), "the broker changed a foreign directory"
    broker.start()
    assert values(Confluent(broker.address), "t", 5) == [record.value for record in RECORDS]


def test_a_new_data_directory_takes_the_configured_cluster_and_broker_id(daemons):
    cluster_id = "abcdefghijklmnopqrstuv"
    broker = daemons("--id", "3", "--set", f"cluster.id={cluster_id}").start()
    client = Confluent(broker.address)

    assert client.cluster() == (cluster_id, 3, [(3, broker.address)])
    client.produce("t", RECORDS)
    assert len(values(client, "t", 5)) == 5


# Listeners.


async def advertised_at(host: str, port: int) -> str:
    async with connect(f"{host}:{port}") as client:
        response = await client.request(MetadataRequest(topics=[]), 12)
    (node,) = response.brokers
    return f"{node.host}:{node.port}"


async def test_each_listener_advertises_its_own_address(daemons):
    inside, outside, third = free_port(), free_port(), free_port()
    broker = daemons(
        *("--listen", f"INSIDE://{HOST}:{inside}"),
        *("--listen", f"OUTSIDE://{HOST}:{outside}", "--listen", f"THIRD://localhost:{third}"),
        *("--advertise", "OUTSIDE://logs.example.org:9999"),
        port=inside,
    ).start()

    assert await advertised_at(HOST, inside) == f"{HOST}:{inside}"
    assert await advertised_at(HOST, outside) == "logs.example.org:9999"
    assert await advertised_at(HOST, third) == f"localhost:{third}"
    for port in (inside, third):
        client = Confluent(f"{HOST}:{port}")
        client.produce(f"by-{port}", RECORDS)
        assert len(values(client, f"by-{port}", 5)) == 5
    logged = broker.log.read_text()
    assert f"listener=INSIDE address={HOST}:{inside} advertised=INSIDE://{HOST}:{inside}" in logged
    assert "advertised=OUTSIDE://logs.example.org:9999" in logged
    assert f"advertised=THIRD://localhost:{third}" in logged


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is a loopback address on Linux only")
async def test_a_wildcard_listener_advertises_the_address_that_the_client_connected_to(daemons):
    port = free_port()
    insecure = ("--set", "allow.insecure.listeners=true")
    broker = daemons("--listen", f"0.0.0.0:{port}", *insecure, port=port).start()

    for host in (HOST, "127.0.0.2"):
        assert await advertised_at(host, port) == f"{host}:{port}"
        client = Confluent(f"{host}:{port}")
        client.produce(f"by-{host}", RECORDS)
        assert len(values(client, f"by-{host}", 5)) == 5
    logged = broker.log.read_text()
    assert f'advertised="PLAINTEXT://<address the client connected to>:{port}"' in logged
    assert "listener is reachable from other hosts, without encryption or authentication" in logged


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")
def test_a_listener_on_ipv6(daemons):
    four, six = free_port(), free_port()
    broker = daemons(
        "--listen", f"FOUR://{HOST}:{four}", "--listen", f"SIX://[::1]:{six}", port=four
    ).start()

    client = Confluent(f"[::1]:{six}")
    client.produce("t", RECORDS)

    assert f"advertised=SIX://[::1]:{six}" in lines_of(broker, "listening")[1]
    assert client.cluster().brokers == [(0, f"::1:{six}")]
    assert values(client, "t", 5) == values(Confluent(f"{HOST}:{four}"), "t", 5)


# Crashes during changes.


def test_an_acknowledged_topic_deletion_survives_a_crash(daemons):
    broker = daemons().start()
    client = Confluent(broker.address)
    for number in range(4):
        topic = f"doomed-{number}"
        client.produce(topic, RECORDS)

        client.delete_topic(topic)
        broker.kill()

        broker.start()
        assert topic not in client.topics()
        assert not list(broker.data.glob(f"{topic}-*"))


def test_a_crash_during_deletions_leaves_each_topic_complete_or_deleted(daemons):
    chance = random.Random(7)
    broker = daemons().start()
    for cycle in range(3):
        client = Confluent(broker.address)
        topics = [f"doomed-{cycle}-{number}" for number in range(60)]
        client.create_topics(topics)
        for topic in topics[::6]:
            client.produce(topic, RECORDS)
        answered: list[str] = []

        def delete(client=client, topics=topics, answered=answered) -> None:
            for topic in topics:
                try:
                    client.delete_topic(topic)
                except RequestError:
                    return
                answered.append(topic)

        thread = threading.Thread(target=delete)
        thread.start()
        until(lambda answered=answered: len(answered) > 5, "a deletion")
        time.sleep(chance.uniform(0, 0.05))
        broker.kill()
        # The pending deletion is answered by the restarted broker.
        broker.start()
        thread.join()

        client = Confluent(broker.address)
        remaining = [topic for topic in topics if topic in client.topics()]
        assert not set(answered) & set(remaining)
        for topic in remaining:
            count = 5 if topic in topics[::6] else 0
            assert client.watermarks(topic) == (0, count)
        kept = {path.name.rpartition("-")[0] for path in broker.data.glob("doomed-*")}
        assert kept == set(remaining) | {
            name for name in kept if not name.startswith(f"doomed-{cycle}")
        }
        print(f"{len(answered)} deleted, {len(remaining)} remaining")


@ENDINGS
def test_a_start_removes_the_log_of_a_deleted_topic(daemons, tmp_path, end):
    """As after a crash between the tombstone and the removal of the files."""
    broker = daemons().start()
    client = Confluent(broker.address)
    client.produce("t", RECORDS)
    client.produce("other", RECORDS)
    broker.stop()
    shutil.copytree(broker.data / "t-0", tmp_path / "kept")
    broker.start()
    client.delete_topic("t")
    getattr(broker, end)()
    shutil.copytree(tmp_path / "kept", broker.data / "t-0")

    broker.start()

    assert client.topics() == {"other": 1}
    assert not (broker.data / "t-0").exists()
    client.create_topic("t")
    assert client.watermarks("t") == (0, 0)
    assert values(client, "other", 5) == [record.value for record in RECORDS]


@ENDINGS
def test_the_log_of_an_unknown_topic_is_set_aside(daemons, tmp_path, end):
    broker = daemons().start()
    client = Confluent(broker.address)
    client.produce("t", RECORDS)
    broker.stop()
    shutil.copytree(broker.data / "t-0", tmp_path / "kept")
    (broker.data / "lost+found").mkdir()
    broker.start()
    getattr(broker, end)()
    shutil.copytree(tmp_path / "kept", broker.data / "stranger-0")
    shutil.copytree(tmp_path / "kept", broker.data / "t-1")

    broker.start()

    assert client.topics() == {"t": 1}
    assert not (broker.data / "stranger-0").exists()
    aside = {path.name: path for path in broker.data.glob("*.stray/*")}
    assert set(aside) == {"stranger-0", "t-1"}
    log = "00000000000000000000.log"
    assert (
        (aside["stranger-0"] / log).read_bytes().startswith((tmp_path / "kept" / log).read_bytes())
    )
    assert (broker.data / "lost+found").is_dir()
    assert "set aside the log of an unknown topic" in broker.log.read_text()
    assert f"path={aside['stranger-0']}" in broker.log.read_text()
    # The name can be used again; the set-aside log stays.
    client.produce("stranger", RECORDS[:1])
    client.create_partitions("t", 2)
    broker.restart()
    assert client.watermarks("stranger") == (0, 1)
    assert {path.name for path in broker.data.glob("*.stray/*")} == {"stranger-0", "t-1"}


def test_a_crash_during_creations_leaves_each_topic_complete_or_absent(daemons):
    """Acknowledged topics exist, and the others can be created again."""
    chance = random.Random(11)
    broker = daemons().start()
    for cycle in range(3):
        client = Confluent(broker.address)
        answered: list[str] = []

        def create(client=client, cycle=cycle, answered=answered) -> None:
            for number in range(100):
                try:
                    client.create_topic(f"new-{cycle}-{number}", 3)
                except RequestError:
                    return
                answered.append(f"new-{cycle}-{number}")

        thread = threading.Thread(target=create)
        thread.start()
        until(lambda answered=answered: len(answered) > 3, "a creation")
        time.sleep(chance.uniform(0, 0.05))
        broker.kill()
        broker.start()
        thread.join()

        client = Confluent(broker.address)
        topics = client.topics()
        assert set(answered) <= set(topics)
        assert all(count == 3 for count in topics.values())
        assert {path.name.rpartition("-")[0] for path in broker.data.glob("new-*")} == set(topics)
        last = f"new-{cycle}-{len(answered)}"
        if last not in topics:
            client.create_topic(last, 3)


# Background work.


def test_retention_deletes_old_segments(daemons):
    broker = daemons("--set", "log.retention.check.interval.ms=100").start()
    client = Confluent(broker.address)
    client.create_topic("old", configs={"segment.bytes": "10000", "retention.ms": "60000"})
    client.create_topic("large", configs={"segment.bytes": "10000", "retention.bytes": "25000"})
    now, hour_ago = (int(time.time() * 1000) - back for back in (0, 3_600_000))
    for topic, timestamp in (("old", hour_ago), ("large", now)):
        for number in range(10):
            client.produce(topic, [Record(None, b"%d" % number * 6000, (), timestamp)])
    client.produce("old", [Record(None, b"new" * 2000, (), now)])

    until(lambda: client.watermarks("old") == (10, 11), "retention by time")
    until(lambda: client.watermarks("large") == (5, 10), "retention by size")

    assert values(client, "old", 1, None) == [b"new" * 2000]
    broker.kill()
    broker.start()
    assert client.watermarks("old") == (10, 11)
    assert client.watermarks("large") == (5, 10)
    assert values(client, "large", 1, 5) == [b"5" * 6000]

    client.alter_configs("large", {"retention.bytes": "13000"})
    until(lambda: client.watermarks("large")[0] > 5, "the altered retention")


def last_of_each_key(rows: list[ConsumedRecord]) -> dict[bytes | None, bytes | None]:
    return {row.key: row.value for row in rows}


def test_compaction_keeps_the_last_record_of_each_key_through_crashes(daemons):
    broker = daemons("--set", "log.cleaner.backoff.ms=50").start()
    client = Confluent(broker.address)
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    client.create_topic("t", configs=configs)
    chance, written = random.Random(3), 0
    expected: dict[bytes | None, bytes | None] = {}
    for cycle in range(3):
        for _ in range(30):
            batch = [
                Record(b"key %d" % chance.randrange(50), b"%d" % chance.getrandbits(800))
                for _ in range(20)
            ]
            client.produce("t", batch, codec=chance.choice(["none", "gzip"]))
            written += len(batch)
            expected |= {record.key: record.value for record in batch}
        if cycle < 2:
            broker.kill()
            broker.start()

    def is_compacted() -> bool:
        return sum(path.stat().st_size for path in broker.data.glob("t-0/*.log")) < 100_000

    until(is_compacted, "compaction")
    assert "compacted  log=t-0 " in broker.log.read_text()
    broker.restart()
    client.produce("t", [Record(b"end", b"end")])
    rows: list[ConsumedRecord] = []
    while not rows or rows[-1].key != b"end":
        rows += client.consume({("t", 0): rows[-1].offset + 1 if rows else 0}, 1)["t", 0]
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == written
    assert len(rows) < written / 2
    assert last_of_each_key(rows) == expected | {b"end": b"end"}


BUSY_HOUSEKEEPING = (
    "log.retention.check.interval.ms=5",
    "log.flush.scheduler.interval.ms=5",
    "log.flush.offset.checkpoint.interval.ms=5",
    "log.cleaner.backoff.ms=5",
    "log.flush.interval.messages=1",
    "producer.id.expiration.check.interval.ms=5",
)


def test_topics_are_deleted_and_recreated_during_housekeeping(daemons):
    """A log may be deleted and recreated while housekeeping works on it."""
    broker = daemons(*(part for config in BUSY_HOUSEKEEPING for part in ("--set", config))).start()
    client, chance = Confluent(broker.address), random.Random(5)
    topics = [f"t{number}" for number in range(4)]

    def create(topic: str) -> None:
        configs = {
            "segment.bytes": "20000",
            "retention.bytes": "50000",
            "cleanup.policy": chance.choice(["delete", "compact"]),
            "min.cleanable.dirty.ratio": "0.01",
            "durability": chance.choice(["acks", "fsync"]),
        }
        client.create_topic(topic, configs=configs)

    def write() -> None:
        writer_client = Confluent(broker.address)
        while not done.is_set():
            topic = topics[int(time.monotonic() * 50) % 4]
            rows = [Record(b"%d" % n, b"x" * 2000) for n in range(5)]
            with suppress(RequestError):  # the topic may just be deleted
                writer_client.produce(topic, rows)

    for topic in topics:
        create(topic)
    done = threading.Event()
    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    client.alter_broker({"auto.create.topics.enable": "false"})
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        topic = chance.choice(topics)
        client.delete_topic(topic)
        create(topic)
        time.sleep(chance.uniform(0, 0.05))
    done.set()
    for writer in writers:
        writer.join()

    for topic in topics:
        client.produce(topic, [Record(b"last", b"last")])
    ends = {topic: client.watermarks(topic)[1] for topic in topics}
    broker.kill()
    broker.start()
    assert {topic: client.watermarks(topic)[1] for topic in topics} == ends
    for topic in topics:
        assert values(client, topic, 1, ends[topic] - 1) == [b"last"]
    assert broker.stop() == 0
    assert " ERROR " not in broker.log.read_text()


def test_log_format_json(daemons):
    broker = daemons("--log-format", "json").start()
    broker.stop()

    lines = [json.loads(line) for line in broker.log.read_text().splitlines()]

    by_message = {line["message"]: line for line in lines}
    assert {"listening", "ready", "stopping", "stopped"} <= set(by_message)
    assert by_message["listening"]["advertised"] == f"PLAINTEXT://{broker.address}"
