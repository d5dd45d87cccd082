"""All rows, in their order."""

from __future__ import annotations

from chaos import clocks, crashes, damage, disks, groups, network

__all__ = ["clocks", "crashes", "damage", "disks", "groups", "network"]
