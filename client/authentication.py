"""Authenticate a connection with SASL: SaslHandshake, then SaslAuthenticate until it is complete.

The same again, on the same connection, before the session that the broker granted ends (KIP-368).
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.schema import Message
from ottla.protocol.scram import ScramMechanism

from .errors import AuthenticationError
from .sasl import OAuthBearer, Plain, SaslError, SaslExchange, Scram
from .security import SecurityConfig

M = TypeVar("M", bound=Message)

#: Sends a request with a version of at least `min_version`, and returns the response.
Send = Callable[[Message, type[Any], int], Awaitable[Any]]

# Version 0 of SaslHandshake is followed by tokens without any protocol around them.
_HANDSHAKE_VERSION = 1
# Messages are three at most; a broker that goes on after that is none.
_MAX_ROUNDS = 4
# The part of the session after which the client authenticates again. Random, so that connections
# opened together do not do it together.
_EARLIEST, _LATEST = 0.85, 0.95


async def authenticate(config: SecurityConfig, address: str, send: Send) -> float | None:
    """Authenticate; return the session's seconds, or None if it does not end.

    Raises AuthenticationError.
    """
    mechanism = config.sasl_mechanism
    assert mechanism is not None
    exchange = await _exchange(config, mechanism)
    handshake: SaslHandshakeResponse = await send(
        SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, _HANDSHAKE_VERSION
    )
    _check_handshake(handshake, config, address)
    message: bytes | None = exchange.first()
    lifetime_ms = 0
    for _ in range(_MAX_ROUNDS):
        assert message is not None
        response: SaslAuthenticateResponse = await send(
            SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 0
        )
        _check_response(response, config, address)
        lifetime_ms = response.session_lifetime_ms
        challenge = bytes(response.auth_bytes)
        try:
            if exchange.is_slow:
                message = await asyncio.to_thread(exchange.respond, challenge)
            else:
                message = exchange.respond(challenge)
        except SaslError as error:
            raise _failed(config, address, str(error)) from None
        if exchange.is_complete:
            return lifetime_ms / 1000 if lifetime_ms > 0 else None
    raise _failed(config, address, "the broker does not finish the exchange")


def reauthentication_delay(lifetime: float) -> float:
    """Return the seconds after which to authenticate again."""
    return lifetime * random.uniform(_EARLIEST, _LATEST)  # noqa: S311


async def _exchange(config: SecurityConfig, mechanism: str) -> SaslExchange:
    if mechanism == "OAUTHBEARER":
        assert config.sasl_oauth_token is not None
        token = await _token(config.sasl_oauth_token)
        try:
            return OAuthBearer(token)
        except SaslError as error:
            raise AuthenticationError(f"sasl_oauth_token: {error}") from None
    username, password = config.sasl_username, config.sasl_password
    assert username is not None
    assert password is not None
    if mechanism == "PLAIN":
        return Plain(username, password)
    scram_mechanism = ScramMechanism.of(mechanism)
    assert scram_mechanism is not None
    return Scram(scram_mechanism, username, password)


async def _token(provider: Callable[[], Any]) -> str:
    try:
        if inspect.iscoroutinefunction(provider):
            token = await provider()
        else:
            token = await asyncio.to_thread(provider)
            if inspect.isawaitable(token):
                token = await token
    except Exception as error:  # whatever the application raises
        raise AuthenticationError(f"sasl_oauth_token raised {error!r}") from error
    if not isinstance(token, str):
        raise AuthenticationError(f"sasl_oauth_token must return a str, not {type(token).__name__}")
    return token


def _check_handshake(response: SaslHandshakeResponse, config: SecurityConfig, address: str) -> None:
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(response.mechanisms) or "none"
        raise AuthenticationError(
            f"{address} does not enable the SASL mechanism {config.sasl_mechanism}; it"
            f" enables {enabled}: set sasl_mechanism to one of those"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"{address} does not use SASL on this listener: set security_protocol to"
            f" {'SSL' if config.uses_tls else 'PLAINTEXT'}, or use the port of a SASL listener"
        )
    error = error_of(response.error_code)
    if error is not None:
        raise AuthenticationError(f"SASL handshake with {address} failed: {error}") from error


def _check_response(
    response: SaslAuthenticateResponse, config: SecurityConfig, address: str
) -> None:
    error = error_of(response.error_code, response.error_message)
    if error is None:
        return
    raise _failed(config, address, error.detail or error.code.message) from error


def _failed(config: SecurityConfig, address: str, reason: str) -> AuthenticationError:
    if config.sasl_mechanism == "OAUTHBEARER":
        who, advice = "a token", "check the token's issuer, audience and expiry"
    else:
        who, advice = f"user {config.sasl_username!r}", "check sasl_username and sasl_password"
    return AuthenticationError(
        f"Authentication of {who} at {address} with {config.sasl_mechanism} failed: {reason};"
        f" {advice}"
    )
