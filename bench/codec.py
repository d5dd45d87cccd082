"""The compiled codecs compared with hand-written struct code and plain construct.

    python bench/codec.py [--quick]

Produce v9 and Fetch v12, with 1 topic × 1 partition and with 4 × 12, 16 KiB of records in each
partition. Times are per message. "hand" is bench/handwritten.py, which decodes to tuples;
"compiled" decodes to the messages that the broker uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import handwritten
from benchmark import best_seconds, command_line, progress, recording, run_parts
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
from ottla.protocol.compiler import codec
from ottla.protocol.schema import Message

RECORDS = bytes(16 * 1024)
SHAPES = {"1 × 1": (1, 1), "4 × 12": (4, 12)}


def produce_request(topics: int, partitions: int) -> ProduceRequest:
    """Return the request of a producer."""
    data = [PartitionProduceData(index=index, records=RECORDS) for index in range(partitions)]
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=f"topic-{n}", partition_data=data) for n in range(topics)
        ],
    )


def produce_response(topics: int, partitions: int) -> ProduceResponse:
    """Return the response to it."""
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
    """Return the request of a consumer."""
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
    """Return the response to it."""
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
    """Return the measured functions, after checking that all three agree."""
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
    """Measure all messages."""
    results = []
    for make, version in MESSAGES:
        for shape, size in SHAPES.items():
            label = f"{make.__name__.replace('_', ' ')} v{version}, {shape}"
            for operation, functions in contenders(make(*size), version, make.__name__).items():
                progress(f"{operation} {label}")
                seconds = best_seconds(functions, is_quick=is_quick)
                results.append({"message": label, "operation": operation, **seconds})
    return results


def main() -> None:
    """Measure all messages."""
    options = command_line(__doc__, quick="a second instead of twenty").parse_args()
    with recording("codec", options) as results:
        run_parts("codec", options, results, {"messages": bench_messages}, options.quick)


if __name__ == "__main__":
    main()
