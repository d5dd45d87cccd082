"""The frames of real clients and of Apache Kafka that golden/record.py recorded.

Those of `java-messages` were encoded by golden/JavaMessages.java instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ottla.protocol.registry import APIS, Api

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CLIENTS = ("aiokafka", "confluent", "java", "java-messages", "kafka-python", "kafkajs", "kcat")
BY_NAME = {api.name: api for api in APIS.values()}


@dataclass(frozen=True)
class RecordedFrame:
    """One recorded frame."""

    client: str
    api: Api
    version: int
    direction: str
    frame: bytes


def read(client: str) -> list[RecordedFrame]:
    frames = []
    for line in (GOLDEN / f"{client}.txt").read_text().splitlines():
        name, version, direction, data = line.split(" ")
        frame = bytes.fromhex(data)
        frames.append(RecordedFrame(client, BY_NAME[name], int(version), direction, frame))
    return frames


RECORDED_FRAMES = [recorded for client in CLIENTS for recorded in read(client)]
