"""The blocking clients, for scripts, notebooks, Spark workers and the command line.

    with Producer("localhost:9092") as producer:
        metadata = producer.send("orders", b"…", key=b"user-1")

There is one implementation, the asynchronous one. A blocking client runs it on an event loop in a
thread of its own, and waits for the results: so it also works where a loop is running, and several
threads may share it. Ctrl-C cancels the call; the client can still be used and closed. After a
fork, the child process creates its own clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import Admin
    from .consumer import Consumer
    from .producer import Producer
    from .share_consumer import ShareConsumer

__all__ = ["Admin", "Consumer", "Producer", "ShareConsumer"]

_MODULES = {name: name.lower() for name in __all__} | {"ShareConsumer": "share_consumer"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
