"""The programs in examples/, run as processes; their results are read with confluent-kafka."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import fmean
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from ottla.client import TopicPartition
from ottla.client.blocking import Admin

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_SECONDS = 60


@pytest.fixture
def broker(ottla_session_broker):
    return ottla_session_broker


@pytest.fixture
def prefix():
    return f"t{uuid4().hex[:8]}"


@pytest.fixture
def start(broker):
    """Start an example; it is killed at the end of the test."""
    started = []

    def begin(name, *arguments):
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")),
                *("--bootstrap", broker.bootstrap, *map(str, arguments)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start):
    """Run an example; it must succeed without writing to stderr."""

    def run_example(name, *arguments):
        process = start(name, *arguments)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, err) == (0, ""), out + err
        return out

    return run_example


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("saga", ()),
        ("telemetry", ()),
        ("ledger", ()),
        ("log_concentrator", ("ship", __file__)),
        ("log_concentrator", ("write", "nowhere")),
    ],
)
def test_a_broker_error_is_one_line(start, name, arguments):
    process = start(name, "--prefix", "not/a/name", *arguments)
    _out, err = process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == 1
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1
    assert "INVALID_TOPIC_EXCEPTION" in err


@pytest.fixture
def read(broker):
    """Return all records of a topic up to its current end."""

    def everything(topic):
        configs = {
            "group.id": "unused",
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, **configs})
        try:
            partitions = consumer.list_topics(topic).topics[topic].partitions
            consumer.assign(
                [ConfluentPartition(topic, number, OFFSET_BEGINNING) for number in partitions]
            )
            found, ended = [], set()
            while len(ended) < len(partitions):
                for record in consumer.consume(10_000, 0.1):
                    if record.error() is None:
                        found.append(record)
                    else:
                        assert record.error().code() == KafkaError._PARTITION_EOF
                        ended.add(record.partition())
            return found
        finally:
            consumer.close()

    return everything


@pytest.fixture
def write(broker):
    """Produce records, given as keyword arguments of `Producer.produce`."""

    def produce(topic, *records):
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for record in records:
            producer.produce(topic, **record)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    return produce


def values(records):
    return [json.loads(record.value()) for record in records]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_documents_its_command(path):
    command = [sys.executable, "-W", "error", str(path), "--help"]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert f"python examples/{path.name}" in done.stdout
    assert "--bootstrap" in done.stdout
    assert f"[{path.stem}.py]({path.name})" in (EXAMPLES / "README.md").read_text()


class TestSaga:
    @pytest.fixture
    def check(self, read, prefix):
        """Assert that every order ended exactly once."""

        def orders_are_settled(placed, dead):
            events = {
                name: read(f"{prefix}.{name}")
                for name in ("orders", "payments", "notifications", "cancellations")
            }
            orders = {}
            nonsense = []
            for record in events["orders"]:
                try:
                    orders[record.key()] = json.loads(record.value())["amount"]
                except ValueError:
                    nonsense.append(record)
            assert (len(orders), len(nonsense)) == (placed, dead)
            rejected = {key for key, amount in orders.items() if amount > 80}
            assert 0 < len(rejected) < len(orders)

            answers = {
                name: {record.key(): json.loads(record.value())["status"] for record in records}
                for name, records in events.items()
                if name != "orders"
            }
            for name, answered in answers.items():
                assert len(answered) == len(events[name]), f"{name} has an answer twice"
            assert answers["payments"] == {
                key: "rejected" if key in rejected else "paid" for key in orders
            }
            assert answers["notifications"] == {
                key: "too expensive" if key in rejected else "on its way" for key in orders
            }
            assert answers["cancellations"] == dict.fromkeys(rejected, "cancelled")

            letters = read(f"{prefix}.dead-letters")
            assert Counter((one.key(), one.value()) for one in letters) == Counter(
                (one.key(), one.value()) for one in nonsense
            )
            assert {dict(one.headers())["from"].decode() for one in letters} == {
                f"{one.topic()}-{one.partition()} at offset {one.offset()}" for one in nonsense
            }
            return letters

        return orders_are_settled

    def test_orders_are_paid_or_cancelled_and_invalid_ones_are_dead_letters(
        self, run, check, prefix
    ):
        run("saga", "--prefix", prefix, "--orders", 40)
        assert len(check(placed=38, dead=2)) == 2

        run("saga", "--prefix", prefix, "--orders", 20)
        assert len(check(placed=57, dead=3)) == 3

    def test_a_killed_service_is_resumed_by_the_next(self, start, run, read, check, prefix):
        first = start("saga", "--prefix", prefix, "--orders", 1000)
        for line in first.stdout:
            if line.startswith(f"{prefix}.notification"):
                break
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert len(read(f"{prefix}.notifications")) < 900

        began = time.monotonic()
        run("saga", "--prefix", prefix, "--orders", 0)

        check(placed=950, dead=50)
        # It did not wait until the group had given up the dead.
        assert time.monotonic() - began < 40


class TestLogConcentrator:
    def test_every_line_arrives_once_and_in_order(self, start, run, tmp_path, prefix):
        logs = [tmp_path / f"{name}.log" for name in "abc"]
        written = {log: [] for log in logs}

        def log_lines(log, *texts, mode="a"):
            with log.open(mode) as file:
                file.writelines(f"{text}\n" for text in texts)
            written[log] += texts

        def shipped():
            out = tmp_path / "out"
            run("log_concentrator", "--prefix", prefix, "--seconds", 0, "write", out)
            merged = out / "all.log"
            return merged.read_text().splitlines() if merged.exists() else []

        def wait_for(count):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while len(shipped()) < count:
                assert time.monotonic() < deadline, "the lines do not arrive"

        for log in logs:
            log_lines(log, *(f"ERROR {log.stem} {number}" for number in range(3000)))
        common = ("--prefix", prefix, "--seconds")
        shipper = start("log_concentrator", *common, "inf", "ship", *logs)
        wait_for(9000)

        rotated, truncated, grown = logs
        log_lines(rotated, "INFO the last of the old file")
        rotated.rename(tmp_path / "a.log.1")
        log_lines(rotated, "INFO the first of the new file")
        log_lines(truncated, "WARNING all before is gone", mode="w")
        with grown.open("a") as file:
            file.write("half a line")
            file.flush()
            time.sleep(0.3)
            file.write(" and the rest\n")
        written[grown].append("half a line and the rest")
        wait_for(9004)
        shipper.terminate()
        shipper.wait()
        for log in logs:
            log_lines(log, "DEBUG while nobody looked")
        run("log_concentrator", *common, 0, "ship", *logs)

        lines = [line.split(" ", 2) for line in shipped()]
        for log in logs:
            assert [text for _time, source, text in lines if source == str(log)] == written[log]
        assert len(lines) == 9007
        severities = {
            path.stem: len(path.read_text().splitlines()) for path in (tmp_path / "out").iterdir()
        }
        assert severities == {
            "all": 9007,
            "error": 9000,
            "info": 2,
            "warning": 1,
            "debug": 3,
            "other": 1,
        }


class TestLedger:
    @pytest.fixture
    def balances(self, run, prefix):
        def ask():
            return json.loads(run("ledger", "--prefix", prefix, "balances", "--json"))

        return ask

    def test_balances_are_the_sum_of_transfers(self, run, read, balances, prefix):
        run("ledger", "--prefix", prefix, "play", "--transfers", 500)

        expected = Counter()
        rejected = 0
        for payer, payee, amount in values(read(f"{prefix}.transfers")):
            if payer == "world" or expected[payer] >= amount:
                expected.update({payer: -amount, payee: amount})
            else:
                rejected += 1
        found = balances()
        assert Counter(found["balances"]) == expected
        assert found["replayed"] == 500
        assert 0 < rejected < 500
        audited = run("ledger", "--prefix", prefix, "audit")
        assert audited == f"500 transfers, {rejected} rejected; the sum is zero\n"

    def test_records_before_a_snapshot_can_be_deleted(
        self, broker, start, run, read, balances, prefix
    ):
        ledger = ("ledger", "--prefix", prefix)
        assert run(*ledger, "post", "world", "ann", 100) == "0: accepted\n"
        assert run(*ledger, "post", "ann", "bob", 30) == "1: accepted\n"
        run(*ledger, "snapshot")
        assert run(*ledger, "post", "bob", "ann", 31) == "2: rejected\n"
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(f"{prefix}.transfers", 0): 2})
            configs = admin.describe_topic_configs(f"{prefix}.snapshots")[f"{prefix}.snapshots"]
        assert configs["cleanup.policy"].value == "compact"

        assert balances() == {"balances": {"world": -100, "ann": 70, "bob": 30}, "replayed": 1}
        # A full audit fails instead of skipping the deleted records.
        audit = start(*ledger, "audit")
        _out, err = audit.communicate(timeout=TIMEOUT_SECONDS)
        assert audit.returncode == 1
        assert err.startswith("Error: OFFSET_OUT_OF_RANGE")

    def test_a_wrong_snapshot_is_detected(self, start, run, write, balances, prefix):
        ledger = ("ledger", "--prefix", prefix)
        run(*ledger, "post", "world", "ann", 100)
        run(*ledger, "snapshot")
        lie = {"next_offset": 1, "balances": {"world": -100, "bob": 100}}
        write(f"{prefix}.snapshots", {"key": "balances", "value": json.dumps(lie)})
        assert balances()["balances"] == lie["balances"]

        audit = start(*ledger, "audit")
        _out, err = audit.communicate(timeout=TIMEOUT_SECONDS)

        assert (audit.returncode, "the last snapshot" in err) == (1, True)


class TestTelemetry:
    def test_a_new_monitor_resumes_at_the_commits_of_the_last(self, run, read, write, prefix):
        topic = f"{prefix}.readings"

        def send(*readings):
            write(
                topic,
                *(
                    {
                        "key": device,
                        "value": json.dumps({"celsius": celsius}),
                        "timestamp": 1_700_000_000_000 + second * 1000,
                    }
                    for device, second, celsius in readings
                ),
            )

        def alerts():
            options = ("--devices", 0, "--window", 10, "--limit", 50)
            run("telemetry", "--prefix", prefix, *options)
            fields = ("device", "state", "average", "offset")
            return [
                tuple(one[field] for field in fields) for one in values(read(f"{prefix}.alerts"))
            ]

        send(("a", 0, 40), ("b", 0, 90), ("a", 1, 70), ("a", 2, 20), ("b", 2, 90), ("a", 3, 40))
        write(topic, {"key": "a", "value": "nonsense"})
        first = [("b", "hot", 90, 1), ("a", "hot", 55, 2), ("a", "normal", 43.33, 3)]
        assert alerts() == first

        # Earlier readings count for 10 seconds; b has already been reported as hot.
        send(("a", 4, 82), ("b", 5, 90), ("a", 11, 84), ("b", 14, 0))
        second = [("a", "hot", 50.4, 7), ("b", "normal", 45, 10)]
        assert alerts() == first + second

        # After a window without readings, a is reported as hot again.
        send(("a", 40, 51), ("a", 41, 20))
        third = [("a", "hot", 51, 11), ("a", "normal", 35.5, 12)]
        assert alerts() == first + second + third

    def test_alerts_match_the_readings_of_simulated_devices(self, run, read, prefix):
        out = run("telemetry", "--prefix", prefix, "--devices", 4, "--readings", 80)

        readings = read(f"{prefix}.readings")
        assert Counter(one.key() for one in readings) == {
            f"device-{number}".encode(): 80 for number in range(4)
        }
        expected = []
        is_hot = {}
        for reading in readings:
            now = reading.timestamp()[1]
            recent = [
                json.loads(one.value())["celsius"]
                for one in readings
                if one.key() == reading.key()
                and one.offset() <= reading.offset()
                and one.timestamp()[1] > now - 500
            ]
            hot = fmean(recent) > 70
            # After a window without readings a device starts from normal.
            was_hot = is_hot.get(reading.key(), False) and len(recent) > 1
            if hot != was_hot:
                expected.append(
                    (reading.key().decode(), "hot" if hot else "normal", reading.offset())
                )
            is_hot[reading.key()] = hot
        found = [
            (one["device"], one["state"], one["offset"]) for one in values(read(f"{prefix}.alerts"))
        ]
        assert found == expected
        assert len(found) == len(out.splitlines()) >= 4


class TestTopologyAudit:
    def test_findings_are_reported(self, broker, start, write, prefix):
        skewed, kept, group, idle = (
            f"{prefix}.{name}" for name in ("skewed", "kept", "late", "idle")
        )
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(skewed, partitions=4)
            admin.create_topic(kept, partitions=2, configs={"retention.ms": "-1"})
            write(skewed, *({"value": "x", "partition": 2} for _ in range(900)))
            write(skewed, *({"value": "x", "partition": n % 4} for n in range(100)))
            write(kept, *({"value": "x", "partition": n % 2} for n in range(200)))
            behind = {2: 885, 1: 5}
            for name, topic, offsets in ((group, skewed, behind), (idle, kept, {0: 100, 1: 100})):
                commits = {TopicPartition(topic, one): offset for one, offset in offsets.items()}
                admin.alter_group_offsets(name, commits)

        # Auto-commit is off: a record may be delivered before the pause.
        configs = {"group.id": group, "enable.auto.commit": False}
        member = Consumer({"bootstrap.servers": broker.bootstrap, **configs})
        try:
            member.subscribe([skewed])
            while not member.assignment():
                member.poll(0.1)
            member.pause(member.assignment())
            audit = start("topology_audit", "--json", "--strict")
            out, err = audit.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            member.close()

        assert (audit.returncode, err) == (1, "")
        report = json.loads(out)
        assert [one["address"] for one in report["brokers"]] == [broker.bootstrap]
        assert report["brokers"][0]["leads"] >= 6
        ours = [one for one in report["topics"] if one["topic"].startswith(prefix)]
        assert ours == [
            {
                "topic": kept,
                "partitions": 2,
                "records": 200,
                "skew": 1.0,
                "largest": 0,
                "is_limited": False,
            },
            {
                "topic": skewed,
                "partitions": 4,
                "records": 1000,
                "skew": 3.7,
                "largest": 2,
                "is_limited": True,
            },
        ]
        lags = {one["group"]: one["lag"] for one in report["groups"]}
        assert lags[group] == {
            f"{skewed}-0": None,
            f"{skewed}-1": 20,
            f"{skewed}-2": 40,
            f"{skewed}-3": None,
        }
        assert [
            (one["name"], one["finding"])
            for one in report["findings"]
            if one["name"].startswith(prefix)
        ] == [
            (kept, "has unlimited retention"),
            (f"{skewed}-2", "has 3.7 times its share of records"),
            (idle, "has no members"),
            (group, "has a lag of 60 records"),
        ]

    def test_a_cluster_without_findings_passes(self, run, ottla_broker):
        out = run("topology_audit", "--bootstrap", ottla_broker.bootstrap, "--strict")

        assert f"broker 0 at {ottla_broker.bootstrap}: leads 0, hosts 0 partitions" in out
        assert out.endswith("0 findings\n")
