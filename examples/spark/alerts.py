"""Streaming job: averages per time window, and an alert for each device that was too warm.

    readings ──▶ averages per window ──▶ alerts

It shows event time and watermarks (a window closes when the watermark passes its end), state in a
checkpoint, a topic as a sink, and a consumer group that exposes the lag of the job to any tool:
`ottla group describe spark-alerts`.

After a crash the job continues from its checkpoint. The alerts of the interrupted micro-batch may
be written twice: each has its device and window, so that duplicates can be recognized.

    python examples/spark/readings.py
    python examples/spark/alerts.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from ottla.client.spark import builder, lag, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def averages(
    spark: SparkSession, bootstrap: str, topic: str, window: str, lateness: str
) -> DataFrame:
    """Return the average of each device and window, once the window is closed."""
    readings = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100000")
        .option("commitGroup", "spark-alerts")
        .schema("value BINARY, timestamp TIMESTAMP")
        .load()
    )
    parsed = F.from_json(F.col("value").cast("string"), "device STRING, celsius DOUBLE")
    return (
        readings.withWatermark("timestamp", lateness)
        .select("timestamp", parsed.alias("reading"))
        .where("reading.celsius IS NOT NULL")
        .groupBy(F.window("timestamp", window).alias("window"), "reading.device")
        .agg(F.avg("reading.celsius").alias("celsius"), F.count("*").alias("readings"))
    )


def start(
    spark: SparkSession,
    bootstrap: str,
    *,
    source: str = "readings",
    target: str = "alerts",
    checkpoint: str,
    window: str = "10 seconds",
    lateness: str = "2 seconds",
    limit: float = 75.0,
    until_empty: bool = False,
) -> StreamingQuery:
    """Start the job; with `until_empty` it ends when it has read all records."""
    hot = averages(spark, bootstrap, source, window, lateness).where(F.col("celsius") > limit)
    alert = F.struct(
        "device",
        F.round("celsius", 2).alias("celsius"),
        "readings",
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
    )
    writer = (
        hot.select(F.col("device").alias("key"), F.to_json(alert).alias("value"))
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .queryName("alerts")
        .outputMode("append")
    )
    if until_empty:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="1 second").start()


@click.command(help=__doc__)
@click.option("--bootstrap", default="localhost:9092", show_default=True)
@click.option("--source", default="readings", show_default=True)
@click.option("--target", default="alerts", show_default=True)
@click.option("--checkpoint", default="alerts-checkpoint", show_default=True)
@click.option("--window", default="10 seconds", show_default=True)
@click.option("--limit", default=75.0, show_default=True)
@click.option("--seconds", default=30, show_default=True, help="How long to run.")
def main(
    bootstrap: str,
    source: str,
    target: str,
    checkpoint: str,
    window: str,
    limit: float,
    seconds: int,
) -> None:
    """Run the job for a while, and print its progress."""
    spark = register(
        builder()
        .master("local[*]")
        .appName("alerts")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = start(
        spark,
        bootstrap,
        source=source,
        target=target,
        checkpoint=checkpoint,
        window=window,
        limit=limit,
    )
    for _ in range(seconds):
        if query.awaitTermination(1):
            break
        if (progress := query.lastProgress) is not None:
            click.echo(f"{progress.numInputRows} readings, lag {sum(lag(progress).values())}")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
