"""Rows 11 to 13: a network that is cut, slow, or breaks connections."""

from __future__ import annotations

import time

from chaos.matrix import row
from chaos.proxy import Proxy
from chaos.stage import Run

#: Of 3 Mbit/s.
SLOW_BYTES_PER_SECOND = 375_000


@row("11", "clients cut off, then back", "cuts", short=2, normal=12, full=50)
def cut_off(run: Run) -> None:
    """Nobody hears of anybody, and nobody is told: neither a reset nor an end."""
    with run.stage_behind_proxies() as (stage, proxies):
        with stage.load() as load:
            for cycle in run.cycles():
                load.wait_for_acks()
                proxy = proxies[stage.brokers.index(stage.choose())]
                proxy.is_cut = True
                stage.others_serve(load)
                # Now and then for longer than clients wait for an answer.
                time.sleep(15 if cycle % 10 == 9 else run.chance.uniform(0.2, 2.0))
                proxy.is_cut = False
            load.wait_for_acks()
        run.judge(stage, load)


@row("12", "3 Mbit/s, 5 % of packets late", "messages", short=3000, normal=30_000, full=100_000)
def slow_down(run: Run) -> None:
    with run.stage_behind_proxies() as (stage, proxies):
        for proxy in proxies:
            proxy.bytes_per_second = SLOW_BYTES_PER_SECOND
            # A packet that is lost is one that comes later, with all behind it: TCP sends it again.
            proxy.stall_chance, proxy.stall_seconds = 0.05, 0.04
        with stage.load(per_second=6000) as load:
            started = time.monotonic()
            while load.acked < run.count:
                acked = load.acked
                run.done(acked)
                load.wait(lambda acked=acked: load.acked > acked, "an ack", seconds=60)
                time.sleep(0.05)
            run.note(f"{run.count / (time.monotonic() - started):,.0f} messages/s")
        run.done(load.acked)
        for proxy in proxies:
            proxy.bytes_per_second, proxy.stall_chance = None, 0.0
        run.judge(stage, load)


@row("13", "100 ms away, resets in mid-frame", "resets", short=30, normal=500, full=10_000)
def reset(run: Run) -> None:
    with run.stage_behind_proxies() as (stage, proxies):
        with stage.load() as load:
            make_bad(proxies, delay_seconds=0.05, reset_within_bytes=20_000)
            while (resets := sum(proxy.resets for proxy in proxies)) < run.count:
                run.done(resets)
                assert not load.problems, load.problems
                time.sleep(0.1)
            run.done(resets)
            make_bad(proxies, delay_seconds=0.0, reset_within_bytes=None)
            load.wait_for_acks()
        run.judge(stage, load)


def make_bad(proxies: list[Proxy], *, delay_seconds: float, reset_within_bytes: int | None) -> None:
    """Let all connections begin anew, far away, and be reset after some bytes; or not any more."""
    for proxy in proxies:
        proxy.delay_seconds, proxy.reset_within_bytes = delay_seconds, reset_within_bytes
        proxy.reset_all()
