"""Transactions over the wire: the failure cases of the protocol, and every cell of EndTxn.

One broker serves the whole module; each test has a transactional id and a topic of its own.
"""

from __future__ import annotations

from itertools import count
from uuid import uuid4

import pytest
import pytest_asyncio

from harness import group_requests
from harness.brokers import broker_and_client
from harness.logs import a_batch
from harness.requests import create_topic, try_alter_configs, try_delete_topic
from harness.transaction_requests import (
    TransactionalProducer,
    describe,
    find_coordinator,
    init,
    write_markers,
)
from harness.waiting import eventually
from harness.wire import batches_of, fetch_request, fetched_partitions, produce_request
from ottla.coord.metadata_image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.coord.transaction_records import TransactionRecord
from ottla.coord.transaction_states import TransactionState
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.list_transactions import ListTransactionsRequest
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.registry import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = count()
State = TransactionState


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """A broker that only aborts when it is told to, and a client of it."""
    configs = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    async with broker_and_client(tmp_path_factory.mktemp("shared"), configs) as (broker, client):
        await find_coordinator(client, "any")
        await group_requests.find(client, "any")
        yield broker, client


@pytest.fixture
def broker(shared):
    return shared[0]


@pytest.fixture
def client(shared):
    return shared[1]


@pytest_asyncio.fixture(loop_scope="module")
async def topic(client):
    name = f"topic-{next(NAMES)}"
    await create_topic(client, name, 2)
    return name


@pytest_asyncio.fixture(loop_scope="module")
async def producer(client):
    producer = TransactionalProducer(client, f"id-{next(NAMES)}")
    await producer.init()
    return producer


def metadata_of(broker, producer):
    return broker.transactions.transaction(producer.transactional_id).metadata


def put_state(broker, producer, **changes):
    """Replace the state of a transactional id, as a replayed record does."""
    runtime = broker.transactions.shard_of(producer.transactional_id)
    metadata = metadata_of(broker, producer)._replace(**changes)
    runtime.shard.replay(TransactionRecord(producer.transactional_id, metadata))


def time_out(broker, producer):
    """Have the transaction of a producer time out."""
    put_state(broker, producer, start_ms=0)
    broker.transactions.abort_timed_out()


async def until_complete(client, producer):
    async def is_complete():
        state = await describe(client, producer.transactional_id)
        return state.transaction_state.startswith("Complete")

    await eventually(is_complete)


async def values(client, topic, partition=0, isolation=1):
    """Read the values of a partition, as a consumer of this isolation level sees them."""
    message = fetch_request(0, topic=topic, partition=partition, isolation_level=isolation)
    (data,) = fetched_partitions(await client.request(message))
    aborted = {entry.producer_id for entry in data.aborted_transactions or ()}
    return [
        record.value
        for batch in batches_of(data)
        if not batch.is_control and not (isolation and batch.producer_id in aborted)
        for record in batch.records()
    ]


# The whole life of a transaction.


@pytest.mark.parametrize("version", [3, 11])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_a_transaction_of_version_1(client, topic, producer, commit, version):
    assert await producer.add((topic, 0), (topic, 1)) == E.NONE
    for partition in (0, 1):
        assert await producer.produce(topic, partition, version=version) == E.NONE
        assert await values(client, topic, partition) == []

    assert await producer.end(commit=commit) == E.NONE

    state = await describe(client, producer.transactional_id)
    assert state.transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    assert (state.producer_id, state.producer_epoch) == (producer.id, producer.epoch)
    for partition in (0, 1):
        assert await values(client, topic, partition) == ([b"value"] if commit else [])
    # The same epoch goes on.
    assert await producer.add((topic, 0)) == E.NONE
    assert await producer.produce(topic) == E.NONE
    assert await producer.end() == E.NONE


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_a_transaction_of_version_2(client, topic, producer, commit):
    for number in range(3):
        assert await producer.produce(topic, version=12) == E.NONE
        assert await producer.produce(topic, version=12) == E.NONE
        state = await describe(client, producer.transactional_id)
        assert (state.transaction_state, state.producer_epoch) == ("Ongoing", number)

        assert await producer.end(commit=commit, version=5) == E.NONE
        assert producer.epoch == number + 1

    assert len(await values(client, topic)) == (6 if commit else 0)


async def test_a_transaction_begun_in_version_2_and_ended_in_version_1(client, topic, producer):
    assert await producer.produce(topic, version=12) == E.NONE
    assert await producer.end(version=4) == E.NONE

    assert (await describe(client, producer.transactional_id)).producer_epoch == producer.epoch
    assert await values(client, topic) == [b"value"]


