"""Spark sessions with the source registered, and the configs that it profits from.

    spark = register(builder().appName("rides").getOrCreate())
    rides = spark.read.format("ottla").option("kafka.bootstrap.servers", …)

`session_configs` returns them, and docs/spark.md explains them. Most are read when the JVM starts,
and belong to the builder or to spark-defaults.conf: `register` sets those that can still be set,
and logs a warning about the others.
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


def session_configs() -> dict[str, str]:
    """Return the recommended Spark configs."""
    return {
        **_AT_START,
        # Lets filters reach sources; this one uses them if the option `pushdown` is true.
        _PUSHDOWN: "true",
        # Workers must run the interpreter that has ottla, not the first one on the path.
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def builder() -> SparkSession.Builder:
    """Return a session builder with these configs. Raises RuntimeError if there is no Java."""
    check_pyspark()
    find_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session_builder: SparkSession.Builder = SparkSession.builder
    for name, value in session_configs().items():
        session_builder = session_builder.config(name, value)
    return session_builder


def register(spark: SparkSession) -> SparkSession:
    """Register the format "ottla" with a session; return the session."""
    check_pyspark()
    from .source import OttlaSource  # noqa: PLC0415

    spark.conf.set(_PUSHDOWN, "true")
    if not _is_registered(spark, OttlaSource.name()):
        spark.dataSource.register(OttlaSource)
    for name, value in _AT_START.items():
        if spark.conf.get(name, "false") != value:
            logger.warning(
                "set %s=%s when the session is built: short tasks are faster", name, value
            )
    return spark


def _is_registered(spark: SparkSession, name: str) -> bool:
    """Whether Spark has the format: it finds pyspark_ottla.py if its Python workers do.

    To register it again would log a warning. Workers may run another interpreter, and do not find
    modules of editable installations, so only Spark knows.
    """
    session = getattr(spark, "_jsparkSession", None)  # None: Spark Connect
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def lag(progress: Any) -> dict[str, int]:
    """Return the lag of a query in offsets, by "topic-partition".

    `progress` is `query.lastProgress`, or the StreamingQueryProgress of a listener.
    """
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    lags: dict[str, int] = {}
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
                lags[f"{topic}-{partition}"] = max(0, offset - done)
    return lags


def _offsets(value: Any) -> dict[str, dict[str, int]]:
    """Parse offsets of a progress, which may be JSON text."""
    parsed = json.loads(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {}
