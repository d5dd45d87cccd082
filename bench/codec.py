"""The codecs against hand-written struct code and plain construct; record batches against others'.

    python bench/codec.py [--quick]

Messages: Produce v9 and Fetch v12, with 1 topic × 1 partition and with 4 × 12, 16 KiB of records in
each partition. Times are per message, the ratios within the run. "hand" is bench/handwritten.py,
which decodes to bare tuples; "compiled" gives the messages that the broker uses.

Batches: building and reading 1,000 records with values of 100 bytes, uncompressed, against
aiokafka's compiled codec and kafka-python's pure one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aio
import kafka.record.default_records as kp

import handwritten
from benchmark import best_seconds, command_line, print_table, progress, recording
from ottla.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.compiler import codec
from ottla.protocol.schema import Message

RECORDS = bytes(16 * 1024)
SHAPES = {"1 × 1": (1, 1), "4 × 12": (4, 12)}


def produce_request(topics: int, partitions: int) -> ProduceRequest:
    """Make the request that a producer sends."""
    data = [PartitionProduceData(index=index, records=RECORDS) for index in range(partitions)]
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=f"topic-{n}", partition_data=data) for n in range(topics)
        ],
    )


def produce_response(topics: int, partitions: int) -> ProduceResponse:
    """Make the response to it."""
    data = [
        PartitionProduceResponse(index=index, base_offset=1_000_000, log_start_offset=0)
        for index in range(partitions)
    ]
    return ProduceResponse(
        responses=[
            TopicProduceResponse(name=f"topic-{n}", partition_responses=data) for n in range(topics)
        ]
    )


def fetch_request(topics: int, partitions: int) -> FetchRequest:
    """Make the request that a consumer sends."""
    data = [
        FetchPartition(
            partition=index,
            current_leader_epoch=0,
            fetch_offset=1_000_000,
            partition_max_bytes=1024 * 1024,
        )
        for index in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 * 1024 * 1024,
        topics=[FetchTopic(topic=f"topic-{n}", partitions=data) for n in range(topics)],
    )


def fetch_response(topics: int, partitions: int) -> FetchResponse:
    """Make the response to it."""
    data = [
        PartitionData(
            partition_index=index,
            high_watermark=1_000_100,
            last_stable_offset=1_000_100,
            log_start_offset=0,
            aborted_transactions=None,
            records=RECORDS,
        )
        for index in range(partitions)
    ]
    return FetchResponse(
        responses=[
            FetchableTopicResponse(topic=f"topic-{n}", partitions=data) for n in range(topics)
        ]
    )


MESSAGES: list[tuple[Callable[[int, int], Message], int]] = [
    (produce_request, 9),
    (produce_response, 9),
    (fetch_request, 12),
    (fetch_response, 12),
]


def contenders(
    message: Message, version: int, name: str
) -> dict[str, dict[str, Callable[[], object]]]:
    """Give what is to be measured, having made sure that all three do the same."""
    compiled = codec(type(message), version)
    reference = message.struct(version)
    decode_by_hand = getattr(handwritten, f"decode_{name}")
    encode_by_hand = getattr(handwritten, f"encode_{name}")

    def encode() -> list[Any]:
        parts: list[Any] = []
        parts.append(compiled.encode(message, bytearray(), parts))
        return parts

    wire = reference.build(message)
    view = memoryview(wire)
    assert b"".join(encode()) == b"".join(encode_by_hand(message)) == wire
    assert compiled.decode(view) == (message, len(wire))
    decode_by_hand(view)
    return {
        "decode": {
            "hand": lambda: decode_by_hand(view),
            "compiled": lambda: compiled.decode(view),
            "construct": lambda: reference.parse(wire),
        },
        "encode": {
            "hand": lambda: encode_by_hand(message),
            "compiled": encode,
            "construct": lambda: reference.build(message),
        },
    }


def bench_messages(is_quick: bool) -> list[dict[str, Any]]:
    """Measure messages, and print the table."""
    results = []
    for make, version in MESSAGES:
        for shape, size in SHAPES.items():
            label = f"{make.__name__} v{version}, {shape}"
            for way, functions in contenders(make(*size), version, make.__name__).items():
                progress(f"{way} {label}")
                seconds = best_seconds(functions, is_quick=is_quick)
                results.append({"message": label, "way": way, **seconds})
    progress("")
    print_table(
        "µs for one message",
        ["", "", "hand", "compiled", "construct", "compiled/hand", "construct/compiled"],
        [
            [
                row["message"],
                row["way"],
                *(f"{row[name] * 1e6:.1f}" for name in ("hand", "compiled", "construct")),
                f"{row['compiled'] / row['hand']:.2f}",
                f"{row['construct'] / row['compiled']:.1f}",
            ]
            for row in results
        ],
    )
    return results


def bench_batches(is_quick: bool) -> list[dict[str, Any]]:
    """Measure record batches, and print the table."""
    count = 1000
    now = 1_700_000_000_000
    records = [Record(n, now + n // 10, None, bytes(100)) for n in range(count)]
    wire = bytes(build_batch(records))

    def build_with(builder: Any) -> object:
        options = {"is_transactional": False, "producer_id": -1, "producer_epoch": -1}
        batch = builder(
            magic=2, compression_type=0, base_sequence=-1, batch_size=1 << 20, **options
        )
        append = batch.append
        for record in records:
            append(record.offset, record.timestamp, record.key, record.value, [])
        return batch.build()

    def read_with(reader: Any) -> object:
        return [
            (record.offset, record.timestamp, record.key, record.value, record.headers)
            for record in reader(wire)
        ]

    ways: dict[str, dict[str, Callable[[], object]]] = {
        "build": {
            "ottla": lambda: build_batch(records),
            "aiokafka": lambda: build_with(aio.DefaultRecordBatchBuilder),
            "kafka-python": lambda: build_with(kp.DefaultRecordBatchBuilder),
        },
        "read": {
            "ottla": lambda: RecordBatch(wire).records(),
            "aiokafka": lambda: read_with(aio.DefaultRecordBatch),
            "kafka-python": lambda: read_with(kp.DefaultRecordBatch),
        },
    }
    results = []
    for way, functions in ways.items():
        progress(f"{way} batches")
        seconds = best_seconds(functions, is_quick=is_quick)
        results.append({"way": way, **{name: count / each for name, each in seconds.items()}})
    progress("")
    print_table(
        "records/s, values of 100 bytes, in batches of 1,000",
        ["", "ottla", "aiokafka (compiled)", "kafka-python", "of aiokafka", "of kafka-python"],
        [
            [
                row["way"],
                *(f"{row[name]:,.0f}" for name in ("ottla", "aiokafka", "kafka-python")),
                f"{row['ottla'] / row['aiokafka']:.2f}",
                f"{row['ottla'] / row['kafka-python']:.2f}",
            ]
            for row in results
        ],
    )
    return results


PARTS: dict[str, Callable[[bool], Any]] = {"messages": bench_messages, "batches": bench_batches}


def main() -> None:
    """Measure all of it, or what was named."""
    options = command_line(__doc__, quick="a second instead of twenty", parts=PARTS).parse_args()
    with recording("codec", options) as results:
        for name in options.only or PARTS:
            results[name] = PARTS[name](options.quick)


if __name__ == "__main__":
    main()
