"""Sessions: the source registered, and the settings that make a difference.

    spark = register(builder().appName("rides").getOrCreate())
    rides = spark.read.format("ottla").option("kafka.bootstrap.servers", …)

`settings` says what is set, and docs/spark.md why. Most are read when the JVM starts, so that they
belong to the builder or to spark-defaults.conf: `register` sets what can still be set, and logs
which of the others are not as they should be.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .runtime import check_pyspark, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_AT_START = {
    # Without it each task waits for TCP's delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
}


def settings() -> dict[str, str]:
    """Give the settings of a session that reads and writes topics."""
    return {
        **_AT_START,
        # Filters may reach sources; ours takes them if the option `pushdown` is true.
        _PUSHDOWN: "true",
        # Workers run the interpreter that has ottla, and not the first on the path.
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def builder() -> SparkSession.Builder:
    """Give a builder of sessions with these settings. Raises RuntimeError if there is no Java."""
    check_pyspark()
    find_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    made: SparkSession.Builder = SparkSession.builder
    for name, value in settings().items():
        made = made.config(name, value)
    return made


def register(spark: SparkSession) -> SparkSession:
    """Make the format "ottla" known to a session, and give the session."""
    check_pyspark()
    from .source import OttlaSource  # noqa: PLC0415

    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(OttlaSource)
    for name, value in _AT_START.items():
        if spark.conf.get(name, "false") != value:
            logger.warning("%s=%s would make short tasks faster: set it at the start", name, value)
    return spark


def lag(progress: Any) -> dict[str, int]:
    """Say how far a query is behind, from its progress: by topic and partition, in offsets.

    `progress` is what `query.lastProgress` gives, or a StreamingQueryProgress of a listener.
    """
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    behind: dict[str, int] = {}
    for source in sources:
        ends, latest = (
            _offsets(
                source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
            )
            for name in ("endOffset", "latestOffset")
        )
        for topic, partitions in latest.items():
            for partition, offset in partitions.items():
                done = ends.get(topic, {}).get(partition, 0)
                behind[f"{topic}-{partition}"] = max(0, offset - done)
    return behind


def _offsets(found: Any) -> dict[str, dict[str, int]]:
    """Read offsets from a progress, which may be a text."""
    parsed = json.loads(found) if isinstance(found, str) else found
    return parsed if isinstance(parsed, dict) else {}
