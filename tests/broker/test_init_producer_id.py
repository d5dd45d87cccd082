"""InitProducerId: numbers that nobody was ever given."""

import asyncio

import pytest

from harness.brokers import broker_and_client
from harness.wire import connect
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import INIT_PRODUCER_ID


async def ask(client, transactional_id=None, version=5, **known):
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=-1, **known
    )
    return await client.request(request, version)


@pytest.mark.parametrize("version", [*INIT_PRODUCER_ID.versions])
async def test_every_version_gives_a_new_id_each_time(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        answers = [await ask(client, version=version) for _ in range(3)]

        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        assert {answer.producer_epoch for answer in answers} == {0}
        ids = {answer.producer_id for answer in answers}
        assert len(ids) == 3
        assert min(ids) > 0  # which some clients take for "none"


async def test_a_producer_that_had_an_id_gets_another(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        first = await ask(client)

        second = await ask(client, producer_id=first.producer_id, producer_epoch=0)

        assert second.producer_id != first.producer_id
        assert second.producer_epoch == 0


async def test_no_id_is_given_twice_whoever_asks_and_whenever_the_broker_started(tmp_path):
    given = []
    for _ in range(3):
        async with broker_and_client(tmp_path) as (broker, one), connect(broker.address) as other:
            for _ in range(5):
                answers = await asyncio.gather(ask(one), ask(other))
                given += [answer.producer_id for answer in answers]

    assert len(set(given)) == len(given) == 30


async def test_there_are_no_transactions_and_the_broker_s_log_says_so(tmp_path, caplog):
    async with broker_and_client(tmp_path) as (_broker, client):
        empty = await ask(client, transactional_id="")
        some = await ask(client, transactional_id="mine")

        assert empty.error_code == ErrorCode.INVALID_REQUEST
        assert some.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (some.producer_id, some.producer_epoch) == (-1, -1)
        [record] = caplog.records
        assert "Transactions are not supported" in record.message
        assert (record.transactional_id, record.api) == ("mine", "InitProducerId")
