"""A member of a group, as in member.py: confluent-kafka, which is librdkafka."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, KafkaException, TopicPartition
from member import EventLog, Settings, main


def run(settings: Settings, journal: EventLog, stopping: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap,
            "group.id": settings.group,
            "client.id": settings.name,
            "partition.assignment.strategy": ",".join(settings.assignors),
            "session.timeout.ms": settings.session_ms,
            "heartbeat.interval.ms": settings.heartbeat_ms,
            "max.poll.interval.ms": max(settings.rebalance_ms, settings.session_ms),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 250,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 250,
            "log_level": 0,
        }
        | ({"group.instance.id": settings.instance} if settings.instance else {})
    )
    consumer.subscribe(
        [settings.topic],
        on_assign=lambda _c, partitions: journal.say_partitions("assigned", partitions),
        on_revoke=lambda _c, partitions: journal.say_partitions("revoked", partitions),
        on_lost=lambda _c, partitions: journal.say_partitions("lost", partitions),
    )
    while not stopping.is_set():
        reached = journal.say_got(
            (m.partition(), m.offset(), m.value())
            for m in consumer.consume(100, timeout=0.1)
            if m.error() is None
        )
        if reached:
            offsets = [TopicPartition(settings.topic, p, offset) for p, offset in reached.items()]
            try:
                journal.committing(
                    reached,
                    lambda offsets=offsets: consumer.commit(offsets=offsets, asynchronous=False),
                )
            except KafkaException as problem:
                journal.say("refused", problem.args[0].code())
    consumer.close()


if __name__ == "__main__":
    main(run)
