"""The same verbs without `await`, for scripts, notebooks, Spark workers and the command line.

    with Producer("localhost:9092") as producer:
        receipt = producer.send("orders", b"…", key=b"user-1")

There is one implementation, the asynchronous one. A blocking client runs it on an event loop of its
own, in a thread of its own, and waits for what comes of it: so it may be used where a loop runs
already, and by several threads. Ctrl-C ends what is waited for; the client can still be used, or
closed. A process that was forked makes its own clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import Admin
    from .consumer import Consumer
    from .producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{name.lower()}", __name__), name)
    globals()[name] = value
    return value
