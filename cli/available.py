"""Offsets of the partitions that are available: some brokers may be down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from . import output
from .errors import Exit, Failure, failure_of

if TYPE_CHECKING:
    from ottla.client.admin import TopicDescription
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition


class AvailablePartitions:
    """The start and end offsets of those partitions whose leaders answer."""

    def __init__(
        self,
        admin: Admin,
        topics: Mapping[str, TopicDescription],
        partitions: Collection[TopicPartition],
        *,
        isolation: str = "read_uncommitted",
    ) -> None:
        self.requested = list(partitions)
        #: The partitions without offsets, and why.
        self.missing: dict[TopicPartition, str] = {}
        led = []
        for tp in self.requested:
            if topics[tp.topic].partitions[tp.partition].leader >= 0:
                led.append(tp)
            else:
                self._miss(tp, "no leader: its broker is down")
        self.starts = self._look_up(admin, led)
        self.ends = self._look_up(admin, list(self.starts), isolation)
        self.starts = {tp: self.starts[tp] for tp in self.ends}

    def check(self) -> None:
        """Raise Failure if a partition is missing."""
        if self.missing:
            raise unavailable(
                len(self.missing),
                len(self.requested),
                Exit.PARTIAL if self.ends else Exit.UNREACHABLE,
            )

    def _look_up(
        self, admin: Admin, partitions: list[TopicPartition], isolation: str | None = None
    ) -> dict[TopicPartition, int]:
        """Return the start offsets of partitions, or the end offsets with an isolation level."""
        from ottla.client.admin import PartialError
        from ottla.client.errors import ConnectionLostError, DeadlineError, RetriableError

        if not partitions:
            return {}
        try:
            if isolation is None:
                return admin.beginning_offsets(*partitions)
            return admin.end_offsets(*partitions, isolation=isolation)  # type: ignore[arg-type]
        except PartialError as error:
            for tp, reason in error.failed.items():
                self._miss(tp, reason_of(reason))
            return {tp: found.offset for tp, found in error.done.items() if tp not in self.missing}
        except (ConnectionLostError, DeadlineError, RetriableError) as error:
            for tp in partitions:
                self._miss(tp, reason_of(error))
            return {}

    def _miss(self, tp: TopicPartition, reason: str) -> None:
        self.missing[tp] = reason
        warn_of(tp, reason)


def warn_of(tp: TopicPartition, reason: str) -> None:
    """Print a warning about a partition."""
    output.note(f"warning: partition {tp.partition} of {tp.topic} is not available: {reason}")


def unavailable(missing: int, total: int, code: Exit) -> Failure:
    """Return the error of a command that had some partitions, or none."""
    return Failure(
        f"{missing} of {output.counted(total, 'partition')} not available; show brokers: ottla"
        " cluster describe",
        code,
    )


def reason_of(error: Exception) -> str:
    """Return why a partition is not available, without advice."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    failure = failure_of(cause)
    return (failure.message if failure is not None else str(cause)).split(";")[0]
