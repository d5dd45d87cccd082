"""Reprocessing job: a topic is read from its beginning, and written to a new one with fixes.

    readings ──▶ readings.repaired
             └─▶ readings.rejected

It shows that a log can be read again. Keys, partitions, headers and timestamps are preserved, so
that each record is in the same partition of the new topic; a header marks what was changed. Records
that cannot be repaired go to another topic, with their origin.

Readings in Fahrenheit are converted to Celsius; invalid JSON is rejected.

    python examples/spark/readings.py --faulty 0.02
    python examples/spark/repair.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from ottla.client.blocking import Admin
from ottla.client.spark import builder, register

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_READING = "device STRING, celsius DOUBLE, fahrenheit DOUBLE"


def repaired(spark: SparkSession, bootstrap: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Return the repaired records, and those that cannot be repaired."""
    records = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .withColumn("reading", F.from_json(F.col("value").cast("string"), _READING))
    )
    celsius = (F.col("reading.fahrenheit") - 32) * 5 / 9
    fixed = F.to_json(F.struct("reading.device", F.round(celsius, 2).alias("celsius")))
    is_good = F.col("reading.celsius").isNotNull()
    is_fahrenheit = F.col("reading.fahrenheit").isNotNull()
    good = records.where(is_good | is_fahrenheit).select(
        "key",
        F.when(is_good, F.col("value")).otherwise(fixed.cast("binary")).alias("value"),
        "partition",
        "timestamp",
        F.when(is_good, F.col("headers")).otherwise(_with_marks("fahrenheit")).alias("headers"),
    )
    bad = records.where(~is_good & ~is_fahrenheit).select(
        "key", "value", "timestamp", _with_marks("no reading").alias("headers")
    )
    return good, bad


def _with_marks(reason: str) -> Column:
    """Return the headers with the fault and the origin of a record added."""
    tp = F.concat_ws("-", F.col("topic"), F.col("partition"))
    text = F.concat_ws("@", tp, F.col("offset"))
    marks = F.array(
        F.struct(F.lit("fault").alias("key"), F.lit(reason).cast("binary").alias("value")),
        F.struct(F.lit("from").alias("key"), text.cast("binary").alias("value")),
    )
    # Without headers the column is null, and so is a concatenation with it.
    return F.coalesce(F.concat(F.col("headers"), marks), marks)


def repair(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Write both topics. The first has as many partitions as the source."""
    with Admin(bootstrap) as admin:
        partitions = len(admin.describe_topics(topic)[topic].partitions)
        admin.create_topic(f"{topic}.repaired", partitions=partitions)
        admin.create_topic(f"{topic}.rejected", partitions=1)
    for frame, name in zip(
        repaired(spark, bootstrap, topic), ("repaired", "rejected"), strict=True
    ):
        (
            frame.write.format("ottla")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", f"{topic}.{name}")
            .option("includeTimestamp", "true")
            .mode("append")
            .save()
        )


@click.command(help=__doc__)
@click.option("--bootstrap", default="localhost:9092", show_default=True)
@click.option("--topic", default="readings", show_default=True)
def main(bootstrap: str, topic: str) -> None:
    """Repair a topic, and print the record counts."""
    spark = register(builder().master("local[*]").appName("repair").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    repair(spark, bootstrap, topic)
    spark.stop()
    with Admin(bootstrap) as admin:
        for name in (topic, f"{topic}.repaired", f"{topic}.rejected"):
            click.echo(f"{name}: {sum(admin.end_offsets(name).values())} records")


if __name__ == "__main__":
    main()
