"""Arrow columns to records: compiled and pure Python give the same, also on a broker."""

import asyncio
import struct
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import blocking
from ottla.client.arrow.encoder import Rows, batches_of
from ottla.client.errors import ErrorCode, KafkaError, RecordTooLargeError, SerializationError
from ottla.client.producer.partitioner import partition_of_key
from ottla.client.producer.producer import BatchConfig, OffsetRange, Producer, ProducerRecord
from ottla.protocol import compiled
from ottla.protocol.records import decode_records

needs_compiled = pytest.mark.skipif(compiled.fast is None, reason="there is no compiled module")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
NOW = 1_700_000_000_000
LARGE = {"max_bytes": 1 << 20, "max_record_bytes": 1 << 20}

_BYTES = st.none() | st.binary(max_size=9) | st.sampled_from([b"y" * n for n in (63, 64, 9000)])
_PAIRS = st.fixed_dictionaries({"key": st.text(max_size=3), "value": _BYTES})
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": _BYTES,
            "value": _BYTES,
            "headers": st.none() | st.lists(_PAIRS, max_size=2),
            "partition": st.none() | st.integers(0, 4),
            "timestamp": st.none() | st.integers(0, 2**52),
        }
    ),
    max_size=12,
)


def a_batch(rows, names=SCHEMA.names):
    return pa.RecordBatch.from_pylist(rows, SCHEMA).select(names)


def decoded(parts):
    """Return the records of each partition without their offsets, which are checked."""
    found = defaultdict(list)
    for part in parts:
        base, count = part.base_timestamp, part.record_count
        records = decode_records(part.payload, count, 0, base, None)
        assert [record.offset for record in records] == list(range(count))
        assert base == records[0].timestamp
        assert part.max_timestamp == max(record.timestamp for record in records)
        found[part.partition] += [record[1:] for record in records]
    return found


def expected(rows, partitions):
    """Return the same from `Rows.records`."""
    found = defaultdict(list)
    for row in rows.records():
        value, key, headers, partition, timestamp = row
        if partition is None and key is not None:
            partition = partition_of_key(key, partitions)
        time = NOW if timestamp is None else timestamp
        found[partition].append((time, key, value, tuple(headers)))
    return found


@needs_compiled
@given(
    rows=_ROWS,
    names=st.lists(st.sampled_from(SCHEMA.names), unique=True),
    limit=st.sampled_from([1, 100, 10_000, 1 << 20]),
    data=st.data(),
)
def test_encoded_records_are_those_of_the_rows(rows, names, limit, data):
    batch = a_batch(rows, list({*names, "value"}))
    start = data.draw(st.integers(0, len(rows)))
    columns = Rows(batch.slice(start, data.draw(st.integers(0, len(rows)))))

    parts = columns.encode(5, now_ms=NOW, max_bytes=limit, max_record_bytes=1 << 20)

    assert decoded(parts) == expected(columns, 5)
    assert all(len(part.payload) <= limit or part.record_count == 1 for part in parts)


@needs_compiled
def test_columns_are_cast():
    batch = pa.record_batch(
        {
            "key": pa.array(["a", None], pa.large_string()),
            "value": pa.array([b"1", b"2"], pa.large_binary()),
            "partition": pa.array([1, None], pa.int64()),
            "timestamp": pa.array([1_999, 2_000], pa.timestamp("us")),
            "something": pa.array([1.5, 2.5]),
        }
    )

    rows = Rows(batch)

    assert rows.records() == [(b"1", b"a", (), 1, 1), (b"2", None, (), None, 2)]
    assert decoded(rows.encode(2, now_ms=NOW, **LARGE)) == expected(rows, 2)


@needs_compiled
@pytest.mark.parametrize(
    "row",
    [
        {"value": b"x" * 1000},
        {"key": b"x" * 1000},
        {"headers": [{"key": "x" * 1000, "value": None}]},
        {"headers": [{"key": None, "value": b""}]},
        {"headers": [None]},
        {"partition": 3},
        {"partition": -1},
        {"timestamp": -1},
    ],
)
def test_rows_that_may_be_invalid_are_not_encoded(row):
    limits = {"now_ms": NOW, "max_bytes": 500, "max_record_bytes": 900}

    assert Rows(a_batch([{}, row])).encode(3, **limits) is None
    assert Rows(a_batch([{}])).encode(3, **limits) is not None


