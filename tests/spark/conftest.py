"""One session and one cluster for all of these tests: a JVM takes seconds to start.

`xdist_group` keeps them in one process under `--dist loadgroup`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.daemon import Cluster, shown_on_failure
from ottla.client.blocking import Admin, Producer
from spark.session import a_session

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # Each failing micro-batch would log its whole plan.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        session = a_session(tmp_path_factory.mktemp("warehouse"))
    except RuntimeError as error:
        pytest.skip(str(error))  # no Java
    yield session
    session.stop()


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three brokers, which share the partitions of each topic."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        yield cluster


@pytest.fixture
def bootstrap(brokers: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with shown_on_failure(request, brokers.brokers):
        yield brokers.bootstrap


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as made:
        yield made


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    with Producer(bootstrap) as made:
        yield made


@pytest.fixture
def make_topic(admin: Admin) -> Callable[..., str]:
    """Create a topic with a unique name."""

    def make(partitions: int = 1, name: str = "topic", **configs: str) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(topic, partitions=partitions, configs=dotted)
        return topic

    return make


@pytest.fixture
def fill(producer: Producer) -> Callable[..., None]:
    """Write the numbers from `first` on, as values, to each of the partitions of a topic."""

    def fill(topic: str, partitions: Iterable[int], count: int, first: int = 0) -> None:
        futures = [
            producer.enqueue(topic, b"%d" % number, key=b"%d" % partition, partition=partition)
            for partition in partitions
            for number in range(first, first + count)
        ]
        for future in futures:
            future.result()

    return fill


@pytest.fixture
def reader(spark: Any, bootstrap: str) -> Callable[..., Any]:
    """Return a batch reader with options."""
    return lambda **options: _with(spark.read.format("ottla"), bootstrap, options)


@pytest.fixture
def stream(spark: Any, bootstrap: str) -> Callable[..., Any]:
    """Return a streaming reader with options."""
    return lambda **options: _with(spark.readStream.format("ottla"), bootstrap, options)


@pytest.fixture
def sink(bootstrap: str) -> Callable[..., Any]:
    """Return a batch or streaming writer with options."""
    return lambda writer, **options: _with(writer.format("ottla"), bootstrap, options)


def _with(what: Any, bootstrap: str, options: dict[str, Any]) -> Any:
    return what.option("kafka.bootstrap.servers", bootstrap).options(**options)


@pytest.fixture
def drain(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """Write all that a stream has into Parquet; return the query."""

    def drain(frame: Any, name: str = "out") -> Any:
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300), query.status
        return query

    return drain


@pytest.fixture
def rows_of(spark: Any, tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Return the rows that `drain` has written."""

    def rows(*columns: str, name: str = "out") -> list[tuple[Any, ...]]:
        found = spark.read.parquet(str(tmp_path / name)).select(*columns).collect()
        return sorted(tuple(row) for row in found)

    return rows


@pytest.fixture(scope="session", autouse=True)
def _no_local_spark_configs() -> None:
    os.environ.pop("SPARK_CONF_DIR", None)