async def test_produce_by_topic_id(broker, client, topic, producer):

    topic_id = broker.topics.image.topics[topic].id
    batch = a_batch(producer_id=producer.id, producer_epoch=0, base_sequence=0, transactional=True)
    for one, code in [(topic_id, E.NONE), (uuid4(), E.UNKNOWN_TOPIC_ID)]:
        data = [PartitionProduceData(index=0, records=bytes(batch))]
        request = ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(topic_id=one, partition_data=data)],
        )
        response = await client.request(request, 13)
        assert response.responses[0].topic_id == one
        assert response.responses[0].partition_responses[0].error_code == code
    assert await producer.end(version=5) == E.NONE
    assert await values(client, topic) == [b"value"]


@pytest.mark.parametrize("version", [3, 4])
async def test_features_of_api_versions(client, version):
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response = await client.request(request, version)

    assert response.finalized_features_epoch == 0
    assert [
        (one.name, one.min_version_level, one.max_version_level)
        for one in response.finalized_features
    ] == [("group.version", 1, 1), ("share.version", 1, 1), ("transaction.version", 2, 2)]
    assert [(one.name, one.min_version) for one in response.supported_features] == (
        [("group.version", 0), ("share.version", 0), ("transaction.version", 0)]
        if version >= 4
        else []
    )


# EndTxn: every state, with the current epoch and one behind.

_OK, _BUMP = "ok", "bump"
END_TXN_CELLS = {
    # v4 commit, v4 abort, v5 commit, v5 abort, and the same one epoch behind
    State.EMPTY: (48, 48, 48, _BUMP, 90, 90, 90, 90),
    State.ONGOING: (_OK, _OK, _BUMP, _BUMP, 90, 90, 90, 90),
    State.PREPARE_COMMIT: (51, 48, 90, 90, 90, 90, 51, 48),
    State.PREPARE_ABORT: (48, 51, 90, 90, 90, 90, 48, 51),
    State.COMPLETE_COMMIT: (_OK, 48, 48, _BUMP, 90, 90, _OK, 48),
    State.COMPLETE_ABORT: (48, _OK, 48, _BUMP, 90, 90, 48, _OK),
}
COLUMNS = [
    (version, commit, behind) for behind in (0, 1) for version in (4, 5) for commit in (True, False)
]


@pytest.mark.parametrize(
    ("state", "column", "expected"),
    [
        pytest.param(
            state,
            column,
            expected,
            id=f"{state.label}-v{column[0]}-{'commit' if column[1] else 'abort'}"
            f"{'-behind' if column[2] else ''}",
        )
        for state, cells in END_TXN_CELLS.items()
        for column, expected in zip(COLUMNS, cells, strict=True)
    ],
)
async def test_end_txn_in_each_state(broker, client, topic, producer, state, column, expected):
    version, commit, behind = column
    await producer.init()
    epoch = producer.epoch
    partitions = frozenset()
    if state is State.ONGOING:
        assert await producer.add((topic, 0)) == E.NONE
    else:
        put_state(broker, producer, state=state, partitions=partitions)
    producer.epoch -= behind

    response = await producer.try_end(commit=commit, version=version)

    if expected in (_OK, _BUMP):
        assert response.error_code == E.NONE
        after = epoch + (expected == _BUMP)
        if version >= 5:
            assert (response.producer_id, response.producer_epoch) == (producer.id, after)
        assert (await describe(client, producer.transactional_id)).producer_epoch == after
    else:
        assert response.error_code == expected
        if version >= 5:
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
        metadata = metadata_of(broker, producer)
        assert (metadata.state, metadata.producer_epoch) == (state, epoch)


@pytest.mark.parametrize("version", [*END_TXN.versions])
async def test_a_fenced_epoch_by_version(client, topic, producer, version):
    """Rows 2 and 3: another producer id, and epochs that are not the current one."""
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    await producer.init()
    await producer.init()
    producer_id, epoch = producer.id, producer.epoch
    for wrong in (epoch - 1, epoch - 2, epoch + 5):
        producer.epoch = wrong
        assert await producer.end(version=version) == fenced
        assert await producer.end(version=version, commit=False) == fenced
        if version in ADD_PARTITIONS_TO_TXN.advertised:
            assert await producer.add((topic, 0), version=version) == fenced
        if version in ADD_OFFSETS_TO_TXN.versions:
            assert await producer.add_offsets("g", version=version) == fenced
    producer.id, producer.epoch = producer_id + 1000, epoch
    assert await producer.end(version=version) == E.INVALID_PRODUCER_ID_MAPPING
    if version in ADD_PARTITIONS_TO_TXN.advertised:
        assert await producer.add((topic, 0), version=version) == E.INVALID_PRODUCER_ID_MAPPING
    if version in ADD_OFFSETS_TO_TXN.versions:
        code = await producer.add_offsets("g", version=version)
        assert code == E.INVALID_PRODUCER_ID_MAPPING


