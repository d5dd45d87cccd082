"""Where tokens for OAUTHBEARER come from: a file, an identity provider, or nowhere.

A provider is called for each authentication, in a thread, so that it can return a fresh token.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urlencode, urlsplit

#: Returns a token, or a coroutine of one. Called for each authentication, in a thread if it is no
#: coroutine function.
TokenProvider = Callable[[], "str | Awaitable[str]"]

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105  # the name of a config
_REQUEST_SECONDS = 10.0
_MAX_RESPONSE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileToken:
    """Reads the token from a file, anew for each authentication."""

    path: str

    def __call__(self) -> str:
        """Return the content of the file."""
        return Path(self.path).read_text().strip()


@dataclass(frozen=True, slots=True)
class UnsecuredToken:
    """Makes tokens without a signature, for brokers under development."""

    principal: str
    lifetime_seconds: int = 3600

    def __call__(self) -> str:
        """Return a JSON Web Token with the algorithm "none"."""
        now = int(time.time())
        claims = {"sub": self.principal, "iat": now, "exp": now + self.lifetime_seconds}
        parts = ({"alg": "none"}, claims)
        encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts)
        return ".".join(part.rstrip(b"=").decode() for part in encoded) + "."


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Requests a token from an identity provider, with the credentials of a client (RFC 6749)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""

    def __call__(self) -> str:
        """Return a new token. Raises OSError and ValueError, without the credentials."""
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        # Both parts are encoded as in a form: RFC 6749, 2.3.1.
        credentials = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
        request = urllib.request.Request(  # noqa: S310  # `token_provider` has checked the scheme.
            self.url,
            urlencode(form).encode(),
            {
                "Authorization": "Basic " + base64.b64encode(credentials.encode()).decode(),
                "Accept": "application/json",
            },
        )
        try:
            with _OPENER.open(request, timeout=_REQUEST_SECONDS) as response:
                data = response.read(_MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self.url} answered {error.code}") from None
        if len(data) > _MAX_RESPONSE_BYTES:
            raise ValueError(f"{self.url} answered with more than {_MAX_RESPONSE_BYTES} bytes")
        try:
            token = json.loads(data)["access_token"]
        except (ValueError, LookupError, TypeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token:
            raise ValueError(f"{self.url} answered without an access_token")
        return token


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Fails redirects: they would take the credentials elsewhere."""

    def redirect_request(self, *_arguments: object) -> None:
        """Return no request to follow."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def token_provider(url: str, options: Mapping[str, str]) -> TokenProvider | None:
    """Return where tokens come from, by Kafka's configs; None if they do not say.

    `url` is sasl.oauthbearer.token.endpoint.url, and `options` are those of the login module.
    Raises ValueError, which quotes no secret.
    """
    if not url:
        principal = options.get("unsecuredLoginStringClaim_sub")
        return None if principal is None else UnsecuredToken(principal)
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.startswith("/"):
        return FileToken(unquote(parts.path))
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname)):
        raise ValueError(f"Invalid value {url!r} for {TOKEN_URL}: expected https://… or file:///…")
    client_id, secret = options.get("clientId"), options.get("clientSecret")
    if not client_id or not secret:
        raise ValueError(
            f"{TOKEN_URL} {url}: set sasl.jaas.config, with the options"
            ' clientId="ID" and clientSecret="SECRET" of OAuthBearerLoginModule'
        )
    return ClientCredentials(url, client_id, secret, options.get("scope", ""))


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
