"""All rows, in their order."""

from __future__ import annotations

from chaos import clocks, crashes, disks, network

__all__ = ["clocks", "crashes", "disks", "network"]
