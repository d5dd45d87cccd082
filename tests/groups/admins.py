"""Admin clients of other people, and what they can do with groups, behind the same verbs.

A verb that a client has not is None.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import kafka.errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from kafka import OffsetAndMetadata
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import KafkaAdminClient, MemberToRemove

from groups.company import PATIENCE_SECONDS, admin_of, java_libs, node_modules

_HERE = Path(__file__).parent


class RefusedError(Exception):
    """What a client was told instead of an answer: Kafka's number for it, if it has one."""

    def __init__(self, code: int | None, message: object) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Described(NamedTuple):
    """What a group is like."""

    state: str
    assignor: str
    #: By client: the partitions of each topic that it has.
    shares: dict[str, dict[str, list[int]]]


class Admin:
    """One of them."""

    name: ClassVar[str]

    def __init__(self, address: str) -> None:
        self.address = address

    def close(self) -> None:
        pass

    groups: Any
    """() -> names"""
    describe: Any
    """(group) -> Described"""
    offsets: Any
    """(group, topic) -> {partition: offset}"""
    alter: Any = None
    """(group, topic, {partition: offset})"""
    forget: Any = None
    """(group, topic, partitions): delete offsets"""
    delete: Any = None
    """(group)"""
    remove: Any = None
    """(group, instance): have a static member leave"""


class Confluent(Admin):
    name = "confluent"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = admin_of(address)

    def groups(self) -> set[str]:
        found = _result(self._admin.list_consumer_groups())
        assert found.errors == []
        return {group.group_id for group in found.valid}

    def describe(self, group: str) -> Described:
        found = _result(self._admin.describe_consumer_groups([group])[group])
        shares: dict[str, dict[str, list[int]]] = {}
        for member in found.members:
            share = shares.setdefault(member.client_id, {})
            for place in member.assignment.topic_partitions:
                share.setdefault(place.topic, []).append(place.partition)
        state = "".join(word.title() for word in found.state.name.split("_"))
        return Described(state, found.partition_assignor, shares)

    def offsets(self, group: str, _topic: str) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(group)
        found = _result(self._admin.list_consumer_group_offsets([asked])[group])
        return {place.partition: place.offset for place in found.topic_partitions}

    def alter(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = [TopicPartition(topic, *row) for row in offsets.items()]
        asked = ConsumerGroupTopicPartitions(group, places)
        found = _result(self._admin.alter_consumer_group_offsets([asked])[group])
        for place in found.topic_partitions:
            if place.error is not None:
                raise RefusedError(place.error.code(), place.error)

    def delete(self, group: str) -> None:
        _result(self._admin.delete_consumer_groups([group])[group])


def _result(future: Any) -> Any:
    try:
        return future.result(PATIENCE_SECONDS)
    except KafkaException as problem:
        raise RefusedError(problem.args[0].code(), problem.args[0]) from None


class KafkaPython(Admin):
    name = "kafka-python"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = KafkaAdminClient(bootstrap_servers=address)

    def close(self) -> None:
        self._admin.close()

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def describe(self, group: str) -> Described:
        found = self._admin.describe_groups([group])[group]
        shares = {
            member["client_id"]: {
                one["topic"]: list(one["partitions"])
                for one in member["member_assignment"]["assigned_partitions"]
            }
            for member in found["members"]
        }
        return Described(found["group_state"], found["protocol_data"], shares)

    def offsets(self, group: str, _topic: str) -> dict[int, int]:
        found = self._admin.list_group_offsets(group)[group]
        return {place.partition: offset.offset for place, offset in found.items()}

    def alter(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {
            PythonTopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._check(self._admin.alter_group_offsets(group, wanted).values())

    def forget(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        places = [PythonTopicPartition(topic, partition) for partition in partitions]
        self._check(self._admin.delete_group_offsets(group, places).values())

    def delete(self, group: str) -> None:
        answer = self._admin.delete_groups([group])[group]
        if answer != "OK":
            raise RefusedError(getattr(kafka.errors, answer).errno, answer)

    def remove(self, group: str, instance: str) -> None:
        member = MemberToRemove(group_instance_id=instance)
        self._check(self._admin.remove_group_members(group, [member]).values())

    @staticmethod
    def _check(errors: Any) -> None:
        for error in errors:
            kind = error if isinstance(error, type) else type(error)
            if getattr(kind, "errno", 0):
                raise RefusedError(kind.errno, error)


class Aiokafka(Admin):
    """It can only look."""

    name = "aiokafka"

    def _ask(self, verb: str, *arguments: Any) -> Any:
        async def ask() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                return await getattr(admin, verb)(*arguments)
            finally:
                await admin.close()

        return asyncio.run(ask())

    def groups(self) -> set[str]:
        return {name for name, *_ in self._ask("list_consumer_groups")}

    def describe(self, group: str) -> Described:
        (answer,) = self._ask("describe_consumer_groups", [group])
        (found,) = answer.groups
        _error, _group, state, _kind, assignor, members = found[:6]
        shares = {}
        for _id, client, _host, _said, share in (member[-5:] for member in members):
            given = ConsumerProtocolMemberAssignment.decode(share).assignment
            shares[client] = {topic: list(numbers) for topic, numbers in given}
        return Described(state, assignor, shares)

    def offsets(self, group: str, _topic: str) -> dict[int, int]:
        found = self._ask("list_consumer_group_offsets", group)
        return {place.partition: offset.offset for place, offset in found.items()}


class _Piped(Admin):
    """One in another language: a process that reads lines of JSON, and answers with others."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._process = subprocess.Popen(
            [*self._command(), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"NODE_PATH": node_modules()},
            text=True,
        )

    @staticmethod
    def _command() -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def _ask(self, verb: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": verb, **arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"{self.name} ended"
        answer = json.loads(line)
        if "done" not in answer:
            raise RefusedError(answer["refused"], answer["message"])
        return answer["done"]

    def groups(self) -> set[str]:
        return set(self._ask("groups"))

    def describe(self, group: str) -> Described:
        return Described(**self._ask("describe", group=group))

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._ask("offsets", group=group, topic=topic))

    def alter(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self._ask("alter", group=group, topic=topic, offsets=[*offsets.items()])

    def delete(self, group: str) -> None:
        self._ask("delete", group=group)


class Kafkajs(_Piped):
    name = "kafkajs"

    @staticmethod
    def _command() -> list[str]:
        return ["node", str(_HERE / "admin.js")]


class Java(_Piped):
    name = "java"

    @staticmethod
    def _command() -> list[str]:
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return ["java", *quick, "-cp", f"{java_libs()}/*", str(_HERE / "Admins.java")]

    def forget(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        self._ask("forget", group=group, topic=topic, partitions=list(partitions))

    def remove(self, group: str, instance: str) -> None:
        self._ask("remove", group=group, instance=instance)


ADMINS: dict[str, type[Admin]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, Aiokafka, Kafkajs, Java)
}
