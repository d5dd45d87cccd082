"""A batch: a topic becomes Parquet, with counts and averages for each device and window.

    readings ──▶ counts/*.parquet

What it teaches: a topic is a table. What is read is fixed when the job starts, so that it may be
run again; only the columns that are needed are asked for; the time is the record's own.

    python examples/spark/readings.py
    python examples/spark/counts.py --folder counts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from ottla.client.spark import builder, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def counts(spark: SparkSession, bootstrap: str, topic: str, window: str = "1 minute") -> DataFrame:
    """Give counts and averages of all that is in a topic."""
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
@click.option("--folder", default="counts", show_default=True, help="Where Parquet goes.")
def main(bootstrap: str, topic: str, window: str, folder: str) -> None:
    """Write the counts, and show them."""
    spark = register(builder().master("local[*]").appName("counts").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    found = counts(spark, bootstrap, topic, window)
    found.coalesce(1).write.mode("overwrite").parquet(folder)
    spark.read.parquet(folder).orderBy("start", "device").show(50, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
