"""Batch job: counts and averages per device and window, from a topic into Parquet.

    readings ──▶ counts/*.parquet

It shows a topic as a table: the offsets to read are fixed when the job starts, so that it can be
repeated; only the required columns are read; the time is the timestamp of the record.

    python examples/spark/readings.py
    python examples/spark/counts.py --folder counts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from ottla.client.spark import builder, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def counts(spark: SparkSession, bootstrap: str, topic: str, window: str = "1 minute") -> DataFrame:
    """Return counts and averages of all readings in a topic."""
    readings = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .schema("value BINARY, timestamp TIMESTAMP")
        .load()
    )
    parsed = F.from_json(F.col("value").cast("string"), "device STRING, celsius DOUBLE")
    return (
        readings.select("timestamp", parsed.alias("reading"))
        .groupBy(F.window("timestamp", window).alias("window"), "reading.device")
        .agg(F.count("*").alias("count"), F.avg("reading.celsius").alias("celsius"))
        .select("window.start", "window.end", "device", "count", "celsius")
    )


@click.command(help=__doc__)
@click.option("--bootstrap", default="localhost:9092", show_default=True)
@click.option("--topic", default="readings", show_default=True)
@click.option("--window", default="1 minute", show_default=True)
@click.option("--folder", default="counts", show_default=True, help="Folder for the Parquet files.")
def main(bootstrap: str, topic: str, window: str, folder: str) -> None:
    """Write the counts, and print them."""
    spark = register(builder().master("local[*]").appName("counts").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    result = counts(spark, bootstrap, topic, window)
    result.coalesce(1).write.mode("overwrite").parquet(folder)
    spark.read.parquet(folder).orderBy("start", "device").show(50, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
