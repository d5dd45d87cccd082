"""A member of a group, as in member.py: kafka-python."""

from __future__ import annotations

import threading
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError
from member import EventLog, Settings, main


def run(settings: Settings, journal: EventLog, stopping: threading.Event) -> None:
    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            journal.say_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            journal.say_partitions("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            journal.say_partitions("lost", lost)

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        group_id=settings.group,
        client_id=settings.name,
        group_instance_id=settings.instance,
        partition_assignment_strategy=[assignors[name] for name in settings.assignors],
        session_timeout_ms=settings.session_ms,
        heartbeat_interval_ms=settings.heartbeat_ms,
        max_poll_interval_ms=settings.rebalance_ms,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=250,
        retry_backoff_ms=50,
    )
    consumer.subscribe([settings.topic], listener=Listener())
    while not stopping.is_set():
        try:
            # If this is over before the answer to its join is there, it joins once more.
            timeout_ms = 1000 if consumer.assignment() else 10_000
            found = consumer.poll(timeout_ms=timeout_ms, max_records=100)
        except KafkaConnectionError:
            continue  # nobody is there right now, which it leaves to us
        reached = journal.say_got(
            (place.partition, record.offset, record.value)
            for place, records in found.items()
            for record in records
        )
        if reached:
            offsets = {
                TopicPartition(settings.topic, partition): OffsetAndMetadata(offset, "", -1)
                for partition, offset in reached.items()
            }
            try:
                journal.committing(reached, lambda offsets=offsets: consumer.commit(offsets))
            except KafkaError as problem:
                journal.say("refused", getattr(problem, "errno", type(problem).__name__))
    consumer.close()


if __name__ == "__main__":
    main(run)
