"""Rules of the protocol that can be taken out; the model must find what that breaks.

Three rules are not here, because the walk finds nothing without them: the current leader epoch in
fetches, which the last fetched epoch covers, a new epoch for a leader that restarts, and a new
epoch when replicas are removed, which matters only if a broker deletes its log and is added again
before the leader has learned of either. They are kept all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from ottla.coord import election
from ottla.coord.follower_progress import FollowerProgress
from ottla.coord.partition_state import PartitionState

from . import model

_high_watermark = FollowerProgress.high_watermark
_caught_up = FollowerProgress.caught_up
_eligible_leaders = election.eligible_leaders


def _keep_elr(state: PartitionState, isr: Any, min_isr: int, lossy: Any = ()) -> tuple[int, ...]:
    """As `eligible_leaders`, but members stay in the ELR when the ISR is large enough."""
    is_elected_from_elr = not state.isr
    if is_elected_from_elr:
        return tuple(one for one in state.elr if one not in isr and one not in lossy)
    return _eligible_leaders(state, isr, min_isr, lossy)


def _advance_with_elr(
    progress: FollowerProgress, current: int, end_offset: int, min_isr: int
) -> int:
    stored = progress.state
    progress.state = replace(stored, elr=())
    try:
        return _high_watermark(progress, current, end_offset, min_isr)
    finally:
        progress.state = stored


def _advance_below_min(
    progress: FollowerProgress, current: int, end_offset: int, _min_isr: int
) -> int:
    return _advance_with_elr(progress, current, end_offset, 1)


class Mutation(NamedTuple):
    """A rule that is taken out: an attribute that is replaced, or a flag of the model.

    The violation is found within a few episodes from `seed` on.
    """

    seed: int
    target: Any = None
    attribute: str = ""
    replacement: Callable[..., Any] | None = None
    #: Whether the high watermark does not wait for an empty ELR either, which is as good.
    advances_with_elr: bool = False


MUTATIONS: dict[str, Mutation] = {
    model.ONE_FETCH_IN_FLIGHT: Mutation(1040),
    model.QUALIFYING_BROKER_EPOCH: Mutation(11890),
    model.BROKER_EPOCH: Mutation(6175),
    model.TRUNCATE_BY_EPOCH: Mutation(290),
    model.SHRINK_WHEN_STORED: Mutation(0),
    model.LOSSY_RESTARTS: Mutation(0),
    model.ACTIVE_WHEN_UNFENCED: Mutation(390),
    "a pending expansion counts": Mutation(
        2705, FollowerProgress, "maximal_isr", lambda progress: progress.state.isr
    ),
    "joining needs the start of the epoch": Mutation(
        2335,
        FollowerProgress,
        "caught_up",
        lambda progress, high_watermark: {
            one: fetch.broker_epoch
            for one, fetch in progress.fetches.items()
            if fetch.end_offset >= high_watermark and one not in progress.state.isr
        },
    ),
    "the high watermark stands still below min.insync.replicas": Mutation(
        0,
        FollowerProgress,
        "high_watermark",
        _advance_below_min,
    ),
    "a sufficient ISR empties the ELR": Mutation(
        0, election, "eligible_leaders", _keep_elr, advances_with_elr=True
    ),
}


@contextmanager
def without(rule: str) -> Iterator[frozenset[str]]:
    """Run without a rule; gives the flags for the model."""
    mutation = MUTATIONS[rule]
    if mutation.target is None:
        yield frozenset({rule})
    else:
        with ExitStack() as patches:
            patches.enter_context(
                patch.object(mutation.target, mutation.attribute, mutation.replacement)
            )
            if mutation.advances_with_elr:
                patches.enter_context(
                    patch.object(FollowerProgress, "high_watermark", _advance_with_elr)
                )
            yield frozenset()
