"""The scrubber: damage in sealed segments is reported once, and a pass survives a restart."""

import asyncio
import json
import logging

import pytest

from harness.brokers import add_topic, broker_and_client
from harness.logs import a_batch
from harness.metrics import collected, sample
from ottla.broker.partitions.scrubber import STATE_FILE
from ottla.storage.errors import CompactionStoppedError

#: Housekeeping's own pass is not due in the tests, which run the scrubber themselves.
CONFIGS = {"log.scrub.interval.ms": "3600000", "log.scrub.bytes.per.second": "1000000000"}


async def fill(broker, topic="t", count=60):
    await add_topic(broker, topic, segment_bytes="2000")
    log = broker.topics.find(topic, 0).log
    for _ in range(count):
        log.append(a_batch(3), leader_epoch=0, now_ms=broker.now_ms())
    return log


def flip(log, index=1, position=100):
    path = log.segments[index].path(".log")
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    return path


def start_over(scrubber):
    scrubber._started_ms = 0


def damage_lines(caplog):
    return [line for line in caplog.records if line.levelno == logging.ERROR]


@pytest.fixture
def no_automatic_pass(monkeypatch):
    """Housekeeping does not check for due passes during a test."""
    monkeypatch.setattr("ottla.broker.partitions.housekeeping._SCRUB_CHECK_MS", 3_600_000)


pytestmark = pytest.mark.usefixtures("no_automatic_pass")


async def test_damage_is_logged_once_and_counted(tmp_path, caplog):
    async with broker_and_client(tmp_path, CONFIGS) as (broker, _client):
        log = await fill(broker)
        await fill(broker, "u")
        scrubber = broker.housekeeping.scrubber
        await scrubber.run_if_due()
        assert scrubber.damage_count == 0
        assert scrubber.verified_bytes >= sum(segment.size for segment in log.segments[:-1]) * 2
        assert scrubber.last_pass_ms > 0
        path = flip(log)
        for _ in range(2):
            start_over(scrubber)
            await scrubber.run_if_due()
        [line] = damage_lines(caplog)
        assert (line.file, line.position, line.size) == (str(path), 0, 112)
        first = log.segments[1].base_offset
        assert (line.first_offset, line.last_offset) == (first, first + 2)
        assert scrubber.damage_count == 1
        samples = collected(broker)
        assert samples[sample("ottla_damaged_ranges")] == 1
        assert samples[sample("ottla_scrub_last_pass_timestamp_seconds")] > 0

        log.delete_records_before(log.end_offset)
        start_over(scrubber)
        await scrubber.run_if_due()
        assert scrubber.damage_count == 0


async def test_a_pass_waits_for_its_interval_and_0_turns_it_off(tmp_path):
    async with broker_and_client(tmp_path, CONFIGS) as (broker, _client):
        await fill(broker)
        scrubber = broker.housekeeping.scrubber
        await scrubber.run_if_due()
        verified = scrubber.verified_bytes
        await scrubber.run_if_due()
        assert scrubber.verified_bytes == verified
    async with broker_and_client(tmp_path, CONFIGS | {"log.scrub.interval.ms": "0"}) as (broker, _):
        start_over(broker.housekeeping.scrubber)
        await broker.housekeeping.scrubber.run_if_due()
        assert broker.housekeeping.scrubber.verified_bytes == 0


async def test_a_restart_continues_the_pass_and_remembers_damage(tmp_path, caplog):
    slow = CONFIGS | {"log.scrub.bytes.per.second": "20000"}
    async with broker_and_client(tmp_path, slow) as (broker, _client):
        log = await fill(broker, count=200)
        flip(log, 0)
        total = sum(segment.size for segment in log.segments[:-1])
        scrubber = broker.housekeeping.scrubber
        running = asyncio.create_task(scrubber.run_if_due())
        while scrubber.damage_count == 0:
            await asyncio.sleep(0.01)
        path = broker.logs.path / STATE_FILE
    with pytest.raises(CompactionStoppedError):
        await running
    assert json.loads(path.read_text())["place"][0] == "t-0"
    assert len(damage_lines(caplog)) == 1
    caplog.clear()
    async with broker_and_client(tmp_path, CONFIGS) as (broker, _client):
        scrubber = broker.housekeeping.scrubber
        await scrubber.run_if_due()
        assert 0 < scrubber.verified_bytes < total
        assert scrubber.damage_count == 1
        assert scrubber.last_pass_ms > 0
    assert damage_lines(caplog) == []


async def test_a_damaged_state_file_only_costs_a_pass(tmp_path):
    async with broker_and_client(tmp_path, CONFIGS) as (broker, _client):
        await fill(broker)
        (broker.logs.path / STATE_FILE).write_text('{"place": 7}')
        await broker.housekeeping.scrubber.run_if_due()
        assert broker.housekeeping.scrubber.last_pass_ms > 0


async def test_segments_may_be_deleted_and_topics_created_during_a_pass(tmp_path, caplog):
    async with broker_and_client(tmp_path, CONFIGS) as (broker, _client):
        log = await fill(broker)
        scrubber = broker.housekeeping.scrubber
        verify = scrubber._verify

        async def delete_first(name, segment):
            log.delete_records_before(log.end_offset)
            log.purge_deleted_segments()
            await verify(name, segment)

        scrubber._verify = delete_first
        await scrubber.run_if_due()
        assert scrubber.last_pass_ms > 0
        assert scrubber.damage_count == 0
    assert damage_lines(caplog) == []
