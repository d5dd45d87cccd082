"""InitProducerId: producer ids are never reused."""

import asyncio
import logging

import pytest

from harness.brokers import broker_and_client
from harness.group_requests import find
from harness.wire import connect
from ottla.broker.observability import logging as logging_module
from ottla.broker.observability.logging import RateLimiter
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import INIT_PRODUCER_ID


async def init_producer_id(client, transactional_id=None, version=5, **fields):
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=-1, **fields
    )
    return await client.request(request, version)


@pytest.mark.parametrize("version", [*INIT_PRODUCER_ID.versions])
async def test_each_request_returns_a_new_producer_id(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        responses = [await init_producer_id(client, version=version) for _ in range(3)]

        assert {response.error_code for response in responses} == {ErrorCode.NONE}
        assert {response.producer_epoch for response in responses} == {0}
        ids = {response.producer_id for response in responses}
        assert len(ids) == 3
        assert min(ids) > 0  # Some clients take 0 for no producer id.


async def test_a_request_with_a_producer_id_returns_another_one(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        first = await init_producer_id(client)

        second = await init_producer_id(client, producer_id=first.producer_id, producer_epoch=0)

        assert second.producer_id != first.producer_id
        assert second.producer_epoch == 0


async def test_producer_ids_are_unique_across_clients_and_restarts(tmp_path):
    ids = []
    for _ in range(3):
        async with (
            broker_and_client(tmp_path) as (broker, client),
            connect(broker.address) as other_client,
        ):
            for _ in range(5):
                responses = await asyncio.gather(
                    init_producer_id(client), init_producer_id(other_client)
                )
                ids += [response.producer_id for response in responses]

    assert len(set(ids)) == len(ids) == 30


async def test_an_empty_transactional_id_is_refused(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        response = await init_producer_id(client, transactional_id="")

        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert (response.producer_id, response.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 5), (7, -1)])
async def test_a_producer_id_without_an_epoch_or_the_reverse_is_refused(
    tmp_path, producer_id, epoch
):
    async with broker_and_client(tmp_path) as (_broker, client):
        response = await init_producer_id(client, producer_id=producer_id, producer_epoch=epoch)

        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.producer_id == -1


async def test_a_transactional_id_that_is_refused_is_logged(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging_module, "_RATE_LIMITER", RateLimiter(10, window_seconds=10))
    caplog.set_level(logging.INFO)
    async with broker_and_client(tmp_path) as (_broker, client):
        # A coordinator that is being loaded refuses nothing: clients try again.
        await find(client, "payments", kind=1)
        response = await init_producer_id(client, "payments")

    assert response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    (record,) = [one for one in caplog.records if one.message == "Transactional id refused"]
    assert (record.levelname, record.transactional_id) == ("INFO", "payments")
    assert record.reason == "INVALID_TRANSACTION_TIMEOUT"
