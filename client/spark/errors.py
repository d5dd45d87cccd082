"""What can go wrong with a Spark job, beside what can with any client."""

from __future__ import annotations


class OptionError(ValueError):
    """An option or a column that is wrong, unknown or missing; it says which."""


class DataLossError(Exception):
    """Records that should be read are not there any more; failOnDataLoss=false goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. They may have been deleted by retention, or their topic was deleted or made"
            " anew. With the option failOnDataLoss=false the query goes on with what there is"
        )