async def test_an_id_that_was_never_initialized(client, topic):
    """Row 1."""
    producer = TransactionalProducer(client, f"never-{next(NAMES)}")
    producer.id, producer.epoch = 1, 0

    for version in END_TXN.versions:
        for commit in (True, False):
            code = await producer.end(version=version, commit=commit)
            assert code == E.INVALID_PRODUCER_ID_MAPPING
    for version in ADD_PARTITIONS_TO_TXN.advertised:
        assert await producer.add((topic, 0), version=version) == E.INVALID_PRODUCER_ID_MAPPING
    for version in ADD_OFFSETS_TO_TXN.versions:
        code = await producer.add_offsets("g", version=version)
        assert code == E.INVALID_PRODUCER_ID_MAPPING
    assert (await describe(client, producer.transactional_id)).error_code == 105


async def test_an_empty_transactional_id(client, topic):
    producer = TransactionalProducer(client, "")
    producer.id, producer.epoch = 1, 0

    assert await producer.end() == E.INVALID_REQUEST
    assert await producer.add((topic, 0)) == E.INVALID_REQUEST
    assert await producer.add_offsets("g") == E.INVALID_REQUEST
    assert await producer.commit_offset("g", (topic, 0), 1) == E.INVALID_REQUEST


@pytest.mark.parametrize("version", [4, 5])
async def test_offsets_of_an_unknown_topic_begin_no_transaction(client, producer, version):
    code = await producer.commit_offset("g", ("missing", 0), 1, version=version)

    assert code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert (await describe(client, producer.transactional_id)).transaction_state == "Empty"


async def test_an_unknown_topic_keeps_all_partitions_out(client, topic, producer):
    """Row 4."""
    codes = await producer.try_add((topic, 0), ("missing", 0), (topic, 7))

    assert codes == {(topic, 0): 55, ("missing", 0): 3, (topic, 7): 3}
    assert (await describe(client, producer.transactional_id)).transaction_state == "Empty"


async def test_internal_topics_are_not_added_by_clients(producer, topic):
    codes = await producer.try_add((OFFSETS_TOPIC, 0), (topic, 0))

    assert codes == {(OFFSETS_TOPIC, 0): E.TOPIC_AUTHORIZATION_FAILED, (topic, 0): 55}


async def test_partitions_that_are_in_already_cost_no_record(broker, topic, producer):
    """Row 6."""
    assert await producer.add((topic, 0), (topic, 1)) == E.NONE
    log = broker.transactions.shard_of(producer.transactional_id).partition.log
    end = log.end_offset

    assert await producer.add((topic, 1)) == E.NONE
    assert log.end_offset == end


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, 48), (10, 48), (11, 120), (12, 0), (13, 0)],
)
async def test_produce_to_a_partition_that_was_not_added(client, topic, producer, version, code):
    """Row 7."""
    assert await producer.add((topic, 1)) == E.NONE

    assert await producer.produce(topic, 0, version=version) == code
    state = await describe(client, producer.transactional_id)
    assert list(state.topics[0].partitions) == ([1] if code else [0, 1])


async def test_a_transactional_batch_without_a_transactional_id(topic, producer):
    """Row 8."""
    assert await producer.add((topic, 0)) == E.NONE
    for version in (3, 11, 12, 13):
        code = await producer.produce(topic, named=False, version=version)
        assert code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_two_producer_ids_in_one_request(client, topic, producer):
    assert await producer.add((topic, 0), (topic, 1)) == E.NONE
    data = [
        PartitionProduceData(
            index=index,
            records=a_batch(
                producer_id=producer.id + index,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            ),
        )
        for index in (0, 1)
    ]
    request = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    response = await client.request(request, 11)

    assert {part.error_code for part in response.responses[0].partition_responses} == {49}


