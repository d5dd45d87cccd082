"""ottla, Kafka's little sister: a distributed log that speaks the Kafka wire protocol.

Its packages: `ottla.protocol` (messages and record batches), `ottla.storage` (logs on disk),
`ottla.coord` (group coordination and cluster metadata), `ottla.broker`, `ottla.client`, `ottla.cli`
and `ottla.testing`.
"""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: importlib.metadata is slow to import."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("ottla")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
