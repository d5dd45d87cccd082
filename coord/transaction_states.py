"""The states of a transactional id, and the transitions.

Empty ──add──▶ Ongoing ──EndTxn──▶ PrepareCommit ──all markers written──▶ CompleteCommit ──add──▶ …
                  │  └──EndTxn──▶ PrepareAbort ──all markers written──▶ CompleteAbort ──add──▶ …
                  └──timeout, InitProducerId──▲ (epoch + 1)
Empty, Complete* ──InitProducerId──▶ Empty (epoch + 1) ──idle──▶ Dead: tombstone, forgotten

PrepareCommit and PrepareAbort are the point of no return: once they are in the log, the coordinator
writes the markers until all partitions have them, after a restart too.
"""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """A state: its id in `__transaction_state`, and its name on the wire."""

    EMPTY = (0, "Empty")
    """Initialized; no transaction since."""
    ONGOING = (1, "Ongoing")
    """Partitions were added, and nothing is decided."""
    PREPARE_COMMIT = (2, "PrepareCommit")
    """The commit is decided, and markers are being written."""
    PREPARE_ABORT = (3, "PrepareAbort")
    """The abort is decided, and markers are being written."""
    COMPLETE_COMMIT = (4, "CompleteCommit")
    """All partitions have their commit marker."""
    COMPLETE_ABORT = (5, "CompleteAbort")
    """All partitions have their abort marker."""
    DEAD = (6, "Dead")
    """Expired; the tombstone is being written."""
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")
    """Kafka's name for an abort that fences the producer, before it is in the log. Never stored."""

    def __init__(self, number: int, label: str) -> None:
        self.number = number
        self.label = label

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided, and its markers are not all written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        """Whether the transaction is, or is being, committed."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


STATES_BY_NUMBER = {state.number: state for state in TransactionState}
STATES_BY_LABEL = {state.label: state for state in TransactionState}