def test_large_tables_are_sliced():
    batch = a_batch([{"value": b"%05d" % number * 400} for number in range(10_000)])
    table = pa.Table.from_batches([batch, batch.slice(0, 0), batch.slice(0, 1)])

    parts = list(batches_of(table))

    assert len(parts) == 4
    assert max(part.nbytes for part in parts) < 9 * 1024 * 1024
    assert pa.Table.from_batches(parts) == table
    assert list(batches_of(batch.slice(3, 2))) == [batch.slice(3, 2)]
    assert list(batches_of(iter([batch.slice(3, 2)]))) == [batch.slice(3, 2)]


def test_a_value_column_is_required():
    with pytest.raises(ValueError, match="Missing column 'value'; the columns are key, topic"):
        Rows(pa.record_batch({"key": [b""], "topic": ["t"]}))


def test_invalid_columns_are_rejected():
    ends = pa.py_buffer(struct.pack("=3i", 0, 100, 1))  # only the middle is invalid
    column = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"x")])

    with pytest.raises(pa.ArrowInvalid):
        Rows(pa.record_batch({"value": column}))


# Against a broker.


@pytest.fixture(params=["compiled", "plain"])
def way(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(compiled, "fast", None)
    elif compiled.fast is None:
        pytest.skip("there is no compiled module")
    return request.param


@pytest.fixture
def topic(ottla_session_broker, name):
    ottla_session_broker.create_topic(name, partitions=3)
    return name


@pytest.fixture
async def producer(ottla_session_broker):
    async with Producer(ottla_session_broker.bootstrap) as made:
        yield made


def found_in(broker, topic):
    """Return the records of each partition without timestamps."""
    found = defaultdict(list)
    for record in broker.records(topic):
        found[record.partition].append((record.key, record.value, tuple(record.headers)))
    return found


async def test_rows_are_written_like_records(ottla_session_broker, topic, producer, way):
    rows = [
        {
            "key": None if number % 7 == 0 else b"k%d" % (number % 20),
            "value": None if number % 11 == 0 else b"v%d" % number,
            "headers": [{"key": "n", "value": b"%d" % number}] if number % 3 else None,
            "partition": number % 3 if number % 5 == 0 else None,
            "timestamp": NOW + number,
        }
        for number in range(500)
    ]
    table = pa.Table.from_batches([a_batch(rows[:200]), a_batch(rows[200:])])

    written = await producer.send_arrow(topic, table)

    assert sum(part.record_count for part in written) == 500
    broker = ottla_session_broker
    found = {
        record.timestamp - NOW: record for record in await asyncio.to_thread(broker.records, topic)
    }
    assert sorted(found) == list(range(500))
    for number, row in enumerate(rows):
        record = found[number]
        assert (record.key, record.value) == (row["key"], row["value"])
        assert [*record.headers] == [("n", b"%d" % number)] * bool(row["headers"])
        if row["partition"] is not None:
            assert record.partition == row["partition"]
        elif row["key"] is not None:
            assert record.partition == partition_of_key(row["key"], 3)
    for partition in range(3):
        keyed = [n for n, r in found.items() if r.partition == partition and r.key is not None]
        assert keyed == sorted(keyed), "in the order of the rows"


async def test_send_arrow_returns_offset_ranges(ottla_session_broker, topic, producer, way):
    rows = a_batch([{"value": b"x", "partition": number % 2} for number in range(10)])

    assert await producer.send_arrow(topic, rows) == [
        OffsetRange(topic, 0, 0, 5),
        OffsetRange(topic, 1, 0, 5),
    ]
    assert await producer.send_arrow(topic, [rows, rows.slice(9)]) == [
        OffsetRange(topic, 0, 5, 5),
        OffsetRange(topic, 1, 5, 6),
    ]
    assert await producer.send_arrow(topic, rows.slice(0, 0)) == []
    assert await producer.send_arrow(topic, []) == []


async def test_send_arrow_keeps_the_order_of_other_sends(ottla_session_broker, topic, way):
    batch = BatchConfig(linger=60)
    async with Producer(ottla_session_broker.bootstrap, batch=batch) as producer:
        first = await producer.enqueue(topic, b"first", partition=0)
        rows = a_batch([{"value": b"%d" % number, "partition": 0} for number in range(3)])
        (written,) = await producer.send_arrow(topic, rows)
        last = await producer.enqueue(topic, b"last", partition=0)
        await producer.flush()

        assert (await first).offset == 0
        assert written == OffsetRange(topic, 0, 1, 3)
        assert (await last).offset == 4


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_blocking_producer_sends_rows(ottla_session_broker, topic, way, codec):
    batches = (
        a_batch([{"value": b"%d" % (100 * number + step), "key": b"k"} for step in range(100)])
        for number in range(5)
    )
    with blocking.Producer(ottla_session_broker.bootstrap, compression=codec) as producer:
        (written,) = producer.send_arrow(topic, batches)

    assert written.record_count == 500
    found = found_in(ottla_session_broker, topic)[written.partition]
    assert [value for _key, value, _headers in found] == [b"%d" % number for number in range(500)]


def test_an_error_of_the_source_is_raised(ottla_session_broker, topic, way):
    def source():
        yield a_batch([{"value": b"sent", "partition": 0}])
        raise RuntimeError("the source is dry")

    with (
        blocking.Producer(ottla_session_broker.bootstrap) as producer,
        pytest.raises(RuntimeError, match="dry"),
    ):
        producer.send_arrow(topic, source())

    assert found_in(ottla_session_broker, topic) == {0: [(None, b"sent", ())]}


async def test_rows_that_cannot_be_sent_raise(ottla_session_broker, topic, producer, way):
    rows = [{"value": b"x", "partition": 0}]

    with pytest.raises(RecordTooLargeError):
        await producer.send_arrow(topic, a_batch([{"value": b"x" * 9_000_000}]))
    with pytest.raises(KafkaError, match="the topic has 3 partitions"):
        await producer.send_arrow(topic, a_batch([*rows, {"value": b"y", "partition": 3}]))
    with pytest.raises(ValueError, match="timestamp -1"):
        await producer.send_arrow(topic, a_batch([{"value": b"z", "timestamp": -1}]))
    with pytest.raises(SerializationError):
        await producer.send_arrow(topic, a_batch([{"headers": [{"key": None, "value": b""}]}]))

    # Rows before the invalid one are sent, as with send_many.
    found = await asyncio.to_thread(found_in, ottla_session_broker, topic)
    assert found == {0: [(None, b"x", ())]}


@pytest.mark.parametrize("source", [1, 1000])
async def test_a_rejected_batch_ends_send_arrow(ottla_session_broker, name, producer, way, source):
    ottla_session_broker.create_topic(name, partitions=1, configs={"cleanup.policy": "compact"})
    taken = []

    def batches():
        for number in range(source):
            taken.append(number)
            yield a_batch([{"value": b"without a key" * 1000}] * 100)

    with pytest.raises(KafkaError, match="without a key") as refused:
        await producer.send_arrow(name, batches())

    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert len(taken) == 1 or len(taken) < source
    assert (await producer.send_arrow(name, a_batch([{"key": b"k"}])))[0].record_count == 1


async def test_batches_larger_than_max_message_bytes_are_split(
    ottla_session_broker, name, producer, way
):
    configs = {"max.message.bytes": "2000"}
    ottla_session_broker.create_topic(name, partitions=1, configs=configs)
    rows = [{"value": b"%04d" % number * 10, "timestamp": NOW + number} for number in range(1000)]

    assert await producer.send_arrow(name, a_batch(rows)) == [OffsetRange(name, 0, 0, 1000)]

    found = await asyncio.to_thread(ottla_session_broker.records, name)
    assert [record.value for record in found] == [row["value"] for row in rows]
    assert [record.timestamp for record in found] == [row["timestamp"] for row in rows]


async def test_partitioners_and_serializers_apply_to_rows(ottla_session_broker, topic, way):
    bootstrap = ottla_session_broker.bootstrap
    rows = a_batch([{"key": b"k", "value": b"v"}] * 6)

    def last(_topic, _key, _value, partitions):
        return partitions - 1

    async with Producer(bootstrap, partitioner=last) as producer:
        assert await producer.send_arrow(topic, rows) == [OffsetRange(topic, 2, 0, 6)]
    async with Producer(bootstrap, partitioner="round-robin") as producer:
        written = await producer.send_arrow(topic, rows.select(["value"]))
        assert [part.record_count for part in written] == [2, 2, 2]
    async with Producer(bootstrap, value_serializer=lambda value: value + b"!") as producer:
        await producer.send_arrow(topic, rows.slice(0, 1))

    values = await asyncio.to_thread(ottla_session_broker.values, topic)
    assert sorted(values) == [b"v"] * 12 + [b"v!"]


def test_rows_become_producer_records():
    (row,) = Rows(a_batch([{"key": b"k", "value": b"v", "timestamp": 7}])).records()

    assert ProducerRecord(*row) == ProducerRecord(b"v", key=b"k", timestamp=7)
