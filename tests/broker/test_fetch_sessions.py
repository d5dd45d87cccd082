"""Fetch sessions (KIP-227), by the wire; and their bookkeeping, with a clock that we turn."""

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
from ottla.broker.requests.fetch_sessions import FetchSessionCache
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.errors import ErrorCode

NEWEST = 12
LAST_EPOCH = 2**31 - 1
NOT_FOUND = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
WRONG_EPOCH = ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def append(client, index=0, count=1, topic="t"):
    assert error_codes(
        await client.request(produce_request(a_batch(count), topic=topic, partition=index), 9)
    ) == [0]


async def opened(client, *wanted, version=NEWEST):
    """A session for partitions 0, 1, … of the topic; gives its id and what it said first."""
    response = await client.request(fetch_request(*wanted, session_epoch=0), version)
    assert response.error_code == 0
    assert response.session_id > 0
    return response.session_id, response


def partition(index, offset, **more):
    return FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=1024 * 1024, **more
    )


def changed(session_id, epoch, *partitions, topic="t", forgotten=(), **fields):
    """A request of a session that names only these partitions, and those that it forgets."""
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


# By the wire.


@pytest.mark.parametrize("version", range(7, NEWEST + 1))
async def test_a_session_is_opened_with_everything_and_goes_on_with_what_is_new(tmp_path, version):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        await append(client, 1)
        session_id, first = await opened(client, 0, 0, 0, version=version)

        await append(client, 2)
        second = await client.request(changed(session_id, 1, partition(1, 1)), version)
        third = await client.request(changed(session_id, 2, partition(2, 1)), version)

        assert indexes(first) == [0, 1, 2]
        assert [offsets_of(data) for data in fetched_partitions(first)] == [[], [0], []]
        assert second.session_id == third.session_id == session_id
        assert [
            (data.partition_index, offsets_of(data)) for data in fetched_partitions(second)
        ] == [(2, [0])]
        assert indexes(third) == []


async def test_a_request_without_a_session_has_none(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(0, 0), NEWEST)

        assert (response.session_id, indexes(response)) == (0, [0, 1])
        assert len(broker.fetch_sessions) == 0


