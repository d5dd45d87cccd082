"""The dump of a segment file."""

from harness.logs import NOW, a_batch, a_log, append
from ottla.storage.dump import dump


def a_file(tmp_path):
    log = a_log(tmp_path)
    append(log, 3)
    append(log, 2, producer_id=5, producer_epoch=1, base_sequence=7)
    log.close()
    return log.active_segment.path(".log")


def test_batches_and_records_are_dumped(tmp_path):
    first, second = dump(a_file(tmp_path), records=True)

    assert (first.position, first.size, first.error) == (0, len(a_batch(3)), None)
    assert first.header["base_offset"] == 0
    assert first.header["last_offset"] == 2
    assert [record.offset for record in first.records] == [0, 1, 2]
    assert (second.header["producer_id"], second.header["base_sequence"]) == (5, 7)


def test_records_are_not_decoded_by_default(tmp_path):
    assert [batch.records for batch in dump(a_file(tmp_path))] == [[], []]


def test_an_invalid_batch_is_reported_and_the_dump_continues(tmp_path):
    path = a_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data + bytes(100) + b"x")

    damaged, valid, rest = dump(path)

    assert "CRC" in damaged.error
    assert valid.error is None
    assert "zeros" in rest.error
    path.write_bytes(data[:-5])
    assert "not a complete batch" in list(dump(path))[-1].error


def test_space_allocated_for_appends_is_no_error(tmp_path):
    path = a_file(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(3_000_000))

    assert [batch.error for batch in dump(path)] == [None, None]


def test_markers_are_described(tmp_path):
    log = a_log(tmp_path)
    append(log, producer_id=5, producer_epoch=1, base_sequence=0, transactional=True)
    log.append_marker(
        producer_id=5,
        producer_epoch=1,
        coordinator_epoch=3,
        is_commit=False,
        transaction_version=1,
        leader_epoch=0,
        now_ms=NOW,
    )
    log.close()

    data, marker = dump(log.active_segment.path(".log"), records=True)

    assert "marker" not in data.header
    assert marker.header["marker"] == "abort, coordinator epoch 3"
