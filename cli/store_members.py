"""The members of the metadata store, as seen from here."""

from __future__ import annotations

import json
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 65_536


class StoreMember(NamedTuple):
    """A member of etcd: healthy, not healthy, or not to be reached from here."""

    address: str
    state: str
    is_leader: bool | None = None
    version: str | None = None
    db_size_bytes: int | None = None


def describe_members(addresses: tuple[str, ...], *, is_tls: bool) -> list[StoreMember]:
    """Ask all members at once. Only what they tell without a password or a client certificate."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(partial(_describe, is_tls=is_tls), addresses))


def _describe(address: str, *, is_tls: bool) -> StoreMember:
    url = f"{'https' if is_tls else 'http'}://{address}"
    try:
        is_healthy = _ask(f"{url}/health").get("health") == "true"
    except urllib.error.HTTPError:
        is_healthy = False  # Without a leader, etcd answers 503.
    except (OSError, ValueError):
        return StoreMember(address, "unreachable")
    state = "healthy" if is_healthy else "unhealthy"
    try:
        status = _ask(f"{url}/v3/maintenance/status", b"{}")
        return StoreMember(
            address,
            state,
            status.get("leader") == status["header"]["member_id"],
            status["version"],
            int(status["dbSize"]),
        )
    except (OSError, ValueError, KeyError):
        return StoreMember(address, state)


def _ask(url: str, body: bytes | None = None) -> dict[str, Any]:
    # The status of a member is no secret, and its certificate may be of an authority of its own.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(url, body, _TIMEOUT_SECONDS) as response:
        answer = json.loads(response.read(_MAX_ANSWER_BYTES))
    if not isinstance(answer, dict):
        raise ValueError(f"unexpected answer of {url}")
    return answer
