"""Topics as Spark sources and sinks, without a jar: `spark.read.format("ottla")`.

    from ottla.client.spark import builder, register

    spark = register(builder().getOrCreate())

Options and columns are those of Spark's own Kafka source and sink. Requires pyspark 4.2, pyarrow
(`pip install "ottla[spark]"`), and a Java for Spark. Names are imported on first use: options and
planning need no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import DataLossError, OptionError
    from .runtime import find_java
    from .session import builder, lag, register, session_configs
    from .source import OttlaSource

__all__ = [
    "DataLossError",
    "OptionError",
    "OttlaSource",
    "builder",
    "find_java",
    "lag",
    "register",
    "session_configs",
]

_MODULE_OF = {
    "DataLossError": "errors",
    "OptionError": "errors",
    "OttlaSource": "source",
    "builder": "session",
    "find_java": "runtime",
    "lag": "session",
    "register": "session",
    "session_configs": "session",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "OttlaSource":
        # An older pyspark would fail in the import with an obscure message.
        import_module(".runtime", __name__).check_pyspark()
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
