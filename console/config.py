"""Configs of the console."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from ottla.client import ClientConfig, FetchConfig, RetryConfig, SecurityConfig, TimeoutConfig

#: The mechanisms that a login form can authenticate with.
LOGIN_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what one request may take. Times are in seconds."""

    #: Records and bytes that one query reads to find them, and its time.
    scanned_records: int = 100_000
    scanned_bytes: int = 64 * _MIB
    query_seconds: float = 10.0
    export_seconds: float = 120.0
    #: Bytes of a key, value or header in a response; an export has them in full.
    field_bytes: int = 64 * 1024
    #: The body of a request that produces records, of a login, and of any other request.
    produced_bytes: int = 16 * _MIB
    login_bytes: int = 16 * 1024
    body_bytes: int = _MIB
    #: The head of a request.
    head_seconds: float = 15.0
    #: Any request but a tail or an export; of those, until a client takes a part of the response.
    request_seconds: float = 30.0
    #: All matching of a regular expression in a query; a live tail may use a part of the time more.
    regex_seconds: float = 2.0
    #: Queries of records at a time; further ones are rejected.
    queries: int = 16
    #: Live tails at a time, and the time after which one ends.
    tails: int = 32
    tail_seconds: float = 3600.0
    #: Groups whose offsets are looked up to find the consumers of a topic.
    groups: int = 500
    #: Partitions whose offsets are looked up for a sum over topics, and for a chart.
    summed_partitions: int = 2000
    sampled_partitions: int = 20_000
    #: Sessions of users, and how long an unused one lasts.
    sessions: int = 200
    session_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """A cluster, and who may use the console. Raises ValueError for an unprotected address."""

    bootstrap: str
    #: TLS and credentials for the cluster; with `login_mechanism`, those of users replace them.
    security: SecurityConfig | None = None
    timeout: float = 5.0
    host: str = "127.0.0.1"
    port: int = 8080
    #: Host names besides those of loopback and `host` by which browsers may reach the console.
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    #: A bearer token that all requests need.
    token: str | None = field(default=None, repr=False)
    #: Users log in with their SASL credentials for the cluster, by this mechanism.
    login_mechanism: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.login_mechanism is not None and self.login_mechanism not in LOGIN_MECHANISMS:
            raise ValueError(
                f"Invalid login mechanism {self.login_mechanism!r}: use one of"
                f" {', '.join(LOGIN_MECHANISMS)}"
            )
        if self.token is not None and self.login_mechanism is not None:
            raise ValueError("A token and logins with SASL credentials are mutually exclusive")
        if self.token is not None and len(self.token) < 16:
            raise ValueError("The token is too short: use at least 16 characters")
        if not is_loopback(self.host) and not self.needs_login:
            raise ValueError(
                f"Without authentication the console listens on loopback only, not on {self.host}:"
                " set a token, or let users log in with their SASL credentials"
            )

    @property
    def needs_login(self) -> bool:
        """Whether requests need a token or a user."""
        return self.token is not None or self.login_mechanism is not None

    def client(self, security: SecurityConfig | None) -> ClientConfig:
        """Return the config of the SDK's clients."""
        return ClientConfig(
            client_id="ottla-console",
            retry=RetryConfig(max_backoff=0.5),
            timeouts=TimeoutConfig(
                connect=max(1.0, self.timeout),
                request=self.limits.request_seconds,
                operation=self.timeout,
            ),
            max_response_bytes=128 * _MIB,
            allow_auto_create=False,
            security=security,
        )

    @property
    def fetch(self) -> FetchConfig:
        """How records are fetched: a consumer of the console lives for one query."""
        return FetchConfig(max_wait=0.25, max_bytes=4 * _MIB, prefetch_bytes=4 * _MIB)

    def user_security(self, username: str, password: str) -> SecurityConfig:
        """Return the security config of a user who logs in. Raises ValueError."""
        assert self.login_mechanism is not None
        base = self.security
        uses_tls = base is not None and base.uses_tls
        tls = {} if base is None else {name: getattr(base, name) for name in _TLS_FIELDS}
        return SecurityConfig(
            security_protocol="SASL_SSL" if uses_tls else "SASL_PLAINTEXT",
            sasl_mechanism=self.login_mechanism,
            sasl_username=username,
            sasl_password=password,
            **tls,
        )


#: What concerns the broker's certificate: a client certificate would be everybody's identity.
_TLS_FIELDS = (
    "ssl_truststore_location",
    "ssl_truststore_certificates",
    "ssl_endpoint_identification_algorithm",
    "ssl_enabled_protocols",
    "ssl_cipher_suites",
)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
