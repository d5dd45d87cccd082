"""Imports all modules with rows, which registers them in the matrix."""

from __future__ import annotations

from chaos import (
    attacks,
    background,
    clocks,
    cluster_faults,
    crashes,
    damage,
    disks,
    failovers,
    groups,
    identity,
    network,
    reassignments,
    replica_faults,
    store_faults,
)

__all__ = [
    "attacks",
    "background",
    "clocks",
    "cluster_faults",
    "crashes",
    "damage",
    "disks",
    "failovers",
    "groups",
    "identity",
    "network",
    "reassignments",
    "replica_faults",
    "store_faults",
]
