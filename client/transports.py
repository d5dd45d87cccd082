"""Writing several buffers to a transport, where CPython forgets its flow control.

With asyncio's own event loop, `writelines` of CPython 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never
calls `pause_writing` (CVE-2024-12254): the buffer of a peer that does not read would grow without a
bound. uvloop is not affected.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable

from ottla.protocol.schema import Buffer

_IS_AFFECTED = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)


def writelines_of(transport: asyncio.WriteTransport) -> Callable[[Iterable[Buffer]], None]:
    """Return the transport's `writelines`, or what replaces it where it has no flow control."""
    if _IS_AFFECTED and type(transport).__module__ == "asyncio.selector_events":
        return lambda buffers: transport.write(b"".join(buffers))
    return transport.writelines
