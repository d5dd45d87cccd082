"""A session of Spark for tests: local, quiet, and up soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.client.spark import builder, register

_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
# What runs for minutes is not worth the cost of a better compiler, and of threads that collect.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def a_session(folder: Path) -> Any:
    """Start one, with what Spark itself writes in a folder. Raises RuntimeError without a Java."""
    options = f"{_QUIET} {_QUICK} -Dderby.system.home={folder}"
    return register(
        builder()
        .master("local[2]")
        .appName("ottla-tests")
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
