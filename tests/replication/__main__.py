"""Walks the model of the replication protocol: `make model MODEL="--minutes 10"`.

Exits with 1 if a seed finds a violation; prints the seed and what led to it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import nullcontext

from .mutations import MUTATIONS, without
from .runner import run_episodes


def main() -> int:
    parser = argparse.ArgumentParser(prog="replication", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; random by default")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to run")
    parser.add_argument("--count", type=int, default=None, help="maximum number of episodes")
    parser.add_argument("--without", choices=list(MUTATIONS), help="a rule to take out")
    parser.add_argument("--reassign", action="store_true", help="move the partition, too")
    options = parser.parse_args()
    first = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seeds from {first} on", flush=True)
    with without(options.without) if options.without else nullcontext(frozenset[str]()) as flags:
        outcome = run_episodes(
            first,
            seconds=options.minutes * 60,
            max_episodes=options.count,
            without=flags,
            reassigns=options.reassign,
        )
    print(outcome.violation or "no violation")
    print(
        f"{outcome.episodes} episodes, {outcome.acks} acks, {outcome.elections} elections,"
        f" {outcome.truncations} truncations, {outcome.completions} reassignments,"
        f" {outcome.unsettled} unsettled"
    )
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
