"""The Spark session and query of a demo, and the job of `make demo`.

    orders ──▶ count by coffee ──▶ totals

pyspark is imported with the first session, so that the demo runs without it (--no-spark).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from environment import stderr_to

from ottla.client.spark import builder, lag, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from screen import Counter


def session() -> SparkSession:
    """Start Spark; raise ImportError or RuntimeError if pyspark or Java are missing."""
    config = (
        builder()
        .master("local[2]")
        .appName("ottla-demo")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return register(config.getOrCreate())


class Query:
    """A running query."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        # By batch: Spark only keeps the progress of the last hundred.
        self._rows: dict[int, int] = {}

    def update(self, counter: Counter) -> None:
        """Update the counter of read records; raise the error of a failed query."""
        if (error := self._query.exception()) is not None:
            raise error
        progress = self._query.recentProgress
        if progress:
            self._rows |= {batch.batchId: batch.numInputRows for batch in progress}
            counter.total = sum(self._rows.values())
            behind = sum(lag(progress[-1]).values())
            counter.remark = f"batch {progress[-1].batchId}, lag {behind:,}"

    def finish(self) -> None:
        """Wait until all records are read, and stop."""
        self._query.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()


def start(spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: Path) -> Query:
    """Start the job of `make demo`."""
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
        .option("checkpointLocation", str(checkpoint))
        .outputMode("complete")
        .trigger(processingTime="1 second")
        .start()
    )
    return Query(query)


@asynccontextmanager
async def running(
    bootstrap: str, source: str, target: str, directory: Path
) -> AsyncIterator[Query]:
    """Run Spark and the job in threads, without blocking the event loop."""
    with stderr_to(directory / "spark.log"):
        spark = await asyncio.to_thread(session)
        try:
            query = await asyncio.to_thread(
                start, spark, bootstrap, source, target, directory / "checkpoint"
            )
            try:
                yield query
            finally:
                await asyncio.to_thread(query.stop)
        finally:
            await asyncio.to_thread(spark.stop)
