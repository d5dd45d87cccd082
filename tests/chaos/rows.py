"""Imports all modules with rows, which registers them in the matrix."""

from __future__ import annotations

from chaos import attacks, clocks, crashes, damage, disks, groups, network

__all__ = ["attacks", "clocks", "crashes", "damage", "disks", "groups", "network"]
