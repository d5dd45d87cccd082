"""A dict with changes that leave the dict itself as it is.

A draft of a large group changes a few entries: it does not copy the others.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Overlay(MutableMapping[K, V]):
    """The entries of `base` with changes. `base` must not change while the overlay is in use."""

    __slots__ = ("_base", "_changed", "_removed")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self._changed: dict[K, V] = {}
        # Keys of the base.
        self._removed: set[K] = set()

    def __repr__(self) -> str:
        return f"Overlay({self._merged()!r})"

    def __getitem__(self, key: K) -> V:
        if key in self._changed:
            return self._changed[key]
        if key in self._removed:
            raise KeyError(key)
        return self._base[key]

    def get(self, key: K, default: D | None = None) -> V | D | None:  # type: ignore[override]
        """Return the value of a key, or a default."""
        if key in self._changed:
            return self._changed[key]
        return default if key in self._removed else self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._changed or (key in self._base and key not in self._removed)

    def __setitem__(self, key: K, value: V) -> None:
        self._changed[key] = value
        self._removed.discard(key)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._changed.pop(key, None)
        if key in self._base:
            self._removed.add(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._merged())

    def __len__(self) -> int:
        new = sum(key not in self._base for key in self._changed)
        return len(self._base) - len(self._removed) + new

    def values(self) -> ValuesView[V]:
        """Return the values, as they are now."""
        return self._merged().values()

    def items(self) -> ItemsView[K, V]:
        """Return the entries, as they are now."""
        return self._merged().items()

    def _merged(self) -> dict[K, V]:
        if not self._changed and not self._removed:
            return self._base
        merged = self._base | self._changed
        for key in self._removed:
            del merged[key]
        return merged
