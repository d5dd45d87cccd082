"""Several flipped bits in neighbouring batches, whose records contain batches too.

Recovery never returns a record that was not appended, nor one at another offset. It loses a batch
that is not damaged only if the one before has lost both its length and the lengths of its records.
"""

from random import Random

from harness.logs import NoSyncDisk
from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

NOW = 1_700_000_000_000
TRIALS = 100


def a_batch(offset, count):
    """A batch as a client could put it into a value, at an offset that it may get."""
    batch = build_batch([Record(n, NOW, b"nested", b"%d" % offset) for n in range(count)])
    batch[:8] = offset.to_bytes(8, "big")
    return bytes(batch)


def batches_from(random, offset):
    data = b""
    for _ in range(random.choice([1, 1, 2, 3])):
        count = random.choice([1, 1, 2])
        data += a_batch(offset, count)
        offset += count
    return data


def a_value(random, offset, count):
    value = b"value %d" % offset + random.randbytes(random.choice([0, 5, 60]))
    kind = random.random()
    if kind < 0.3 and offset > 0:
        # If it is the last value, its batch ends where the batch in it ends, which leads to the
        # next one: the last byte, the number of headers, is that of both last records.
        nested = random.choice([1, 2])
        return value + a_batch(offset + 1 - nested, nested)[:-1]
    if kind < 0.6:
        nested = batches_from(random, offset + random.choice([0, 1, 2, count, count, count + 1]))
        before = random.choice([b"", b"x", random.randbytes(30)])
        value += before + nested + random.choice([b"", b"", b"y", bytes(3), random.randbytes(40)])
    return value


class DamagedLog:
    """A log of which some neighbouring batches have up to three flipped bits each."""

    def __init__(self, directory, seed):
        random = Random(seed)
        self.directory = directory
        interval = random.choice([1, 300, 4096])
        self.config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=interval)
        log, _ = open_log(directory, self.config, OpenFiles(NoSyncDisk()))
        self.rows = {}
        for _ in range(random.randint(4, 10)):
            first, count = len(self.rows), random.choice([1, 1, 2, 3])
            records = []
            for n in range(count):
                self.rows[first + n] = a_value(random, first + n, count)
                records.append(Record(n, NOW, b"k", self.rows[first + n]))
            log.append(build_batch(records), leader_epoch=0, now_ms=NOW)
        batches = list(log.active_segment.batches())
        size = log.active_segment.size
        if random.random() < 0.5:
            log.active_segment.write_indexes()
        log.active_segment.close()
        path = directory / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        first = random.randrange(len(batches))
        self.damaged = batches[first : first + random.choice([1, 2, 2, 3])]
        for batch in self.damaged:
            for _ in range(random.choice([1, 1, 2, 3])):
                any_byte, header, length, record_length = (
                    random.randrange(batch.size),
                    random.randrange(61),
                    random.randrange(8, 12),
                    random.randrange(61, 63),
                )
                byte = random.choice([any_byte, any_byte, header, length, record_length])
                data[batch.position + byte] ^= 1 << random.randrange(8)
        path.write_bytes(data[:size] if random.random() < 0.3 else data)
        self.undamaged = [batch for batch in batches if batch not in self.damaged]

    def recover(self):
        """Return the records after recovery, by offset."""
        log, _ = open_log(self.directory, self.config, OpenFiles(NoSyncDisk()), recovery_point=0)
        rows, offset = {}, log.start_offset
        while batches := list(split_batches(bytes(log.read(offset, 1 << 20).view))):
            rows |= {record.offset: record.value for b in batches for record in b.records()}
            offset = batches[-1].next_offset
        log.active_segment.close()
        return rows


def test_flipped_bits_in_neighbouring_batches_make_no_wrong_record(tmp_path):
    lost = []
    for seed in range(TRIALS):
        log = DamagedLog(tmp_path / f"{seed}", seed)

        rows = log.recover()

        assert {o: row for o, row in rows.items() if log.rows.get(o) != row} == {}, seed
        if any(batch.base_offset not in rows for batch in log.undamaged):
            lost.append(seed)
    assert len(lost) <= TRIALS / 50, lost
