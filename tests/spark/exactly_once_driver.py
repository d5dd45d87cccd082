"""A driver that is killed: a stream from topic to topic, each row once.

python exactly_once_driver.py BOOTSTRAP SOURCE TARGET FOLDER MASTER TRANSACTION_TIMEOUT_MS

FOLDER has the checkpoint; its name is the prefix of transactional ids. A query that fails is
started again, from its checkpoint.
"""

import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from session import a_session

bootstrap, source, target, folder, master, timeout_ms = sys.argv[1:]
spark = a_session(Path(folder) / "warehouse", master)
query = (
    spark.readStream.format("ottla")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "300")
    .load()
    .select("key", "value")
    .writeStream.format("ottla")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("exactlyOnce", "true")
    .option("transactionalIdPrefix", Path(folder).name)
    .option("kafka.transaction.timeout.ms", timeout_ms)
    .option("checkpointLocation", f"{folder}/checkpoint")
)
while True:
    try:
        query.start().awaitTermination()
    except StreamingQueryException as error:
        print("the query has failed:", str(error)[:500], flush=True)
