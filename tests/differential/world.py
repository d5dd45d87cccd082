"""What a sequence of requests is about: topics, groups, members, producers and fetch sessions.

Brokers assign some values themselves, such as topic ids and member ids, so that the same request
has other bytes for each broker. A generated request has a `Ref` in their place, and a `BatchSpec`
in the place of record batches. `Bindings` learns the values from a broker's responses, puts them
into requests, and translates them back in responses.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ottla.protocol.api.consumer_group_heartbeat import TopicPartitions
from ottla.protocol.batch import build_batch
from ottla.protocol.compression import Compression
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.records import Record
from ottla.protocol.schema import Message

#: Timestamps of records: fixed, so that a seed always yields the same requests.
TIME_MS = 1_700_000_000_000


class Ref(NamedTuple):
    """A value that a broker assigned: ("member", group and slot), ("topic id", name), and so on."""

    kind: str
    key: str

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}>"


class BatchSpec(NamedTuple):
    """A record batch, valid unless `damage` names what is wrong with it."""

    count: int = 1
    key: bytes | None = b"k"
    value_bytes: int = 10
    time_ms: int = TIME_MS
    compression: int = 0
    producer: Ref | None = None
    epoch: int | Ref = 0
    sequence: int = 0
    transactional: bool = False
    damage: str = ""

    def __repr__(self) -> str:
        defaults = type(self)._field_defaults
        shown = [f"{k}={v!r}" for k, v in self._asdict().items() if v != defaults[k]]
        return f"Batch({', '.join(shown)})"

    def build(self, bindings: Bindings) -> bytes | None:
        if self.damage == "null":
            return None
        if self.damage == "empty":
            return b""
        value = b"v" * self.value_bytes
        records = [
            Record(n, self.time_ms + n, self.key and self.key + b"%d" % n, value)
            for n in range(self.count)
        ]
        producer: dict[str, Any] = {}
        if self.producer is not None:
            producer = {
                "producer_id": bindings.value_of(self.producer),
                "producer_epoch": bindings.resolve(self.epoch),
                "base_sequence": self.sequence,
                "transactional": self.transactional,
            }
        batch = build_batch(records, compression=Compression(self.compression), **producer)
        return self._damaged(batch)

    def _damaged(self, batch: bytearray) -> bytes:
        match self.damage:
            case "crc":
                batch[-1] ^= 1
            case "magic 1":
                batch[16] = 1
            case "magic 3":
                batch[16] = 3
            case "truncated":
                return bytes(batch[:-3])
            case "length":
                struct.pack_into(">i", batch, 8, 20)
            case "two batches":
                return bytes(batch) * 2
            case "trailing bytes":
                return bytes(batch) + b"xyz"
        return bytes(batch)


DAMAGES = (
    *("null", "empty", "crc", "magic 1", "magic 3"),
    *("truncated", "length", "two batches", "trailing bytes"),
)
_UNBOUND = {
    "member": "",
    "topic id": NIL_UUID,
    "producer": 999_999,
    "session": 0,
    "generation": 1,
    "epoch": 0,
    "member epoch": 0,
    "owned": [],
}


class Bindings:
    """The values that one broker assigned in one sequence."""

    def __init__(self) -> None:
        self._values: dict[Ref, Any] = {}
        #: What stands for a value in normalised responses.
        self._symbols: dict[tuple[str, Any], str] = {}
        self._producers = 0
        #: The epochs in which the first members of groups joined: Kafka's groups start at another.
        self.first_epochs: dict[str, int] = {}

    def value_of(self, ref: Ref) -> Any:
        return self._values.get(ref, _UNBOUND[ref.kind])

    def bind(self, ref: Ref, value: Any) -> None:
        self._values[ref] = value
        if (ref.kind, value) not in self._symbols:
            count = sum(symbol.startswith(f"{ref}") for symbol in self._symbols.values())
            self._symbols[ref.kind, value] = f"{ref}#{count}"

    def symbol_of(self, value: Any, kind: str) -> Any:
        """Return what stands for a value that was bound; other values stay."""
        return self._symbols.get((kind, value), value)

    def resolve(self, value: Any) -> Any:
        """Return a value, or a message, with the values of this broker."""
        if isinstance(value, Ref):
            return self.value_of(value)
        if isinstance(value, BatchSpec):
            return value.build(self)
        if isinstance(value, Message):
            fields = {name: self.resolve(getattr(value, name)) for name in value.fields}
            return type(value)(**fields)
        if isinstance(value, list):
            return [self.resolve(element) for element in value]
        return value

    def learn(self, request: Any, response: Any) -> None:
        """Bind the values that a response assigns. `request` has references."""
        name = type(request).__name__
        if name in ("CreateTopicsRequest", "MetadataRequest", "DescribeTopicPartitionsRequest"):
            for topic in response.topics:
                if topic.name is not None and getattr(topic, "topic_id", NIL_UUID) != NIL_UUID:
                    self.bind(Ref("topic id", topic.name), topic.topic_id)
        elif name == "DeleteTopicsRequest":
            for topic in response.responses:
                if topic.name is not None and topic.topic_id != NIL_UUID:
                    self.bind(Ref("topic id", topic.name), topic.topic_id)
        elif name == "JoinGroupRequest":
            if response.member_id:
                is_named = isinstance(request.member_id, Ref)
                unnamed = Ref("member", f"{request.group_id} unnamed")
                self.bind(request.member_id if is_named else unnamed, response.member_id)
            if response.generation_id > 0:
                self.bind(Ref("generation", request.group_id), response.generation_id)
        elif name == "ConsumerGroupHeartbeatRequest" and response.error_code == 0:
            key = f"{request.group_id} {request.member_id}"
            self._values[Ref("member epoch", key)] = response.member_epoch
            if response.member_epoch > 0:
                self.first_epochs.setdefault(request.group_id, response.member_epoch)
            if response.assignment is not None:
                self._values[Ref("owned", key)] = [
                    TopicPartitions(topic_id=one.topic_id, partitions=list(one.partitions))
                    for one in response.assignment.topic_partitions
                ]
        elif name == "DeleteGroupsRequest":
            for result in response.results:
                if result.error_code == 0:
                    self.first_epochs.pop(result.group_id, None)
        elif name in ("InitProducerIdRequest", "EndTxnRequest") and request.transactional_id:
            if response.error_code == 0 and response.producer_id >= 0:
                self.bind(Ref("producer", request.transactional_id), response.producer_id)
                self.bind(Ref("epoch", request.transactional_id), response.producer_epoch)
        elif name == "InitProducerIdRequest" and response.error_code == 0:
            self.bind(Ref("producer", str(self._producers)), response.producer_id)
            self._producers += 1
        elif name == "FetchRequest" and response.session_id:
            self.bind(Ref("session", "last"), response.session_id)


_ODD_TOPICS = ("", ".", "{} bad/name", "x" * 250, "__consumer_offsets")


class World:
    """The names that a sequence uses, unique to it, so that sequences do not affect each other."""

    def __init__(self, prefix: str, rng: random.Random) -> None:
        self.prefix = prefix
        self.rng = rng
        self.topics: Sequence[tuple[str, int]] = ((f"{prefix}-a", 1), (f"{prefix}-b", 3))
        self.new_topics = (f"{prefix}-c", f"{prefix}-d")
        self.groups = (f"{prefix}-g", f"{prefix}-h")
        self.transactional_ids = (f"{prefix}-x", f"{prefix}-y")
        self.next_sequence: dict[tuple[str, str, int], int] = {}

    def topic(self) -> str:
        chance = self.rng.random()
        if chance < 0.86:
            return self.rng.choice(self.topics)[0]
        if chance < 0.95:
            return self.rng.choice(self.new_topics)
        return self.rng.choice(
            ("", ".", f"{self.prefix} bad/name", "x" * 250, "__consumer_offsets")
        )

    def topic_id(self) -> Any:
        chance = self.rng.random()
        if chance < 0.7:
            return Ref("topic id", self.rng.choice(self.topics)[0])
        return NIL_UUID if chance < 0.9 else UUID(int=self.rng.getrandbits(128))

    def partition(self) -> int:
        return self.rng.choice((0, 0, 0, 0, 0, 1, 1, 2, 3, -1, 2**31 - 1))

    def group(self) -> str:
        return self.rng.choice(self.groups) if self.rng.random() < 0.95 else ""

    def transactional_id(self) -> str:
        chance = self.rng.random()
        if chance < 0.97:
            return self.transactional_ids[0 if chance < 0.75 else 1]
        return self.rng.choice(("", f"{self.prefix}-unknown"))

    def member(self) -> Any:
        if self.rng.random() < 0.9:
            return Ref("member", f"{self.rng.choice(self.groups[:1])} {self.rng.choice('xy')}")
        return self.rng.choice(("", "no-such-member"))
