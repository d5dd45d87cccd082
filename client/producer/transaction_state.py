"""The states of a transactional producer, and what each error means to it. No I/O, no clock.

    UNINITIALIZED ──initialize──▶ READY ──begin──▶ IN_TRANSACTION ──detach──▶ DETACHED
          ▲                         ▲                │    │    │
          │                         │             commit  │  failure
          │                         │                ▼    │    ▼
          │                         ├──ended── COMMITTING │  ABORTABLE_ERROR
          │                         │                │    │    │
          │                         │             failure │  abort
          │                         │                ▼  abort  ▼
          └────ended, new epoch─────┴──ended─────── ABORTING ◀─┘

Any state becomes FATAL_ERROR when the producer is fenced, or the coordinator rejects what it does.

COMMITTING begins when all records are acknowledged and EndTxn is about to be sent. From then on the
outcome is the coordinator's: without a response it is not known, and the producer can only ask
again.

The epoch. With transaction.version 2, each EndTxn returns the next epoch, in which sequences start
at 0. With version 1 the epoch stays, and sequences continue; but if a batch has failed, its
sequence may or may not be taken, and the epoch is bumped with InitProducerId after the abort
(KIP-360).
"""

from __future__ import annotations

from enum import Enum, auto

from ..errors import (
    AbortableTransactionError,
    ClientError,
    ErrorCode,
    FatalTransactionError,
    KafkaError,
    ProducerFencedError,
    TransactionError,
)
from ..transaction_requests import FENCED
from ..types import TopicPartition
from .batch import ProducerIdAndEpoch


class TransactionState(Enum):
    """See the top of the module."""

    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTABLE_ERROR = auto()
    ABORTING = auto()
    DETACHED = auto()
    FATAL_ERROR = auto()


class TransactionEvent(Enum):
    """What changes the state."""

    INITIALIZE = "initialize"
    BEGIN = "begin a transaction"
    COMMIT = "commit"
    ABORT = "abort"
    FAIL = "fail"
    END = "end"
    END_WITH_NEW_EPOCH = "end, with a new epoch to follow"
    DETACH = "detach"


_S, _E = TransactionState, TransactionEvent

#: All transitions, except those to FATAL_ERROR. What is not here is not allowed.
TRANSITIONS: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (_S.UNINITIALIZED, _E.INITIALIZE): _S.READY,
    (_S.READY, _E.INITIALIZE): _S.READY,  # a new epoch for the other protocol
    (_S.READY, _E.BEGIN): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, _E.COMMIT): _S.COMMITTING,
    (_S.IN_TRANSACTION, _E.ABORT): _S.ABORTING,
    (_S.IN_TRANSACTION, _E.FAIL): _S.ABORTABLE_ERROR,
    (_S.IN_TRANSACTION, _E.DETACH): _S.DETACHED,
    (_S.COMMITTING, _E.COMMIT): _S.COMMITTING,  # again: the outcome was not known
    (_S.COMMITTING, _E.FAIL): _S.ABORTABLE_ERROR,
    (_S.COMMITTING, _E.END): _S.READY,
    (_S.ABORTABLE_ERROR, _E.ABORT): _S.ABORTING,
    (_S.ABORTING, _E.ABORT): _S.ABORTING,  # again
    (_S.ABORTING, _E.END): _S.READY,
    (_S.ABORTING, _E.END_WITH_NEW_EPOCH): _S.UNINITIALIZED,
}

_DESCRIPTIONS = {
    _S.UNINITIALIZED: "no transaction is open",
    _S.READY: "no transaction is open",
    _S.IN_TRANSACTION: "a transaction is open",
    _S.COMMITTING: "the outcome of the commit is not known; call commit_transaction() again",
    _S.ABORTING: "the transaction is being aborted",
    _S.DETACHED: "the transaction was detached",
}

