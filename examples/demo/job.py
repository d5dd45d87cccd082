"""The Spark job: how many of each coffee were ordered, kept up to date in a topic.

    orders ──▶ counts by coffee ──▶ totals

It runs beside the demo's event loop, in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from queries import Query, session
from quiet import silence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@asynccontextmanager
async def running(bootstrap: str, source: str, target: str, folder: Path) -> AsyncIterator[Query]:
    """Run the job, and Spark with it, without keeping the event loop waiting."""
    with silence(folder / "spark.log"):
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
