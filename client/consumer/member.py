"""The life cycle of a group member, the same in all group protocols."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from ..cluster import Cluster
from .config import GroupConfig
from .member_state import MemberState


class Member:
    """A member of a group, for as long as `run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        config: GroupConfig,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        self.state = MemberState.UNJOINED
        self.member_id = member_id
        #: The generation of the classic protocol; in the others the member epoch.
        self.generation_id = -1
        #: As the leader: all topics of the group, and the partition counts that were assigned.
        self.group_topics: Collection[str] = ()
        self.partition_counts: dict[str, int] = {}
        self.instance_id = instance_id
        self._cluster = cluster
        self._group = group
        self._config = config
        self._is_lost = False
        self._failures = 0

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.member_id} of {self._group}, {self.state.value}>"

    @property
    def identity(self) -> tuple[int, str, str | None]:
        """Generation or member epoch, member id and instance id, as commits need them."""
        return self.generation_id, self.member_id, self.instance_id

    async def run(self) -> None:
        """Stay a member. Raises KafkaError when the group rejects it."""
        tasks = [asyncio.create_task(work) for work in self._work()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what runs side by side for as long as it is a member."""
        raise NotImplementedError

    async def _back_off(self) -> None:
        delay = self._cluster.config.retry.delay(self._failures, random.random())  # noqa: S311
        self._failures += 1
        await asyncio.sleep(delay)
