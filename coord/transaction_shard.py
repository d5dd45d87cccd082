"""The transactional ids of one partition of `__transaction_state`.

A shard is loaded by replaying the log of its partition, and unloaded by dropping it, as a
`GroupShard` is. Requests are events: each validates, and returns effects (see `effects`). `replay`
is the only method that changes durable state. A change is appended first and replayed afterwards;
meanwhile every other request for the id gets CONCURRENT_TRANSACTIONS.

The shard decides, and the broker writes the markers: `SendMarkers` asks for them, and
`markers_written` reports them. Requests that ended a transaction are answered when all markers are
written, or after a bound: clients back off noticeably if the next transaction finds this one
incomplete. The decision is durable before, so that nothing is lost if the answer is.

Both transaction protocols are served; the version of each request decides. In transaction.version 2
(KIP-890) each EndTxn bumps the producer epoch, and the markers have the bumped epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ottla.protocol.errors import ErrorCode

from .config import TransactionConfig
from .deadlines import Deadlines, Now
from .effects import Append, Effect, LogMessage, Producer, Reply, SendMarkers, append_error
from .metadata_image import TopicPartition
from .transaction_records import (
    NONE,
    TransactionMetadata,
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from .transaction_states import TransactionState

State = TransactionState

#: Epochs from this one on are exhausted: the next bump takes a new producer id. The largest epoch
#: is left for fencing, and never handed out.
EXHAUSTED_EPOCH = 32_766
_MAX_EPOCH = 32_767

#: Estimated memory of a transactional id without partitions, and of a partition in a transaction.
_ID_BYTES = 1536
_PARTITION_BYTES = 192

#: Ids of a shard that one check removes, so that it does not block the event loop for long.
_MAX_EXPIRED = 1000
#: When there is no memory, transactional ids are removed after this time.
_UNUSED_MS = 60 * 1000
_IDLE_MS = 60 * 60 * 1000

_NO_PRODUCER = Producer(NONE, NONE)


class ProducerResult(NamedTuple):
    """The result of InitProducerId and EndTxn: the producer id and epoch to use from now on."""

    code: ErrorCode
    producer: Producer = _NO_PRODUCER


class Transaction:
    """One transactional id: its durable state, and what is under way."""

    __slots__ = ("id", "metadata", "pending", "unwritten", "waiting")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None = None) -> None:
        self.id = transactional_id
        #: None before the first record is in the log.
        self.metadata = metadata
        #: The state of the record that is being appended.
        self.pending: TransactionState | None = None
        #: The partitions that lack their marker; only in Prepare*.
        self.unwritten: set[TopicPartition] = set()
        #: Requests that are answered when all markers are written, with their results.
        self.waiting: list[Reply] = []

    def __repr__(self) -> str:
        state = None if self.metadata is None else self.metadata.state.label
        return f"<Transaction {self.id} {state}>"


class TransactionShard:
    """The transactional ids of a partition. `config` may be replaced at any time.

    `count_ids` returns the number of ids that `max_ids` limits: those of all shards of the broker.
    `has_memory` returns whether so many more bytes fit.
    """

    #: What is loaded, for the broker's log.
    kind = "transactional_ids"

    def __init__(
        self,
        config: TransactionConfig,
        count_ids: Callable[[], int] | None = None,
        has_memory: Callable[[int], bool] = lambda _size_bytes: True,
    ) -> None:
        self.config = config
        self._count_ids = count_ids or (lambda: len(self.transactions))
        self._has_memory = has_memory
        #: The estimated memory of all transactional ids.
        self.size_bytes = 0
        #: Transactions that were aborted because of their timeout, since the shard was loaded.
        self.timed_out_count = 0
        #: Whether the log was replayed, so that requests can be handled.
        self.is_active = False
        self.transactions: dict[str, Transaction] = {}
        self._ongoing: set[str] = set()
        #: When requests that wait for markers are answered regardless.
        self.deadlines: Deadlines[str] = Deadlines()

    encode = staticmethod(encode_transaction)
    decode = staticmethod(decode_transaction)

    def __len__(self) -> int:
        return len(self.transactions)

    # Durable state.

    def replay(
        self, record: TransactionRecord, *, offset: int = -1, producer_id: int = NONE
    ) -> None:
        """Apply a record: of the log, while the shard loads, or one that was just appended."""
        del offset, producer_id  # For offsets in transactions; see GroupShard.
        transactional_id, metadata = record
        transaction = self.transactions.get(transactional_id)
        if metadata is None:
            if transaction is not None:
                del self.transactions[transactional_id]
                self.size_bytes -= _size_bytes(transactional_id, transaction.metadata)
            self._ongoing.discard(transactional_id)
            return
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
        self.size_bytes += _size_bytes(transactional_id, metadata)
        self.size_bytes -= _size_bytes(transactional_id, transaction.metadata)
        transaction.metadata = metadata
        transaction.unwritten = set(metadata.partitions) if metadata.state.is_prepared else set()
        if metadata.state is State.ONGOING:
            self._ongoing.add(transactional_id)
        else:
            self._ongoing.discard(transactional_id)

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """Ignore markers: the topic has none."""

    def activate(self, now: Now) -> list[Effect]:
        """Start to handle requests, after a load, and finish the transactions that are decided."""
        del now
        self.is_active = True
        return [
            self._send_markers(transaction, metadata)
            for transaction in self.transactions.values()
            if (metadata := transaction.metadata) is not None and metadata.state.is_prepared
        ]

    # Requests of producers.

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether InitProducerId needs a new producer id."""
        transaction = self.transactions.get(transactional_id)
        has_id = transaction is not None and transaction.metadata is not None
        return not has_id or self.has_exhausted_epoch(transactional_id)

    def has_exhausted_epoch(self, transactional_id: str) -> bool:
        """Whether the next epoch bump needs a new producer id."""
        transaction = self.transactions.get(transactional_id)
        metadata = None if transaction is None else transaction.metadata
        return metadata is not None and metadata.producer_epoch >= EXHAUSTED_EPOCH

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        new_producer_id: int | None,
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Handle InitProducerId. `expected` is the producer id and epoch that the caller sent."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, ProducerResult(code))]

        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            return refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.metadata is None:
            if transaction is not None or new_producer_id is None:
                return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
            metadata = TransactionMetadata(
                new_producer_id,
                0,
                timeout_ms,
                State.EMPTY,
                frozenset(),
                now.time_ms,
                previous_producer_id=new_producer_id,
            )
            if self._count_ids() >= self.config.max_ids or not self._has_memory(
                _size_bytes(transactional_id, metadata)
            ):
                return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
            return self._change_and_reply(transaction, metadata, token)
        metadata = transaction.metadata
        if transaction.pending is not None:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not (
            expected.id == metadata.producer_id
            or (expected.id == metadata.previous_producer_id and expected.epoch >= EXHAUSTED_EPOCH)
        ):
            return refuse(ErrorCode.PRODUCER_FENCED)
        if metadata.state.is_prepared:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_current = expected is None or expected.epoch == metadata.producer_epoch
        is_retry = expected is not None and expected.epoch == metadata.last_producer_epoch
        if metadata.state is State.ONGOING:
            if expected is not None and not is_current:
                return refuse(ErrorCode.PRODUCER_FENCED)
            # A producer that asks for its own next epoch may ask again; another one fences it.
            last_epoch = NONE if expected is None else expected.epoch
            waiting = Reply(token, ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS))
            return [
                LogMessage(
                    "Aborting the transaction of a fenced producer",
                    {"transactional_id": transactional_id, "producer_id": metadata.producer_id},
                ),
                *self._prepare(transaction, self._fenced(metadata, last_epoch, now), waiting, now),
            ]
        if not is_current and not is_retry:
            return refuse(ErrorCode.PRODUCER_FENCED)
        last_epoch = NONE if expected is None else expected.epoch
        if metadata.producer_epoch >= EXHAUSTED_EPOCH:
            if new_producer_id is None:
                return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
            metadata = metadata._replace(
                producer_id=new_producer_id,
                producer_epoch=0,
                previous_producer_id=metadata.producer_id,
                last_producer_epoch=last_epoch,
            )
        elif is_current:
            metadata = metadata._replace(
                producer_epoch=metadata.producer_epoch + 1,
                previous_producer_id=metadata.producer_id,
                last_producer_epoch=last_epoch,
            )
        # Else the reply was lost: the same answer again, without a bump.
        metadata = metadata._replace(
            state=State.EMPTY,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NONE,
            last_update_ms=now.time_ms,
        )
        return self._change_and_reply(transaction, metadata, token)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        token: Any,
        now: Now,
        *,
        transaction_version: int = 0,
    ) -> list[Effect]:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn, and what adds partitions in passing."""
        transaction, metadata, code = self._find(transactional_id, producer)
        if code is ErrorCode.NONE and (
            transaction.pending is not None or metadata.state.is_prepared
        ):
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not ErrorCode.NONE:
            return [Reply(token, code)]
        is_ongoing = metadata.state is State.ONGOING
        added = metadata.partitions.union(partitions) if is_ongoing else frozenset(partitions)
        if is_ongoing and len(added) == len(metadata.partitions):
            return [Reply(token, ErrorCode.NONE)]
        if not self._has_memory(_PARTITION_BYTES * (len(added) - len(metadata.partitions))):
            return [Reply(token, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        metadata = metadata._replace(
            state=State.ONGOING,
            partitions=added,
            start_ms=metadata.start_ms if is_ongoing else now.time_ms,
            last_update_ms=now.time_ms,
            transaction_version=transaction_version,
        )
        return self._change(transaction, metadata, lambda code: [Reply(token, append_error(code))])

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return whether partitions are in the transaction of a producer (KIP-890).

        A change under way does not matter: partitions are in from when their record is in the log
        until all markers are written, and a marker always comes after the batches it decides on.
        """
        _transaction, metadata, code = self._find(transactional_id, producer)
        if code is ErrorCode.NONE and metadata.state.is_prepared:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not ErrorCode.NONE:
            return dict.fromkeys(partitions, code)
        return {
            tp: (ErrorCode.NONE if tp in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE)
            for tp in partitions
        }

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        new_producer_id: int | None,
        token: Any,
        now: Now,
        *,
        is_commit: bool,
        bumps_epoch: bool,
    ) -> list[Effect]:
        """Handle EndTxn; `bumps_epoch` since version 5."""

        def reply(code: ErrorCode) -> list[Effect]:
            return [Reply(token, ProducerResult(code))]

        if not transactional_id:
            return reply(ErrorCode.INVALID_REQUEST)
        transaction = self.transactions.get(transactional_id)
        metadata = None if transaction is None else transaction.metadata
        if transaction is None or metadata is None:
            return reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = bumps_epoch and _is_retry(metadata, producer)
        if producer.id != metadata.producer_id and not is_retry:
            return reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_current = producer == (metadata.producer_id, metadata.producer_epoch)
        if not is_current and not is_retry:
            return reply(ErrorCode.PRODUCER_FENCED)
        if transaction.pending is not None:
            return reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        state = metadata.state
        if is_retry:
            if state in (State.EMPTY, State.ONGOING):
                return reply(ErrorCode.PRODUCER_FENCED)
        elif bumps_epoch and state.is_prepared:
            return reply(ErrorCode.PRODUCER_FENCED)
        if state is State.ONGOING:
            prepared = metadata._replace(
                state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
                last_update_ms=now.time_ms,
                transaction_version=2 if bumps_epoch else 0,
            )
            if bumps_epoch:
                if metadata.producer_epoch >= EXHAUSTED_EPOCH:
                    if new_producer_id is None:
                        return reply(ErrorCode.CONCURRENT_TRANSACTIONS)
                    prepared = prepared._replace(next_producer_id=new_producer_id)
                prepared = _bumped(prepared, metadata.producer_epoch)
            result = ProducerResult(ErrorCode.NONE, _next_producer(prepared))
            return self._prepare(transaction, prepared, Reply(token, result), now)
        if bumps_epoch and not is_retry:
            # Nothing to end: only an abort is allowed, which clients send to be sure.
            if is_commit:
                return reply(ErrorCode.INVALID_TXN_STATE)
            return self._abort_nothing(transaction, metadata, new_producer_id, token, now)
        if state is State.EMPTY or state.is_commit != is_commit:
            return reply(ErrorCode.INVALID_TXN_STATE)
        if state.is_prepared:
            return reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        if bumps_epoch and metadata.producer_epoch == _MAX_EPOCH:
            # It timed out in its last epoch, and the one that fenced it is not handed out.
            return self._abort_nothing(transaction, metadata, new_producer_id, token, now)
        result = ProducerResult(
            ErrorCode.NONE, Producer(metadata.producer_id, metadata.producer_epoch)
        )
        return [Reply(token, result)]

    # Markers.

    def markers_written(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        now: Now,
    ) -> list[Effect]:
        """Record that partitions have the marker of a decided transaction, or do not exist."""
        transaction = self.transactions.get(transactional_id)
        metadata = None if transaction is None else transaction.metadata
        if (
            transaction is None
            or metadata is None
            or not metadata.state.is_prepared
            or producer != (metadata.producer_id, metadata.producer_epoch)
        ):
            return []
        transaction.unwritten.difference_update(partitions)
        if transaction.unwritten or transaction.pending is not None:
            return []
        following = _next_producer(metadata)
        completed = metadata._replace(
            state=State.COMPLETE_COMMIT if metadata.state.is_commit else State.COMPLETE_ABORT,
            producer_id=following.id,
            producer_epoch=following.epoch,
            previous_producer_id=metadata.producer_id,
            next_producer_id=NONE,
            partitions=frozenset(),
            last_update_ms=now.time_ms,
        )

        def complete(code: ErrorCode) -> list[Effect]:
            if code is ErrorCode.NONE:
                return self._answer_waiting(transaction)
            if code is ErrorCode.NOT_COORDINATOR:
                return []
            return [self._send_markers(transaction, metadata)]  # Once more, and then this record.

        return self._change(transaction, completed, complete)

    def expire(self, now: Now) -> list[Effect]:
        """Answer the requests that have waited long enough for markers."""
        effects: list[Effect] = []
        for transactional_id in self.deadlines.due(now.tick_ms):
            transaction = self.transactions.get(transactional_id)
            if transaction is not None:
                effects += self._answer_waiting(transaction)
        return effects

    def refuse_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all requests that wait for markers: the shard or the broker stops.

        What they asked for is decided and durable, so that the answer is not an error.
        """
        del code
        return [
            effect
            for transaction in self.transactions.values()
            for effect in self._answer_waiting(transaction)
        ]

    # Periodic checks.

    def abort_timed_out(self, now: Now) -> list[Effect]:
        """Abort the transactions that are open for longer than their timeout, and fence them."""
        effects: list[Effect] = []
        for transactional_id in list(self._ongoing):
            transaction = self.transactions[transactional_id]
            metadata = transaction.metadata
            assert metadata is not None
            if (
                transaction.pending is not None
                or metadata.start_ms + metadata.timeout_ms >= now.time_ms
            ):
                continue
            self.timed_out_count += 1
            effects.append(
                LogMessage(
                    "Aborting a transaction that has timed out",
                    {
                        "transactional_id": transactional_id,
                        "producer_id": metadata.producer_id,
                        "timeout_ms": metadata.timeout_ms,
                    },
                )
            )
            # The producer may ask for the new epoch, unless another one does before.
            fenced = self._fenced(metadata, metadata.producer_epoch, now)
            effects += self._prepare(transaction, fenced, None, now)
        return effects

    def remove_expired(self, now: Now) -> list[Effect]:
        """Remove the transactional ids that were not used for transactional.id.expiration.ms."""
        before_ms = now.time_ms - self.config.id_expiration_ms
        return self._remove_idle(before_ms, before_ms)

    def remove_idle(self, now: Now) -> list[Effect]:
        """Remove transactional ids that are not in use, because there is no memory for others.

        Those that never had a transaction after a minute, others after an hour. Their producers
        have to initialize again.
        """
        return self._remove_idle(now.time_ms - _UNUSED_MS, now.time_ms - _IDLE_MS)

    def _remove_idle(self, unused_before_ms: int, used_before_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for transaction in self.transactions.values():
            metadata = transaction.metadata
            if (
                metadata is None
                or transaction.pending is not None
                or metadata.last_update_ms
                > (unused_before_ms if metadata.state is State.EMPTY else used_before_ms)
                or metadata.state is State.ONGOING
                or metadata.state.is_prepared
            ):
                continue
            effects += self._change(transaction, None, lambda _code: [])
            if len(effects) >= _MAX_EXPIRED:
                break
        return effects

    # Queries.

    def count_states(self) -> Counter[str]:
        """Count the transactional ids by state."""
        return Counter(
            transaction.metadata.state.label
            for transaction in list(self.transactions.values())
            if transaction.metadata is not None
        )

    def count_unwritten_markers(self) -> int:
        """Count the markers that are yet to be written."""
        return sum(len(transaction.unwritten) for transaction in list(self.transactions.values()))

    # Helpers.

    def _find(
        self, transactional_id: str, producer: Producer
    ) -> tuple[Transaction, TransactionMetadata, ErrorCode]:
        """Return a transactional id, and whether a producer is its current one."""
        transaction = self.transactions.get(transactional_id, _UNKNOWN)
        metadata = transaction.metadata or _UNKNOWN_METADATA
        code = ErrorCode.NONE
        if not transactional_id:
            code = ErrorCode.INVALID_REQUEST
        elif metadata is _UNKNOWN_METADATA or metadata.producer_id != producer.id:
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif metadata.producer_epoch != producer.epoch:
            code = ErrorCode.PRODUCER_FENCED
        return transaction, metadata, code

    def _change(
        self,
        transaction: Transaction,
        metadata: TransactionMetadata | None,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Append a record; requests for the id are refused until it is replayed, or has failed."""
        transaction.pending = State.DEAD if metadata is None else metadata.state

        def complete(code: ErrorCode) -> list[Effect]:
            transaction.pending = None
            if transaction.metadata is None and code is not ErrorCode.NONE:
                self.transactions.pop(transaction.id, None)
            return then(code)

        return [Append([TransactionRecord(transaction.id, metadata)], complete)]

    def _change_and_reply(
        self, transaction: Transaction, metadata: TransactionMetadata, token: Any
    ) -> list[Effect]:
        """Append a record of InitProducerId, and answer with its producer id and epoch."""

        def complete(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, ProducerResult(append_error(code)))]
            producer = Producer(metadata.producer_id, metadata.producer_epoch)
            return [Reply(token, ProducerResult(ErrorCode.NONE, producer))]

        return self._change(transaction, metadata, complete)

    def _prepare(
        self,
        transaction: Transaction,
        metadata: TransactionMetadata,
        waiting: Reply | None,
        now: Now,
    ) -> list[Effect]:
        """Decide on a transaction; `waiting` is sent when all markers are written."""

        def complete(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                result = ProducerResult(append_error(code))
                return [] if waiting is None else [Reply(waiting.token, result)]
            if waiting is not None:
                transaction.waiting.append(waiting)
                due_ms = now.tick_ms + self.config.marker_wait_ms
                self.deadlines.set(transaction.id, due_ms)
            return [self._send_markers(transaction, metadata)]

        return self._change(transaction, metadata, complete)

    def _abort_nothing(
        self,
        transaction: Transaction,
        metadata: TransactionMetadata,
        new_producer_id: int | None,
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Bump the epoch of a producer that aborts without having added anything."""
        aborted = metadata._replace(
            state=State.COMPLETE_ABORT,
            partitions=frozenset(),
            start_ms=now.time_ms,
            last_update_ms=now.time_ms,
            transaction_version=2,
        )
        if metadata.producer_epoch < EXHAUSTED_EPOCH:
            aborted = _bumped(aborted, metadata.producer_epoch)
        elif new_producer_id is None:
            result = ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            return [Reply(token, result)]
        else:
            aborted = aborted._replace(
                producer_id=new_producer_id,
                producer_epoch=0,
                previous_producer_id=metadata.producer_id,
                last_producer_epoch=metadata.producer_epoch,
            )
        return self._change_and_reply(transaction, aborted, token)

    @staticmethod
    def _fenced(metadata: TransactionMetadata, last_epoch: int, now: Now) -> TransactionMetadata:
        """Return the abort of a transaction whose producer must not continue."""
        return _bumped(metadata, last_epoch)._replace(
            state=State.PREPARE_ABORT, last_update_ms=now.time_ms
        )

    @staticmethod
    def _send_markers(transaction: Transaction, metadata: TransactionMetadata) -> SendMarkers:
        return SendMarkers(
            transaction.id,
            Producer(metadata.producer_id, metadata.producer_epoch),
            metadata.state.is_commit,
            metadata.transaction_version,
            frozenset(transaction.unwritten),
        )

    def _answer_waiting(self, transaction: Transaction) -> list[Effect]:
        self.deadlines.cancel(transaction.id)
        waiting, transaction.waiting = transaction.waiting, []
        return list(waiting)


_UNKNOWN = Transaction("")
_UNKNOWN_METADATA = TransactionMetadata(NONE, NONE, 0, State.DEAD, frozenset(), 0)


def _bumped(metadata: TransactionMetadata, last_epoch: int) -> TransactionMetadata:
    return metadata._replace(
        producer_epoch=min(metadata.producer_epoch + 1, _MAX_EPOCH),
        previous_producer_id=metadata.producer_id,
        last_producer_epoch=last_epoch,
    )


def _next_producer(metadata: TransactionMetadata) -> Producer:
    """Return the producer id and epoch of the next transaction."""
    if metadata.next_producer_id != NONE:
        return Producer(metadata.next_producer_id, 0)
    return Producer(metadata.producer_id, metadata.producer_epoch)


def _is_retry(metadata: TransactionMetadata, producer: Producer) -> bool:
    """Whether a producer is one epoch behind: the answer to its EndTxn may have been lost."""
    if producer.id == metadata.producer_id:
        return producer.epoch == metadata.producer_epoch - 1
    return (
        producer.id == metadata.previous_producer_id
        and producer.epoch == EXHAUSTED_EPOCH
        and metadata.producer_epoch == 0
    )


def _size_bytes(transactional_id: str, metadata: TransactionMetadata | None) -> int:
    """Estimate the memory of a transactional id; None: it is not in the log yet."""
    if metadata is None:
        return 0
    return _ID_BYTES + 4 * len(transactional_id) + _PARTITION_BYTES * len(metadata.partitions)
