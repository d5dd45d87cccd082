"""The Spark job: how many of each coffee were ordered, kept up to date in a topic.

    orders ──▶ counts by coffee ──▶ totals

pyspark is imported when a job is made, so that the demo does without it if need be.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.client.spark import builder, lag, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rates import Count


def session() -> SparkSession:
    """Start Spark. Raises ImportError and RuntimeError, which say what is missing."""
    made = (
        builder()
        .master("local[2]")
        .appName("ottla-demo")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return register(made.getOrCreate())


def start(spark: SparkSession, bootstrap: str, source: str, target: str, folder: Path) -> Query:
    """Start the job."""
    query = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .schema("value BINARY")
        .load()
        .groupBy("value")
        .count()
        .selectExpr("value AS key", "string(count) AS value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(folder))
        .outputMode("complete")
        .trigger(processingTime="1 second")
        .start()
    )
    return Query(query)


class Query:
    """A job that runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._rows: dict[int, int] = {}

    def look(self, count: Count) -> None:
        """Bring a count up to date. Raises what the job has failed with."""
        if (error := self._query.exception()) is not None:
            raise error
        progress = self._query.recentProgress
        if progress:
            self._rows |= {one.batchId: one.numInputRows for one in progress}
            count.total = sum(self._rows.values())
            behind = sum(lag(progress[-1]).values())
            count.remark = f"batch {progress[-1].batchId}, {behind:,} behind"

    def finish(self) -> None:
        """Wait until all that there is has been read, and end."""
        self._query.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        """End, if it has not ended yet."""
        self._query.stop()


@asynccontextmanager
async def running(bootstrap: str, source: str, target: str, folder: Path) -> AsyncIterator[Query]:
    """Run the job, and Spark with it, without keeping the event loop waiting."""
    with _silence(folder / "spark.log"):
        spark = await asyncio.to_thread(session)
        try:
            query = await asyncio.to_thread(
                start, spark, bootstrap, source, target, folder / "checkpoint"
            )
            try:
                yield query
            finally:
                await asyncio.to_thread(query.stop)
        finally:
            await asyncio.to_thread(spark.stop)


@contextmanager
def _silence(log: Path) -> Iterator[None]:
    """Let what Spark and Java say of themselves go into a file: it would tear the table."""
    stderr = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
