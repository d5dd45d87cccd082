"""A member of a group, as in member.py: aiokafka."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError
from member import EventLog, Settings, main


def run(settings: Settings, journal: EventLog, stopping: threading.Event) -> None:
    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            journal.say_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            journal.say_partitions("revoked", revoked)

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            client_id=settings.name,
            group_instance_id=settings.instance,
            partition_assignment_strategy=[assignors[name] for name in settings.assignors],
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            rebalance_timeout_ms=settings.rebalance_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
        )
        consumer.subscribe([settings.topic], listener=Listener())
        await consumer.start()
        while not stopping.is_set():
            found = await consumer.getmany(timeout_ms=100, max_records=100)
            reached = journal.say_got(
                (place.partition, record.offset, record.value)
                for place, records in found.items()
                for record in records
            )
            if not reached:
                continue
            for partition, offset in reached.items():
                journal.say("committing", partition, offset)
            try:
                await consumer.commit(
                    {TopicPartition(settings.topic, p): offset for p, offset in reached.items()}
                )
            except KafkaError as problem:
                journal.say("refused", getattr(problem, "errno", type(problem).__name__))
            else:
                for partition, offset in reached.items():
                    journal.say("committed", partition, offset)
        await consumer.stop()

    asyncio.run(consume())


if __name__ == "__main__":
    main(run)
