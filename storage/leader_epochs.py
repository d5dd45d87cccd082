"""The leader epochs of a log: which leader wrote from which offset on.

A client or a follower that read under an earlier leader asks where that leader's records end, and
so learns whether what it read is still there. Kept in the file `leader-epoch-checkpoint`, as text
that a person can read:

    {"version": 1, "epochs": [[0, 0], [3, 1200]]}

Epochs and offsets both go up, and an epoch ends where the next one starts. An epoch in which
nothing was written has no place in the list.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator

_VERSION = 1


class LeaderEpochs:
    """Pairs of an epoch and the offset it starts at. The changing ones say if they changed it."""

    def __init__(self, epochs: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[tuple[int, int]] = []
        for epoch, start_offset in epochs:
            if self._epochs and start_offset <= self._epochs[-1][1]:
                raise ValueError(f"epoch {epoch} from offset {start_offset} after {self}")
            if not self.assign(epoch, start_offset):
                raise ValueError(f"epoch {epoch} twice")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._epochs)

    def __repr__(self) -> str:
        return f"<LeaderEpochs {self._epochs}>"

    @property
    def current(self) -> int:
        """The latest epoch; -1 when there is none."""
        return self._epochs[-1][0] if self._epochs else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that an epoch writes from this offset on; False if that epoch is at it already.

        Raises ValueError for an epoch before the current one.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} from offset {start_offset}")
        if epoch == self.current:
            return False
        if epoch < self.current:
            raise ValueError(f"epoch {epoch} after epoch {self.current}")
        # Those that start here or behind this have nothing in the log.
        self.truncate(start_offset)
        self._epochs.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Give the largest known epoch that is not over this one, and the offset where it ends.

        As Kafka answers: an epoch before all that are known ends where the first of them starts,
        and of one that is over all of them nothing is known: (-1, -1).
        """
        if epoch < 0:
            return -1, -1
        if epoch == self.current:
            return epoch, log_end
        after = bisect_right(self._epochs, epoch, key=_epoch_of)
        if after == len(self._epochs):
            return -1, -1
        end = self._epochs[after][1]
        return (self._epochs[after - 1][0] if after else epoch), end

    def truncate(self, offset: int) -> bool:
        """Forget epochs that start at this offset, the new end of the log, or behind it."""
        before = len(self._epochs)
        while self._epochs and self._epochs[-1][1] >= offset:
            self._epochs.pop()
        return len(self._epochs) < before

    def trim_start(self, offset: int) -> bool:
        """Forget epochs that end at this offset, the new start of the log, or before it."""
        # The epoch in which the offset lies is the first to stay, though it may begin later now.
        first = bisect_right(self._epochs, offset, key=_start_of) - 1
        if first < 0 or self._epochs[0][1] == offset:
            return False
        self._epochs[: first + 1] = [(self._epochs[first][0], offset)]
        return True

    def encode(self) -> bytes:
        """Give the content of the file."""
        return json.dumps({"version": _VERSION, "epochs": self._epochs}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Read the content of the file. Raises ValueError for what `encode` did not write."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise ValueError(f"no leader epochs of version {_VERSION}: {data[:80]!r}")
        pairs = content.get("epochs")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise ValueError(f"leader epochs that are no pairs of numbers: {data[:80]!r}")
        return cls((epoch, start_offset) for epoch, start_offset in pairs)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


def _epoch_of(pair: tuple[int, int]) -> int:
    return pair[0]


def _start_of(pair: tuple[int, int]) -> int:
    return pair[1]
