"""The Spark job of `make demo`, in the shared session."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from ottla.client.blocking import Consumer

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


@pytest.fixture
def job(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))
    for name in ("environment", "screen", "spark_job"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("spark_job")


def test_orders_are_counted(job, spark, bootstrap, make_topic, producer, tmp_path):
    orders, totals = make_topic(6), make_topic()
    coffees = ["espresso"] * 70 + ["mocha"] * 30
    producer.send_many(orders, [coffee.encode() for coffee in coffees])

    query = job.start(spark, bootstrap, orders, totals, tmp_path)
    query.finish()

    counter = importlib.import_module("screen").Counter("Spark")
    query.update(counter)
    assert counter.total == len(coffees)
    with Consumer(bootstrap, totals) as consumer:
        records = [consumer.getone(timeout=10) for _ in range(2)]
    assert {record.key.decode(): int(record.value) for record in records} == Counter(coffees)
