"""The jobs in examples/spark and the snippets of docs/spark.md, in the shared session."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from ottla.client import TopicPartition
from ottla.client.blocking import Consumer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "spark"


@pytest.fixture(scope="module")
def example():
    """Import an example as if it were run as a script."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    sys.path.insert(0, str(EXAMPLES))
    yield load
    sys.path.remove(str(EXAMPLES))


def records_in(bootstrap, topic, count):
    with Consumer(bootstrap, topic) as consumer:
        return [consumer.getone(timeout=60) for _ in range(count)]


def test_counts_per_window_are_written_as_parquet(spark, bootstrap, make_topic, example, tmp_path):
    topic = make_topic(3)
    example("readings").send_past(bootstrap, topic, 3000, devices=6, faulty=0)

    found = example("counts").counts(spark, bootstrap, topic, "10 seconds")
    found.write.parquet(str(tmp_path / "counts"))

    rows = spark.read.parquet(str(tmp_path / "counts")).collect()
    assert sum(row["count"] for row in rows) == 3000
    assert {row.device for row in rows} == {f"boiler-{number}" for number in range(6)}
    assert all((row.end - row.start).total_seconds() == 10 for row in rows)


def test_alerts_on_averages(spark, bootstrap, make_topic, admin, example, tmp_path):
    source, target = make_topic(3), make_topic()
    example("readings").send_past(bootstrap, source, 9000, devices=6, faulty=0.01)

    query = example("alerts").start(
        spark,
        bootstrap,
        source=source,
        target=target,
        checkpoint=str(tmp_path / "checkpoint"),
        window="5 seconds",
        until_empty=True,
    )
    assert query.awaitTermination(300)

    count = sum(admin.end_offsets(target).values())
    alerts = [json.loads(record.value) for record in records_in(bootstrap, target, count)]
    assert {alert["device"] for alert in alerts} == {"boiler-0", "boiler-3"}
    assert all(alert["celsius"] > 75 for alert in alerts)
    assert len({(alert["device"], alert["start"]) for alert in alerts}) == count
    lags = admin.group_lag("spark-alerts")
    assert {lags[TopicPartition(source, number)].lag for number in range(3)} == {0}


def test_the_spark_demo(spark, bootstrap, make_topic, example, tmp_path, capsys):
    source, target = make_topic(3), make_topic()

    taken, alerts = example("demo").run(
        spark, bootstrap, tmp_path / "checkpoint", 3, source=source, target=target
    )

    assert taken > 0
    said = capsys.readouterr().out
    assert " devices " in said
    assert f"{len(alerts)} alerts" in said


def test_a_topic_is_repaired(spark, bootstrap, make_topic, admin, producer, example):
    topic = make_topic(3)
    example("readings").send_past(bootstrap, topic, 1999, devices=6, faulty=0.2)
    producer.send(topic, b"no JSON, and no headers")

    example("repair").repair(spark, bootstrap, topic)

    good = sum(admin.end_offsets(f"{topic}.repaired").values())
    bad = sum(admin.end_offsets(f"{topic}.rejected").values())
    before = {(one.key, one.timestamp): one for one in records_in(bootstrap, topic, 2000)}
    after = records_in(bootstrap, f"{topic}.repaired", good)
    assert good + bad == 2000
    assert 0 < bad < 400
    assert all("celsius" in json.loads(record.value) for record in after)
    assert all(before[one.key, one.timestamp].partition == one.partition for one in after)
    changed = [one for one in after if dict(one.headers).get("fault") == b"fahrenheit"]
    assert 0 < len(changed) < 400
    assert all(json.loads(one.value)["celsius"] < 110 for one in changed)
    assert all(
        dict(one.headers).get("from", b"").startswith(topic.encode())
        for one in records_in(bootstrap, f"{topic}.rejected", bad)
    )


def test_the_snippets_of_the_spark_docs_run(spark, bootstrap, admin, capsys, tmp_path):
    page = (ROOT / "docs" / "spark.md").read_text().replace("localhost:9092", bootstrap)
    page = page.replace("/data/checkpoints", str(tmp_path))
    page = re.sub(r"<!-- not run: .*? -->\n```.*?```", "", page, flags=re.DOTALL)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope = {}

    for block in blocks:
        exec(compile(block, "docs/spark.md", "exec"), scope)

    assert len(blocks) == 4
    committed = admin.end_offsets("rides-copy", isolation="read_committed")
    assert sum(committed.values()) > 2
    counts = {bytes(row.key): row["count"] for row in spark.table("rides_by_customer").collect()}
    assert counts == {b"ann": 1, b"bob": 1}
    assert "{'rides-0': 0}" in capsys.readouterr().out
