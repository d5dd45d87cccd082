"""A broker for tests: `RunningBroker`, and the fixtures of the pytest plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .running_broker import RunningBroker

__all__ = ["RunningBroker"]


def __getattr__(name: str) -> Any:
    # Lazy: pytest imports this package with the plugin, wherever ottla is installed.
    if name in __all__:
        return getattr(import_module(".running_broker", __name__), name)
    raise AttributeError(name)
