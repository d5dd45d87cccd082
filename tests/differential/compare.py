"""Normalise responses and compare them, field by field.

A normalised response is a tree of dicts, lists and plain values. Values that differ between any two
brokers are replaced: ids by the names of what they identify, times near now by "now"; throttle
times, addresses and texts of messages are left out. Elements of arrays are sorted by their
identity, because Kafka's order is that of its hash maps. Topics and groups of other sequences are
left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from differential.generate import CONFIGS
from differential.world import Bindings
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import Message

#: The outcomes of a request that has no response.
CLOSED, PARKED, NO_RESPONSE = "connection closed", "waits", "no response in time"

_LEFT_OUT = frozenset(
    (
        *("throttle_time_ms", "host", "port", "cluster_id", "rack", "unknown_tagged_fields"),
        *("documentation", "log_dir", "total_bytes", "usable_bytes", "partition_size"),
        *("error_message", "batch_index_error_message", "last_timestamp"),
        # Both are filled in by the leader for clients of other brokers.
        *("node_endpoints", "controller_id", "finalized_features_epoch"),
    )
)
#: ApiVersions and the configs of a broker differ by what a broker supports.
_ARRAYS_LEFT_OUT = frozenset(("api_keys", "supported_features", "finalized_features", "synonyms"))
_IDENTITY = (
    *("name", "topic", "key", "group_id", "resource_type", "resource_name", "member_id"),
    *("partition_index", "partition", "index", "node_id", "broker_id", "batch_index"),
    *("transactional_id", "producer_id", "topic_id", "error_code"),
)
#: The epochs of consumer groups.
_EPOCHS = ("member_epoch", "group_epoch", "assignment_epoch")
_PARTITIONS = ("partitions", "partition_responses", "results_by_partition")
_OF_OTHERS = ("barrier", "__")
_NOW_WITHIN_MS = 3_600_000


class Difference(NamedTuple):
    """A field that two responses do not agree on."""

    api: str
    version: int
    #: The path of the field: "topics[t].partitions[0].error_code".
    path: str
    ottla: Any
    kafka: Any

    @property
    def field(self) -> str:
        """The path without what is in brackets: the same for all topics and partitions."""
        return ".".join(part.partition("[")[0] for part in _split(self.path))

    def __str__(self) -> str:
        where = f"{self.api} v{self.version} {self.path or 'response'}"
        return f"{where}: ottla {self.ottla!r}, Kafka {self.kafka!r}"


def _split(path: str) -> Iterator[str]:
    depth, part = 0, ""
    for character in path:
        depth += (character == "[") - (character == "]")
        if character == "." and not depth:
            yield part
            part = ""
        else:
            part += character
    yield part


def normalise(response: Any, bindings: Bindings, prefix: str, group: str = "") -> Any:
    """Return the tree of a response; outcomes without one stay as they are.

    Only configs that both brokers have are compared. `group` is the one of the request.
    """
    return response if isinstance(response, str) else _message(response, bindings, prefix, group)


def _message(message: Message, bindings: Bindings, prefix: str, group: str) -> dict[str, Any]:
    group = getattr(message, "group_id", group)
    return {
        name: _value(name, getattr(message, name), bindings, prefix, group)
        for name in message.fields
        if name not in _LEFT_OUT and name not in _ARRAYS_LEFT_OUT
    }


def _value(name: str, value: Any, bindings: Bindings, prefix: str, group: str = "") -> Any:
    if isinstance(value, Message):
        return _message(value, bindings, prefix, group)
    if name == "records":
        return _records(value or b"", bindings)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        elements = [_value("", element, bindings, prefix, group) for element in value]
        if name not in ("isr_nodes", "replica_nodes") and elements:
            if isinstance(elements[0], dict):
                elements = [element for element in elements if not _is_of_others(element, prefix)]
                elements = _merged(elements)
            if name == "configs":
                elements = [e for e in elements if e["name"] in CONFIGS]
            elements.sort(key=lambda element: repr(_identity(element)))
        return elements
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _EPOCHS and value > 0:
            return value - bindings.first_epochs.get(group, 0)
        if name in ("producer_id", "session_id"):
            return bindings.symbol_of(value, name.removesuffix("_id"))
        if value > 10**12 and abs(value - time.time() * 1000) < _NOW_WITHIN_MS:
            return "now"
        return int(value)
    return bindings.symbol_of(value, "topic id" if isinstance(value, UUID) else "member")


def _merged(elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge topics of the same name and id; leave out those with neither partitions nor an error.

    A request may name a topic twice, or without partitions. Kafka responds with a map of
    partitions by topic; ottla responds to each entry.
    """
    merged: dict[Any, dict[str, Any]] = {}
    for element in elements:
        name = element.get("name", element.get("topic"))
        key = next((key for key in _PARTITIONS if key in element), None)
        others = element.keys() - {"name", "topic", "topic_id"}
        if key is None or others != {key}:
            return elements
        if element[key]:
            identity = (name, element.get("topic_id"))
            merged.setdefault(identity, element | {key: []})[key].extend(element[key])
    return list(merged.values())


