"""What is read ahead of what is sent: as it comes, no more than a little, and to a quiet end."""

import asyncio
import threading
import time
from itertools import count

from ottla.cli.record_format import Row
from ottla.cli.record_source import read


def test_reading_is_a_little_ahead_and_ends_with_whoever_wanted_it(monkeypatch):
    trouble = []
    monkeypatch.setattr(threading, "excepthook", trouble.append)
    numbers = count()

    async def story():
        async for rows in read([Row(b"%d" % number)] for number in numbers):
            assert rows == [Row(b"0")]
            await asyncio.sleep(0.05)
            return

    asyncio.run(story())

    assert next(numbers) < 10
    deadline = time.monotonic() + 5
    while "ottla-read" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert trouble == []
