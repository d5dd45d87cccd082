"""Record batches: round trips, and invalid bytes are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.strategies import examples, records
from ottla.protocol.batch import RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError
from ottla.protocol.records import MIN_RECORD_BYTES, decode_records, encode_records


@pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name.lower())
@given(rows=records())
@examples(25)
def test_records_round_trip(compression, rows):
    batch = RecordBatch(build_batch(rows, compression=compression, base_offset=0))
    batch.validate_produced()

    assert batch.records() == rows
    assert batch.max_timestamp == max(row.timestamp for row in rows)


@given(rows=records(), data=st.data())
@examples(100)
def test_corrupt_records_are_rejected_or_decoded_completely(rows, data):
    payload = bytearray(encode_records(rows, 0, rows[0].timestamp))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    count = data.draw(st.integers(-1, len(rows) + 1))

    try:
        decoded = decode_records(payload, count, 0, 0, None)
    except BatchError:
        return
    assert len(decoded) == count
    assert len(payload) >= count * MIN_RECORD_BYTES


@given(data=st.binary(max_size=200))
@examples(200)
def test_random_bytes_are_rejected(data):
    with pytest.raises(BatchError):
        RecordBatch(data).validate()
