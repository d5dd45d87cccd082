"""Changes of SCRAM credentials: validation, and the records that make them.

The users of `sasl.bootstrap.users` are created here, too, when the controller starts.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.scram_credentials import credential_key, credential_record, secret_record
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramMechanism,
    credential_of,
)

from ..requests.errors import EXPECTED_ERRORS, ApiError

if TYPE_CHECKING:
    from ottla.coord.metadata_image import KeyValue, MetadataImage

    from ..cluster.controller import Controller
    from ..cluster.membership import ClusterMembership

logger = logging.getLogger(__name__)

#: Credentials that a cluster can have: they are in the memory of every broker.
_MAX_CREDENTIALS = 100_000
_MAX_NAME_LENGTH = 255
_MAX_SALT_BYTES = 256
_SALT_BYTES = 24
_RETRY_SECONDS = 0.5
_SECRET_BYTES = 32
_BOOTSTRAP_USER = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<fields>.*)\]", re.DOTALL)


class CredentialChange(NamedTuple):
    """A credential to add or replace; to remove, without a salted password."""

    name: str
    mechanism: int
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes | None = None

    def __repr__(self) -> str:
        return f"CredentialChange({self.name!r}, {self.mechanism})"


async def alter_credentials(
    controller: Controller, image: MetadataImage, changes: Sequence[CredentialChange]
) -> dict[str, Exception | None]:
    """Make the changes; return the error of each user, or None. A user's changes are one."""
    return await _alter(controller.change, image, changes)


async def _alter(
    commit: Callable[[Callable[[], Sequence[KeyValue]]], Awaitable[object]],
    image: MetadataImage,
    changes: Sequence[CredentialChange],
) -> dict[str, Exception | None]:
    outcomes: dict[str, Exception | None] = {}

    def plan() -> Sequence[KeyValue]:
        outcomes.clear()
        outcomes.update(_check(image, changes))
        accepted = [change for change in changes if outcomes[change.name] is None]
        return list(_records(image, accepted))

    try:
        await commit(plan)
    except EXPECTED_ERRORS as failure:
        for name in dict.fromkeys(change.name for change in changes):
            outcomes[name] = outcomes.get(name) or failure
    return outcomes


def _check(
    image: MetadataImage, changes: Sequence[CredentialChange]
) -> dict[str, Exception | None]:
    outcomes: dict[str, Exception | None] = {}
    seen: set[tuple[str, int]] = set()
    added = 0
    for change in changes:
        key = change.name, change.mechanism
        error = _problem(image, change)
        if key in seen:
            error = ApiError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"User {change.name!r} has several changes for one mechanism in the request",
            )
        seen.add(key)
        if error is None and change.salted_password is not None:
            added += 1
            if len(image.scram_credentials) + added > _MAX_CREDENTIALS:
                error = ApiError(
                    ErrorCode.POLICY_VIOLATION,
                    f"Too many credentials: the maximum is {_MAX_CREDENTIALS}",
                )
        outcomes[change.name] = outcomes.get(change.name) or error
    return outcomes


def _problem(image: MetadataImage, change: CredentialChange) -> ApiError | None:
    """Return why a change cannot be made, or None."""
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not 0 < len(change.name) <= _MAX_NAME_LENGTH:
        return ApiError(unacceptable, f"Invalid user name: use 1 to {_MAX_NAME_LENGTH} characters")
    try:
        mechanism = ScramMechanism(change.mechanism)
    except ValueError:
        return ApiError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"Unknown mechanism {change.mechanism}: expected SCRAM-SHA-256 (1) or"
            " SCRAM-SHA-512 (2)",
        )
    if change.salted_password is None:
        if (change.name, mechanism) not in image.scram_credentials:
            return ApiError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"User {change.name!r} has no credential for {mechanism.mechanism}",
            )
        return None
    if change.iterations < MIN_ITERATIONS:
        return ApiError(unacceptable, f"Too few iterations: the minimum is {MIN_ITERATIONS}")
    if change.iterations > MAX_ITERATIONS:
        return ApiError(unacceptable, f"Too many iterations: the maximum is {MAX_ITERATIONS}")
    if not 0 < len(change.salt) <= _MAX_SALT_BYTES:
        return ApiError(unacceptable, f"Invalid salt: use 1 to {_MAX_SALT_BYTES} bytes")
    if len(change.salted_password) != mechanism.key_bytes:
        return ApiError(
            unacceptable,
            f"Invalid salted password: {mechanism.mechanism} has {mechanism.key_bytes} bytes",
        )
    return None


