"""TLS and SASL: the options of Spark's Kafka connector, `kafka.` and Kafka's client config.

Files are read where they are used: by the driver, and by each executor. The values travel with the
tasks, as those of Spark's own connector do, and are in no `repr`, error or plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..security import PROPERTIES, SecurityConfig
from .errors import OptionError

Get = Callable[[str, Callable[[str], Any]], Any]

#: Kafka's names, without those of librdkafka.
SUPPORTED = frozenset(PROPERTIES)


def security_option(kafka: Get) -> SecurityConfig | None:
    """Return the security config; None: PLAINTEXT. Raises OptionError.

    `kafka` returns an option without its prefix.
    """
    properties = {name: text for name in PROPERTIES if (text := kafka(name, str)) is not None}
    if not properties:
        return None
    try:
        config = SecurityConfig.from_properties(properties)
    except ValueError as error:
        raise OptionError(
            f"kafka.security.protocol, kafka.sasl.* and kafka.ssl.*: {error}"
        ) from None
    if not config.uses_tls and not config.uses_sasl:
        if unused := sorted(set(properties) - {"security.protocol"}):
            needed = "SASL_SSL or SASL_PLAINTEXT" if "sasl" in unused[0] else "SSL or SASL_SSL"
            raise OptionError(f"Option kafka.{unused[0]} requires kafka.security.protocol {needed}")
        return None
    return config
