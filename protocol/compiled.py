"""Whether there is a compiled module: `fast` is it, or None.

It is absent where no compiler was at hand when ottla was installed, and where ottla is imported
from a zip file. What it does is then done in Python, with the same results. Whoever wants that (a
test, or a search for a fault) sets `fast` to None: it is looked up here at every use.
"""

from __future__ import annotations

__all__ = ["fast"]

try:
    from . import _fast as fast
except ImportError:
    fast = None  # type: ignore[assignment]  # the stub is always there
