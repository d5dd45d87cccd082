"""What happens now and then, and what it may take from everything else."""

import asyncio
import time

from harness.brokers import broker_and_client


async def test_compaction_without_a_rest_keeps_no_core_busy(tmp_path):
    async with broker_and_client(tmp_path, {"log.cleaner.backoff.ms": "0"}):
        started = time.thread_time()
        await asyncio.sleep(1)

        assert time.thread_time() - started < 0.5
