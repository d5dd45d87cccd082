"""Fetch sessions (KIP-227): over the wire, and the session cache with a fake clock."""

import pytest

from harness.brokers import a_broker, partition_of
from harness.logs import a_batch
from harness.wire import (
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    offsets_of,
    produce_request,
)
from ottla.broker.requests.errors import ApiError
from ottla.broker.requests.fetch_session_cache import FetchSessionCache
from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES as WITH_NAMES
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.errors import ErrorCode

NEWEST = 18
LAST_EPOCH = 2**31 - 1
NOT_FOUND = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
WRONG_EPOCH = ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def append(client, index=0, count=1, topic="t"):
    assert error_codes(
        await client.request(produce_request(a_batch(count), topic=topic, partition=index), 9)
    ) == [0]


async def open_session(client, *count, version=WITH_NAMES):
    """Open a session for partitions 0, 1, …; return its id and the full response."""
    response = await client.request(fetch_request(*count, session_epoch=0), version)
    assert response.error_code == 0
    assert response.session_id > 0
    return response.session_id, response


def partition(index, offset, **more):
    return FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=1024 * 1024, **more
    )


def incremental_request(session_id, epoch, *partitions, topic="t", forgotten=(), **fields):
    """Return an incremental request with these changed and forgotten partitions."""
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
        forgotten_topics_data=(
            [ForgottenTopic(topic=topic, partitions=forgotten)] if forgotten else []
        ),
        **fields,
    )


def indexes(response):
    return [data.partition_index for data in fetched_partitions(response)]


# Over the wire.


@pytest.mark.parametrize("version", range(7, NEWEST + 1))
async def test_a_session_starts_with_a_full_response_and_continues_incrementally(tmp_path, version):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        await append(client, 1)
        session_id, first = await open_session(client, 0, 0, 0, version=version)

        await append(client, 2)
        second = await client.request(incremental_request(session_id, 1, partition(1, 1)), version)
        third = await client.request(incremental_request(session_id, 2, partition(2, 1)), version)

        assert indexes(first) == [0, 1, 2]
        assert [offsets_of(data) for data in fetched_partitions(first)] == [[], [0], []]
        assert second.session_id == third.session_id == session_id
        assert [
            (data.partition_index, offsets_of(data)) for data in fetched_partitions(second)
        ] == [(2, [0])]
        assert indexes(third) == []


async def test_a_sessionless_request_opens_no_session(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(0, 0), WITH_NAMES)

        assert (response.session_id, indexes(response)) == (0, [0, 1])
        assert len(broker.fetch_sessions) == 0


