"""Who is logged in: sessions in memory, each with the clients of its user."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import NoReturn

from ottla.client import AuthenticationError, ClientError

from .cluster_client import ClusterClient
from .config import ConsoleConfig
from .problems import Problem

# A guess of a password costs the guesser this long.
_FAILED_LOGIN_SECONDS = 0.5
_CONCURRENT_LOGINS = 8


@dataclass(slots=True)
class Session:
    """A user's clients, and the token that the user's pages send with each change."""

    client: ClusterClient
    user: str | None = None
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    used: float = field(default_factory=time.monotonic)
    #: How many requests use it: it is not closed under them.
    requests: int = 0


class Sessions:
    """All sessions. Without logins, everybody shares one."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config
        self._by_id: dict[str, Session] = {}
        self._secret = secrets.token_bytes(32)
        self._logins = asyncio.Semaphore(_CONCURRENT_LOGINS)
        self._rejected = asyncio.Semaphore(_CONCURRENT_LOGINS)
        self.shared: Session | None = None
        if config.login_mechanism is None:
            self.shared = Session(ClusterClient(config, config.security))

    async def close(self) -> None:
        """Close the clients of all sessions."""
        sessions = [*self._by_id.values(), *filter(None, [self.shared])]
        self._by_id.clear()
        for client in {id(one.client): one.client for one in sessions}.values():
            await client.close()

    def find(self, session_id: str | None) -> Session | None:
        """Return a session by the id in a cookie; None if it was not used for too long."""
        session = self._by_id.get(session_id or "")
        if session is None or self._is_expired(session):
            return None
        session.used = time.monotonic()
        return session

    async def end(self, session_id: str | None) -> None:
        """Log out."""
        session = self._by_id.pop(session_id or "", None)
        if session is not None and session.client is not self._shared_client:
            await session.client.close()

    def accepts(self, token: str) -> bool:
        """Whether a bearer token is the right one."""
        expected = self._config.token
        return expected is not None and hmac.compare_digest(token.encode(), expected.encode())

    async def reject(self, reason: str) -> NoReturn:
        """Raise Problem, after a time: guesses are slow, however many are made at once."""
        if self._rejected.locked():
            raise Problem(429, "Too many failed logins at a time; try again")
        async with self._rejected:
            await asyncio.sleep(_FAILED_LOGIN_SECONDS)
        raise Problem(401, reason)

    async def open_with_token(self, token: str) -> str:
        """Return the id of a new session of someone who knows the token. Raises Problem."""
        if self.shared is None or not self.accepts(token):
            await self.reject("Wrong token")
        return await self._add(Session(self.shared.client))

    async def open_with_credentials(self, username: str, password: str) -> str:
        """Return the id of a new session of a user of the cluster. Raises Problem."""
        return await self._add(await self._authenticated(username, password))

    async def of_credentials(self, username: str, password: str) -> Session:
        """Return the session that requests with these credentials share. Raises Problem."""
        text = f"{username}\0{password}".encode()
        session_id = "basic-" + hmac.new(self._secret, text, hashlib.sha256).hexdigest()
        session = self.find(session_id)
        if session is None:
            made = await self._authenticated(username, password)
            await self._make_room()
            # Another request may have been faster.
            session = self._by_id.setdefault(session_id, made)
            if session is not made:
                await made.client.close()
        return session

    async def _authenticated(self, username: str, password: str) -> Session:
        if self._logins.locked():
            raise Problem(429, "Too many logins at a time; try again")
        async with self._logins:
            try:
                security = self._config.user_security(username, password)
            except ValueError as error:
                await self.reject(str(error))
            client = ClusterClient(self._config, security)
            try:
                await client.admin.describe_cluster()
            except AuthenticationError:
                await client.close()
                await self.reject("The cluster does not accept these credentials")
            except ClientError:
                await client.close()
                raise
            return Session(client, username)

    @property
    def _shared_client(self) -> ClusterClient | None:
        return None if self.shared is None else self.shared.client

    async def _add(self, session: Session) -> str:
        await self._make_room()
        session_id = secrets.token_urlsafe(32)
        self._by_id[session_id] = session
        return session_id

    async def _make_room(self) -> None:
        await self._expire()
        idle = (one for one in self._by_id.items() if not one[1].requests)
        if len(self._by_id) >= self._config.limits.sessions:
            oldest = min(idle, key=lambda item: item[1].used, default=None)
            if oldest is None:
                raise Problem(429, "Too many sessions; try again later")
            await self.end(oldest[0])

    def _is_expired(self, session: Session) -> bool:
        limit = time.monotonic() - self._config.limits.session_seconds
        return session.used < limit and not session.requests

    async def _expire(self) -> None:
        expired = [key for key, one in self._by_id.items() if self._is_expired(one)]
        for session_id in expired:
            await self.end(session_id)
