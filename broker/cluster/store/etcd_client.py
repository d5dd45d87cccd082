"""A client of etcd's JSON gateway: one member at a time, and the next one when that is lost.

All requests go to one member, until a request or the keepalive of the broker's lease fails there.
Then the connections to it are closed, which ends its watches and the requests in flight, and the
next member is used. A member is also given up if

- it answers UNAVAILABLE: it has no leader, or is stopping;
- it answers in an older raft term than one seen before: it is cut off from the others.

An answer of another etcd cluster, or one whose revision is lower than an earlier one, is an error
that no other member can mend: the store was replaced, or restored from a backup.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

import aiohttp

from .metadata_store import OtherStoreError, StoreError, StoreUnavailableError

T = TypeVar("T")

#: No answer for this long: try another member. A lease has room for two of these.
REQUEST_SECONDS = 1.5
#: Maximum size of a message of a watch.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# gRPC codes.
_CANCELLED, _UNKNOWN, _DEADLINE_EXCEEDED, _NOT_FOUND = 1, 2, 4, 5
_ABORTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 10, 13, 14, 16
_LOST_CODES = {_CANCELLED, _UNKNOWN, _DEADLINE_EXCEEDED, _ABORTED, _INTERNAL, _UNAVAILABLE}
# INVALID_ARGUMENT, told apart by its text, as in etcd's own clients.
_STALE_TOKEN_ERRORS = ("user name is empty", "revision of auth store is old", "invalid auth token")


class MemberLostError(StoreUnavailableError):
    """The current member did not answer; the next request goes to another one."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        #: Whether the member may have the request.
        self.was_sent = was_sent


class EtcdError(StoreError):
    """etcd refused a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_not_found(self) -> bool:
        """Whether something that the request names does not exist: in ottla's, a lease."""
        return self.code == _NOT_FOUND

    @property
    def is_token_stale(self) -> bool:
        """Whether a new token may help."""
        return self.code == _UNAUTHENTICATED or any(
            text in str(self) for text in _STALE_TOKEN_ERRORS
        )


class _Seen(NamedTuple):
    """The highest raft term and revision of all answers."""

    raft_term: int = 0
    revision: int = 0

    def including(self, raft_term: int, revision: int) -> _Seen:
        return _Seen(max(self.raft_term, raft_term), max(self.revision, revision))


