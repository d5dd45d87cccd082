"""What a server does, and how its promise is called: a contender is a server with a setting.

Kafka does not sync its files before it answers, whatever acks says. So each contender that does is
in the tables next to one of the same server that does not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from driver import Driver
from peers import Server
from processes import MemoryWatch

Run = dict[str, Any]

_numbers = itertools.count()


@dataclass(frozen=True)
class Load:
    """What is produced, and then consumed."""

    partitions: int
    size: int
    seconds: float
    most: int


@dataclass(frozen=True)
class Contender:
    """A server with a setting; `against` is the contender of Kafka that promises the same."""

    label: str
    against: str

    def throughput(self, driver: Driver, load: Load) -> dict[str, Run]:
        """Produce and consume."""
        raise NotImplementedError

    def single(self, driver: Driver, size: int, seconds: float, on_their_way: int) -> Run | None:
        """Produce one record with each request; None where there is no such thing."""
        raise NotImplementedError


@dataclass(frozen=True)
class Broker(Contender):
    """A broker that speaks the Kafka protocol."""

    server: Server
    acks: str
    config: dict[str, str] = field(default_factory=dict)

    def create_topic(self, driver: Driver, partitions: int) -> str:
        """Create a topic, and give its name."""
        topic = f"bench-{next(_numbers)}"
        address = self.server.address
        driver.call(
            "rdkafka.create_topic",
            address=address,
            topic=topic,
            partitions=partitions,
            config=self.config,
        )
        return topic

    def delete_topic(self, driver: Driver, topic: str) -> None:
        """Delete a topic."""
        driver.call("rdkafka.delete_topic", address=self.server.address, topic=topic)

    def throughput(self, driver: Driver, load: Load) -> dict[str, Run]:
        """Produce and consume a topic of their own."""
        topic = self.create_topic(driver, load.partitions)
        common = {
            "address": self.server.address,
            "pid": self.server.pid,
            "topic": topic,
            "partitions": load.partitions,
        }
        limits = {"size": load.size, "seconds": load.seconds, "most": load.most}
        with MemoryWatch(self.server.pid) as producing:
            produced = driver.call("rdkafka.produce", **common, **limits, acks=self.acks)
        with MemoryWatch(self.server.pid) as consuming:
            consumed = driver.call("rdkafka.consume", **common, records=produced["records"])
        self.delete_topic(driver, topic)
        return {
            "produce": produced | {"memory": producing.peak},
            "consume": consumed | {"memory": consuming.peak},
        }

    def single(self, driver: Driver, size: int, seconds: float, on_their_way: int) -> Run:
        """Produce one record with each request."""
        topic = self.create_topic(driver, 1)
        run = driver.call(
            "rdkafka.single",
            address=self.server.address,
            pid=self.server.pid,
            topic=topic,
            size=size,
            acks=self.acks,
            seconds=seconds,
            on_their_way=on_their_way,
        )
        self.delete_topic(driver, topic)
        return run


@dataclass(frozen=True)
class Streams(Contender):
    """Redis Streams, with `appendfsync` as said: one stream for each partition."""

    server: Server
    fsync: str

    def throughput(self, driver: Driver, load: Load) -> dict[str, Run]:
        """Produce and consume."""
        common = self._set_up(driver)
        limits = {"size": load.size, "seconds": load.seconds, "most": load.most}
        with MemoryWatch(self.server.pid) as producing:
            produced = driver.call("resp.produce", **common, **limits, partitions=load.partitions)
        with MemoryWatch(self.server.pid) as consuming:
            consumed = driver.call(
                "resp.consume",
                **common,
                partitions=load.partitions,
                records=produced["records"],
            )
        return {
            "produce": produced | {"memory": producing.peak},
            "consume": consumed | {"memory": consuming.peak},
        }

    def single(self, driver: Driver, size: int, seconds: float, on_their_way: int) -> Run | None:
        """Add one record at a time; when pipelined that is what it always does."""
        common = self._set_up(driver)
        if on_their_way > 1:
            most = 1_000_000
            run = driver.call(
                "resp.produce", **common, partitions=1, size=size, seconds=seconds, most=most
            )
            return run | {"requests": run["records"]}
        return driver.call("resp.one_by_one", **common, size=size, seconds=seconds)

    def _set_up(self, driver: Driver) -> dict[str, Any]:
        driver.call("resp.set_up", address=self.server.address, fsync=self.fsync)
        return {"address": self.server.address, "pid": self.server.pid, "topic": "bench"}


@dataclass(frozen=True)
class Mock(Contender):
    """librdkafka's mock cluster: what the client could do if a broker cost next to nothing."""

    def throughput(self, driver: Driver, load: Load) -> dict[str, Run]:
        """Produce only: it does not keep enough to be consumed."""
        return {
            "produce": driver.call(
                "rdkafka.produce_to_mock",
                partitions=load.partitions,
                size=load.size,
                acks="1",
                seconds=load.seconds,
                most=load.most,
            )
        }

    def single(self, driver: Driver, size: int, seconds: float, on_their_way: int) -> None:
        """Do nothing: its CPU is the client's, so that there is nothing to say."""


def contenders_of(servers: dict[str, Server]) -> list[Contender]:
    """Give all that can be compared, with these servers."""
    found: list[Contender] = []
    if ottla := servers.get("ottla"):
        page_cache = {"durability": "page-cache"}
        found += [
            Broker("ottla acks=1", "kafka acks=1", ottla, "1"),
            Broker("ottla acks=all, page-cache", "kafka acks=all", ottla, "all", page_cache),
            Broker("ottla acks=all, fsync", "kafka acks=all", ottla, "all", {"durability": "acks"}),
        ]
    if kafka := servers.get("kafka"):
        found += [
            Broker("kafka acks=1", "kafka acks=1", kafka, "1"),
            Broker("kafka acks=all", "kafka acks=all", kafka, "all"),
        ]
    if redis := servers.get("redis"):
        found += [
            Streams("redis appendfsync no", "kafka acks=1", redis, "no"),
            Streams("redis appendfsync always", "kafka acks=all", redis, "always"),
        ]
    return [*found, Mock("mock, in the client", "kafka acks=1")]
