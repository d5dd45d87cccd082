"""The broker: listeners, request handlers, partitions, coordinators, cluster membership.

from . import Broker, BrokerConfig

async with Broker(BrokerConfig(log_dir="data")) as broker: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import Broker
    from .config.broker_config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]


def __getattr__(name: str) -> Any:
    # The command line imports this package, and should not pay for all of it.
    if name in __all__:
        module = import_module(
            ".broker" if name == "Broker" else ".config.broker_config", __package__
        )
        return getattr(module, name)
    raise AttributeError(name)