def _is_of_others(element: dict[str, Any], prefix: str) -> bool:
    keys = ("name", "topic", "group_id", "transactional_id")
    name = next((element[key] for key in keys if key in element), None)
    return isinstance(name, str) and (
        name.startswith(_OF_OTHERS) or (name[:1] == "d" and "-" in name and prefix not in name)
    )


def _identity(element: Any) -> Any:
    if not isinstance(element, dict):
        return element
    return [element[key] for key in _IDENTITY if key in element] or element


def _records(records: Any, bindings: Bindings) -> list[Any]:
    """Describe each batch by its header and the content of its records."""
    try:
        return [_batch(batch, bindings) for batch in split_batches(bytes(records))]
    except (DecodeError, ValueError) as error:
        return [f"invalid: {error}"]


def _batch(batch: RecordBatch, bindings: Bindings) -> dict[str, Any]:
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": batch.partition_leader_epoch,
        "compression": str(batch.compression.name),
        "append_time": batch.has_append_time,
        "max_timestamp": _value("", batch.max_timestamp, bindings, ""),
        "producer_id": bindings.symbol_of(batch.producer_id, "producer"),
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "records": [(r.offset, r.key, len(r.value or b"")) for r in batch.records()],
    }


def differences(api: str, version: int, ottla: Any, kafka: Any) -> list[Difference]:
    """Return the fields of two normalised responses that are not equal."""
    return [
        Difference(api, version, path, left, right) for path, left, right in _walk("", ottla, kafka)
    ]


_MISSING = "absent"


def _walk(path: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left.keys() | right.keys():
            inner = f"{path}.{name}" if path else name
            yield from _walk(inner, left.get(name, _MISSING), right.get(name, _MISSING))
    elif isinstance(left, list) and isinstance(right, list):
        yield from _walk_lists(path, left, right)
    elif left != right or type(left) is not type(right):
        yield path, left, right


def _walk_lists(path: str, left: list[Any], right: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Compare elements of the same identity; the error code is not part of it here."""
    sides: list[dict[str, list[Any]]] = []
    for elements in (left, right):
        by_name: dict[str, list[Any]] = {}
        for position, element in enumerate(elements):
            by_name.setdefault(_label(element, position), []).append(element)
        sides.append(by_name)
    for label in sorted(sides[0].keys() | sides[1].keys()):
        ours, theirs = sides[0].get(label, []), sides[1].get(label, [])
        for n in range(max(len(ours), len(theirs))):
            yield from _walk(
                f"{path}[{label}]",
                ours[n] if n < len(ours) else _MISSING,
                theirs[n] if n < len(theirs) else _MISSING,
            )


def _label(element: Any, position: int) -> str:
    if not isinstance(element, dict):
        return str(position)
    # The id of a topic with a name is a field like others.
    left_out = ("error_code", "topic_id") if element.get("name") else ("error_code",)
    names = [element[key] for key in _IDENTITY if key in element and key not in left_out]
    return "/".join(str(name) for name in names[:3]) if names else str(position)
