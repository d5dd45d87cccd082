"""Rows 11 to 13: network partitions, slow links, resets."""

from __future__ import annotations

import time

from chaos.matrix import row
from chaos.proxy import Proxy
from chaos.testbed import Run

#: 3 Mbit/s.
SLOW_BYTES_PER_SECOND = 375_000


@row("11", "network partition, then healed", "cuts", short=1, normal=12, full=50)
def cut_off(run: Run) -> None:
    """Packets are dropped silently: neither a reset nor an end."""
    with run.testbed_behind_proxies() as (testbed, proxies):
        with testbed.load() as load:
            for cycle in run.cycles():
                load.wait_for_acks()
                proxy = proxies[testbed.brokers.index(testbed.choose_victim())]
                proxy.is_cut = True
                testbed.wait_for_acks_of_others(load)
                # Sometimes longer than the clients' request timeout.
                time.sleep(15 if cycle % 10 == 9 else run.random.uniform(0.2, 2.0))
                proxy.is_cut = False
            load.wait_for_acks()
        run.verify(testbed, load)


@row("11p", "one-way and pairwise cuts", "cuts", short=2, normal=12, full=50)
def cut_links(run: Run) -> None:
    """Requests are lost, or responses, or all that two brokers send to each other.

    Clients reach every broker during a pairwise cut, and acks go on: a partition needs its leader
    only. With one broker all cuts are one-way.
    """
    with run.testbed_behind_proxies() as (testbed, proxies):
        with testbed.load() as load:
            for cycle in run.cycles():
                load.wait_for_acks()
                first = testbed.brokers.index(testbed.choose_victim())
                seconds = run.random.uniform(0.5, 2.5)
                if cycle % 2 and len(proxies) > 1:
                    second = run.random.choice([n for n in range(len(proxies)) if n != first])
                    proxies[first].cut_peers = frozenset({second})
                    proxies[second].cut_peers = frozenset({first})
                    # Longer than broker.session.timeout.ms, sometimes.
                    time.sleep(seconds)
                    for number in (first, second):
                        proxies[number].cut_peers = frozenset()
                else:
                    proxies[first].cut_direction = run.random.choice(["upstream", "downstream"])
                    testbed.wait_for_acks_of_others(load)
                    time.sleep(seconds)
                    proxies[first].cut_direction = None
            load.wait_for_acks()
        run.verify(testbed, load)


@row("12", "3 Mbit/s, 5 % of packets late", "messages", short=1500, normal=30_000, full=100_000)
def slow_down(run: Run) -> None:
    with run.testbed_behind_proxies() as (testbed, proxies):
        for proxy in proxies:
            proxy.bytes_per_second = SLOW_BYTES_PER_SECOND
            # TCP retransmits a lost packet: it and all behind it arrive late.
            proxy.stall_chance, proxy.stall_seconds = 0.05, 0.04
        with testbed.load(per_second=6000) as load:
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
        run.verify(testbed, load)


@row("13", "100 ms away, resets in mid-frame", "resets", short=15, normal=500, full=10_000)
def reset(run: Run) -> None:
    with run.testbed_behind_proxies() as (testbed, proxies):
        with testbed.load() as load:
            degrade(proxies, delay_seconds=0.05, reset_within_bytes=20_000)
            while (resets := sum(proxy.resets for proxy in proxies)) < run.count:
                run.done(resets)
                assert not load.problems, load.problems
                time.sleep(0.1)
            run.done(resets)
            degrade(proxies, delay_seconds=0.0, reset_within_bytes=None)
            load.wait_for_acks()
        run.verify(testbed, load)


def degrade(proxies: list[Proxy], *, delay_seconds: float, reset_within_bytes: int | None) -> None:
    """Set the latency, and the bytes after which connections are reset; reset all connections."""
    for proxy in proxies:
        proxy.delay_seconds, proxy.reset_within_bytes = delay_seconds, reset_within_bytes
        proxy.reset_all()
