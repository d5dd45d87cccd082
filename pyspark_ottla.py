"""Lets Spark find the format "ottla" by itself: it looks for modules whose names begin like this.

A module that raises when it is imported would hide those of everybody else, so this one does not:
without a pyspark that will do, or without pyarrow, there is simply nothing to be found.
"""

from contextlib import suppress

with suppress(Exception):
    from ottla.client.spark.runtime import check_pyspark

    check_pyspark()

    from ottla.client.spark.source import OttlaSource as DefaultSource  # noqa: F401
