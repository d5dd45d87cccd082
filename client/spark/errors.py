"""Errors of Spark jobs, in addition to those of `ottla.client`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class OptionError(ValueError):
    """An option or column is invalid, unknown or missing."""


class IncompleteWriteError(Exception):
    """Fewer or more records were acknowledged than a task has rows."""


class DataLossError(Exception):
    """Records that should be read do not exist any more; failOnDataLoss=false skips them."""

    def __init__(
        self,
        reason: str,
        cause: str = "Retention may have deleted them, or the topic was deleted or recreated",
    ) -> None:
        super().__init__(
            f"{reason}. {cause}."
            " Set the option failOnDataLoss=false to continue with the records that exist"
        )


class ProgressError(Exception):
    """The progress topic of an exactly-once sink has records that are not its own."""


class FencedError(Exception):
    """Another run of the same query has taken over, so this one cannot commit."""


class LostRowsError(Exception):
    """Transactions with rows of a batch were aborted, and the rows do not exist any more."""


@contextmanager
def options_reported() -> Iterator[None]:
    """Have Spark report an OptionError as one line, without the traceback of its worker.

    The worker that Spark calls the source in formats the exception, asks this variable, and exits.
    """
    try:
        yield
    except OptionError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
