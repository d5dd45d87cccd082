"""Simulates clusters: `make sim SIM="--minutes 10"`, and `SIM="--seed 5"` for one seed.

Exits with 1 if a seed violates a promise; prints the seed and what led to it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from contextlib import nullcontext

from .mutations import MUTATIONS, mutated
from .runner import run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--first-seed", type=int, help="first of consecutive seeds; random")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to run")
    parser.add_argument("--count", type=int, default=None, help="maximum number of seeds")
    parser.add_argument("--replicated", action="store_true", help="clusters with a metadata store")
    parser.add_argument("--mutation", choices=list(MUTATIONS), help="put a bug into the code")
    options = parser.parse_args()
    first, count = options.first_seed, options.count
    if options.seed is not None:
        first, count = options.seed, 1
    elif first is None:
        first = secrets.randbelow(2**31)
    print(f"seeds from {first} on", flush=True)
    started, done, failed = time.perf_counter(), 0, 0
    kind: dict[str, bool] = {"is_replicated": options.replicated}
    if options.mutation:
        mutation = MUTATIONS[options.mutation]
        kind = {"is_replicated": mutation.is_replicated}
        if not mutation.is_replicated:
            kind["loses_controller"] = mutation.loses_controller
    with mutated(options.mutation) if options.mutation else nullcontext():
        for violation in run_seeds(first, options.minutes * 60, count, **kind):
            done += 1
            if violation is not None:
                failed += 1
                print(violation, flush=True)
                if options.mutation:
                    break
    minutes = (time.perf_counter() - started) / 60
    cpu_minutes = time.process_time() / 60
    print(
        f"{done} seeds, {failed} violations; {done / minutes:.0f} seeds per minute,"
        f" {done / cpu_minutes:.0f} per minute of CPU"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