async def test_a_session_keeps_the_fetch_offsets_of_earlier_requests(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await open_session(client, 0, 0)
        await append(client, 0, 2)

        answers = [
            await client.request(incremental_request(session_id, epoch), WITH_NAMES)
            for epoch in (1, 2)
        ]
        moved = await client.request(
            incremental_request(session_id, 3, partition(0, 2)), WITH_NAMES
        )

        # The fetch offset has not changed, so the same records are returned.
        assert [[offsets_of(data) for data in fetched_partitions(a)] for a in answers] == [
            [[0, 1]],
            [[0, 1]],
        ]
        assert fetched_partitions(moved) == []


async def test_partitions_are_added_and_forgotten(tmp_path):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        for index in range(3):
            await append(client, index)
        session_id, first = await open_session(client, 0)

        added = await client.request(
            incremental_request(session_id, 1, partition(2, 0), partition(0, 1)), WITH_NAMES
        )
        forgotten = await client.request(
            incremental_request(session_id, 2, forgotten=[2]), WITH_NAMES
        )
        unknown = await client.request(
            incremental_request(session_id, 3, forgotten=[2, 77, -1]), WITH_NAMES
        )
        again = await client.request(
            incremental_request(session_id, 4, partition(2, 1)), WITH_NAMES
        )

        assert [indexes(a) for a in (first, added, forgotten, unknown)] == [[0], [2], [], []]
        # New partitions are returned even without records.
        assert [(d.partition_index, d.high_watermark) for d in fetched_partitions(again)] == [
            (2, 1)
        ]


async def test_the_first_request_of_a_session_forgets_nothing(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        request = incremental_request(0, 0, partition(0, 0), forgotten=[0])

        opened = await client.request(request, NEWEST)

        assert opened.session_id > 0
        assert indexes(opened) == [0]


async def test_a_changed_high_watermark_or_log_start_is_returned_without_records(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client, 0, 2)
        session_id, _ = await open_session(client, 2)

        quiet = await client.request(incremental_request(session_id, 1), WITH_NAMES)
        partition_of(broker).log.delete_records_before(1)
        started_later = await client.request(incremental_request(session_id, 2), WITH_NAMES)
        await append(client, 0)
        grown = await client.request(
            incremental_request(session_id, 3, partition(0, 3)), WITH_NAMES
        )

        assert fetched_partitions(quiet) == []
        assert [
            (d.log_start_offset, d.high_watermark) for d in fetched_partitions(started_later)
        ] == [(1, 2)]
        assert [(d.log_start_offset, d.high_watermark) for d in fetched_partitions(grown)] == [
            (1, 3)
        ]


async def test_an_error_is_returned_each_time_until_it_is_resolved(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, first = await open_session(client, 0, 5)

        second = await client.request(
            incremental_request(session_id, 1, max_wait_ms=9000, min_bytes=1), WITH_NAMES
        )
        well = await client.request(incremental_request(session_id, 2, partition(1, 0)), WITH_NAMES)
        quiet = await client.request(incremental_request(session_id, 3), WITH_NAMES)

        assert error_codes(first) == [0, ErrorCode.OFFSET_OUT_OF_RANGE]
        assert (indexes(second), error_codes(second)) == ([1], [ErrorCode.OFFSET_OUT_OF_RANGE])
        assert (indexes(well), error_codes(well)) == ([1], [0])
        assert fetched_partitions(quiet) == []


async def test_a_session_picks_up_a_topic_created_later(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(
            fetch_request(0, topic="later", session_epoch=0), WITH_NAMES
        )
        await broker.controller.create_topics([broker.controller.plan_topic("later", 1, {})])

        there = await client.request(incremental_request(response.session_id, 1), WITH_NAMES)

        assert error_codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert error_codes(there) == [0]


async def test_a_long_poll_waits_for_all_partitions_of_the_session(tmp_path):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        session_id, _ = await open_session(client, 0, 0, 0)
        client.send(incremental_request(session_id, 1, max_wait_ms=9000, min_bytes=1), WITH_NAMES)
        assert await client.receives_nothing()

        async with connect(broker) as producer:
            await append(producer, 2)

        assert indexes(await client.response()) == [2]


async def test_a_session_can_be_closed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await open_session(client, 0)

        closed = await client.request(incremental_request(session_id, -1), WITH_NAMES)
        after = await client.request(incremental_request(session_id, 1), WITH_NAMES)

        assert (closed.error_code, closed.session_id, fetched_partitions(closed)) == (0, 0, [])
        assert (after.error_code, after.session_id, fetched_partitions(after)) == (NOT_FOUND, 0, [])
        assert len(broker.fetch_sessions) == 0


async def test_the_closing_request_gets_a_sessionless_response(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client, 1)
        session_id, _ = await open_session(client, 0, 0)

        last = await client.request(
            incremental_request(session_id, -1, partition(1, 0)), WITH_NAMES
        )

        assert (last.session_id, [offsets_of(data) for data in fetched_partitions(last)]) == (
            0,
            [[0]],
        )


async def test_a_full_request_replaces_the_session(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        before, _ = await open_session(client, 0, 0)

        after = await client.request(incremental_request(before, 0, partition(1, 0)), WITH_NAMES)

        assert after.session_id not in (0, before)
        assert indexes(after) == [1]
        assert len(broker.fetch_sessions) == 1


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [
        ("current", 1, 0),
        ("current", 2, WRONG_EPOCH),
        ("current", LAST_EPOCH, WRONG_EPOCH),
        ("current", -2, WRONG_EPOCH),
        ("other", 1, NOT_FOUND),
        (-5, 1, NOT_FOUND),
        (0, 1, NOT_FOUND),
        (0, -2, NOT_FOUND),
    ],
)
async def test_a_wrong_session_id_or_epoch_fails_without_waiting(tmp_path, session_id, epoch, code):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client)
        session, _ = await open_session(client, 1)
        named = {"current": session, "other": session % LAST_EPOCH + 1}.get(session_id, session_id)

        wrong = await client.request(incremental_request(named, epoch, partition(0, 0)), WITH_NAMES)

        assert wrong.error_code == code
        if code:
            assert (wrong.session_id, fetched_partitions(wrong)) == (0, [])
            right = await client.request(incremental_request(session, 1), WITH_NAMES)
            assert (right.error_code, fetched_partitions(right)) == (0, [])


async def test_a_session_without_partitions_is_closed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await open_session(client, 0, 0)

        empty = await client.request(
            incremental_request(session_id, 1, forgotten=[0, 1]), WITH_NAMES
        )
        after = await client.request(incremental_request(session_id, 2), WITH_NAMES)

        assert (empty.error_code, empty.session_id, fetched_partitions(empty)) == (0, 0, [])
        assert after.error_code == NOT_FOUND


async def test_a_request_without_partitions_opens_no_session(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(session_epoch=0), WITH_NAMES)

        assert (response.error_code, response.session_id) == (0, 0)
        assert len(broker.fetch_sessions) == 0


@pytest.mark.parametrize("slots", [0, 2])
async def test_a_session_is_declined_when_the_cache_is_full(tmp_path, slots):
    async with (
        a_broker(tmp_path, max_incremental_fetch_session_cache_slots=slots) as broker,
        connect(broker) as client,
    ):
        ids = {(await open_session(client, 0))[0] for _ in range(slots)}

        declined = await client.request(fetch_request(0, 0, session_epoch=0), WITH_NAMES)

        assert len(ids) == len(broker.fetch_sessions) == slots
        assert (declined.session_id, indexes(declined)) == (0, [0, 1])


async def test_partitions_do_not_starve_each_other(tmp_path):
    """Each partition can fill a response; one that was returned moves to the end."""
    async with a_broker(tmp_path, {"t": 4}) as broker, connect(broker) as client:
        for index in range(4):
            await append(client, index)
        size = len(a_batch())
        response = await client.request(
            fetch_request(0, 0, 0, 0, session_epoch=0, max_bytes=size), WITH_NAMES
        )
        returned = [data.partition_index for data in fetched_partitions(response) if data.records]

        for epoch in range(1, 8):
            response = await client.request(
                incremental_request(response.session_id, epoch, max_bytes=size), WITH_NAMES
            )
            returned += [
                data.partition_index for data in fetched_partitions(response) if data.records
            ]

        assert returned == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_a_session_outlives_its_connection(tmp_path):
    async with a_broker(tmp_path) as broker:
        async with connect(broker) as client:
            session_id, _ = await open_session(client, 0)

        async with connect(broker) as client:
            response = await client.request(incremental_request(session_id, 1), WITH_NAMES)

        assert (response.error_code, response.session_id) == (0, session_id)


async def test_a_session_does_not_keep_what_clients_could_inflate(tmp_path):
    """Names longer than any topic, tagged fields, or more partitions than the broker allows."""
    async with (
        a_broker(tmp_path, broker_max_partitions=50) as broker,
        connect(broker) as client,
    ):
        session_id, _ = await open_session(client, *[0] * 40)
        tagged = FetchPartition(
            partition=0, partition_max_bytes=1, unknown_tagged_fields=((9, bytes(100_000)),)
        )

        long_name = await client.request(
            fetch_request(0, topic="x" * 5000, session_epoch=0), WITH_NAMES
        )
        more = [partition(index, 0) for index in range(40, 60)]
        grown = await client.request(incremental_request(session_id, 1, *more), WITH_NAMES)
        kept = await client.request(incremental_request(0, 0, tagged), WITH_NAMES)

        assert (long_name.session_id, error_codes(long_name)) == (0, [3])
        assert (grown.error_code, grown.session_id) == (NOT_FOUND, 0)
        assert kept.session_id > 0
        assert len(broker.fetch_sessions) == 1
        session = broker.fetch_sessions._sessions[kept.session_id]
        assert [kept.unknown_tagged_fields for _topic, kept in session.to_read()] == [()]


# The session cache.


MAX_PARTITIONS = 1000


def fetch_session(sessions, session_id, epoch, *, now=0.0, slots=3, count=1):
    request = incremental_request(
        session_id, epoch, *[partition(index, 0) for index in range(count)]
    )
    return sessions.of(request, slots, MAX_PARTITIONS, now)


def test_the_session_epoch_wraps_to_1():
    sessions = FetchSessionCache()
    session = fetch_session(sessions, 0, 0)
    session.epoch = LAST_EPOCH

    fetch_session(sessions, session.id, LAST_EPOCH)

    assert session.epoch == 1
    assert fetch_session(sessions, session.id, 1) is session
    assert session.epoch == 2


def test_the_least_recently_used_session_is_evictable_after_two_minutes():
    sessions = FetchSessionCache()
    first, second, third = (fetch_session(sessions, 0, 0, now=now) for now in (0, 1, 2))
    fetch_session(sessions, first.id, 1, now=3)

    assert fetch_session(sessions, 0, 0, now=120) is None
    fourth = fetch_session(sessions, 0, 0, now=121.5)

    assert len(sessions) == 3
    with pytest.raises(ApiError):
        fetch_session(sessions, second.id, 1, now=122)
    for session, epoch in ((first, 2), (third, 1), (fourth, 1)):
        assert fetch_session(sessions, session.id, epoch, now=122) is session


def test_opening_a_session_drops_expired_ones():
    sessions = FetchSessionCache()
    used, *idle = (fetch_session(sessions, 0, 0, slots=9) for _ in range(4))
    fetch_session(sessions, used.id, 1, now=590)

    new = fetch_session(sessions, 0, 0, now=600, slots=9)

    assert len(sessions) == 2
    assert fetch_session(sessions, new.id, 1, now=600) is new
    assert fetch_session(sessions, used.id, 2, now=600) is used
    for session in idle:
        with pytest.raises(ApiError):
            fetch_session(sessions, session.id, 1, now=600)


def test_a_lowered_session_limit_takes_effect_as_sessions_end():
    sessions = FetchSessionCache()
    for _ in range(3):
        fetch_session(sessions, 0, 0)

    assert fetch_session(sessions, 0, 0, slots=1) is None
    assert len(sessions) == 3


def test_the_partitions_of_all_sessions_are_limited():
    sessions = FetchSessionCache()
    fetch_session(sessions, 0, 0, count=MAX_PARTITIONS)
    for _ in range(9):
        assert fetch_session(sessions, 0, 0, count=MAX_PARTITIONS, slots=100) is not None

    assert fetch_session(sessions, 0, 0, slots=100) is None


def test_forgotten_partitions_make_room():
    sessions = FetchSessionCache()
    kept = [fetch_session(sessions, 0, 0, count=MAX_PARTITIONS, slots=100) for _ in range(10)]

    sessions.of(
        incremental_request(kept[0].id, 1, forgotten=range(MAX_PARTITIONS // 2)),
        100,
        MAX_PARTITIONS,
        0,
    )
    fetch_session(sessions, kept[1].id, -1)

    assert fetch_session(sessions, 0, 0, count=MAX_PARTITIONS // 2, slots=100) is not None
    assert fetch_session(sessions, 0, 0, count=MAX_PARTITIONS, slots=100) is not None
    assert fetch_session(sessions, 0, 0, slots=100) is None


def test_session_ids_are_random():
    sessions = FetchSessionCache()

    ids = [fetch_session(sessions, 0, 0, slots=1000).id for _ in range(1000)]

    assert len(set(ids)) == 1000
    assert all(0 < session_id < 2**31 for session_id in ids)
    assert max(ids) - min(ids) > 2**28
