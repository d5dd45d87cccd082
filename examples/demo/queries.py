"""A Spark session that says little, and a query that is watched.

pyspark is imported when a session is made, so that a demo does without it if need be.
"""

from __future__ import annotations

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


class Query:
    """A query that runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        # By batch: Spark remembers the last hundred alone.
        self._rows: dict[int, int] = {}

    def look(self, count: Count) -> None:
        """Bring a count up to date. Raises what the query has failed with."""
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
