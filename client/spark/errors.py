"""Errors of Spark jobs, in addition to those of `ottla.client`."""

from __future__ import annotations


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