class _Member:
    """A member and the connections to it."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self.url = url
        connector = aiohttp.TCPConnector(ssl=True if tls is None else tls, limit=0)
        self.session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS),
            headers={"Content-Type": "application/json"},
        )
        # Completed with the reason when the member is given up: closing a session does not wake
        # those who read from it.
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def unless_lost(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the result of a request. Raises MemberLostError if the member is given up."""
        task = asyncio.get_running_loop().create_task(request)
        try:
            await asyncio.wait((task, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        raise MemberLostError(f"etcd at {self.url}: {self.lost.result()}", was_sent=True)


class EtcdClient:
    """Sends requests to the members of an etcd cluster."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        username: str = "",
        password: str = "",
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        scheme = "http" if tls is None else "https"
        self._urls = [f"{scheme}://{address}" for address in addresses]
        # Brokers spread over the members.
        self._index = random.randrange(len(self._urls))  # noqa: S311
        self._tls = tls
        self._username, self._password = username, password
        self._token = ""
        self._request_seconds = request_seconds
        self._member: _Member | None = None
        self.is_closed = False
        #: The id of the etcd cluster; empty before the first answer.
        self.cluster_id = ""
        self._seen = _Seen()

    @property
    def member_count(self) -> int:
        """The number of configured members."""
        return len(self._urls)

    async def call(
        self, path: str, body: Mapping[str, Any], *, is_linearizable: bool = True
    ) -> dict[str, Any]:
        """Send a request to the current member, once.

        Raises MemberLostError, EtcdError, or OtherStoreError.
        """
        member = self._current()
        seen = self._seen
        try:
            content = await self._post(member, path, body, await self._headers(member))
        except EtcdError as error:
            if not (self._username and error.is_token_stale):
                raise
            self._token = ""
            content = await self._post(member, path, body, await self._headers(member))
        # The answer of a stream of one message has it inside.
        result: dict[str, Any] = content.get("result", content)
        await self._check_header(member, result.get("header", {}), seen, is_linearizable)
        return result

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Send a request whose answer is a stream, and yield its messages.

        Raises MemberLostError when the stream ends, or what `call` does.
        """
        member = self._current()
        async with aclosing(self._messages(member, path, body)) as messages:
            async for message in messages:
                error = message.get("error")
                if error is not None:
                    raise await self._error(member, error)
                result = message.get("result", {})
                await self._check_header(member, result.get("header", {}), self._seen, False)
                yield result

    async def leave_member(self, reason: str) -> MemberLostError:
        """Give the current member up; return the error to raise."""
        return await self._leave(self._current(), reason)

    def saw_revision(self, revision: int) -> None:
        """Note a revision of the store: it must never go back behind that."""
        self._seen = self._seen.including(self._seen.raft_term, revision)

    async def close(self) -> None:
        """Close all connections."""
        self.is_closed = True
        if self._member is not None:
            self._member.lost.set_result("closed")
            await self._member.session.close()
            self._member = None

    def _current(self) -> _Member:
        if self.is_closed:
            raise StoreUnavailableError("The connection to etcd is closed")
        if self._member is None:
            self._member = _Member(self._urls[self._index], self._tls)
        return self._member

    async def _leave(
        self, member: _Member, reason: str, *, was_sent: bool = True
    ) -> MemberLostError:
        if self._member is member:
            self._member = None
            self._index = (self._index + 1) % len(self._urls)
            member.lost.set_result(reason)
            await member.session.close()
        return MemberLostError(f"etcd at {member.url}: {reason}", was_sent=was_sent)

    async def _post(
        self, member: _Member, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        async def exchange() -> tuple[int, bytes]:
            async with (
                asyncio.timeout(self._request_seconds),
                member.session.post(
                    member.url + path, data=json.dumps(body), headers=headers
                ) as response,
            ):
                return response.status, await response.read()

        try:
            status, text = await member.unless_lost(exchange())
        except aiohttp.ClientConnectorError as error:
            raise await self._leave(member, str(error), was_sent=False) from error
        except TimeoutError as error:
            reason = f"no answer in {self._request_seconds} s"
            raise await self._leave(member, reason) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # RuntimeError: another request closed the session.
            raise await self._leave(member, str(error) or type(error).__name__) from error
        content = _parse(text)
        if status != 200 or content is None:
            raise await self._error(member, content or {"message": f"HTTP status {status}"})
        return content

    async def _messages(
        self, member: _Member, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any]]:
        # Without a leader the stream ends; by default it would be silent.
        headers = {**await self._headers(member), "Grpc-Metadata-hasleader": "true"}
        response: aiohttp.ClientResponse | None = None

        async def send() -> aiohttp.ClientResponse:
            return await member.session.post(
                member.url + path, data=json.dumps(body), headers=headers
            )

        try:
            response = await member.unless_lost(send())
            if response.status != 200:
                content = _parse(await member.unless_lost(response.read()))
                status = response.status
                raise await self._error(member, content or {"message": f"HTTP status {status}"})
            buffer = bytearray()
            while data := await member.unless_lost(response.content.readany()):
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                if len(buffer) > MAX_MESSAGE_BYTES:
                    raise await self._leave(member, "a message is too large")
                for line in lines:
                    message = _parse(line)
                    if message is not None:
                        yield message
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise await self._leave(member, str(error) or type(error).__name__) from error
        finally:
            if response is not None:
                response.close()
        raise await self._leave(member, "the stream has ended")

    async def _headers(self, member: _Member) -> dict[str, str]:
        """Return the headers of a request. Raises EtcdError if the password is wrong."""
        if self._username and not self._token:
            body = {"name": self._username, "password": self._password}
            try:
                content = await self._post(member, "/v3/auth/authenticate", body, {})
            except EtcdError as error:
                if "authentication is not enabled" not in str(error):
                    raise
                return {}
            self._token = content["token"]
        return {"Authorization": self._token} if self._token else {}

    async def _check_header(
        self, member: _Member, header: Mapping[str, str], seen: _Seen, is_linearizable: bool
    ) -> None:
        """Check an answer against what was seen before its request was sent."""
        cluster_id, revision = header.get("cluster_id", ""), int(header.get("revision", 0))
        term = int(header.get("raft_term", 0))
        if self.cluster_id and cluster_id != self.cluster_id:
            raise OtherStoreError(
                f"etcd at {member.url} has cluster id {cluster_id}; expected {self.cluster_id}"
            )
        if term < seen.raft_term:
            raise await self._leave(
                member, f"it is in raft term {term}, and others are in {seen.raft_term}"
            )
        if is_linearizable and revision < seen.revision:
            raise OtherStoreError(
                f"etcd at {member.url} is at revision {revision}, and was at {seen.revision}:"
                " it was restored from a backup"
            )
        self.cluster_id = cluster_id
        self._seen = self._seen.including(term, revision if is_linearizable else 0)

    async def _error(self, member: _Member, content: Mapping[str, Any]) -> StoreError:
        code = int(content.get("code", content.get("grpc_code", _UNKNOWN)))
        message = str(content.get("message", content.get("error", "")))
        if code in _LOST_CODES:
            return await self._leave(member, message)
        if code == _UNAUTHENTICATED:
            self._token = ""
        return EtcdError(code, f"etcd at {member.url}: {message}")


def _parse(text: bytes | bytearray) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
