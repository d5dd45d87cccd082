"""The command line: `make diff`, or PYTHONPATH=tests python -m differential --help."""

from __future__ import annotations

import random
import sys
import time

import click

from differential.runner import Summary, run_all, started_pairs
from harness.apache_kafka import ApacheKafka


@click.command()
@click.option("--seed", type=int, help="Run the sequence of this seed alone.")
@click.option("--steps", help="Run only these steps of the sequence: 0,3,4.")
@click.option("--sequences", default=1000, show_default=True, help="Number of sequences.")
@click.option("--first-seed", type=int, help="First of consecutive seeds. Default: random.")
@click.option("--failures", default=20, show_default=True, help="Stop after so many failures.")
@click.option("--jobs", default=4, show_default=True, help="Sequences at a time.")
@click.option("--survey", is_flag=True, help="Run all sequences; list differences by field.")
@click.option("--shrink/--no-shrink", default=True, help="Whether to shorten failing sequences.")
def main(
    seed: int | None,
    steps: str | None,
    sequences: int,
    first_seed: int | None,
    failures: int,
    jobs: int,
    survey: bool,
    shrink: bool,
) -> None:
    """Compare the responses of ottla and of Apache Kafka (jars in TEST_KAFKA_LIBS)."""
    missing = ApacheKafka.missing()
    if missing:
        raise click.ClickException(missing)
    first = random.SystemRandom().randrange(10**9) if first_seed is None else first_seed
    seeds = range(first, first + sequences) if seed is None else [seed]
    kept = [int(step) for step in steps.split(",")] if steps else None
    summary = Summary()
    with started_pairs(jobs if seed is None else 1) as pairs:
        print(f"seeds {seeds[0]} to {seeds[-1]}", flush=True)
        started = time.monotonic()
        for report in run_all(pairs, seeds, kept, shrink=shrink and not survey):
            summary.add(report)
            if not survey and (report.unexplained or seed is not None):
                print(report, flush=True)
            if len(summary.failures) >= failures and not survey:
                break
    seconds = time.monotonic() - started
    print(
        f"{summary.sequences} sequences, {sum(summary.requests.values())} requests"
        f" in {len(summary.requests)} versions of APIs, {seconds:.0f} s;"
        f" {len(summary.failures)} failed, {sum(summary.explained.values())} explained differences:"
    )
    if survey:
        print(*summary.classes(), sep="\n")
    for reason, count in summary.explained.most_common():
        print(f"{count:6} {reason}")
    sys.exit(bool(summary.failures))


if __name__ == "__main__":
    main()
