"""A driver that is going to be killed: a stream from a topic into Parquet.

python driver.py BOOTSTRAP TOPIC FOLDER
"""

import sys

from ottla.client.spark import builder, register

bootstrap, topic, folder = sys.argv[1:]
spark = register(
    builder()
    .master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
(
    spark.readStream.format("ottla")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "500")
    .load()
    .writeStream.format("parquet")
    .option("path", f"{folder}/out")
    .option("checkpointLocation", f"{folder}/out-checkpoint")
    .start()
    .awaitTermination()
)
