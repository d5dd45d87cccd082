"""What failed requests leave in the log: little, whatever the client chose."""

import io
import logging

import pytest

from harness.brokers import broker_and_client
from ottla.broker.observability.logging import TextFormatter
from ottla.protocol.api.list_groups import ListGroupsRequest
from ottla.protocol.codec import encode_request
from ottla.protocol.registry import LIST_GROUPS


@pytest.fixture
def log():
    """The broker's log, formatted as the daemon does it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def _fail(_broker, _context, _request):
    raise RuntimeError("a bug")


async def test_failed_requests_with_huge_client_ids_write_little(tmp_path, log):
    async with broker_and_client(tmp_path) as (broker, client):
        broker.dispatcher._handlers[LIST_GROUPS.key] = _fail
        for number in range(300):
            client.writer.writelines(
                encode_request(ListGroupsRequest(), 5, number, "\u2603" * 10_000)
            )
            await client.frame()

    # Ten in ten seconds, but other tests may have had some of these.
    assert log.getvalue().count("Request failed") <= 20
    assert len(log.getvalue()) < 100_000


def test_long_values_are_truncated():
    fields = {"name": "ottla.coord", "msg": "Group %s failed", "args": ("g" * 30_000,)}
    record = logging.makeLogRecord({**fields, "client_id": "c" * 30_000})

    assert len(TextFormatter().format(record)) < 5000
