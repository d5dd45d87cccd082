"""Model test of a transactional id: any instances, in any order, with any failures.

Instances initialize, add partitions, and end transactions in both protocols; appends take long or
fail; markers are written one by one; transactions time out; the shard is reloaded from the log.

Safety: each request is answered at most once; the markers of a transaction all say the same, and
what an acknowledged EndTxn asked for; no producer id and epoch is handed out to two instances; the
shard always equals one that is loaded from its log.

Liveness: once everything works again, nothing is pending, and a new instance can commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.transaction_stage import ID, TransactionCall, TransactionStage
from ottla.coord.config import TransactionConfig
from ottla.coord.effects import Append, Producer
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.transaction_records import TransactionMetadata, TransactionRecord
from ottla.coord.transaction_shard import EXHAUSTED_EPOCH, TransactionShard
from ottla.coord.transaction_states import TransactionState
from ottla.protocol.errors import ErrorCode

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
NAMES = ("anna", "bert")
State = TransactionState


@dataclass
class Instance:
    """A process with the transactional id, and its request in flight."""

    producer: Producer | None = None
    call: TransactionCall | None = None
    #: Whether it ends transactions in version 2.
    bumps_epoch: bool = False
    #: All that it was ever told.
    told: set[Producer] = field(default_factory=set)


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = TransactionStage()
        self.stage.on_append = self.appending
        self.instances = {name: Instance() for name in NAMES}
        #: The decision on each transaction, by producer id, epoch and start.
        self.decisions: dict[tuple[int, int, int], bool] = {}
        self.owners: dict[Producer, str] = {}

    # What the instances do.

    @rule(name=st.sampled_from(NAMES), bumps_epoch=st.booleans(), knows=st.booleans())
    def initialize(self, name: str, bumps_epoch: bool, knows: bool) -> None:
        instance = self.instances[name]
        self.abandon(instance)
        instance.bumps_epoch = bumps_epoch
        expected = instance.producer if knows else None
        if expected is None:
            instance.told.clear()  # Another process.
        instance.producer = None
        instance.call = self.stage.init(name, expected)
        self.receive()

    @rule(
        name=st.sampled_from(NAMES),
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True),
    )
    def add(self, name: str, partitions: list[TopicPartition]) -> None:
        instance = self.instances[name]
        if instance.producer is not None and instance.call is None:
            instance.call = self.stage.add(name, instance.producer, *partitions)
            self.receive()

    @rule(name=st.sampled_from(NAMES), commit=st.booleans(), loses_answer=st.booleans())
    def end(self, name: str, commit: bool, loses_answer: bool) -> None:
        instance = self.instances[name]
        if instance.producer is not None and instance.call is None:
            instance.call = self.stage.end(
                name, instance.producer, commit=commit, bumps_epoch=instance.bumps_epoch
            )
            if loses_answer:
                self.abandon(instance)
            self.receive()

    # What happens around them.

    @rule(partition=st.sampled_from(PARTITIONS))
    def write_markers(self, partition: TopicPartition) -> None:
        self.stage.write_markers([partition])
        self.receive()

    @rule()
    def hold_appends(self) -> None:
        self.stage.holds = True

    @precondition(lambda self: self.stage.held)
    @rule(fails=st.booleans())
    def complete_append(self, fails: bool) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE
        self.stage.complete_append(code)
        self.receive()

    @rule()
    def resume_appends(self) -> None:
        self.stage.holds = False
        while self.stage.held:
            self.stage.complete_append()
        self.receive()

    @rule(seconds=st.sampled_from([1, 61]))
    def pass_time(self, seconds: int) -> None:
        self.stage.pass_time(seconds * 1000)
        self.stage.check_timeouts()
        self.receive()

    @rule()
    def reload(self) -> None:
        self.stage.reload()
        for instance in self.instances.values():
            instance.call = None

    @precondition(lambda self: self.stage.metadata is not None and not self.stage.held)
    @rule()
    def exhaust_epochs(self) -> None:
        """As after many transactions: no instance knows the epoch."""
        metadata = self.stage.metadata
        assert metadata is not None
        is_idle = metadata.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        if is_idle and metadata.producer_epoch < EXHAUSTED_EPOCH - 1:
            exhausted = metadata._replace(
                producer_epoch=EXHAUSTED_EPOCH - 1, last_producer_epoch=-1
            )
            self.stage.run([Append([TransactionRecord(ID, exhausted)])])

    def abandon(self, instance: Instance) -> None:
        """Give up waiting for an answer, which may still arrive."""
        instance.call = None

    def receive(self) -> None:
        """Have instances act on their answers."""
        for name, instance in self.instances.items():
            call = instance.call
            if call is None or call.answer is None:
                continue
            instance.call = None
            if call.what == "add":
                continue
            code, producer = call.answer
            if code is not ErrorCode.NONE:
                if call.what == "init":
                    instance.producer = None
                continue
            if call.what == "init" or instance.bumps_epoch:
                self.hand_out(name, instance, producer)

    def hand_out(self, name: str, instance: Instance, producer: Producer) -> None:
        if producer not in instance.told:
            previous = self.owners.get(producer)
            assert previous is None or previous == name, f"{producer} is {previous}'s, not {name}'s"
            self.owners[producer] = name
            instance.told.add(producer)
        assert producer.epoch < 32_767
        instance.producer = producer

    def appending(self, append: Append) -> None:
        for _id, metadata in append.records:
            if isinstance(metadata, TransactionMetadata) and metadata.state.is_prepared:
                assert metadata.partitions

    # What always holds.

    @invariant()
    def markers_agree(self) -> None:
        """All markers of a transaction are of one decision."""
        metadata = self.stage.metadata
        for marker in self.stage.markers:
            assert metadata is not None
            assert metadata.state.is_prepared or not marker.partitions
            key = (*marker.producer, metadata.start_ms)
            assert self.decisions.setdefault(key, marker.is_commit) == marker.is_commit

    @invariant()
    def equals_its_log(self) -> None:
        loaded = TransactionShard(TransactionConfig())
        for key, value in dict(self.stage.log).items():
            record = loaded.decode(key, value)
            assert record is not None
            loaded.replay(record)
        here = self.stage.metadata
        there = loaded.transactions[ID].metadata if ID in loaded.transactions else None
        stored = here and here._replace(last_producer_epoch=-1)
        assert stored == there
        if self.stage.shard.transactions.get(ID) is not None and here is not None:
            assert self.stage.shard.size_bytes == loaded.size_bytes

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        transaction = self.stage.shard.transactions.get(ID)
        if transaction is None:
            return
        if transaction.waiting:
            assert ID in self.stage.shard.deadlines
        if transaction.unwritten and transaction.pending is None:
            assert self.stage.markers

    def teardown(self) -> None:
        """Once everything works again, a new instance can commit."""
        self.resume_appends()
        for _ in range(5):
            self.stage.write_markers()
            self.stage.pass_time(300)
        metadata = self.stage.metadata
        assert metadata is None or not metadata.state.is_prepared
        assert self.stage.waiting == []
        code = ErrorCode.CONCURRENT_TRANSACTIONS
        for _ in range(3):
            call = self.stage.init("carl")
            self.stage.write_markers()
            code, producer = call.answer
            if code is ErrorCode.NONE:
                break
        assert code is ErrorCode.NONE
        assert self.stage.add("carl", producer, PARTITIONS[0]).answer is ErrorCode.NONE
        call = self.stage.end("carl", producer, commit=True)
        self.stage.write_markers()
        assert call.answer.code is ErrorCode.NONE
        assert self.stage.metadata is not None
        assert self.stage.metadata.state is State.COMPLETE_COMMIT


TestTransactionMachine = TransactionMachine.TestCase
