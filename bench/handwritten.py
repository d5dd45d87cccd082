"""Produce v9 and Fetch v12 as written by hand: the yardstick for the compiled codecs.

Plain struct code for these two versions and nothing else. It decodes to tuples, the cheapest
representation, skips empty tag sections, and checks lengths where a slice would not. It is only
measured, never used.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from ottla.protocol.api.fetch import FetchRequest, FetchResponse
from ottla.protocol.api.produce import ProduceRequest, ProduceResponse

_H_I = Struct(">hi")
_I = Struct(">i")
_FETCH_REQUEST = Struct(">iiiibii")
_FETCH_PARTITION = Struct(">iiqiqi")
_FETCH_RESPONSE = Struct(">ihi")
_PARTITION_DATA = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_PRODUCED = Struct(">ihqqq")

_PASS_THROUGH_BYTES = 4096


def _length(b: memoryview, p: int) -> tuple[int, int]:
    """Read a compact length: one less than its varint."""
    byte = b[p]
    p += 1
    if byte < 128:
        return byte - 1, p
    value = byte & 0x7F
    shift = 7
    while byte > 127:
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value - 1, p


def _text(b: memoryview, p: int) -> tuple[str, int]:
    n, p = _length(b, p)
    q = p + n
    if q > len(b):
        raise ValueError("truncated")
    return str(b[p:q], "utf-8"), q


def _skip_tags(b: memoryview, p: int) -> int:
    count, p = _length(b, p)
    for _ in range(count + 1):
        _, p = _length(b, p)
        size, p = _length(b, p)
        p += size + 1
    return p


def decode_produce_request(b: memoryview) -> Any:
    p = 0
    n, p = _length(b, p)
    transactional_id = None
    if n >= 0:
        transactional_id = str(b[p : p + n], "utf-8")
        p += n
    acks, timeout_ms = _H_I.unpack_from(b, p)
    topics = []
    topic_count, p = _length(b, p + 6)
    for _ in range(topic_count):
        name, p = _text(b, p)
        partitions = []
        count, p = _length(b, p)
        for _ in range(count):
            (index,) = _I.unpack_from(b, p)
            n, p = _length(b, p + 4)
            records = None
            if n >= 0:
                q = p + n
                if q > len(b):
                    raise ValueError("truncated")
                records = b[p:q]
                p = q
            p = _skip_tags(b, p) if b[p] else p + 1
            partitions.append((index, records))
        p = _skip_tags(b, p) if b[p] else p + 1
        topics.append((name, partitions))
    p = _skip_tags(b, p) if b[p] else p + 1
    return transactional_id, acks, timeout_ms, topics


def decode_fetch_request(b: memoryview) -> Any:
    fixed = _FETCH_REQUEST.unpack_from(b, 0)
    topics = []
    topic_count, p = _length(b, _FETCH_REQUEST.size)
    for _ in range(topic_count):
        name, p = _text(b, p)
        partitions = []
        count, p = _length(b, p)
        for _ in range(count):
            partitions.append(_FETCH_PARTITION.unpack_from(b, p))
            p += 32
            p = _skip_tags(b, p) if b[p] else p + 1
        p = _skip_tags(b, p) if b[p] else p + 1
        topics.append((name, partitions))
    forgotten = []
    forgotten_count, p = _length(b, p)
    for _ in range(forgotten_count):
        name, p = _text(b, p)
        count, p = _length(b, p)
        array = Struct(f">{count}i")
        forgotten.append((name, array.unpack_from(b, p)))
        p += array.size
        p = _skip_tags(b, p) if b[p] else p + 1
    rack, p = _text(b, p)
    p = _skip_tags(b, p) if b[p] else p + 1
    return (*fixed, topics, forgotten, rack)


def decode_produce_response(b: memoryview) -> Any:
    topics = []
    topic_count, p = _length(b, 0)
    for _ in range(topic_count):
        name, p = _text(b, p)
        partitions = []
        count, p = _length(b, p)
        for _ in range(count):
            fixed = _PRODUCED.unpack_from(b, p)
            errors = []
            error_count, p = _length(b, p + 30)
            for _ in range(error_count):
                (index,) = _I.unpack_from(b, p)
                text, p = _nullable_text(b, p + 4)
                p = _skip_tags(b, p) if b[p] else p + 1
                errors.append((index, text))
            message, p = _nullable_text(b, p)
            p = _skip_tags(b, p) if b[p] else p + 1
            partitions.append((*fixed, errors, message))
        p = _skip_tags(b, p) if b[p] else p + 1
        topics.append((name, partitions))
    (throttle_time_ms,) = _I.unpack_from(b, p)
    p += 4
    p = _skip_tags(b, p) if b[p] else p + 1
    return topics, throttle_time_ms


def decode_fetch_response(b: memoryview) -> Any:
    fixed = _FETCH_RESPONSE.unpack_from(b, 0)
    topics = []
    topic_count, p = _length(b, 10)
    for _ in range(topic_count):
        name, p = _text(b, p)
        partitions = []
        count, p = _length(b, p)
        for _ in range(count):
            head = _PARTITION_DATA.unpack_from(b, p)
            aborted: list[Any] | None = None
            n, p = _length(b, p + 30)
            if n >= 0:
                aborted = []
                for _ in range(n):
                    aborted.append(_ABORTED.unpack_from(b, p))
                    p += 16
                    p = _skip_tags(b, p) if b[p] else p + 1
            (replica,) = _I.unpack_from(b, p)
            n, p = _length(b, p + 4)
            q = p + n
            if q > len(b):
                raise ValueError("truncated")
            records = b[p:q]
            p = q
            p = _skip_tags(b, p) if b[p] else p + 1
            partitions.append((*head, aborted, replica, records))
        p = _skip_tags(b, p) if b[p] else p + 1
        topics.append((name, partitions))
    p = _skip_tags(b, p) if b[p] else p + 1
    return (*fixed, topics)


def _nullable_text(b: memoryview, p: int) -> tuple[str | None, int]:
    n, p = _length(b, p)
    if n < 0:
        return None, p
    return str(b[p : p + n], "utf-8"), p + n


def _put_length(w: bytearray, n: int) -> None:
    n += 1
    while n > 127:
        w.append(n & 0x7F | 0x80)
        n >>= 7
    w.append(n)


def _put_text(w: bytearray, text: str) -> None:
    content = text.encode()
    _put_length(w, len(content))
    w += content


def encode_produce_request(message: ProduceRequest) -> list[Any]:
    w = bytearray()
    parts: list[Any] = []
    if message.transactional_id is None:
        w.append(0)
    else:
        _put_text(w, message.transactional_id)
    w += _H_I.pack(message.acks, message.timeout_ms)
    _put_length(w, len(message.topic_data))
    for topic in message.topic_data:
        _put_text(w, topic.name)
        _put_length(w, len(topic.partition_data))
        for partition in topic.partition_data:
            w += _I.pack(partition.index)
            records = partition.records
            if records is None:
                w.append(0)
            else:
                _put_length(w, len(records))
                if len(records) >= _PASS_THROUGH_BYTES:
                    parts += (w, records)
                    w = bytearray()
                else:
                    w += records
            w.append(0)
        w.append(0)
    w.append(0)
    parts.append(w)
    return parts


def encode_fetch_request(message: FetchRequest) -> list[Any]:
    w = bytearray(
        _FETCH_REQUEST.pack(
            message.replica_id,
            message.max_wait_ms,
            message.min_bytes,
            message.max_bytes,
            message.isolation_level,
            message.session_id,
            message.session_epoch,
        )
    )
    _put_length(w, len(message.topics))
    for topic in message.topics:
        _put_text(w, topic.topic)
        _put_length(w, len(topic.partitions))
        for partition in topic.partitions:
            w += _FETCH_PARTITION.pack(
                partition.partition,
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.partition_max_bytes,
            )
            w.append(0)
        w.append(0)
    _put_length(w, len(message.forgotten_topics_data))
    for forgotten in message.forgotten_topics_data:
        _put_text(w, forgotten.topic)
        count = len(forgotten.partitions)
        _put_length(w, count)
        w += Struct(f">{count}i").pack(*forgotten.partitions)
        w.append(0)
    _put_text(w, message.rack_id)
    w.append(0)
    return [w]


def encode_produce_response(message: ProduceResponse) -> list[Any]:
    w = bytearray()
    _put_length(w, len(message.responses))
    for topic in message.responses:
        _put_text(w, topic.name)
        _put_length(w, len(topic.partition_responses))
        for partition in topic.partition_responses:
            w += _PRODUCED.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
            )
            _put_length(w, len(partition.record_errors))
            for error in partition.record_errors:
                w += _I.pack(error.batch_index)
                if error.batch_index_error_message is None:
                    w.append(0)
                else:
                    _put_text(w, error.batch_index_error_message)
                w.append(0)
            if partition.error_message is None:
                w.append(0)
            else:
                _put_text(w, partition.error_message)
            w.append(0)
        w.append(0)
    w += _I.pack(message.throttle_time_ms)
    w.append(0)
    return [w]


def encode_fetch_response(message: FetchResponse) -> list[Any]:
    parts: list[Any] = []
    w = bytearray(
        _FETCH_RESPONSE.pack(message.throttle_time_ms, message.error_code, message.session_id)
    )
    _put_length(w, len(message.responses))
    for topic in message.responses:
        _put_text(w, topic.topic)
        _put_length(w, len(topic.partitions))
        for partition in topic.partitions:
            w += _PARTITION_DATA.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            if partition.aborted_transactions is None:
                w.append(0)
            else:
                _put_length(w, len(partition.aborted_transactions))
                for aborted in partition.aborted_transactions:
                    w += _ABORTED.pack(aborted.producer_id, aborted.first_offset)
                    w.append(0)
            w += _I.pack(partition.preferred_read_replica)
            records = partition.records
            assert records is not None
            _put_length(w, len(records))
            if len(records) >= _PASS_THROUGH_BYTES:
                parts += (w, records)
                w = bytearray()
            else:
                w += records
            w.append(0)
        w.append(0)
    w.append(0)
    parts.append(w)
    return parts
