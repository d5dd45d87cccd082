"""Imports all modules with rows, which registers them in the matrix."""

from __future__ import annotations

from chaos import attacks, background, clocks, crashes, damage, disks, groups, identity, network

__all__ = [
    "attacks",
    "background",
    "clocks",
    "crashes",
    "damage",
    "disks",
    "groups",
    "identity",
    "network",
]
