"""Record batches to Arrow, compiled and in pure Python, against the decoded records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.strategies import records
from ottla.client.arrow.decoder import ArrowDecoder
from ottla.protocol import compiled
from ottla.protocol.batch import Record, RecordBatch, build_batch, split_batches
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, ErrorCode

NOW = 1_700_000_000_000
RECORDS = [
    Record(10, NOW, b"k", b"hello", (("h", b"1"),)),
    Record(11, NOW + 5, None, b"", (("a", None), ("ü", b"\x00" * 70))),
    Record(12, NOW - 5, b"", None),
    Record(13, NOW, b"m", b"last"),
]
WITH_HEADERS = ArrowDecoder(headers=True)


@contextmanager
def way(name: str) -> Iterator[None]:
    """Decode with the compiled module or in pure Python."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(compiled, "fast", None)
        elif compiled.fast is None:
            pytest.skip("the compiled module was not built")
        yield


@pytest.fixture(params=["compiled", "python"], scope="module", autouse=True)
def each_way(request):
    with way(request.param):
        yield


def decode(wire: Any, decoder: ArrowDecoder = WITH_HEADERS, **span: Any) -> list[pa.RecordBatch]:
    batches = list(decoder.decode(wire, topic="rides", partition=3, **span))
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        assert batch.schema == decoder.schema
    return batches


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of all batches, timestamps as numbers."""
    return [
        row | {"timestamp": ticks}
        for batch in batches
        for row, ticks in zip(
            pa.Table.from_batches([batch]).drop_columns("timestamp").to_pylist(),
            batch["timestamp"].cast(pa.int64()).to_pylist(),
            strict=True,
        )
    ]


def row_of(record: Record, timestamp_type: int = 0, scale: int = 1) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": "rides",
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp * scale,
        "timestampType": timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
    }


def test_the_columns_are_those_of_the_kafka_source_of_spark():
    spark = ArrowDecoder(timestamp=pa.timestamp("us", "UTC"), headers=True)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    (batch,) = decode(build_batch(RECORDS), spark)

    assert [(field.name, field.type) for field in batch.schema] == [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", headers),
    ]
    assert all(field.nullable for field in batch.schema)
    assert rows_of([batch]) == [row_of(record, scale=1000) for record in RECORDS]


def test_headers_and_microseconds_are_optional():
    (batch,) = decode(build_batch(RECORDS), ArrowDecoder())

    assert "headers" not in batch.schema.names
    assert batch.schema.field("timestamp").type == pa.timestamp("ms")
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [row.timestamp for row in RECORDS]


def test_nulls_are_not_empty_bytes():
    (batch,) = decode(build_batch(RECORDS))

    assert batch["key"].to_pylist() == [b"k", None, b"", b"m"]
    assert batch["value"].to_pylist() == [b"hello", b"", None, b"last"]
    assert (batch["key"].null_count, batch["value"].null_count) == (1, 1)
    assert batch["offset"].null_count == batch["headers"].null_count == 0


@pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name.lower())
def test_compressed_batches_are_decompressed(compression):
    wire = build_batch(RECORDS, compression=compression)

    assert rows_of(decode(wire)) == [row_of(record) for record in RECORDS]


def test_a_decompression_bomb_is_an_error_with_its_offset():
    wire = build_batch(
        [Record(7, NOW, None, bytes(1 << 20))], compression=Compression.ZSTD, base_offset=7
    )

    with pytest.raises(BatchError, match="65536") as caught:
        decode(wire, ArrowDecoder(max_decompressed_bytes=65536))

    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert caught.value.__notes__ == ["in the batch at offset 7"]


def test_log_append_time_applies_to_all_records_of_a_batch():
    stamped = build_batch(RECORDS)
    RecordBatch(stamped).stamp_append_time(NOW + 999)
    wire = bytes(stamped + build_batch([Record(14, NOW, None, None)]))

    (batch,) = decode(wire)

    assert batch["timestampType"].to_pylist() == [1, 1, 1, 1, 0]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [*[NOW + 999] * 4, NOW]


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        (0, None, [10, 11, 12, 13, 20]),
        (11, None, [11, 12, 13, 20]),
        (13, 20, [13]),
        (14, None, [20]),
        (0, 12, [10, 11]),
        (20, 21, [20]),
        (12, 12, []),
        (21, None, []),
        (0, 10, []),
        (-(2**70), 2**70, [10, 11, 12, 13, 20]),
    ],
)
def test_records_outside_the_offset_range_are_dropped(start, end, offsets):
    wire = bytes(build_batch(RECORDS) + build_batch([Record(20, NOW, None, b"")]))

    rows = rows_of(decode(wire, start_offset=start, end_offset=end))

    assert [row["offset"] for row in rows] == offsets
    wanted = {record.offset: record for record in RECORDS} | {20: Record(20, NOW, None, b"")}
    assert rows == [row_of(wanted[offset]) for offset in offsets]


def test_a_batch_outside_the_offset_range_is_not_decoded():
    damaged = build_batch(RECORDS)
    damaged[-1] ^= 1
    wire = bytes(damaged + build_batch([Record(20, NOW, None, b"")]))

    assert [row["offset"] for row in rows_of(decode(wire, start_offset=14))] == [20]


def test_no_data_yields_no_batches():
    emptied = build_batch([], base_offset=0, last_offset=5)

    assert decode(b"") == []
    assert decode(emptied) == []
    assert decode(build_batch(RECORDS)[:-1]) == []
    assert pa.Table.from_batches(decode(b""), schema=WITH_HEADERS.schema).num_rows == 0


def test_control_batches_and_an_incomplete_batch_are_skipped():
    marker = build_batch([Record(14, NOW, b"\0\0\0\1", b"\0" * 6)], control=True)
    wire = bytes(build_batch(RECORDS) + marker + build_batch([Record(15, NOW, None, b"x")]))

    assert [row["offset"] for row in rows_of(decode(wire))] == [10, 11, 12, 13, 15]
    assert [row["offset"] for row in rows_of(decode(memoryview(wire)[:-1]))] == [10, 11, 12, 13]


def test_the_caller_may_filter_batches_of_aborted_transactions():
    wire = bytes(
        build_batch(RECORDS, transactional=True, producer_id=1)
        + build_batch([Record(14, NOW, None, b"x")], transactional=True, producer_id=2)
    )

    kept = (batch for batch in split_batches(wire) if batch.producer_id != 1)

    assert [row["offset"] for row in rows_of(decode(kept))] == [14]


def test_arrow_batches_respect_batch_bytes():
    wire = b"".join(build_batch([Record(n, NOW, None, bytes(1000))]) for n in range(10))
    wire += build_batch([Record(10, NOW, None, bytes(5000))])

    sizes = [batch.num_rows for batch in decode(wire, ArrowDecoder(batch_bytes=3500))]

    assert sizes == [3, 3, 3, 1, 1]


def test_columns_outlive_the_bytes_that_they_were_decoded_from():
    wire = build_batch(RECORDS)
    (batch,) = decode(memoryview(wire))

    wire[:] = bytes(len(wire))

    assert rows_of([batch]) == [row_of(record) for record in RECORDS]


def test_batches_before_a_corrupt_one_are_yielded_first():
    damaged = build_batch([Record(14, NOW, None, b"x")])
    damaged[-2] ^= 1
    wire = bytes(build_batch(RECORDS) + damaged)
    columns = WITH_HEADERS.decode(wire, topic="rides", partition=3)

    assert next(columns)["offset"].to_pylist() == [10, 11, 12, 13]
    with pytest.raises(BatchError, match="CRC") as caught:
        next(columns)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert caught.value.__notes__ == ["in the batch at offset 14"]
    assert decode(wire, ArrowDecoder(check_crcs=False))[0].num_rows == 5


def test_malformed_records_raise_an_error_with_the_offset_of_the_batch():
    wire = build_batch(RECORDS) + build_batch([Record(14, NOW, None, b"x")])
    struct.pack_into(">b", wire, len(wire) - 1, 1)
    second = RecordBatch(wire[RecordBatch(wire).size :])
    struct.pack_into(">I", wire, len(wire) - second.size + 17, crc32c(second.view[21:]))

    with pytest.raises(BatchError, match="header count -1 in 0 bytes") as caught:
        decode(wire)

    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert caught.value.__notes__ == ["in the batch at offset 14"]


def test_a_timestamp_that_overflows_is_an_error_unless_its_record_is_dropped():
    wire = build_batch([Record(0, NOW, None, b"a"), Record(1, 2**62, None, b"b")])
    microseconds = ArrowDecoder(timestamp=pa.timestamp("us"))

    with pytest.raises(BatchError, match=f"timestamp {2**62} of offset 1, ×1000") as caught:
        decode(wire, microseconds)

    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [batch.num_rows for batch in decode(wire)] == [2]
    assert [batch.num_rows for batch in decode(wire, microseconds, end_offset=1)] == [1]


def test_invalid_configs_are_rejected():
    for wrong in (
        {"timestamp": pa.timestamp("ns")},
        {"batch_bytes": 0},
        {"batch_bytes": 2**31},
        {"max_decompressed_bytes": 2**31},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ArrowDecoder(**wrong)


SPANS = st.tuples(st.integers(-1, 8), st.none() | st.integers(-1, 8))


@pytest.mark.parametrize("each_way", ["compiled"], indirect=True)
@given(
    batches=st.lists(st.tuples(records(), st.sampled_from(Compression), st.booleans()), max_size=3),
    span=SPANS,
    headers=st.booleans(),
)
@settings(max_examples=60)
def test_compiled_and_python_decode_the_same_records(each_way, batches, span, headers):
    wire = bytearray()
    wanted = []
    start, end = span
    for rows, compression, stamped in batches:
        batch = build_batch(rows, compression=compression)
        if stamped:
            RecordBatch(batch).stamp_append_time(NOW)
        wanted += [
            row_of(record, int(stamped))
            for record in RecordBatch(batch).records()
            if start <= record.offset and (end is None or record.offset < end)
        ]
        wire += batch
    if not headers:
        for row in wanted:
            del row["headers"]

    decoder = ArrowDecoder(headers=headers)
    quick = decode(wire, decoder, start_offset=start, end_offset=end)
    with way("python"):
        slow = decode(wire, decoder, start_offset=start, end_offset=end)

    assert rows_of(quick) == wanted
    assert quick == slow


@pytest.mark.parametrize("each_way", ["compiled"], indirect=True)
@given(rows=records(), data=st.data(), scale=st.sampled_from(["ms", "us"]))
@settings(max_examples=100)
def test_compiled_and_python_raise_the_same_error_for_corrupt_data(each_way, rows, data, scale):
    wire = build_batch(rows)
    wire += build_batch(rows)
    size = len(wire) // 2
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(21, size - 1) | st.integers(61, size - 1))
        wire[data.draw(st.sampled_from([0, size])) + position] = data.draw(st.integers(0, 255))
    decoder = ArrowDecoder(timestamp=pa.timestamp(scale), headers=True, check_crcs=False)
    start, end = data.draw(SPANS)

    def outcome() -> Any:
        try:
            return decode(wire, decoder, start_offset=start, end_offset=end)
        except BatchError as error:
            return error.code, str(error), error.__notes__

    quick = outcome()
    with way("python"):
        assert outcome() == quick