async def test_a_plain_batch_while_the_transaction_is_open(topic, producer):
    """Row 9."""
    assert await producer.add((topic, 0)) == E.NONE
    assert await producer.produce(topic) == E.NONE

    assert await producer.produce(topic, transactional=False) == E.INVALID_TXN_STATE


@pytest.mark.parametrize("end_version", [1, 4])
async def test_a_second_instance_fences_the_first(client, topic, producer, end_version):
    """Rows 10, 11 and 12."""
    transactional_id = producer.transactional_id
    epoch = producer.epoch
    assert await producer.add((topic, 0)) == E.NONE
    assert await producer.produce(topic) == E.NONE

    assert await init(client, transactional_id) == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    await until_complete(client, producer)
    # While the first instance is one epoch behind.
    assert (await producer.try_end(version=5)).error_code == E.INVALID_TXN_STATE
    assert await init(client, transactional_id) == (E.NONE, producer.id, epoch + 2)

    for version in (3, 10, 11, 12, 13):
        assert await producer.produce(topic, version=version) == E.INVALID_PRODUCER_EPOCH
        assert await producer.produce(topic, 1, version=version) == E.INVALID_PRODUCER_EPOCH
    fenced = E.PRODUCER_FENCED if end_version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert await producer.end(version=end_version) == fenced
    assert await producer.add((topic, 0)) == E.PRODUCER_FENCED
    assert (await producer.try_end(version=5)).error_code == E.PRODUCER_FENCED
    assert await values(client, topic) == []


async def test_a_timeout_aborts_and_fences(broker, client, topic, producer):
    """Row 13."""
    epoch = producer.epoch
    assert await producer.add((topic, 0)) == E.NONE
    assert await producer.produce(topic) == E.NONE
    timed_out = broker.transactions.count_timed_out()

    time_out(broker, producer)
    await until_complete(client, producer)

    assert broker.transactions.count_timed_out() == timed_out + 1
    assert await values(client, topic) == []
    assert await producer.produce(topic) == E.INVALID_PRODUCER_EPOCH
    assert await producer.add((topic, 0)) == E.PRODUCER_FENCED
    assert await producer.end(version=4) == E.PRODUCER_FENCED
    assert await producer.end(commit=True, version=5) == E.INVALID_TXN_STATE
    assert await producer.end(commit=False, version=5) == E.NONE
    assert producer.epoch == epoch + 1


async def test_a_producer_comes_back_after_a_timeout(broker, client, topic, producer):
    assert await producer.add((topic, 0)) == E.NONE
    time_out(broker, producer)
    await until_complete(client, producer)

    again = await init(client, producer.transactional_id, (producer.id, producer.epoch))
    assert again == (E.NONE, producer.id, producer.epoch + 1)


async def test_a_commit_is_retried_in_version_1(topic, producer):
    """Row 14."""
    assert await producer.add((topic, 0)) == E.NONE
    assert await producer.end() == E.NONE
    assert await producer.end() == E.NONE
    assert await producer.end(commit=False) == E.INVALID_TXN_STATE


async def test_a_commit_is_retried_in_version_2(topic, producer):
    """Rows 15 and 16."""
    assert await producer.produce(topic, version=12) == E.NONE
    first = await producer.try_end(version=5)
    second = await producer.try_end(version=5)

    assert first == second
    assert (first.error_code, first.producer_epoch) == (E.NONE, producer.epoch + 1)
    following = TransactionalProducer(producer.client, producer.transactional_id)
    following.id, following.epoch = producer.id, producer.epoch + 1
    assert await following.produce(topic, version=12) == E.NONE
    assert await producer.end(version=5) == E.PRODUCER_FENCED


async def test_sequences_inside_a_transaction(client, topic, producer):
    """Rows 18 and 19."""
    assert await producer.add((topic, 0)) == E.NONE
    first = await producer.try_produce(topic, sequence=0)
    again = await producer.try_produce(topic, sequence=0)
    assert (again.error_code, again.base_offset) == (E.NONE, first.base_offset)

    assert await producer.produce(topic, sequence=5) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await producer.end(version=5) == E.NONE
    code = await producer.produce(topic, sequence=3, version=12)
    assert code == E.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_init_with_the_current_epoch(client, producer):
    """Row 20."""
    expected = (producer.id, producer.epoch)
    for _ in range(2):
        code, producer_id, epoch = await init(client, producer.transactional_id, expected)
        assert (code, producer_id, epoch) == (E.NONE, producer.id, producer.epoch + 1)


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
async def test_init_with_another_epoch(client, producer, version, code):
    """Row 21."""
    await producer.init()
    await producer.init()
    for expected in [
        (producer.id, producer.epoch - 2),
        (producer.id, producer.epoch + 7),
        (producer.id + 1000, 0),
    ]:
        answer = await init(client, producer.transactional_id, expected, version=version)
        assert answer == (code, -1, -1)


