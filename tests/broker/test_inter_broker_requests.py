"""Requests between brokers: no client can send them in the name of a broker."""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from harness.daemon import free_ports
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.api.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.api.broker_registration import BrokerRegistrationRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.errors import ErrorCode

SESSION_MS = 300


@asynccontextmanager
async def a_controller(tmp_path):
    """Run broker 0 of a cluster of two with two listeners; yield it, and its addresses by name."""
    first = free_ports(4)
    internal, external = f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"
    brokers = (
        f"0@INTERNAL://{internal},0@EXTERNAL://{external},"
        f"1@INTERNAL://127.0.0.1:{first + 2},1@EXTERNAL://127.0.0.1:{first + 3}"
    )
    config = BrokerConfig(
        log_dir=str(tmp_path), cluster_brokers=brokers, broker_session_timeout_ms=SESSION_MS
    )
    async with Broker(config) as broker:
        yield broker, internal, external


def fetch_as_broker(replica_id=1):
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    topics = [FetchTopic(topic="__cluster_metadata", partitions=[partition])]
    return FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=topics)


def registration(broker, incarnation, **fields):
    return BrokerRegistrationRequest(
        broker_id=1, cluster_id=broker.cluster_id, incarnation_id=incarnation, **fields
    )


def fetch_by_id_as_broker(replica_id=1):
    request = fetch_as_broker(-1)
    request.topics[0].topic_id = UUID(int=1)  # As in Kafka.
    request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=3)
    return request


async def fetched(client, request, version=12):
    (data,) = (await client.request(request, version)).responses[0].partitions
    return data


async def test_a_client_cannot_act_as_a_broker(tmp_path):
    async with a_controller(tmp_path) as (broker, internal, external):
        next_id = broker.topics.image.next_producer_id
        await asyncio.sleep(SESSION_MS / 1000)  # The initial session of broker 1 ends.
        for address in (internal, external):
            async with connect(address) as client:
                for replica_id in (0, 1, 7, -3):
                    for request, version in (
                        (fetch_as_broker(replica_id), 12),
                        (fetch_by_id_as_broker(replica_id), 18),
                    ):
                        data = await fetched(client, request, version)
                        assert data.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                        assert not data.records
                answer = await client.request(
                    AllocateProducerIdsRequest(broker_id=1, broker_epoch=0), 0
                )
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        async with connect(external) as client:
            answer = await client.request(registration(broker, uuid4()), 0)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert broker.topics.image.next_producer_id == next_id
        assert broker.cluster.alive == {0}


async def test_a_registered_connection_acts_as_its_broker(tmp_path):
    async with a_controller(tmp_path) as (broker, internal, _external), connect(internal) as client:
        registered = await client.request(registration(broker, uuid4(), leader_epoch=4), 0)

        assert registered.error_code == ErrorCode.NONE
        assert registered.leader_epoch == 4
        assert (await fetched(client, fetch_as_broker())).records
        assert (await fetched(client, fetch_by_id_as_broker(), 18)).records
        assert broker.cluster.alive == {0, 1}
        stale = AllocateProducerIdsRequest(broker_id=1, broker_epoch=registered.broker_epoch - 1)
        assert (await client.request(stale, 0)).error_code == ErrorCode.STALE_BROKER_EPOCH
        current = AllocateProducerIdsRequest(broker_id=1, broker_epoch=registered.broker_epoch)
        assert (await client.request(current, 0)).error_code == ErrorCode.NONE


async def test_one_process_is_registered_per_broker_id(tmp_path):
    first, second = uuid4(), uuid4()
    async with (
        a_controller(tmp_path) as (broker, internal, _external),
        connect(internal) as client,
        connect(internal) as rival,
    ):
        before = await client.request(registration(broker, first), 0)
        await fetched(client, fetch_as_broker())

        refused = await rival.request(registration(broker, second), 0)

        assert refused.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        again = await rival.request(registration(broker, first), 0)
        assert (again.error_code, again.leader_epoch) == (ErrorCode.NONE, before.leader_epoch)
        # A process that hangs loses its session, and then its registration.
        await asyncio.sleep(SESSION_MS / 1000 * 1.5)
        taken = await rival.request(registration(broker, second), 0)
        assert taken.leader_epoch == before.leader_epoch + 1
        data = await fetched(client, fetch_as_broker())
        assert data.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_reported_producer_ids_are_not_allocated_again(tmp_path):
    async with a_controller(tmp_path) as (broker, internal, _external), connect(internal) as client:
        reported = broker.topics.image.next_producer_id + 10_000

        await client.request(registration(broker, uuid4(), next_producer_id=reported), 0)

        assert await broker.producer_ids.generate() >= reported


async def test_a_broker_with_metadata_of_another_log_is_not_registered(tmp_path):
    async with a_controller(tmp_path) as (broker, internal, _external), connect(internal) as client:
        image, end_offset = broker.topics.image, broker.topics.metadata_log.end_offset
        (number,) = image.epochs
        epoch_id = image.epochs[number].id
        for epoch, epoch_uuid, offset, expected in (
            (number, epoch_id, end_offset + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (number, uuid4(), 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (number + 1, epoch_id, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (number, epoch_id, end_offset, ErrorCode.NONE),
        ):
            request = registration(
                broker,
                uuid4(),
                metadata_offset=offset,
                metadata_epoch=epoch,
                metadata_epoch_id=epoch_uuid,
            )
            assert (await client.request(request, 0)).error_code == expected
