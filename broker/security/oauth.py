"""OAUTHBEARER (RFC 7628): tokens that an identity provider has signed.

A token has to have the configured issuer and audience, an expiry, and a signature by a key of the
provider's key set (JWKS), which is read from a file or URL in a thread. Tokens with unknown keys
make the broker read the set again, but not often: anybody can send them.

A rejected token is answered with a JSON error; the client acknowledges it, and only then fails.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from ottla.coord.principal import user
from ottla.protocol.configdef import ConfigError

from ..config.security_configs import ListenerSecurityConfig
from ..net.listeners import is_loopback
from .exchange import Accepted, AuthenticationError, Challenge

logger = logging.getLogger(__name__)

_FAILED = "Authentication failed: the token was rejected"
_REJECTED = json.dumps({"status": "invalid_token"}).encode()
#: Asymmetric only: a key of the set must not be taken for a secret.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_READ_SECONDS = 10.0
_MAX_KEY_SET_BYTES = 1024 * 1024
_MAX_TOKEN_BYTES = 64 * 1024
_SEPARATOR = "\x01"
_BEARER = "auth=Bearer "


class TokenError(Exception):
    """A token is rejected."""


class TokenClaims(NamedTuple):
    """What a token proves."""

    name: str
    expires_at_ms: int


class Verifier(Protocol):
    """Verifies tokens."""

    async def verify(self, token: str) -> TokenClaims:
        """Return the claims of a token. Raises TokenError."""


class OAuthBearerExchange:
    """One authentication."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._rejected_because = ""

    async def receive(self, message: bytes) -> Challenge | Accepted:
        """Verify the token in the first message. Raises AuthenticationError."""
        if self._rejected_because:
            raise AuthenticationError(self._rejected_because, _FAILED)
        authzid, token = parse_client_message(message)
        try:
            claims = await self._verifier.verify(token)
            if authzid not in ("", claims.name):
                raise TokenError("the authorization id is not the subject")
        except TokenError as error:
            self._rejected_because = str(error)
            return Challenge(_REJECTED)
        return Accepted(user(claims.name), expires_at_ms=claims.expires_at_ms)