# The producer, its transactional id or its configuration is wrong, and will be.
_FATAL = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class ProducerTransactions:
    """The state of a producer: its id and epoch, and the transaction that is open, if any."""

    def __init__(self) -> None:
        self.state = TransactionState.UNINITIALIZED
        #: The last one that the coordinator returned.
        self.producer: ProducerIdAndEpoch | None = None
        #: The protocol of the current transaction: transaction.version 1 or 2.
        self.version = 1
        #: Why the transaction can only be aborted, or the producer cannot go on.
        self.error: TransactionError | None = None
        #: Partitions and groups that the coordinator has in the transaction, with version 1.
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        #: Whether the coordinator may have an open transaction: something was sent.
        self.may_be_open = False
        # Whether sequences cannot continue in the same epoch.
        self._needs_new_epoch = False

    def check(self, event: TransactionEvent) -> None:
        """Raise TransactionError if an event is not allowed now."""
        if (self.state, event) in TRANSITIONS:
            return
        if self.error is not None:
            # A new exception each time: tracebacks would accumulate in the same one.
            raise type(self.error)(str(self.error)) from self.error.__cause__
        raise TransactionError(f"Cannot {event.value}: {_DESCRIPTIONS[self.state]}")

    def check_open(self) -> None:
        """Raise TransactionError unless a transaction is open, and has not failed."""
        if self.state is not TransactionState.IN_TRANSACTION:
            if self.error is not None:
                raise type(self.error)(str(self.error)) from self.error.__cause__
            raise TransactionError(f"Cannot send: {_DESCRIPTIONS[self.state]}")

    def initialize(self, producer: ProducerIdAndEpoch) -> None:
        """Set the producer id and epoch that InitProducerId returned."""
        self._move(TransactionEvent.INITIALIZE)
        self.producer = producer

    def begin(self, version: int) -> None:
        """Begin a transaction."""
        self._move(TransactionEvent.BEGIN)
        self.version = version

    def commit(self) -> None:
        """Decide to commit. All records are acknowledged."""
        self._move(TransactionEvent.COMMIT)

    def abort(self) -> None:
        """Decide to abort."""
        self._move(TransactionEvent.ABORT)

    def detach(self) -> None:
        """Leave the transaction open for somebody else to end."""
        self._move(TransactionEvent.DETACH)

    def end(self, next_producer: ProducerIdAndEpoch) -> None:
        """Record that the transaction has ended, and the producer of the next one."""
        is_bumped = next_producer != self.producer
        is_new_epoch_due = self._needs_new_epoch and not is_bumped
        self.producer = next_producer
        self._move(
            TransactionEvent.END_WITH_NEW_EPOCH if is_new_epoch_due else TransactionEvent.END
        )
        self.error = None
        self.partitions.clear()
        self.groups.clear()
        self.may_be_open = self._needs_new_epoch = False

    def fail(self, cause: Exception) -> None:
        """Record that a record, or an offset commit, has failed: the transaction cannot commit."""
        if self.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            self._move(TransactionEvent.FAIL)
            self.error = AbortableTransactionError(
                f"The transaction has failed and can only be aborted: {cause}"
            )
            self.error.__cause__ = cause

    def break_sequence(self) -> None:
        """Record that a sequence may or may not be taken: it cannot continue in this epoch."""
        self._needs_new_epoch = True

    def fail_fatally(self, error: TransactionError) -> None:
        """Record an error after which the producer cannot go on."""
        if self.state is not TransactionState.FATAL_ERROR:
            self.state = TransactionState.FATAL_ERROR
            self.error = error

    def _move(self, event: TransactionEvent) -> None:
        self.check(event)
        self.state = TRANSITIONS[self.state, event]


def fatal_error(error: Exception, transactional_id: str) -> FatalTransactionError | None:
    """Return the fatal error for an error of the coordinator; None if an abort may help."""
    code = error.code if isinstance(error, KafkaError) else None
    fatal: FatalTransactionError
    if code in FENCED:
        fatal = ProducerFencedError(
            f"The producer with transactional id {transactional_id!r} was fenced: another one was"
            " started, or the transaction timed out"
        )
    elif code in _FATAL or (code is None and not isinstance(error, ClientError)):
        fatal = FatalTransactionError(f"The producer cannot go on: {error}")
    else:
        return None
    fatal.__cause__ = error
    return fatal


def fatal_produce_error(error: Exception, transactional_id: str) -> FatalTransactionError | None:
    """Return the fatal error for an error of a batch; None if an abort may help.

    A partition's leader says INVALID_PRODUCER_EPOCH after a timeout, too. Then the abort decides
    (KIP-588).
    """
    if isinstance(error, KafkaError) and error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
        if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            return None
        return fatal_error(error, transactional_id)
    return None
