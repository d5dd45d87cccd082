"""A driver that the test kills: a stream from a topic into Parquet.

python driver.py BOOTSTRAP TOPIC FOLDER
"""

import sys
from pathlib import Path

from session import a_session

bootstrap, topic, folder = sys.argv[1:]
spark = a_session(Path(folder) / "warehouse")
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
