"""The compiled module as `fast`, or None if it is not available.

It is missing if no C compiler was available at installation, or if ottla is imported from a zip
file. Pure Python then does the same work with the same results. To force that, in a test or while
debugging, set `fast` to None: it is looked up here on every use.
"""

from __future__ import annotations

__all__ = ["fast"]

try:
    from . import _fast as fast
except ImportError:
    fast = None  # type: ignore[assignment]  # the stub always exists
