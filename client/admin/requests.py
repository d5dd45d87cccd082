"""Requests of the admin client, with retries per item."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError

from ..cluster import Cluster, needs_metadata_refresh
from ..config import ClientConfig
from ..errors import ClientError, DeadlineError, error_of

if TYPE_CHECKING:
    from ..security import SecurityConfig

K = TypeVar("K")
V = TypeVar("V")

#: The result of one item: a value or an error.
Outcome: TypeAlias = V | KafkaError | ClientError
# Retriable, but to an admin they mean a wrong name, or that brokers are down, which is not worth a
# minute of retries.
_FINAL = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
)


class PartialError(ClientError):
    """Some of several items failed.

    `failed` has the error of each item that failed; `done` has the results of the others.
    """

    def __init__(self, failed: Mapping[Any, Exception], done: Mapping[Any, Any]) -> None:
        self.failed = dict(failed)
        self.done = dict(done)
        reasons = "; ".join(f"{item}: {error}" for item, error in failed.items())
        super().__init__(f"{len(failed)} of {len(failed) + len(done)} failed: {reasons}")

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """Whether all errors are retriable."""
        return all(getattr(error, "retriable", False) for error in self.failed.values())


class AdminRequests:
    """What all admin requests share."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client: ClientConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        # Describing a topic must not create it.
        config = dataclasses.replace(client or ClientConfig(), allow_auto_create=False)
        self._cluster = Cluster(bootstrap, config, security)

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    @property
    def _timeout_ms(self) -> int:
        """The time limit for brokers: a little less than the request timeout."""
        return int(self._cluster.config.timeouts.request * 900)

    async def _each(
        self,
        items: Iterable[K],
        attempt: Callable[[list[K]], Awaitable[Mapping[K, Outcome[V]]]],
        what: str,
    ) -> dict[K, V]:
        """Return the result of each item; items with retriable errors are sent again."""
        requested = pending = list(dict.fromkeys(items))
        done: dict[K, V] = {}
        failed: dict[K, Exception] = {}
        #: The last error of each item that is tried again.
        last: dict[K, KafkaError | ClientError] = {}

        async def once() -> None:
            nonlocal pending
            if not pending:
                return
            results = await attempt(pending)
            retriable: dict[K, KafkaError | ClientError] = {}
            for item in pending:
                result = results.get(item) if item in results else _missing_result(item)
                if not isinstance(result, KafkaError | ClientError):
                    done[item] = result  # type: ignore[assignment]  # None is a result
                elif result.retriable and getattr(result, "code", None) not in _FINAL:
                    retriable[item] = result
                else:
                    failed[item] = result
            pending = list(retriable)
            last.update(retriable)
            if retriable:
                raise next(
                    filter(needs_metadata_refresh, retriable.values()), retriable[pending[0]]
                )

        try:
            await self._cluster.retry(once, what=what)
        except (KafkaError, ClientError) as error:
            # Each item fails for its own reason, not for that of the one tried last.
            failed.update(
                {
                    item: error if item not in last else _deadline(error, last[item], what)
                    for item in pending
                }
                if isinstance(error, DeadlineError) and len(pending) > 1
                else dict.fromkeys(pending, error)
            )
        if failed:
            reasons = list(failed.values())
            if len(requested) == 1 or (not done and len(set(map(id, reasons))) == 1):
                raise reasons[0]
            raise PartialError(failed, done)
        return {item: done[item] for item in requested}

    async def _known_brokers(self) -> list[int]:
        return sorted((await self._cluster.refresh([])).nodes)

    async def _by_node(
        self,
        nodes: Mapping[K, Outcome[int]],
        send: Callable[[int, list[K]], Awaitable[Mapping[K, Outcome[V]]]],
    ) -> dict[K, Outcome[V]]:
        """Send each node a request for its items, all at once; a failure affects that node's items.

        An item that has an error instead of a node id gets it as its result.
        """
        by_node: dict[int, list[K]] = defaultdict(list)
        results: dict[K, Outcome[V]] = {}
        for item, node_id in nodes.items():
            if isinstance(node_id, int):
                by_node[node_id].append(item)
            else:
                results[item] = node_id

        async def send_to(node_id: int, some: list[K]) -> None:
            try:
                results.update(await send(node_id, some))
            except (KafkaError, ClientError) as error:
                results.update(dict.fromkeys(some, error))

        async with asyncio.TaskGroup() as tasks:
            for node_id, some in by_node.items():
                tasks.create_task(send_to(node_id, some))
        return results


def outcome(code: int, detail: str | None, value: V) -> Outcome[V]:
    """Return the error of a code, or the value if there is none."""
    return error_of(code, detail) or value


def no_such_group(group: str) -> KafkaError:
    """Return the error for an unknown group."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Unknown group {group!r}")


def no_such_broker(broker: int, known: Iterable[int]) -> KafkaError:
    """Return the error for an unknown broker id."""
    ids = ", ".join(map(str, known))
    return KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND, f"Unknown broker {broker}: the cluster has {ids}"
    )


def _deadline(error: DeadlineError, last: Exception, what: str) -> ClientError:
    """Return the timeout of one item, with the item's own last error as its cause."""
    if error.__cause__ is last:
        return error
    one = DeadlineError(f"{what} did not succeed in time: {last}")
    one.__cause__ = last
    return one


def _missing_result(item: object) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The response has no result for {item}")
