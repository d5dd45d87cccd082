"""A member of a share group as a process: logs what it receives and acknowledges.

    python share_member.py CONFIG

ShareMember.java does the same with Apache Kafka's client. CONFIG is JSON; its mode is implicit,
explicit, or stalled: such a member acknowledges nothing. What is said about a record depends on its
offset. Events go to a file as those of member.py do:

    a received 1 17 2 value                 with the delivery count
    a sending 1 17 accept                   what is said about it
    a acknowledged 1 17 accept              the broker has it
    a failed 1 17 AcknowledgeError          or not; it may have been stored
    a left
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

from ottla.client import (
    ClientConfig,
    RetryConfig,
    ShareConfig,
    ShareConsumer,
    ShareRecord,
    TopicPartition,
)


class ShareMember:
    """One member."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._name, self._mode = config["name"], config["mode"]
        self._file = os.open(config["events"], os.O_WRONLY | os.O_APPEND)
        self._said: dict[tuple[int, int], str] = {}
        self._consumer = ShareConsumer(
            config["bootstrap"].split(","),
            config["topic"],
            group=config["group"],
            acknowledgement="implicit" if self._mode == "implicit" else "explicit",
            on_acknowledged=self._acknowledged,
            share=ShareConfig(max_records=10, acquire_mode="record_limit", max_wait=0.1),
            client=ClientConfig(retry=RetryConfig(backoff=0.05, max_backoff=0.25)),
        )

    async def run(self) -> None:
        """Receive until SIGTERM."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            async with self._consumer as consumer:
                async for record in consumer:
                    await self._process(record)
        except asyncio.CancelledError:
            self._write("left")

    async def _process(self, record: ShareRecord) -> None:
        at = record.partition, record.offset
        self._write("received", *at, record.delivery_count, record.value.decode())
        await asyncio.sleep(0.001)
        if self._mode == "stalled":
            await asyncio.sleep(3600)
        if self._mode == "explicit":
            if record.offset % 7 == 3 and record.delivery_count == 1:
                self._say(at, "release")
                self._consumer.release(record)
                return
            if record.offset % 11 == 5:
                self._say(at, "reject")
                self._consumer.reject(record)
                return
            if record.offset % 13 == 7:
                self._consumer.renew(record)
        self._say(at, "accept")
        if self._mode == "explicit":
            self._consumer.accept(record)

    def _say(self, at: tuple[int, int], what: str) -> None:
        self._said[at] = what
        self._write("sending", *at, what)

    def _acknowledged(
        self, tp: TopicPartition, offsets: list[int], error: Exception | None
    ) -> None:
        for offset in offsets:
            at = tp.partition, offset
            # Nothing was said about a record that is released before the application gets it.
            what = self._said.pop(at, "release")
            if error is None:
                self._write("acknowledged", *at, what)
            else:
                self._write("failed", *at, type(error).__name__)

    def _write(self, event: str, *words: object) -> None:
        line = " ".join(map(str, (self._name, event, *words)))
        os.write(self._file, line.encode() + b"\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(ShareMember(json.loads(sys.argv[1])).run())
