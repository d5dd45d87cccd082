"""Who may send which request: ASGI middleware around the whole application.

In this order:

1. `Host` must be a name of this console. A page of another site whose name was pointed at loopback
   (DNS rebinding) sends that site's name.
2. A request of another site, by `Origin` or `Sec-Fetch-Site`, may read nothing and change nothing.
3. With authentication, everything but logins, probes and static files needs a session cookie, a
   bearer token, or SASL credentials (Basic).
4. A change that a browser sends needs the page's token (`X-CSRF-Token`).

Every response forbids scripts and styles but the console's own files, framing, and caching.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextvars
import hmac
import logging
import re
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ConsoleConfig
from .problems import Problem, problem_of
from .sessions import Session, Sessions

logger = logging.getLogger(__name__)

CSRF_HEADER = "x-csrf-token"
_SAFE = ("GET", "HEAD", "OPTIONS")
_PUBLIC = ("/health", "/ready", "/login", "/static/")
# Responses that take as long as somebody looks.
_STREAMS = re.compile(r"/api/v1/topics/[^/]+/records/(tail|export)")
_RECORDS = re.compile(r"/api/v1/topics/[^/]+/records")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer, the origin of a form is "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
#: The session of the request that is being handled.
current_session: contextvars.ContextVar[Session] = contextvars.ContextVar("session")


class _StalledError(Exception):
    """A client does not read its response, which holds a query or a live tail meanwhile."""


class Access:
    """The middleware."""

    def __init__(self, app: ASGIApp, config: ConsoleConfig, sessions: Sessions) -> None:
        self._app = app
        self._config = config
        self._sessions = sessions
        names = {"localhost", "127.0.0.1", "::1", config.host, *config.allowed_hosts}
        self._hosts = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; everything else is passed on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        has_started = False
        method: str = scope["method"]
        limit = self._config.limits.request_seconds

        async def send_protected(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
            try:
                async with asyncio.timeout(limit):
                    await send(message)
            except TimeoutError:
                raise _StalledError from None

        try:
            async with asyncio.timeout(None if _STREAMS.fullmatch(scope["path"]) else limit):
                await self._handle(scope, receive, send_protected)
        except _StalledError:
            logger.warning("A client does not read its response: %s %r", method, scope["path"])
        except Exception as error:  # the boundary of a request
            problem = problem_of(error)
            if problem is None:
                logger.exception("Request failed: %s %r", method, scope["path"])
                problem = Problem(500, "An error of the console; its log has the details")
            if not has_started:
                await problem.response()(scope, receive, send_protected)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        self._check_origin(headers)
        path: str = scope["path"]
        max_bytes = self._max_body_bytes(path)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) >= 20 or int(length) > max_bytes:
            raise _too_large(max_bytes)
        receive = _bounded(receive, max_bytes)
        session = await self._session_of(headers)
        if session is None:
            if not path.startswith(_PUBLIC):
                await self._refusal(scope)(scope, receive, send)
                return
            await self._app(scope, receive, send)
            return
        if scope["method"] not in _SAFE and path != "/login":
            _check_csrf(headers, session)
        session.requests += 1
        token = current_session.set(session)
        try:
            await self._app(scope, receive, send)
        finally:
            current_session.reset(token)
            session.requests -= 1

    def _max_body_bytes(self, path: str) -> int:
        limits = self._config.limits
        if path == "/login":
            return limits.login_bytes
        return limits.produced_bytes if _RECORDS.fullmatch(path) else limits.body_bytes

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        host = _hostname(f"//{hosts[0]}") if len(hosts) == 1 else None
        if host not in self._hosts:
            raise Problem(
                421,
                f"The console is not known as {host or 'this host'}; to allow that name, start it"
                " with --allow-host",
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers["host"]:
            raise Problem(403, "A request of another site")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
            and "origin" not in headers
        ):
            raise Problem(403, "A request of another site")

    async def _session_of(self, headers: Headers) -> Session | None:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._config.token is not None:
            if not self._sessions.accepts(credentials.strip()):
                await self._sessions.reject("Wrong token")
            return self._sessions.shared
        if scheme.lower() == "basic" and self._config.login_mechanism is not None:
            return await self._sessions.of_credentials(*_basic(credentials))
        if not self._config.needs_login:
            return self._sessions.shared
        return self._sessions.find(session_id_of(headers, self._config))

    def _refusal(self, scope: Scope) -> Response:
        if scope["path"].startswith("/api/"):
            how = "a bearer token" if self._config.token else "SASL credentials (Basic)"
            response = Problem(401, f"This console needs {how}").response()
            if self._config.token:
                response.headers["www-authenticate"] = "Bearer"
            return response
        target = scope["path"]
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        return RedirectResponse(f"/login?next={quote(target)}", 303)


def cookie_name(config: ConsoleConfig) -> str:
    """Return the name of the session cookie; browsers share cookies between ports."""
    return f"ottla_session_{config.port}"


def session_id_of(headers: Headers, config: ConsoleConfig) -> str | None:
    """Return the session id in the cookie of a request."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(config))


def _check_csrf(headers: Headers, session: Session) -> None:
    """Require the page's token of a browser: other programs send none of these headers."""
    names: Iterable[str] = ("origin", "cookie", "sec-fetch-site", "referer")
    if not any(name in headers for name in names):
        return
    if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
        raise Problem(403, "The token of the page is missing or old: reload the page")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _basic(credentials: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Problem(401, "Malformed Basic credentials") from None
    username, colon, password = text.partition(":")
    if not colon:
        raise Problem(401, "Malformed Basic credentials")
    return username, password


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, f"The body is larger than {max_bytes} bytes")


def _bounded(receive: Receive, max_bytes: int) -> Receive:
    """Return a `receive` that raises Problem when the body is too large."""
    remaining = max_bytes

    async def receive_bounded() -> Message:
        nonlocal remaining
        message = await receive()
        remaining -= len(message.get("body", b""))
        if remaining < 0:
            raise _too_large(max_bytes)
        return message

    return receive_bounded
