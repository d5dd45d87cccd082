"""Registers the format "ottla" with Spark, which imports all modules named `pyspark_…`.

An error in the import would hide the data sources of other packages. So none is raised: if pyspark
is too old, or pyarrow is missing, the module defines nothing.
"""

from contextlib import suppress

with suppress(Exception):
    from ottla.client.spark.runtime import check_pyspark

    check_pyspark()

    from ottla.client.spark.source import OttlaSource as DefaultSource  # noqa: F401
