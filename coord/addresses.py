"""IP addresses: the one spelling by which clients, ACLs and quotas are compared."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address


@lru_cache(maxsize=10_000)
def canonical_address(text: str) -> str:
    """Return an address in its shortest form; text that is no address as it is.

    A socket that accepts both has ::ffff:10.0.0.1 for the IPv4 address 10.0.0.1.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
