"""SASL on a connection: which requests are allowed when. No I/O.

    state          allowed                          then
    NEW            ApiVersions once                 VERSIONS_KNOWN
                   SaslHandshake                    HANDSHAKE, or RAW for version 0
    VERSIONS_KNOWN SaslHandshake                    HANDSHAKE, or RAW for version 0
    HANDSHAKE      SaslAuthenticate                 HANDSHAKE, AUTHENTICATED or FAILED
    RAW            tokens without a request around  RAW, AUTHENTICATED or FAILED
    AUTHENTICATED  everything; SaslHandshake        HANDSHAKE: re-authentication (KIP-368)
    FAILED         nothing

In NEW and VERSIONS_KNOWN, anything else closes the connection without an answer; in HANDSHAKE it is
answered with ILLEGAL_SASL_STATE first. When a session has expired, the next request other than
SaslHandshake closes the connection, so that no timer is needed.

In a re-authentication the mechanism and the principal have to be the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from ottla.coord.principal import KafkaPrincipal
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

from .exchange import Accepted, AuthenticationError, Challenge, Exchange

NEVER = float("inf")
_MIN_REAUTHENTICATION_SECONDS = 1.0


class SaslState(Enum):
    """The states of a connection; see above."""

    NEW = auto()
    VERSIONS_KNOWN = auto()
    HANDSHAKE = auto()
    RAW = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class Verdict(Enum):
    """What becomes of a request."""

    ALLOWED = auto()
    #: Answered with ILLEGAL_SASL_STATE, if it can be, and the connection is closed.
    ILLEGAL = auto()
    #: The connection is closed.
    CLOSE = auto()


class HandshakeResult(NamedTuple):
    """The answer to a handshake, and whether the connection is closed after it."""

    error_code: ErrorCode
    mechanisms: Sequence[str]
    closes: bool = False


class SaslSession:
    """The state of one connection. `exchanges` are the enabled mechanisms."""

    def __init__(
        self,
        exchanges: Mapping[str, Callable[[], Exchange]],
        max_reauth_ms: int = 0,
    ) -> None:
        self._exchanges = exchanges
        self._max_reauth_ms = max_reauth_ms
        self.state = SaslState.NEW
        #: Of a session that was authenticated at least once.
        self.principal: KafkaPrincipal | None = None
        self.mechanism = ""
        #: When the client has to have authenticated again, by the clock of `now`.
        self.expires_at = NEVER
        self._authenticated_at = -NEVER
        self._exchange: Exchange
        self._failure = ""

    def check(self, api_key: int, version: int, now: float) -> Verdict:
        """Return what becomes of a request."""
        state = self.state
        if state is SaslState.AUTHENTICATED:
            if api_key == SASL_HANDSHAKE.key:
                return Verdict.ALLOWED
            if now >= self.expires_at:
                return Verdict.CLOSE
            return Verdict.ILLEGAL if api_key == SASL_AUTHENTICATE.key else Verdict.ALLOWED
        if state is SaslState.HANDSHAKE:
            return Verdict.ALLOWED if api_key == SASL_AUTHENTICATE.key else Verdict.ILLEGAL
        if state is SaslState.NEW and api_key == API_VERSIONS.key:
            # The client asks again after a version that is not supported.
            if version in API_VERSIONS.versions:
                self.state = SaslState.VERSIONS_KNOWN
            return Verdict.ALLOWED
        is_new = state in (SaslState.NEW, SaslState.VERSIONS_KNOWN)
        if is_new and api_key == SASL_HANDSHAKE.key:
            return Verdict.ALLOWED
        return Verdict.CLOSE

    def handshake(self, mechanism: str, version: int, now: float) -> HandshakeResult:
        """Begin an exchange."""
        is_again = self.state is SaslState.AUTHENTICATED
        if is_again and now - self._authenticated_at < _MIN_REAUTHENTICATION_SECONDS:
            return HandshakeResult(ErrorCode.ILLEGAL_SASL_STATE, ())
        enabled = list(self._exchanges)
        if mechanism not in self._exchanges:
            self.state = SaslState.FAILED
            return HandshakeResult(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled, closes=True)
        if is_again and mechanism != self.mechanism:
            self._failure = f"Cannot change the SASL mechanism from {self.mechanism} to {mechanism}"
        if not is_again:
            self.mechanism = mechanism
        self._exchange = self._exchanges[mechanism]()
        self.state = SaslState.RAW if version == 0 else SaslState.HANDSHAKE
        return HandshakeResult(ErrorCode.NONE, enabled)

    async def receive(self, message: bytes) -> Challenge | Accepted:
        """Continue the exchange. Raises AuthenticationError: the session has failed then.

        So it has after any other error, which is a bug: nobody may try again.
        """
        state = self.state
        assert state in (SaslState.HANDSHAKE, SaslState.RAW)
        self.state = SaslState.FAILED
        if self._failure:
            raise AuthenticationError(self._failure, self._failure)
        result = await self._exchange.receive(message)
        if isinstance(result, Accepted) and self.principal not in (None, result.principal):
            text = f"Cannot change principals during re-authentication from {self.principal}"
            raise AuthenticationError(f"{text} to {result.principal}", text)
        self.state = state
        return result

    def accept(self, accepted: Accepted, now: float, now_ms: int) -> int:
        """Begin a session; return its lifetime in milliseconds, 0 for one without an end.

        Raises AuthenticationError if it has expired already.
        """
        lifetimes = [self._max_reauth_ms] if self._max_reauth_ms else []
        if accepted.expires_at_ms is not None:
            lifetimes.append(accepted.expires_at_ms - now_ms)
        lifetime_ms = min(lifetimes, default=0)
        if lifetimes and lifetime_ms <= 0:
            self.state = SaslState.FAILED
            raise AuthenticationError("the credential has expired", "The credential has expired")
        self.principal = accepted.principal
        self.state = SaslState.AUTHENTICATED
        self._authenticated_at = now
        self.expires_at = now + lifetime_ms / 1000 if lifetimes else NEVER
        return lifetime_ms
