"""Batches recorded from other clients, in every codec, decode to the records they sent."""

from pathlib import Path

import pytest

from golden import corpus
from ottla.protocol.batch import RecordBatch
from ottla.protocol.compression import Compression

BATCHES = Path(__file__).parent / "golden" / "batches"
CASES = [(client, codec) for client, codecs in corpus.CODECS.items() for codec in codecs]


@pytest.mark.parametrize(("client", "codec"), CASES)
def test_batches_of_other_clients_decode_to_the_corpus(client, codec):
    corpus_records = corpus.expected(client)

    batch = RecordBatch((BATCHES / f"{client}-{codec}.bin").read_bytes())
    batch.validate_produced()
    records = batch.records()

    assert batch.compression is Compression[codec.upper()]
    assert [record.offset for record in records] == list(range(len(corpus_records)))
    for record, expected in zip(records, corpus_records, strict=True):
        assert (record.key, record.value, record.headers) == (
            expected.key,
            expected.value,
            expected.headers,
        )
        if expected.timestamp is not None:
            assert record.timestamp == expected.timestamp


def test_every_recorded_batch_is_tested():
    assert {path.stem for path in BATCHES.iterdir()} == {f"{c}-{codec}" for c, codec in CASES}
