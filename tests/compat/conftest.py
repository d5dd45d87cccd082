"""The fixtures of the compatibility tests."""

from harness.fixtures import (  # noqa: F401
    broker,
    broker_flags,
    client,
    clients,
    helper,
    module_broker,
    topic,
)
