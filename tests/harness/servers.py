"""Closing asyncio servers without leaking connections."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Close a server, after the connections that it accepted are set up: asyncio leaks those."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await run_ready_callbacks()
    server.close()


async def run_ready_callbacks() -> None:
    """Let the event loop run the callbacks that are ready, and those that they schedule."""
    for _ in range(10):
        await asyncio.sleep(0)
