"""Batches that other clients wrote, in every codec that they have, hold what they were given."""

from pathlib import Path

import pytest

from golden import corpus
from ottla.protocol.batch import RecordBatch
from ottla.protocol.compression import Compression

BATCHES = Path(__file__).parent / "golden" / "batches"
CASES = [(client, codec) for client, codecs in corpus.CODECS.items() for codec in codecs]


@pytest.mark.parametrize(("client", "codec"), CASES)
def test_a_batch_of_another_client_holds_the_corpus(client, codec):
    expected = corpus.expected(client)

    batch = RecordBatch((BATCHES / f"{client}-{codec}.bin").read_bytes())
    batch.validate_produced()
    records = batch.records()

    assert batch.compression is Compression[codec.upper()]
    assert [record.offset for record in records] == list(range(len(expected)))
    for record, wanted in zip(records, expected, strict=True):
        assert (record.key, record.value, record.headers) == (
            wanted.key,
            wanted.value,
            wanted.headers,
        )
        if wanted.timestamp is not None:
            assert record.timestamp == wanted.timestamp


def test_no_file_is_left_over():
    assert {path.stem for path in BATCHES.iterdir()} == {f"{c}-{codec}" for c, codec in CASES}
