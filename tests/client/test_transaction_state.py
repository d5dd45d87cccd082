"""The state machine of a transactional producer."""

from itertools import product

import pytest

from ottla.client.errors import (
    AbortableTransactionError,
    ConnectionLostError,
    ErrorCode,
    FatalTransactionError,
    KafkaError,
    ProducerFencedError,
    TransactionError,
)
from ottla.client.producer.batch import ProducerIdAndEpoch
from ottla.client.producer.transaction_state import (
    TRANSITIONS,
    ProducerTransactions,
    TransactionEvent,
    TransactionState,
    fatal_error,
    fatal_produce_error,
)

FIRST, SECOND = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)
TOO_LARGE = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)


@pytest.fixture
def transactions():
    """A producer that has begun a transaction, and sent something."""
    begun = ProducerTransactions()
    begun.initialize(FIRST)
    begun.begin(1)
    begun.may_be_open = True
    return begun


@pytest.mark.parametrize(("state", "event"), list(product(TransactionState, TransactionEvent)))
def test_what_is_not_in_the_table_is_rejected(state, event):
    transactions = ProducerTransactions()
    transactions.state = state
    transactions.error = (
        FatalTransactionError("fatal") if state is TransactionState.FATAL_ERROR else None
    )
    if state is TransactionState.ABORTABLE_ERROR:
        transactions.error = AbortableTransactionError("failed")
    if (state, event) in TRANSITIONS:
        transactions.check(event)
    else:
        with pytest.raises(TransactionError):
            transactions.check(event)


def test_every_state_can_be_reached_and_left():
    targets = set(TRANSITIONS.values())
    assert targets == set(TransactionState) - {TransactionState.FATAL_ERROR}
    sources = {state for state, _event in TRANSITIONS}
    assert sources == targets - {TransactionState.DETACHED}


def test_the_next_transaction_has_the_epoch_of_the_response(transactions):
    transactions.commit()
    transactions.end(SECOND)
    assert transactions.state is TransactionState.READY
    assert transactions.producer == SECOND
    assert not transactions.may_be_open


def test_a_failure_can_only_be_aborted(transactions):
    transactions.fail(TOO_LARGE)
    with pytest.raises(AbortableTransactionError) as failed:
        transactions.check(TransactionEvent.COMMIT)
    assert failed.value.__cause__ is TOO_LARGE
    transactions.abort()
    transactions.end(FIRST)
    assert transactions.state is TransactionState.READY
    assert transactions.error is None


def test_a_broken_sequence_needs_a_new_epoch(transactions):
    transactions.break_sequence()
    transactions.fail(TOO_LARGE)
    transactions.abort()
    transactions.end(FIRST)
    assert transactions.state is TransactionState.UNINITIALIZED
    assert transactions.producer == FIRST

    transactions.initialize(SECOND)
    transactions.begin(2)
    transactions.break_sequence()
    transactions.abort()
    transactions.end(FIRST._replace(epoch=2))
    assert transactions.state is TransactionState.READY


def test_a_fatal_error_ends_everything(transactions):
    transactions.fail_fatally(ProducerFencedError("fenced"))
    transactions.fail(TOO_LARGE)
    for event in TransactionEvent:
        with pytest.raises(ProducerFencedError):
            transactions.check(event)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaError(ErrorCode.PRODUCER_FENCED), ProducerFencedError),
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), ProducerFencedError),
        (KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), FatalTransactionError),
        (KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT), FatalTransactionError),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR), FatalTransactionError),
        (KafkaError(ErrorCode.TRANSACTION_ABORTABLE), type(None)),
        (KafkaError(ErrorCode.INVALID_TXN_STATE), type(None)),
        (KafkaError(ErrorCode.ILLEGAL_GENERATION), type(None)),
        (ConnectionLostError("lost"), type(None)),
    ],
)
def test_errors_of_the_coordinator(error, expected):
    assert type(fatal_error(error, "id")) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaError(ErrorCode.PRODUCER_FENCED), ProducerFencedError),
        # After a timeout of the transaction, too: the abort decides.
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), type(None)),
        (KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), type(None)),
        (TOO_LARGE, type(None)),
        (ConnectionLostError("lost"), type(None)),
    ],
)
def test_errors_of_a_batch(error, expected):
    assert type(fatal_produce_error(error, "id")) is expected
