"""All rows, in their order."""

from __future__ import annotations

from chaos import clocks, crashes, disks, groups, network

__all__ = ["clocks", "crashes", "disks", "groups", "network"]