async def test_a_session_remembers_the_offsets_that_it_was_told(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await opened(client, 0, 0)
        await append(client, 0, 2)

        answers = [await client.request(changed(session_id, epoch), NEWEST) for epoch in (1, 2)]
        moved = await client.request(changed(session_id, 3, partition(0, 2)), NEWEST)

        # A consumer that does not say that it got on gets the same again.
        assert [[offsets_of(data) for data in fetched_partitions(a)] for a in answers] == [
            [[0, 1]],
            [[0, 1]],
        ]
        assert fetched_partitions(moved) == []


async def test_a_partition_can_be_added_and_forgotten(tmp_path):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        for index in range(3):
            await append(client, index)
        session_id, first = await opened(client, 0)

        added = await client.request(
            changed(session_id, 1, partition(2, 0), partition(0, 1)), NEWEST
        )
        forgotten = await client.request(changed(session_id, 2, forgotten=[2]), NEWEST)
        unknown = await client.request(changed(session_id, 3, forgotten=[2, 77, -1]), NEWEST)
        again = await client.request(changed(session_id, 4, partition(2, 1)), NEWEST)

        assert [indexes(a) for a in (first, added, forgotten, unknown)] == [[0], [2], [], []]
        # It is new to the session, though there are no records.
        assert [(d.partition_index, d.high_watermark) for d in fetched_partitions(again)] == [
            (2, 1)
        ]


async def test_a_new_high_watermark_or_start_is_news_without_records(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client, 0, 2)
        session_id, _ = await opened(client, 2)

        quiet = await client.request(changed(session_id, 1), NEWEST)
        partition_of(broker).log.delete_records_before(1)
        started_later = await client.request(changed(session_id, 2), NEWEST)
        await append(client, 0)
        grown = await client.request(changed(session_id, 3, partition(0, 3)), NEWEST)

        assert fetched_partitions(quiet) == []
        assert [
            (d.log_start_offset, d.high_watermark) for d in fetched_partitions(started_later)
        ] == [(1, 2)]
        assert [(d.log_start_offset, d.high_watermark) for d in fetched_partitions(grown)] == [
            (1, 3)
        ]


async def test_an_error_is_said_each_time_and_so_is_its_end(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, first = await opened(client, 0, 5)

        second = await client.request(changed(session_id, 1, max_wait_ms=9000, min_bytes=1), NEWEST)
        well = await client.request(changed(session_id, 2, partition(1, 0)), NEWEST)
        quiet = await client.request(changed(session_id, 3), NEWEST)

        assert error_codes(first) == [0, ErrorCode.OFFSET_OUT_OF_RANGE]
        assert (indexes(second), error_codes(second)) == ([1], [ErrorCode.OFFSET_OUT_OF_RANGE])
        assert (indexes(well), error_codes(well)) == ([1], [0])
        assert fetched_partitions(quiet) == []


async def test_a_topic_that_comes_to_be_is_found_by_a_session_that_waits_for_it(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(0, topic="later", session_epoch=0), NEWEST)
        await broker.controller.create_topics([broker.controller.plan_topic("later", 1, {})])

        there = await client.request(changed(response.session_id, 1), NEWEST)

        assert error_codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert error_codes(there) == [0]


async def test_a_long_poll_of_a_session_waits_for_all_of_its_partitions(tmp_path):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        session_id, _ = await opened(client, 0, 0, 0)
        client.send(changed(session_id, 1, max_wait_ms=9000, min_bytes=1), NEWEST)
        assert await client.receives_nothing()

        async with connect(broker) as producer:
            await append(producer, 2)

        assert indexes(await client.response()) == [2]


async def test_a_session_can_be_closed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await opened(client, 0)

        closed = await client.request(changed(session_id, -1), NEWEST)
        after = await client.request(changed(session_id, 1), NEWEST)

        assert (closed.error_code, closed.session_id, fetched_partitions(closed)) == (0, 0, [])
        assert (after.error_code, after.session_id, fetched_partitions(after)) == (NOT_FOUND, 0, [])
        assert len(broker.fetch_sessions) == 0


async def test_the_last_request_of_a_session_is_answered_as_one_without(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client, 1)
        session_id, _ = await opened(client, 0, 0)

        last = await client.request(changed(session_id, -1, partition(1, 0)), NEWEST)

        assert (last.session_id, [offsets_of(data) for data in fetched_partitions(last)]) == (
            0,
            [[0]],
        )


async def test_a_session_can_be_replaced_by_another(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        before, _ = await opened(client, 0, 0)

        after = await client.request(changed(before, 0, partition(1, 0)), NEWEST)

        assert after.session_id not in (0, before)
        assert indexes(after) == [1]
        assert len(broker.fetch_sessions) == 1


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [
        ("own", 1, 0),
        ("own", 2, WRONG_EPOCH),
        ("own", LAST_EPOCH, WRONG_EPOCH),
        ("own", -2, WRONG_EPOCH),
        ("other", 1, NOT_FOUND),
        (-5, 1, NOT_FOUND),
        (0, 1, NOT_FOUND),
        (0, -2, NOT_FOUND),
    ],
)
async def test_who_is_out_of_step_is_told_at_once(tmp_path, session_id, epoch, code):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client)
        own, _ = await opened(client, 1)
        named = {"own": own, "other": own % LAST_EPOCH + 1}.get(session_id, session_id)

        wrong = await client.request(changed(named, epoch, partition(0, 0)), NEWEST)

        assert wrong.error_code == code
        if code:
            assert (wrong.session_id, fetched_partitions(wrong)) == (0, [])
            right = await client.request(changed(own, 1), NEWEST)
            assert (right.error_code, fetched_partitions(right)) == (0, [])


async def test_a_session_that_has_forgotten_everything_is_over(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        session_id, _ = await opened(client, 0, 0)

        empty = await client.request(changed(session_id, 1, forgotten=[0, 1]), NEWEST)
        after = await client.request(changed(session_id, 2), NEWEST)

        assert (empty.error_code, empty.session_id, fetched_partitions(empty)) == (0, 0, [])
        assert after.error_code == NOT_FOUND


async def test_nobody_is_given_a_session_for_nothing(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(session_epoch=0), NEWEST)

        assert (response.error_code, response.session_id) == (0, 0)
        assert len(broker.fetch_sessions) == 0


@pytest.mark.parametrize("slots", [0, 2])
async def test_when_all_slots_are_taken_a_session_is_declined_and_the_fetch_answered(
    tmp_path, slots
):
    async with (
        a_broker(tmp_path, max_incremental_fetch_session_cache_slots=slots) as broker,
        connect(broker) as client,
    ):
        ids = {(await opened(client, 0))[0] for _ in range(slots)}

        declined = await client.request(fetch_request(0, 0, session_epoch=0), NEWEST)

        assert len(ids) == len(broker.fetch_sessions) == slots
        assert (declined.session_id, indexes(declined)) == (0, [0, 1])


async def test_no_partition_starves_another(tmp_path):
    """Each has more than one response may have, and the one that was given goes to the end."""
    async with a_broker(tmp_path, {"t": 4}) as broker, connect(broker) as client:
        for index in range(4):
            await append(client, index)
        size = len(a_batch())
        response = await client.request(
            fetch_request(0, 0, 0, 0, session_epoch=0, max_bytes=size), NEWEST
        )
        given = [data.partition_index for data in fetched_partitions(response) if data.records]

        for epoch in range(1, 8):
            response = await client.request(
                changed(response.session_id, epoch, max_bytes=size), NEWEST
            )
            given += [data.partition_index for data in fetched_partitions(response) if data.records]

        assert given == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_a_session_outlives_its_connection(tmp_path):
    async with a_broker(tmp_path) as broker:
        async with connect(broker) as client:
            session_id, _ = await opened(client, 0)

        async with connect(broker) as client:
            response = await client.request(changed(session_id, 1), NEWEST)

        assert (response.error_code, response.session_id) == (0, session_id)


async def test_a_session_cannot_be_made_to_keep_what_no_consumer_wants(tmp_path):
    """Neither names that no topic has, nor tags, nor more partitions than there can be."""
    async with (
        a_broker(tmp_path, broker_max_partitions=50) as broker,
        connect(broker) as client,
    ):
        session_id, _ = await opened(client, *[0] * 40)
        tagged = FetchPartition(
            partition=0, partition_max_bytes=1, unknown_tagged_fields=((9, bytes(100_000)),)
        )

        long_name = await client.request(
            fetch_request(0, topic="x" * 5000, session_epoch=0), NEWEST
        )
        more = [partition(index, 0) for index in range(40, 60)]
        grown = await client.request(changed(session_id, 1, *more), NEWEST)
        kept = await client.request(changed(0, 0, tagged), NEWEST)

        assert (long_name.session_id, error_codes(long_name)) == (0, [3])
        assert (grown.error_code, grown.session_id) == (NOT_FOUND, 0)
        assert kept.session_id > 0
        assert len(broker.fetch_sessions) == 1
        session = broker.fetch_sessions._sessions[kept.session_id]
        assert [wanted.unknown_tagged_fields for _topic, wanted in session.partitions()] == [()]


# The bookkeeping, with a clock that we turn.


MOST = 1000


def of(sessions, session_id, epoch, *, now=0.0, slots=3, wanted=1):
    request = changed(session_id, epoch, *[partition(index, 0) for index in range(wanted)])
    return sessions.of(request, slots, MOST, now)


def test_the_epoch_wraps_to_1_and_not_to_0():
    sessions = FetchSessionCache()
    session = of(sessions, 0, 0)
    session.epoch = LAST_EPOCH

    of(sessions, session.id, LAST_EPOCH)

    assert session.epoch == 1
    assert of(sessions, session.id, 1) is session
    assert session.epoch == 2


def test_the_session_that_was_idle_for_longest_gives_way_after_two_minutes():
    sessions = FetchSessionCache()
    first, second, third = (of(sessions, 0, 0, now=now) for now in (0, 1, 2))
    of(sessions, first.id, 1, now=3)

    assert of(sessions, 0, 0, now=120) is None
    fourth = of(sessions, 0, 0, now=121.5)

    assert len(sessions) == 3
    with pytest.raises(ApiError):
        of(sessions, second.id, 1, now=122)
    for session, epoch in ((first, 2), (third, 1), (fourth, 1)):
        assert of(sessions, session.id, epoch, now=122) is session


def test_sessions_that_were_idle_for_long_are_forgotten_when_there_is_a_new_one():
    sessions = FetchSessionCache()
    used, *idle = (of(sessions, 0, 0, slots=9) for _ in range(4))
    of(sessions, used.id, 1, now=590)

    new = of(sessions, 0, 0, now=600, slots=9)

    assert len(sessions) == 2
    assert of(sessions, new.id, 1, now=600) is new
    assert of(sessions, used.id, 2, now=600) is used
    for session in idle:
        with pytest.raises(ApiError):
            of(sessions, session.id, 1, now=600)


def test_fewer_slots_than_before_are_kept_to_as_sessions_end():
    sessions = FetchSessionCache()
    for _ in range(3):
        of(sessions, 0, 0)

    assert of(sessions, 0, 0, slots=1) is None
    assert len(sessions) == 3


def test_all_sessions_together_have_a_limit_too():
    sessions = FetchSessionCache()
    of(sessions, 0, 0, wanted=MOST)
    for _ in range(9):
        assert of(sessions, 0, 0, wanted=MOST, slots=100) is not None

    assert of(sessions, 0, 0, slots=100) is None


def test_what_a_session_forgets_makes_room():
    sessions = FetchSessionCache()
    kept = [of(sessions, 0, 0, wanted=MOST, slots=100) for _ in range(10)]

    sessions.of(changed(kept[0].id, 1, forgotten=range(MOST // 2)), 100, MOST, 0)
    of(sessions, kept[1].id, -1)

    assert of(sessions, 0, 0, wanted=MOST // 2, slots=100) is not None
    assert of(sessions, 0, 0, wanted=MOST, slots=100) is not None
    assert of(sessions, 0, 0, slots=100) is None


def test_ids_are_not_to_be_guessed():
    sessions = FetchSessionCache()

    ids = [of(sessions, 0, 0, slots=1000).id for _ in range(1000)]

    assert len(set(ids)) == 1000
    assert all(0 < session_id < 2**31 for session_id in ids)
    assert max(ids) - min(ids) > 2**28
