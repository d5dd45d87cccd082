"""Servers of asyncio, closed so that no connection is lost."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Close a server. Who was let in becomes a connection before: asyncio loses it otherwise."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await take_turns()
    server.close()


async def take_turns() -> None:
    """Let the loop do what is to be done next, and what follows from that."""
    for _ in range(10):
        await asyncio.sleep(0)
