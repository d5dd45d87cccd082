"""Background tasks: how much CPU they may use."""

import asyncio
import time

from harness.brokers import broker_and_client


async def test_compaction_with_zero_backoff_does_not_occupy_a_core(tmp_path):
    async with broker_and_client(tmp_path, {"log.cleaner.backoff.ms": "0"}):
        started = time.thread_time()
        await asyncio.sleep(1)

        assert time.thread_time() - started < 0.5