@pytest.mark.parametrize("version", [3, 5])
async def test_init_with_half_of_a_producer(client, producer, version):
    for half in [(producer.id, -1), (-1, producer.epoch)]:
        answer = await init(client, producer.transactional_id, half, version=version)
        assert answer == (E.INVALID_REQUEST, -1, -1)
    assert (await describe(client, producer.transactional_id)).producer_epoch == producer.epoch


async def test_init_of_an_unknown_id_ignores_the_epoch(client):
    """Row 22."""
    code, producer_id, epoch = await init(client, f"new-{next(NAMES)}", (7, 3))
    assert (code, epoch) == (E.NONE, 0)
    assert producer_id != 7


@pytest.mark.parametrize("transactional_id", ["", "x" * 32_768])
async def test_init_with_an_invalid_transactional_id(client, transactional_id):
    assert await init(client, transactional_id) == (E.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_init_with_an_invalid_timeout(client, timeout_ms):
    code, *_rest = await init(client, "timeouts", timeout_ms=timeout_ms)
    assert code == E.INVALID_TRANSACTION_TIMEOUT


# Epochs at their end.


async def test_exhausted_epochs_take_a_new_producer_id(broker, client, producer):
    old_id = producer.id
    put_state(broker, producer, producer_epoch=32_766)

    code, new_id, epoch = await init(client, producer.transactional_id, (old_id, 32_766))
    assert (code, epoch) == (E.NONE, 0)
    assert new_id != old_id
    # The reply was lost.
    again = await init(client, producer.transactional_id, (old_id, 32_766))
    assert again == (E.NONE, new_id, 0)


async def test_exhausted_epochs_at_the_end_of_a_transaction(broker, client, topic, producer):
    old_id = producer.id
    put_state(broker, producer, producer_epoch=32_766)
    producer.epoch = 32_766
    assert await producer.produce(topic, version=12) == E.NONE

    response = await producer.try_end(version=5)
    assert (response.error_code, response.producer_epoch) == (E.NONE, 0)
    assert response.producer_id != old_id
    assert await producer.try_end(version=5) == response
    assert await values(client, topic) == [b"value"]
    producer.id, producer.epoch = response.producer_id, 0
    producer.sequences.clear()
    assert await producer.produce(topic, version=12) == E.NONE
    assert await producer.end(version=5) == E.NONE


async def test_the_last_epoch_is_not_handed_out_after_a_timeout(broker, client, topic, producer):
    old_id = producer.id
    put_state(broker, producer, producer_epoch=32_766)
    producer.epoch = 32_766
    assert await producer.produce(topic, version=12) == E.NONE
    time_out(broker, producer)
    await until_complete(client, producer)

    response = await producer.try_end(commit=False, version=5)
    assert (response.error_code, response.producer_epoch) == (E.NONE, 0)
    assert response.producer_id != old_id
    assert await producer.try_end(commit=False, version=5) == response


# Offsets.


@pytest.mark.parametrize(("version", "code"), [(0, 48), (3, 48), (4, 120), (5, 0)])
async def test_offsets_without_add_offsets(topic, producer, version, code):
    """Row 23."""
    assert await producer.add((topic, 0)) == E.NONE
    group = f"group-{next(NAMES)}"
    assert await producer.commit_offset(group, (topic, 0), 5, version=version) == code


@pytest.mark.parametrize("version", [0, 3, 4, 5])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_offsets_take_effect_with_the_commit(client, topic, producer, version, commit):
    """Rows 24 and 25."""
    group = f"group-{next(NAMES)}"
    tp = (topic, 0)
    assert await group_requests.commit(client, group, {tp: 3}) == {tp: E.NONE}
    if version < 5:
        assert await producer.add_offsets(group) == E.NONE
    assert await producer.commit_offset(group, tp, 20, version=version) == E.NONE

    assert await fetched(client, group, tp) == (3, E.NONE)
    assert await fetched(client, group, tp, stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    assert await producer.end(commit=commit) == E.NONE
    assert await fetched(client, group, tp, stable=True) == (20 if commit else 3, E.NONE)


async def test_a_plain_commit_meanwhile_wins(client, topic, producer):
    """Row 26."""
    group, tp = f"group-{next(NAMES)}", (topic, 0)
    assert await producer.commit_offset(group, tp, 20, version=5) == E.NONE
    assert await group_requests.commit(client, group, {tp: 25}) == {tp: E.NONE}
    assert await fetched(client, group, tp, stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)

    assert await producer.end(version=5) == E.NONE
    assert await fetched(client, group, tp, stable=True) == (25, E.NONE)


async def test_a_deleted_group_does_not_come_back(client, topic, producer):
    """Row 27."""
    group, tp = f"group-{next(NAMES)}", (topic, 0)
    assert await producer.commit_offset(group, tp, 20, version=5) == E.NONE
    assert await group_requests.delete(client, group) == {group: E.NONE}

    assert await producer.end(version=5) == E.NONE
    assert await fetched(client, group, tp) == (-1, E.NONE)
    assert await group_requests.delete(client, group) == {group: E.GROUP_ID_NOT_FOUND}


async def test_the_member_checks_of_offsets(client, topic, producer):
    group, tp = f"group-{next(NAMES)}", (topic, 0)
    code = await producer.commit_offset(group, tp, 1, version=5, member=("", 3))
    assert code == E.ILLEGAL_GENERATION
    # The group was added to the transaction before.
    assert (await describe(client, producer.transactional_id)).transaction_state == "Ongoing"
    producer.epoch += 1
    assert await producer.commit_offset(group, tp, 1, version=3) == E.INVALID_PRODUCER_EPOCH
    producer.id += 1000
    code = await producer.commit_offset(group, tp, 1, version=3)
    assert code == E.INVALID_PRODUCER_ID_MAPPING


async def fetched(client, group, tp, *, stable=False):
    """Return the committed offset of a partition, and the error code."""
    topics = [OffsetFetchRequestTopics(name=tp[0], partition_indexes=[tp[1]])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
    )
    (topic,) = (await client.request(request, 9)).groups[0].topics
    return topic.partitions[0].committed_offset, topic.partitions[0].error_code


# Markers.


async def test_markers_of_an_older_coordinator_or_producer(client, topic, producer):
    """Rows 28, 29 and 30."""
    await producer.init()
    tp = (topic, 0)
    assert await producer.add(tp) == E.NONE
    assert await producer.produce(topic) == E.NONE
    current = (producer.id, producer.epoch)

    for end_offset in (2, 3):  # The second one is appended too, and changes nothing else.
        assert await write_markers(client, tp, producer=current, coordinator_epoch=7) == [E.NONE]
        (data,) = fetched_partitions(
            await client.request(fetch_request(0, topic=topic, isolation_level=1))
        )
        assert (data.high_watermark, data.last_stable_offset) == (end_offset, end_offset)
        assert [entry.first_offset for entry in data.aborted_transactions] == [0]
    older = await write_markers(client, tp, producer=current, coordinator_epoch=6)
    assert older == [E.TRANSACTION_COORDINATOR_FENCED]
    stale = (producer.id, producer.epoch - 1)
    code = await write_markers(client, tp, producer=stale, coordinator_epoch=7)
    assert code == [E.INVALID_PRODUCER_EPOCH]
    assert await write_markers(
        client, ("missing", 0), (topic, 1), producer=current, coordinator_epoch=7
    ) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]


@pytest.mark.parametrize("name", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
async def test_clients_cannot_produce_to_internal_topics(client, name):
    """Row 31."""
    response = await client.request(produce_request(a_batch(), topic=name))
    (result,) = response.responses[0].partition_responses
    assert result.error_code == E.INVALID_TOPIC_EXCEPTION
    (data,) = fetched_partitions(await client.request(fetch_request(0, topic=name)))
    assert data.error_code == E.NONE


async def test_a_deleted_topic_does_not_hold_up_the_rest(client, topic, producer):
    """Row 35."""
    other = f"topic-{next(NAMES)}"
    await create_topic(client, other)
    assert await producer.add((topic, 0), (other, 0)) == E.NONE
    assert await producer.produce(topic) == E.NONE
    assert await producer.produce(other) == E.NONE
    assert (await try_delete_topic(client, other))[0] == E.NONE

    assert await producer.end() == E.NONE
    assert await values(client, topic) == [b"value"]
    state = await describe(client, producer.transactional_id)
    assert state.transaction_state == "CompleteCommit"


async def test_an_idle_id_expires(broker, client, topic, producer):
    """Row 38."""
    put_state(broker, producer, last_update_ms=0)
    broker.transactions.remove_expired()

    async def is_gone():
        return (await describe(client, producer.transactional_id)).error_code == 105

    await eventually(is_gone)
    assert await producer.end() == E.INVALID_PRODUCER_ID_MAPPING
    code, producer_id, epoch = await init(
        client, producer.transactional_id, (producer.id, producer.epoch)
    )
    assert (code, epoch) == (E.NONE, 0)
    assert producer_id != producer.id


async def test_an_unused_id_is_removed_when_memory_is_exhausted(broker, client, producer):
    """Housekeeping does it: without room, other producers and groups would be refused."""
    put_state(broker, producer, last_update_ms=broker.now_ms() - 61_000)
    await broker.housekeeping.evict_transactional_ids()
    assert (await describe(client, producer.transactional_id)).error_code == E.NONE

    async def is_gone():
        code = (await describe(client, producer.transactional_id)).error_code
        return code == E.TRANSACTIONAL_ID_NOT_FOUND

    exhausted, usual = "1024", str(broker.config.broker_memory_max_bytes)
    name = "broker.memory.max.bytes"
    assert (await try_alter_configs(client, 4, str(broker.id), {name: exhausted}))[0] == E.NONE
    try:
        await eventually(is_gone)
    finally:
        await try_alter_configs(client, 4, str(broker.id), {name: usual})


# Between brokers.


@pytest.mark.parametrize("version", [4, 5])
async def test_verification_between_brokers(client, topic, producer, version):
    assert await producer.add((topic, 0)) == E.NONE

    async def ask(epoch=producer.epoch, *, verify_only=True):
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=producer.transactional_id,
            producer_id=producer.id,
            producer_epoch=epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        (result,) = (await client.request(request, version)).results_by_transaction
        return [part.partition_error_code for part in result.topic_results[0].results_by_partition]

    assert await ask() == [0, 120]
    assert await ask(epoch=5) == [90, 90]
    assert await ask(verify_only=False) == [0, 0]
    assert await ask() == [0, 0]


# Queries.


async def test_describe_and_list(client, topic, producer):
    state = await describe(client, producer.transactional_id)
    assert (state.transaction_state, state.transaction_start_time_ms) == ("Empty", -1)
    assert state.transaction_timeout_ms == 60_000
    assert await producer.add((topic, 1), (topic, 0)) == E.NONE
    state = await describe(client, producer.transactional_id)
    assert [(one.topic, list(one.partitions)) for one in state.topics] == [(topic, [0, 1])]
    assert state.transaction_start_time_ms > 0
    assert (await describe(client, "")).error_code == E.INVALID_REQUEST

    async def listed(**filters):
        request = ListTransactionsRequest(**filters)
        response = await client.request(request)
        ids = {one.transactional_id for one in response.transaction_states}
        return producer.transactional_id in ids, list(response.unknown_state_filters)

    assert await listed() == (True, [])
    assert await listed(state_filters=["Ongoing", "Nothing"]) == (True, ["Nothing"])
    assert await listed(state_filters=["Empty"]) == (False, [])
    assert await listed(producer_id_filters=[producer.id]) == (True, [])
    assert await listed(producer_id_filters=[producer.id + 1000]) == (False, [])
    assert await listed(duration_filter=60_000) == (False, [])
    pattern = f"{producer.transactional_id[:-1]}."
    assert await listed(transactional_id_pattern=pattern) == (True, [])
    assert await listed(transactional_id_pattern=pattern[:-1]) == (False, []), "the whole id"
    invalid = await client.request(ListTransactionsRequest(transactional_id_pattern="("))
    assert invalid.error_code == E.INVALID_REGULAR_EXPRESSION


# Restarts.


async def test_transactions_survive_a_restart(tmp_path):
    """Rows 32, 33 and 34."""
    group, tp = "g", ("t", 0)
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t")
        await find_coordinator(client, "any")
        await group_requests.find(client, group)
        await group_requests.commit(client, group, {tp: 1})
        open_one, decided = (TransactionalProducer(client, name) for name in ("open", "decided"))
        for one in (open_one, decided):
            await one.init()
            assert await one.produce("t", version=12, value=one.transactional_id.encode()) == 0
            assert await one.commit_offset(group, tp, 20 + one.id, version=5) == E.NONE
        # Decided, but the broker stops before it writes the markers.
        broker.transactions.markers.stop()
        assert await decided.end() == E.NONE
        assert metadata_of(broker, decided).state is State.PREPARE_COMMIT
        # Row 14.
        assert await decided.end() == E.CONCURRENT_TRANSACTIONS
        assert await decided.end(commit=False) == E.INVALID_TXN_STATE
        before = await describe(client, open_one.transactional_id)
        (data,) = fetched_partitions(await client.request(fetch_request(0, isolation_level=1)))
        stable_offset = data.last_stable_offset

    async with broker_and_client(tmp_path) as (broker, client):
        open_one.client = decided.client = client
        await until_complete(client, decided)
        assert await decided.end() == E.NONE
        after = await describe(client, open_one.transactional_id)
        assert after == before
        assert after.transaction_state == "Ongoing"
        (data,) = fetched_partitions(await client.request(fetch_request(0, isolation_level=1)))
        assert data.last_stable_offset == stable_offset == 0
        # The open transaction is the first one in the log.
        assert await values(client, "t") == []
        assert await fetched(client, group, tp) == (20 + decided.id, E.NONE)
        assert await fetched(client, group, tp, stable=True) == (-1, 88)

        assert await open_one.end(commit=False) == E.NONE
        assert await values(client, "t") == [b"decided"]
        assert await fetched(client, group, tp, stable=True) == (20 + decided.id, E.NONE)


async def test_a_timeout_counts_from_before_a_restart(tmp_path):
    """Row 33."""
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await find_coordinator(client, "any")
        producer = TransactionalProducer(client, "short")
        await producer.init(timeout_ms=100)
        assert await producer.produce("t", version=12) == E.NONE
        begun = (await describe(client, "short")).transaction_start_time_ms

    async with broker_and_client(tmp_path) as (broker, client):
        await eventually(lambda: not broker.transactions.is_loading)
        assert (await describe(client, "short")).transaction_start_time_ms == begun

        async def is_past():
            return broker.now_ms() > begun + 100

        await eventually(is_past)
        broker.transactions.abort_timed_out()
        await until_complete(client, producer)
        assert await values(client, "t") == []


async def test_pending_offsets_survive_a_restart(tmp_path):
    plain, deleted, aborted, tp = "plain", "deleted", "aborted", ("t", 0)
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await find_coordinator(client, "any")
        await group_requests.find(client, "any")
        producer, loser = (TransactionalProducer(client, name) for name in ("one", "two"))
        await producer.init()
        await loser.init()
        await group_requests.commit(client, aborted, {tp: 3})
        for group in (plain, deleted, "committed"):
            assert await producer.commit_offset(group, tp, 20, version=5) == E.NONE
        assert await loser.commit_offset(aborted, tp, 20, version=5) == E.NONE
        await group_requests.commit(client, plain, {tp: 25})
        assert await group_requests.delete(client, deleted) == {deleted: E.NONE}

    for ends in (False, True, True):
        async with broker_and_client(tmp_path) as (broker, client):
            await eventually(lambda broker=broker: not broker.groups.is_loading)
            await eventually(lambda broker=broker: not broker.transactions.is_loading)
            producer.client = loser.client = client
            if ends and producer.epoch == 0:
                assert await producer.end(version=5) == E.NONE
                assert await loser.end(commit=False, version=5) == E.NONE
            is_open = producer.epoch == 0
            assert await fetched(client, plain, tp) == (25, E.NONE)
            assert await fetched(client, aborted, tp) == (3, E.NONE)
            assert await fetched(client, deleted, tp) == (-1, E.NONE)
            assert await fetched(client, "committed", tp) == (-1 if is_open else 20, E.NONE)
            unstable = (-1, E.UNSTABLE_OFFSET_COMMIT)
            expected = unstable if is_open else (25, E.NONE)
            assert await fetched(client, plain, tp, stable=True) == expected


async def test_the_number_of_transactional_ids_is_bounded(tmp_path):
    async with broker_and_client(tmp_path, {"broker.max.transactional.ids": "2"}) as (_, client):
        await find_coordinator(client, "any")
        codes = [(await init(client, f"id-{number}"))[0] for number in range(3)]
        assert codes == [E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE]


async def test_requests_before_the_topic_exists_get_coordinator_not_available(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        assert (await init(client, "id"))[0] == E.COORDINATOR_NOT_AVAILABLE
        await create_topic(client, "t")
        producer = TransactionalProducer(client, "id")
        producer.id, producer.epoch = 5, 0
        assert await producer.produce("t") == E.NOT_ENOUGH_REPLICAS
        assert broker.transactions.size_bytes() == 0
