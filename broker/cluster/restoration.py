"""Writes a restored metadata store; see `coord/restoration.py`.

The entry `cluster` is written last: brokers refuse a store without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.coord.restoration import CLUSTER_KEY, RestorationPlan

from .store.metadata_store import (
    Delete,
    Entry,
    MetadataStore,
    ModRevision,
    Operation,
    Put,
    Snapshot,
    StoreError,
)

_ENTRIES_PER_TRANSACTION = 100
_REGISTRATION = b"registration/"

#: Called with the number of entries that were written or removed.
Progress = Callable[[int], None]


class StoreInUseError(StoreError):
    """The store has entries, or brokers are registered in it."""


async def check_target(store: MetadataStore, *, overwrites: bool) -> Snapshot:
    """Return what a store has. Raises StoreInUseError if it must not be overwritten."""
    snapshot = await store.load()
    registered = [
        key.removeprefix(_REGISTRATION).decode()
        for key in sorted(snapshot.entries)
        if key.startswith(_REGISTRATION)
    ]
    if registered:
        raise StoreInUseError(
            f"Brokers are registered in the metadata store: {', '.join(registered)}. Stop them, and"
            " wait until their sessions have ended"
        )
    if snapshot.entries and not overwrites:
        raise StoreInUseError(
            f"The metadata store is not empty: it has {len(snapshot.entries)} keys"
        )
    return snapshot


async def write_store(
    store: MetadataStore, target: Snapshot, plan: RestorationPlan, progress: Progress
) -> None:
    """Remove what a store has, and write the entries of a plan.

    Raises StoreError; then the store is not valid, and brokers refuse it.
    """
    await _remove(store, target.entries, progress)
    for start in range(0, len(plan.entries), _ENTRIES_PER_TRANSACTION):
        chunk = plan.entries[start : start + _ENTRIES_PER_TRANSACTION]
        await _transact(
            store,
            [ModRevision(key, 0) for key, _value in chunk],
            [Put(key, value) for key, value in chunk],
        )
        progress(len(chunk))


async def _remove(store: MetadataStore, entries: Mapping[bytes, Entry], progress: Progress) -> None:
    keys = sorted(entries, key=lambda key: (key != CLUSTER_KEY, key))
    for start in range(0, len(keys), _ENTRIES_PER_TRANSACTION):
        chunk = keys[start : start + _ENTRIES_PER_TRANSACTION]
        await _transact(
            store,
            [ModRevision(key, entries[key].mod_revision) for key in chunk],
            [Delete(key) for key in chunk],
        )
        progress(len(chunk))


async def _transact(
    store: MetadataStore, compares: list[ModRevision], operations: list[Operation]
) -> None:
    result = await store.transact(compares, operations)
    if not result.succeeded:
        raise StoreInUseError("The metadata store was changed meanwhile: another process uses it")
