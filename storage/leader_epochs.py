"""The leader epochs of a log, and the start offset of each.

A client or a follower that read from an earlier leader asks where that leader's records end, and so
learns whether what it has read is still in the log. They are kept in the file
`leader-epoch-checkpoint`, as readable text:

    {"version": 1, "epochs": [[0, 0], [3, 1200]]}

Epochs and offsets both increase, and an epoch ends where the next one starts. An epoch in which
nothing was appended is not in the list.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator

_VERSION = 1


class LeaderEpochs:
    """Pairs of a leader epoch and its start offset. Mutators return whether anything changed."""

    __slots__ = ("_epochs",)

    def __init__(self, epochs: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[tuple[int, int]] = []
        for epoch, start_offset in epochs:
            if self._epochs and start_offset <= self._epochs[-1][1]:
                raise ValueError(f"Epoch {epoch} at offset {start_offset} does not follow {self}")
            if not self.assign(epoch, start_offset):
                raise ValueError(f"Epoch {epoch} occurs twice")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._epochs)

    def __repr__(self) -> str:
        return f"<LeaderEpochs {self._epochs}>"

    @property
    def current(self) -> int:
        """The latest epoch; -1 if there is none."""
        return self._epochs[-1][0] if self._epochs else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Start an epoch at this offset; return False if it is the current epoch already.

        Raises ValueError for an epoch before the current one.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"Invalid epoch {epoch} at offset {start_offset}: both must be >= 0")
        if epoch == self.current:
            return False
        if epoch < self.current:
            raise ValueError(f"Epoch {epoch} is older than the current epoch {self.current}")
        # Epochs that start at this offset or later have no records in the log.
        self.truncate(start_offset)
        self._epochs.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch that is not above `epoch`, and its end offset.

        As in Kafka, an epoch before all known ones ends where the first of them starts, and the
        result for one above all of them is (-1, -1).
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

    def end_of_led(self, epoch: int, leader_epoch: int, log_end: int) -> tuple[int, int]:
        """As `end_of`, on a broker that leads in `leader_epoch`.

        The log does not have that epoch before the first append in it, nor others in which nothing
        was appended.
        """
        if epoch == leader_epoch:
            return epoch, log_end
        latest = self.current
        if latest <= epoch < leader_epoch and epoch >= 0:
            return (epoch if latest < 0 else latest), log_end
        return self.end_of(epoch, log_end)

    def truncation_offset(self, epoch: int, end_offset: int, log_end: int) -> int:
        """Return where a follower truncates: its leader's log has `epoch` up to `end_offset`.

        Records of later epochs are not in the leader's log, nor any after `end_offset`. Further
        divergence shows with the next fetch.
        """
        own_end = self.end_of(epoch, log_end)[1]
        return min(end_offset, log_end if own_end < 0 else own_end)

    def truncate(self, offset: int) -> bool:
        """Forget epochs that start at the new log end offset or later."""
        before = len(self._epochs)
        while self._epochs and self._epochs[-1][1] >= offset:
            self._epochs.pop()
        return len(self._epochs) < before

    def trim_start(self, offset: int) -> bool:
        """Forget epochs that end at the new log start offset or before."""
        # The epoch that contains the offset is the first to stay, and now starts there.
        first = bisect_right(self._epochs, offset, key=_start_of) - 1
        if first < 0 or self._epochs[0][1] == offset:
            return False
        self._epochs[: first + 1] = [(self._epochs[first][0], offset)]
        return True

    def encode(self) -> bytes:
        """Encode the content of the file."""
        return json.dumps({"version": _VERSION, "epochs": self._epochs}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Decode the content of the file. Raises ValueError if it is malformed."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise ValueError(f"Not a leader epoch checkpoint of version {_VERSION}: {data[:80]!r}")
        pairs = content.get("epochs")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise ValueError(f"Leader epochs are not pairs of numbers: {data[:80]!r}")
        return cls((epoch, start_offset) for epoch, start_offset in pairs)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


def _epoch_of(pair: tuple[int, int]) -> int:
    return pair[0]


def _start_of(pair: tuple[int, int]) -> int:
    return pair[1]
