"""A random walk over the replication protocol: one partition on three brokers, and no clock.

With reassignments there are four, of which any two or more are to be the replicas. A broker that
learns that it is no replica any more deletes its log, and may be added again.

Whatever a clock decides (the end of a lease, a lagging follower, a retry) happens at any time or
never, so what holds here holds whatever clocks do. Messages are late or lost, brokers act on old
states, crash, lose a suffix of their log in a power cut, and come back. In the end all of them
return and must agree.

The rules are the real ones: `coord/election.py` decides on states, `FollowerProgress` on the high
watermark and on who may join the ISR, `LeaderEpochs` on divergence. Checked after each step:

- every leader has every acked record;
- no offset is committed with two values, and nothing that was readable is gone;
- no follower truncates below its high watermark;
- each state in the store follows from the one before: epochs never go back, and every leader was
  in the ISR or the ELR of the state before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ottla.coord import election
from ottla.coord.follower_progress import FollowerProgress
from ottla.coord.partition_state import NO_LEADER, PartitionState
from ottla.storage.leader_epochs import LeaderEpochs

BROKERS = 3
BROKERS_WITH_REASSIGNMENTS = 4
_MAX_RECORDS = 14
_MAX_IN_FLIGHT = 6
_ATTEMPTS_PER_STEP = 8
_ROUNDS_TO_SETTLE = 400
#: How often each action is tried; an episode multiplies each by a random factor.
_WEIGHTS = {
    "produce": 18.0,
    "fetch": 27.0,
    "deliver": 29.0,
    "learn": 8.0,
    "control": 4.0,
    "shrink": 2.5,
    "expand": 4.5,
    "expire": 1.5,
    "register": 2.0,
    "crash": 1.0,
    "power_cut": 0.6,
    "start": 2.0,
    "prefer": 0.3,
    "leave": 0.3,
}
_REASSIGNMENT_WEIGHTS = {"reassign": 0.8, "cancel": 0.2}

#: Rules that are not functions of `coord`, but of what the brokers do; see `mutations.py`.
ONE_FETCH_IN_FLIGHT = "one fetch in flight"
CURRENT_LEADER_EPOCH = "current leader epoch in fetches"
QUALIFYING_BROKER_EPOCH = "broker epoch of the qualifying fetch"
BROKER_EPOCH = "broker epoch of an added follower"
TRUNCATE_BY_EPOCH = "truncation by leader epoch"
SHRINK_WHEN_STORED = "a shrink counts when it is stored"
LOSSY_RESTARTS = "lossy restarts leave ISR and ELR"
ACTIVE_WHEN_UNFENCED = "a registered broker waits to be unfenced"
NEW_EPOCH_AFTER_RESTART = "a restarted leader leads in a new epoch"

#: A record: the leader epoch in which it was appended, and a number that occurs once.
Record = tuple[int, int]


class ViolationError(Exception):
    """A promise that was broken."""


class Request(NamedTuple):
    """A fetch of a follower."""

    follower: int
    leader: int
    leader_epoch: int
    offset: int
    last_epoch: int
    broker_epoch: int
    number: int


class Response(NamedTuple):
    """Records, or where the log of the follower diverges from that of the leader."""

    request: Request
    records: tuple[Record, ...]
    high_watermark: int
    diverging: tuple[int, int] | None = None


class Broker:
    """A broker: its log, and what it knows."""

    def __init__(self, broker_id: int, state: PartitionState) -> None:
        self.id = broker_id
        self.log: list[Record] = []
        self.epochs = LeaderEpochs()
        self.high_watermark = 0
        self.state = state
        self.is_up = True
        #: Whether it was unfenced since it registered last: it leads and follows only then.
        self.is_unfenced = True
        self.is_lossy = False
        self.broker_epoch = 1
        #: The epoch in which it leads, and what it knows of the followers in it.
        self.led_epoch = -1
        self.progress: FollowerProgress | None = None
        #: The epoch in which it truncated to the high watermark, without TRUNCATE_BY_EPOCH.
        self.truncated_in = -1
        self.waiting: list[tuple[int, Record]] = []
        self.last_request = 0

    @property
    def end_offset(self) -> int:
        return len(self.log)

    def append(self, record: Record) -> None:
        if record[0] != self.epochs.current:
            self.epochs.assign(record[0], len(self.log))
        self.log.append(record)

    def truncate(self, offset: int) -> None:
        del self.log[offset:]
        self.epochs.truncate(offset)
        self.high_watermark = min(self.high_watermark, offset)

    def stop_leading(self) -> None:
        self.led_epoch = -1
        self.progress = None
        self.waiting = []

    @property
    def is_active(self) -> bool:
        return self.is_up and self.is_unfenced

    @property
    def leads(self) -> bool:
        return self.is_active and self.progress is not None


class World:
    """The brokers, the store and the messages between them."""

    def __init__(
        self, seed: int, without: Collection[str] = (), *, reassigns: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.without = without
        # With a minimum of 1, the only member of the ISR may lose acked records in a power cut.
        self.min_isr = self.random.choice((1, 2, 2, 2))
        self.power_cuts_left = 1 if self.min_isr > 1 else 0
        replicas = self.random.sample(range(BROKERS), BROKERS)
        self.state = election.initial_state(replicas, range(BROKERS))
        count = BROKERS_WITH_REASSIGNMENTS if reassigns else BROKERS
        self.brokers = [Broker(broker_id, self.state) for broker_id in range(count)]
        #: The broker epochs of the registered brokers.
        self.registered = {broker.id: 1 for broker in self.brokers}
        #: Registered brokers that the controller has not unfenced yet.
        self.fenced: set[int] = set()
        self.leaving: set[int] = set()
        self.in_flight: list[Request | Response] = []
        self.committed: dict[int, Record] = {}
        self.acked: dict[int, Record] = {}
        self.trace: list[str] = []
        self.elections = self.acks = self.truncations = self.completions = 0
        self._record_number = 0
        weights = _WEIGHTS | (_REASSIGNMENT_WEIGHTS if reassigns else {})
        self._actions: list[Callable[[Broker], bool]] = [getattr(self, name) for name in weights]
        factors = (0.2, 0.5, 1, 1, 2, 4)
        self._weights = [weight * self.random.choice(factors) for weight in weights.values()]
        for broker in self.brokers:
            self._apply(broker)

    def step(self) -> None:
        """Do one thing that is possible."""
        for _attempt in range(_ATTEMPTS_PER_STEP):
            broker = self.brokers[self.random.randrange(len(self.brokers))]
            (action,) = self.random.choices(self._actions, self._weights)
            if action(broker):
                return

    def settle(self) -> bool:
        """Bring all brokers back, and check that they agree; return False if they do not settle."""
        self.in_flight.clear()
        self.leaving.clear()
        for _round in range(_ROUNDS_TO_SETTLE):
            for broker in self.brokers:
                self.start(broker)
                self.register(broker)
                self.control(broker)
                self.learn(broker)
                self.fetch(broker)
            while self.in_flight:
                self.deliver(self.brokers[0])
            for broker in self.brokers:
                self.expand(broker)
            if self._is_settled():
                break
        else:
            return False
        leader = self.brokers[self.state.leader]
        self._check_acked(leader)
        for offset, record in self.committed.items():
            if leader.log[offset : offset + 1] != [record]:
                raise ViolationError(f"{record} was readable at {offset} and is gone")
        return True

    def _is_settled(self) -> bool:
        state = self.state
        return (
            state.has_leader
            and len(state.isr) == len(state.replicas)
            and not state.is_reassigning
            and all(broker.state is state for broker in self.brokers)
            and len({tuple(self.brokers[one].log) for one in state.replicas}) == 1
        )

    # The leader.

    def produce(self, broker: Broker) -> bool:
        if not broker.leads or broker.end_offset > _MAX_RECORDS:
            return False
        self._record_number += 1
        record = (broker.led_epoch, self._record_number)
        if len(broker.state.isr) >= self._min_isr(broker.state):
            broker.waiting.append((broker.end_offset, record))
        broker.append(record)
        self._note("produce", broker.id, record)
        self._advance(broker)
        return True

    def _advance(self, broker: Broker) -> None:
        """Advance the high watermark, and ack what is below it."""
        if broker.progress is None:
            return
        before = broker.high_watermark
        after = broker.progress.high_watermark(before, broker.end_offset, self.min_isr)
        for offset in range(before, after):
            record = broker.log[offset]
            if self.committed.setdefault(offset, record) != record:
                raise ViolationError(
                    f"two values committed at {offset}: {self.committed[offset]} and {record}"
                )
        broker.high_watermark = after
        still_waiting = []
        for offset, record in broker.waiting:
            if offset >= after:
                still_waiting.append((offset, record))
            elif len(broker.state.isr) >= self._min_isr(broker.state):
                self.acked[offset] = record
                self.acks += 1
        broker.waiting = still_waiting

    def _min_isr(self, state: PartitionState) -> int:
        return election.effective_min_isr(state, self.min_isr)

    def shrink(self, broker: Broker) -> bool:
        progress = broker.progress
        if not broker.leads or progress is None or progress.pending_expansion:
            return False
        others = [one for one in broker.state.isr if one != broker.id]
        if not others:
            return False
        after = election.shrink(broker.state, [self.random.choice(others)], self.min_isr)
        if SHRINK_WHEN_STORED in self.without:
            broker.state = after
            progress.set_state(after)
            self._advance(broker)
        elif self._swap(broker, after):
            self._note("shrink", after)
        return True

    def expand(self, broker: Broker) -> bool:
        """Two steps: the leader counts the followers at once, and stores them later."""
        progress = broker.progress
        if not broker.leads or progress is None:
            return False
        if not progress.pending_expansion:
            added = progress.caught_up(broker.high_watermark)
            progress.begin_expansion(added)
            if added:
                self._note("expansion begins", broker.id, added)
            return bool(added)
        added = dict(progress.pending_expansion)
        if QUALIFYING_BROKER_EPOCH in self.without:
            added = {one: progress.fetches[one].broker_epoch for one in added}
        if BROKER_EPOCH in self.without:
            can_join = all(one in self.registered for one in added)
        else:
            can_join = all(self.registered.get(one) == epoch for one, epoch in added.items())
        if not can_join or not added.keys().isdisjoint({*self.fenced, *self.leaving}):
            progress.begin_expansion({})
            return False
        after = election.expand(broker.state, added, self.min_isr)
        if self._swap(broker, after):
            self._note("expanded", after)
        return True

    def _swap(self, broker: Broker, after: PartitionState) -> bool:
        """Store a state that follows from the one that a broker knows, if that is the current."""
        if self.state.partition_epoch == broker.state.partition_epoch:
            self._store(after)
            is_swapped = True
        else:
            is_swapped = False
        # A failed compare returns the current state.
        self._apply(broker)
        return is_swapped

    # Fetches.

    def fetch(self, broker: Broker) -> bool:
        state = broker.state
        if not broker.is_active or state.leader in (NO_LEADER, broker.id):
            return False
        if broker.id not in state.replicas:
            return False
        if TRUNCATE_BY_EPOCH in self.without and broker.truncated_in != state.leader_epoch:
            broker.truncated_in = state.leader_epoch  # Once per epoch, as before KIP-101.
            broker.truncate(broker.high_watermark)
        broker.last_request += 1
        self._send(
            Request(
                broker.id,
                state.leader,
                state.leader_epoch,
                broker.end_offset,
                broker.epochs.current,
                broker.broker_epoch,
                broker.last_request,
            )
        )
        return True

    def _send(self, message: Request | Response) -> None:
        self.in_flight.append(message)
        if len(self.in_flight) > _MAX_IN_FLIGHT:
            self.in_flight.pop(0)

    def deliver(self, _broker: Broker) -> bool:
        if not self.in_flight:
            return False
        message = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
        if isinstance(message, Request):
            self._handle_request(message)
        else:
            self._handle_response(message)
        return True

    def _handle_request(self, request: Request) -> None:
        broker = self.brokers[request.leader]
        progress = broker.progress
        if not broker.leads or progress is None:
            return
        if CURRENT_LEADER_EPOCH not in self.without and request.leader_epoch != broker.led_epoch:
            return
        if TRUNCATE_BY_EPOCH not in self.without and request.offset > 0:
            epoch, end = broker.epochs.end_of_led(
                request.last_epoch, broker.led_epoch, broker.end_offset
            )
            if epoch < request.last_epoch or end < request.offset:
                self._send(Response(request, (), -1, (epoch, end)))
                return
        if request.offset > broker.end_offset:
            return
        progress.record_fetch(
            request.follower,
            request.broker_epoch,
            request.offset,
            leader_end_offset=broker.end_offset,
            now_ms=0,
        )
        self._advance(broker)
        records = tuple(broker.log[request.offset : request.offset + 1])
        self._send(Response(request, records, broker.high_watermark))

    def _handle_response(self, response: Response) -> None:
        request = response.request
        broker = self.brokers[request.follower]
        if not broker.is_active or broker.state.leader == broker.id:
            return
        if broker.id not in broker.state.replicas:
            return
        if CURRENT_LEADER_EPOCH not in self.without and (
            broker.state.leader_epoch != request.leader_epoch
        ):
            return
        if broker.end_offset != request.offset:
            return
        if ONE_FETCH_IN_FLIGHT not in self.without and broker.last_request != request.number:
            return
        if response.diverging is not None:
            self._truncate(broker, *response.diverging)
            return
        for record in response.records:
            if record[0] < broker.epochs.current:
                return  # Only without CURRENT_LEADER_EPOCH.
            broker.append(record)
        broker.high_watermark = max(
            broker.high_watermark, min(response.high_watermark, broker.end_offset)
        )

    def _truncate(self, broker: Broker, epoch: int, end_offset: int) -> None:
        offset = broker.epochs.truncation_offset(epoch, end_offset, broker.end_offset)
        if offset < broker.high_watermark:
            raise ViolationError(
                f"broker {broker.id} would truncate to {offset}, below its high watermark"
                f" {broker.high_watermark}"
            )
        if offset < broker.end_offset:
            self._note("truncate", broker.id, offset)
            broker.truncate(offset)
            self.truncations += 1

    # What brokers learn of the store.

    def learn(self, broker: Broker) -> bool:
        if not broker.is_active or broker.state is self.state:
            return False
        self._apply(broker)
        return True

    def _apply(self, broker: Broker) -> None:
        """Follow the stored state: lead, go on leading, or follow."""
        state = broker.state = self.state
        if broker.id not in state.replicas:
            # The log is deleted. What it had was counted for states that are over.
            broker.stop_leading()
            broker.truncate(0)
        elif state.leader != broker.id:
            broker.stop_leading()
        elif broker.led_epoch != state.leader_epoch:
            broker.stop_leading()
            broker.led_epoch = state.leader_epoch
            broker.progress = FollowerProgress(state, broker.id, broker.end_offset, 0)
            self._check_acked(broker)
        elif broker.progress is not None:
            broker.progress.set_state(state)
        self._advance(broker)

    def _check_acked(self, leader: Broker) -> None:
        for offset, record in self.acked.items():
            if leader.log[offset : offset + 1] != [record]:
                raise ViolationError(
                    f"acked {record} at {offset} is not with the leader {leader.id}"
                )

    # The controller.

    def control(self, _broker: Broker) -> bool:
        """Look at the registrations: elect, then unfence the brokers that came back."""
        lossy = {one for one in self.fenced if self.brokers[one].is_lossy}
        restarted = set(self.fenced)
        after = election.elect(
            self.state,
            alive=self.registered.keys() - (lossy if LOSSY_RESTARTS not in self.without else ()),
            min_isr=self.min_isr,
            leaving=self.leaving,
            lossy=() if LOSSY_RESTARTS in self.without else lossy,
            restarted=() if NEW_EPOCH_AFTER_RESTART in self.without else restarted,
        )
        kind = "elect"
        if after is self.state:
            alive = self.registered.keys() - self.fenced - self.leaving
            after = election.complete_reassignment(self.state, alive, self.min_isr)
            kind = "reassignment completed"
        is_changed = after is not self.state
        if is_changed:
            self.completions += kind != "elect"
            self._store(after)
            self._note(kind, after)
        for broker_id in restarted:
            self.fenced.remove(broker_id)
            broker = self.brokers[broker_id]
            broker.is_unfenced, broker.is_lossy = True, False
            if broker.is_up:
                self._apply(broker)
        return is_changed or bool(restarted)

    def prefer(self, _broker: Broker) -> bool:
        alive = self.registered.keys() - self.fenced - self.leaving
        after = election.elect_preferred(self.state, alive)
        if after is self.state:
            return False
        self._store(after)
        self._note("elect preferred", after)
        return True

    def reassign(self, _broker: Broker) -> bool:
        count = self.random.randint(2, len(self.brokers))
        return self._reassign(self.random.sample(range(len(self.brokers)), count))

    def cancel(self, _broker: Broker) -> bool:
        return self.state.is_reassigning and self._reassign(election.original_replicas(self.state))

    def _reassign(self, target: Sequence[int]) -> bool:
        after = election.reassign(self.state, target, self.min_isr)
        if after is self.state:
            return False
        self._store(after)
        self._note("reassign", after)
        return True

    def leave(self, broker: Broker) -> bool:
        """Begin a controlled shutdown, or end it: brokers that leave come back, too."""
        if not broker.is_up or broker.id not in self.registered:
            return False
        self.leaving ^= {broker.id}
        self._note("leave", broker.id, broker.id in self.leaving)
        return True

    def _store(self, after: PartitionState) -> None:
        before = self.state
        if after.partition_epoch != before.partition_epoch + 1:
            raise ViolationError(f"{after} does not follow {before}")
        if after.leader != before.leader:
            self.elections += 1
            if after.leader_epoch <= before.leader_epoch:
                raise ViolationError(f"{after} has another leader than {before} in the same epoch")
            if after.has_leader and after.leader not in (*before.isr, *before.elr):
                raise ViolationError(f"{after} has a leader that was not eligible in {before}")
        if after.has_leader and after.leader not in after.isr:
            raise ViolationError(f"the leader of {after} is not in the ISR")
        self.state = after

    # Faults.

    def expire(self, broker: Broker) -> bool:
        """End the lease of a broker, which need not notice."""
        if self.registered.pop(broker.id, None) is None:
            return False
        self.fenced.discard(broker.id)
        self.leaving.discard(broker.id)
        self._note("lease ends", broker.id)
        return True

    def register(self, broker: Broker) -> bool:
        """Register again: a broker that has lost its lease leads nothing until it is unfenced."""
        if not broker.is_up or broker.id in self.registered:
            return False
        broker.broker_epoch += 1
        broker.stop_leading()
        broker.is_unfenced = ACTIVE_WHEN_UNFENCED in self.without
        self.registered[broker.id] = broker.broker_epoch
        self.fenced.add(broker.id)
        self._note("register", broker.id, broker.broker_epoch)
        return True

    def crash(self, broker: Broker) -> bool:
        if not broker.is_up:
            return False
        broker.is_up = False
        broker.stop_leading()
        self._note("crash", broker.id)
        return True

    def power_cut(self, broker: Broker) -> bool:
        """Crash, and lose any suffix of the log."""
        if not self.power_cuts_left or not self.crash(broker):
            return False
        self.power_cuts_left -= 1
        broker.truncate(self.random.randint(0, broker.end_offset))
        broker.is_lossy = True
        self._note("power cut", broker.id, "keeps", broker.end_offset)
        return True

    def start(self, broker: Broker) -> bool:
        """Start after a crash; the lease of the former process ends with the registration."""
        if broker.is_up:
            return False
        broker.is_up = True
        self.registered.pop(broker.id, None)
        self.leaving.discard(broker.id)
        return self.register(broker)

    def _note(self, *event: object) -> None:
        self.trace.append(" ".join(map(str, event)))