def parse_client_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token. Raises AuthenticationError."""
    if len(message) > _MAX_TOKEN_BYTES:
        raise AuthenticationError("the token is too long", _FAILED)
    text = message.decode("latin-1")
    header, *pairs = text.split(_SEPARATOR)
    flag, _, rest = header.partition(",")
    authzid, comma, after = rest.partition(",")
    if flag not in ("n", "y") or not comma or after or pairs[-2:] != ["", ""]:
        raise AuthenticationError("the message is malformed", _FAILED)
    if authzid and not authzid.startswith("a="):
        raise AuthenticationError("the authorization id is malformed", _FAILED)
    tokens = [pair.removeprefix(_BEARER) for pair in pairs if pair.startswith(_BEARER)]
    if len(tokens) != 1 or not tokens[0]:
        raise AuthenticationError("the message has no bearer token", _FAILED)
    return authzid[2:], tokens[0]


def verifier_of(config: ListenerSecurityConfig) -> Verifier:
    """Return the verifier that a listener is configured with. Raises ConfigError."""
    subject_claim = config.get("sasl.oauthbearer.sub.claim.name")
    if config.get("sasl.oauthbearer.unsecured.tokens"):
        return UnsecuredVerifier(subject_claim)
    return SignedVerifier(config, subject_claim)


class UnsecuredVerifier:
    """Accepts tokens without a signature: for development only."""

    def __init__(self, subject_claim: str, now: Callable[[], float] = time.time) -> None:
        self._subject_claim = subject_claim
        self._now = now

    async def verify(self, token: str) -> TokenClaims:
        """Return the claims of a token. Raises TokenError."""
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenError("expected a token without a signature, of three parts")
        header, claims = _decode_json(parts[0]), _decode_json(parts[1])
        if header.get("alg") != "none":
            raise TokenError("the algorithm is not none")
        expires_at = _time(claims, "exp")
        if expires_at is None or expires_at <= self._now():
            raise TokenError("the token has expired, or has no expiry")
        for name in ("nbf", "iat"):
            moment = _time(claims, name)
            if moment is not None and moment >= expires_at:
                raise TokenError(f"{name} is after the expiry")
        return TokenClaims(_subject(claims, self._subject_claim), int(expires_at * 1000))


class SignedVerifier:
    """Accepts tokens that a key of the provider has signed."""

    def __init__(self, config: ListenerSecurityConfig, subject_claim: str) -> None:
        try:
            # Optional, and slow to import.
            import jwt  # noqa: PLC0415
        except ImportError:
            raise ConfigError("OAUTHBEARER requires PyJWT: pip install 'ottla[security]'") from None
        self._jwt = jwt
        self._subject_claim = subject_claim
        self._issuer = config.get("sasl.oauthbearer.expected.issuer")
        self._audience = config.items("sasl.oauthbearer.expected.audience")
        self._leeway = config.get("sasl.oauthbearer.clock.skew.seconds")
        for name in ("expected.issuer", "expected.audience", "jwks.endpoint.url"):
            if not config.get(f"sasl.oauthbearer.{name}"):
                full_name = f"sasl.oauthbearer.{name}"
                raise ConfigError(
                    f"OAUTHBEARER on listener {config.listener}: {full_name} is required"
                )
        self._keys = KeySet(
            config.get("sasl.oauthbearer.jwks.endpoint.url"),
            config.get("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
            config.get("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
            config.get("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
        )

    async def verify(self, token: str) -> TokenClaims:
        """Return the claims of a token. Raises TokenError."""
        try:
            header = self._jwt.get_unverified_header(token)
        except self._jwt.InvalidTokenError as error:
            raise TokenError(str(error)) from None
        if header.get("alg") not in _ALGORITHMS:
            raise TokenError("the algorithm is not supported")
        key = await self._keys.find(header.get("kid"))
        if key is None:
            raise TokenError("the key is not known")
        return await asyncio.to_thread(self._verify, token, key)

    def _verify(self, token: str, key: Any) -> TokenClaims:
        try:
            claims = self._jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (self._jwt.InvalidTokenError, self._jwt.InvalidKeyError, TypeError) as error:
            raise TokenError(str(error)) from None
        return TokenClaims(_subject(claims, self._subject_claim), int(claims["exp"] * 1000))


class KeySet:
    """The keys of a provider, by id."""

    def __init__(
        self, url: str, refresh_seconds: float, backoff_seconds: float, max_backoff_seconds: float
    ) -> None:
        check_key_set_url(url)
        self._url = url
        self._refresh_seconds = refresh_seconds
        self._backoff_seconds = backoff_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._keys: dict[str | None, Any] = {}
        self._read_at = float("-inf")
        self._retry_at = float("-inf")
        self._failures = 0
        self._lock = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> Any:
        """Return a key; None if there is none with this id.

        Reads the set again if it is old; only who asks for an unknown key waits for that.
        """
        if not self._has(key_id):
            await self._read_if_allowed(key_id)
        elif time.monotonic() >= self._read_at + self._refresh_seconds and (
            self._refreshing is None or self._refreshing.done()
        ):
            self._refreshing = asyncio.create_task(self._read_if_allowed(key_id))
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _has(self, key_id: str | None) -> bool:
        return key_id in self._keys or (key_id is None and len(self._keys) == 1)

    async def _read_if_allowed(self, key_id: str | None) -> None:
        async with self._lock:
            await self._read_unless_recent(key_id)

    async def _read_unless_recent(self, key_id: str | None) -> None:
        now = time.monotonic()
        is_old = now >= self._read_at + self._refresh_seconds
        # An unknown id may be that of a new key.
        may_be_new = not self._has(key_id) and now >= self._read_at + self._max_backoff_seconds
        if now < self._retry_at or not (is_old or may_be_new):
            return
        try:
            self._keys = await asyncio.to_thread(self._read)
        except (OSError, ValueError, TokenError) as error:
            self._failures += 1
            delay = self._backoff_seconds * 2 ** min(self._failures - 1, 20)
            self._retry_at = time.monotonic() + min(delay, self._max_backoff_seconds)
            logger.error(
                "key set of OAUTHBEARER cannot be read",
                extra={"url": self._url, "reason": str(error)},
            )
        else:
            self._failures = 0
            self._read_at = time.monotonic()

    def _read(self) -> dict[str | None, Any]:
        import jwt  # noqa: PLC0415  # Optional, and slow to import.

        with _OPENER.open(self._url, timeout=_READ_SECONDS) as response:
            data = response.read(_MAX_KEY_SET_BYTES + 1)
        if len(data) > _MAX_KEY_SET_BYTES:
            raise ValueError(f"larger than {_MAX_KEY_SET_BYTES} bytes")
        try:
            content = json.loads(data)
            if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
                raise ValueError('expected {"keys": […]}')
            key_set = jwt.PyJWKSet.from_dict(content)
        except (jwt.PyJWTError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
        # Without the algorithm of the key: an RSA key signs with RS256 and with PS512.
        return {key.key_id: key.key for key in key_set.keys if key.public_key_use != "enc"}


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to URLs that could be configured as well."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request to follow. Raises ConfigError."""
        check_key_set_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_CheckedRedirects)


def check_key_set_url(url: str) -> None:
    """Raise ConfigError unless a key set can be read from a URL without being tampered with."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if parts.scheme not in ("https", "file") and not is_local:
        raise ConfigError(
            f"Invalid value {url} for sasl.oauthbearer.jwks.endpoint.url: expected https://… or"
            " file:///…"
        )
    if parts.scheme == "file" and not unquote(parts.path).startswith("/"):
        raise ConfigError(
            f"Invalid value {url} for sasl.oauthbearer.jwks.endpoint.url: expected file:///PATH"
        )


def _decode_json(part: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise TokenError("the token is malformed") from None
    if not isinstance(value, dict):
        raise TokenError("the token is malformed")
    return value


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise TokenError(f"{name} is not a time")
    return value


def _subject(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise TokenError(f"the token has no {name}")
    return value
