"""Other clients decode our record batches, and we decode theirs, in every codec."""

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import given, settings

from harness.strategies import records
from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.compression import Compression

THEIRS = pytest.mark.parametrize(
    "theirs", [aiokafka_records, kafka_python_records], ids=["aiokafka", "kafka-python"]
)
CODECS = pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name.lower())


@THEIRS
@CODECS
@given(rows=records())
@settings(max_examples=15)
def test_other_clients_decode_our_batches(theirs, compression, rows):
    wire = bytes(build_batch(rows, compression=compression))

    batch = theirs.DefaultRecordBatch(wire)

    assert batch.validate_crc()
    assert [as_ours(record) for record in batch] == rows


@THEIRS
@CODECS
@given(rows=records())
@settings(max_examples=15)
def test_we_decode_the_batches_of_other_clients(theirs, compression, rows):
    builder = theirs.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(compression),
        is_transactional=True,
        producer_id=77,
        producer_epoch=3,
        base_sequence=5,
        batch_size=10**6,
    )
    for row in rows:
        assert builder.append(row.offset, row.timestamp, row.key, row.value, list(row.headers))

    batch = RecordBatch(bytes(builder.build()))

    batch.validate_produced()
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 5)
    # They send uncompressed what did not shrink.
    assert batch.compression in (compression, Compression.NONE)
    assert batch.records() == rows


def as_ours(record):
    key = None if record.key is None else bytes(record.key)
    value = None if record.value is None else bytes(record.value)
    headers = tuple((name, None if v is None else bytes(v)) for name, v in record.headers)
    return Record(record.offset, record.timestamp, key, value, headers)