def _records(image: MetadataImage, changes: Sequence[CredentialChange]) -> Iterator[KeyValue]:
    if image.scram_secret is None and any(one.salted_password is not None for one in changes):
        yield secret_record(secrets.token_bytes(_SECRET_BYTES))
    for change in changes:
        mechanism = ScramMechanism(change.mechanism)
        if change.salted_password is None:
            yield credential_key(change.name, mechanism), None
        else:
            credential = credential_of(
                mechanism, change.salted_password, change.salt, change.iterations
            )
            yield credential_record(change.name, mechanism, credential)


class BootstrapUser(NamedTuple):
    """A user of `sasl.bootstrap.users`."""

    name: str
    mechanism: ScramMechanism
    iterations: int
    password: str

    def __repr__(self) -> str:
        return f"BootstrapUser({self.name!r}, {self.mechanism.mechanism})"

    def change(self) -> CredentialChange:
        """Return the change that creates the user. Takes milliseconds."""
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = self.mechanism.salted_password(self.password, salt, self.iterations)
        return CredentialChange(self.name, self.mechanism.value, self.iterations, salt, salted)


def parse_bootstrap_users(text: str) -> list[BootstrapUser]:
    """Parse `sasl.bootstrap.users`. Raises ConfigError, which does not quote it."""
    return [_bootstrap_user(item.strip()) for item in text.split("];") if item.strip()]


def _bootstrap_user(item: str) -> BootstrapUser:
    match = _BOOTSTRAP_USER.fullmatch(item.rstrip(";]") + "]")
    mechanism = match and ScramMechanism.of(match["mechanism"])
    fields = {}
    if match:
        # The password is the last field, and may have any character.
        head, _, password = match["fields"].partition("password=")
        fields = dict(part.split("=", 1) for part in head.split(",") if "=" in part)
        fields["password"] = password
    iterations = fields.get("iterations", str(MIN_ITERATIONS)).strip()
    name = fields.get("name", "").strip()
    if not mechanism or not name or not fields["password"] or not iterations.isdecimal():
        raise ConfigError(
            "Invalid value for sasl.bootstrap.users: expected"
            " SCRAM-SHA-256=[name=NAME,password=PASSWORD], or SCRAM-SHA-512, separated by"
            " semicolons; iterations=NUMBER may stand before password"
        )
    if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigError(
            f"Invalid value for sasl.bootstrap.users: {iterations} iterations; expected"
            f" {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return BootstrapUser(name, mechanism, int(iterations), fields["password"])


class BootstrapUsers:
    """Creates the users of `sasl.bootstrap.users` that do not exist."""

    def __init__(
        self,
        controller: Controller,
        cluster: ClusterMembership,
        image: MetadataImage,
        users: Sequence[BootstrapUser],
    ) -> None:
        self._controller = controller
        self._cluster = cluster
        self._image = image
        self._users = users

    @property
    def _missing(self) -> list[BootstrapUser]:
        known = self._image.scram_credentials
        return [user for user in self._users if (user.name, user.mechanism) not in known]

    async def create(self) -> None:
        """Create the users that do not exist."""
        missing = self._missing
        if not missing:
            return
        changes = [await asyncio.to_thread(user.change) for user in missing]
        # Other brokers may need the users to connect to this one: it must not wait for them.
        outcomes = await _alter(self._controller.commit, self._image, changes)
        for name, error in outcomes.items():
            if error is None:
                logger.info("created a user", extra={"user": name})
            else:
                logger.debug("user not created", extra={"user": name, "reason": str(error)})

    async def keep_creating(self) -> None:
        """Create the users whenever this broker is the controller, until all have existed."""
        while self._missing:
            if self._cluster.is_controller:
                await self.create()
            await asyncio.sleep(_RETRY_SECONDS)
