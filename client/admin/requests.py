"""How an admin asks: each thing until it is done, fails for good, or has taken too long."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError

from ..cluster import Cluster, needs_metadata_refresh
from ..config import ClientConfig
from ..errors import ClientError, error_of

K = TypeVar("K")
V = TypeVar("V")

#: What came of one thing that was asked for.
Outcome: TypeAlias = V | KafkaError | ClientError
# They may be tried again, but to an admin they say that a name is wrong: nobody waits for a minute
# to be told that.
_FINAL = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class PartialError(ClientError):
    """Of several things that were asked for some failed.

    `failed` says why, by thing; `done` has the results of the others.
    """

    def __init__(self, failed: Mapping[Any, Exception], done: Mapping[Any, Any]) -> None:
        self.failed = dict(failed)
        self.done = dict(done)
        reasons = "; ".join(f"{thing}: {error}" for thing, error in failed.items())
        super().__init__(f"{len(failed)} of {len(failed) + len(done)} failed: {reasons}")

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """Whether all that failed may succeed later."""
        return all(getattr(error, "retriable", False) for error in self.failed.values())


class AdminRequests:
    """The part of an admin that all its verbs share."""

    def __init__(
        self, bootstrap: str | Sequence[str], *, client: ClientConfig | None = None
    ) -> None:
        # To look at a topic must not make it.
        config = dataclasses.replace(client or ClientConfig(), allow_auto_create=False)
        self._cluster = Cluster(bootstrap, config)

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    @property
    def _timeout_ms(self) -> int:
        """How long a broker may take: a little less than we wait for its answer."""
        return int(self._cluster.config.timeouts.request * 900)

    async def _each(
        self,
        things: Iterable[K],
        attempt: Callable[[list[K]], Awaitable[Mapping[K, Outcome[V]]]],
        what: str,
    ) -> dict[K, V]:
        """Ask until there is an answer for each thing; what may succeed later is asked again."""
        wanted = left = list(dict.fromkeys(things))
        done: dict[K, V] = {}
        failed: dict[K, Exception] = {}

        async def once() -> None:
            nonlocal left
            if not left:
                return
            answers = await attempt(left)
            again: dict[K, KafkaError | ClientError] = {}
            for thing in left:
                answer = answers.get(thing) if thing in answers else _unanswered(thing)
                if not isinstance(answer, KafkaError | ClientError):
                    done[thing] = answer  # type: ignore[assignment]  # None is an answer
                elif answer.retriable and getattr(answer, "code", None) not in _FINAL:
                    again[thing] = answer
                else:
                    failed[thing] = answer
            left = list(again)
            if again:
                raise next(filter(needs_metadata_refresh, again.values()), again[left[0]])

        try:
            await self._cluster.retry(once, what=what)
        except (KafkaError, ClientError) as error:
            failed.update(dict.fromkeys(left, error))
        if failed:
            reasons = list(failed.values())
            if len(wanted) == 1 or (not done and len(set(map(id, reasons))) == 1):
                raise reasons[0]
            raise PartialError(failed, done)
        return {thing: done[thing] for thing in wanted}

    async def _known_brokers(self) -> list[int]:
        return sorted((await self._cluster.refresh([])).nodes)

    async def _by_node(
        self,
        things: Mapping[K, Outcome[int]],
        ask: Callable[[int, list[K]], Awaitable[Mapping[K, Outcome[V]]]],
    ) -> dict[K, Outcome[V]]:
        """Ask each node for its things, all nodes at once; one that fails, fails for those.

        A thing may have an error in the place of a node: then that is its answer.
        """
        by_node: dict[int, list[K]] = defaultdict(list)
        answers: dict[K, Outcome[V]] = {}
        for thing, node_id in things.items():
            if isinstance(node_id, int):
                by_node[node_id].append(thing)
            else:
                answers[thing] = node_id

        async def one(node_id: int, its: list[K]) -> None:
            try:
                answers.update(await ask(node_id, its))
            except (KafkaError, ClientError) as error:
                answers.update(dict.fromkeys(its, error))

        async with asyncio.TaskGroup() as tasks:
            for node_id, its in by_node.items():
                tasks.create_task(one(node_id, its))
        return answers


def outcome(code: int, detail: str | None, value: V) -> Outcome[V]:
    """Give the error of a code, or the value if there is none."""
    return error_of(code, detail) or value


def no_such_group(group: str) -> KafkaError:
    """Say that there is none."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")


def no_such_broker(broker: int, known: Iterable[int]) -> KafkaError:
    """Say that there is none, and which there are."""
    ids = ", ".join(map(str, known))
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no broker {broker}, only {ids}")


def _unanswered(thing: object) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker did not say a word of {thing}")
