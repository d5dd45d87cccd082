"""Transfer jobs: exactly once with every client, while workers and brokers are killed.

`--transfers 500` is the long form, with as many orders for each client, and kills in proportion.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from harness.daemon import Cluster, shown_on_failure
from harness.transfers.job import BATCH_SIZE, Transfers, installed_clients
from ottla.client import Admin

pytestmark = pytest.mark.real_time

SHORT = 24
CONFIGS = (
    "transaction.state.log.num.partitions=3",
    "offsets.topic.num.partitions=3",
    "group.initial.rebalance.delay.ms=0",
)


@pytest.mark.parametrize("brokers", [1, 3])
def test_every_client_transfers_exactly_once(request, tmp_path, brokers):
    count = request.config.getoption("--transfers") or SHORT
    seed = request.config.getoption("--transfers-seed")
    seed = random.SystemRandom().randrange(10**9) if seed is None else seed
    clients = installed_clients()
    if wanted := request.config.getoption("--transfers-clients"):
        clients = [client for client in clients if client in wanted.split(",")]
    print(f"replay with --transfers-seed {seed}")
    kills = max(1, count // 50)
    flags = [flag for config in CONFIGS for flag in ("--set", config)]
    with Cluster(tmp_path, brokers, *flags) as cluster, shown_on_failure(request, cluster.brokers):
        transfers = Transfers(cluster, clients, count, seed, tmp_path)
        transfers.run(worker_kills=kills, broker_kills=kills * (1 + brokers // 2))
        epochs = asyncio.run(producer_epochs(cluster.bootstrap, transfers.jobs))
    for job in transfers.jobs:
        print(f"{job.client}: {job.kills} workers killed, {job.exits} ended")
        if job.client in ("java", "ottla"):
            # Transaction protocol 2: each transaction has an epoch.
            assert epochs[job.group] >= count // BATCH_SIZE


async def producer_epochs(bootstrap, jobs):
    async with Admin(bootstrap) as admin:
        described = await admin.describe_transactions(*(job.group for job in jobs))
    return {name: one.producer_epoch for name, one in described.items()}
