"""A Spark session for tests: local, quiet, quick to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.client.spark import builder, register

_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
# The optimizing compiler and parallel collectors do not pay off in runs of minutes.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def a_session(folder: Path, master: str = "local[2]") -> Any:
    """Start a session that writes into a folder. Raises RuntimeError without a Java."""
    options = f"{_QUIET} {_QUICK} -Dderby.system.home={folder}"
    return register(
        builder()
        .master(master)
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
