"""Record batches: what we build comes back, and nonsense is refused."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.strategies import records
from ottla.protocol.batch import RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError
from ottla.protocol.outline import outlines
from ottla.protocol.records import SMALLEST_RECORD_BYTES, decode_records, encode_records


@pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name.lower())
@given(rows=records())
@settings(max_examples=25)
def test_records_come_back(compression, rows):
    batch = RecordBatch(build_batch(rows, compression=compression, base_offset=0))
    batch.validate_produced()

    assert batch.records() == rows
    assert list(batch.outlines()) == [(r.offset, r.timestamp, r.key is not None) for r in rows]
    assert batch.max_timestamp == max(row.timestamp for row in rows)


@given(rows=records(), data=st.data())
@settings(max_examples=100)
def test_damaged_records_are_refused_or_read_whole(rows, data):
    payload = bytearray(encode_records(rows, 0, rows[0].timestamp))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    count = data.draw(st.integers(-1, len(rows) + 1))

    try:
        read = decode_records(payload, count, 0, 0, None)
    except BatchError:
        with suppress(BatchError):
            list(outlines(payload, count))
        return
    assert list(outlines(payload, count)) == [
        (record.offset, record.timestamp, record.key is not None) for record in read
    ]
    assert len(read) == count
    assert len(payload) >= count * SMALLEST_RECORD_BYTES


@given(data=st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_batch_or_refused(data):
    with pytest.raises(BatchError):
        RecordBatch(data).validate()
