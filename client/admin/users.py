"""Users of SCRAM: describe, create, delete."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping

from ottla.protocol.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.api.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism

from ..errors import error_of
from .requests import AdminRequests, Outcome, outcome

DEFAULT_MECHANISMS = tuple(member.mechanism for member in ScramMechanism)
_DEFAULT_ITERATIONS = 8192
_SALT_BYTES = 24


class UsersAdmin(AdminRequests):
    """Admin requests about the users of SCRAM."""

    async def describe_user_scram_credentials(self, *users: str) -> dict[str, dict[str, int]]:
        """Return the mechanisms of users, or of all, with their iterations. Passwords are secret.

        Raises RESOURCE_NOT_FOUND for an unknown user.
        """

        async def once(named: list[str]) -> DescribeUserScramCredentialsResponse:
            request = DescribeUserScramCredentialsRequest(
                users=[UserName(name=name) for name in named] or None
            )
            response = await self._cluster.send_to_any(
                request, DescribeUserScramCredentialsResponse
            )
            error = error_of(response.error_code, response.error_message)
            if error is not None:
                raise error
            return response

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[dict[str, int]]]:
            return _results(await once(pending))

        if users:
            return await self._each(users, attempt, "describing users")
        response = await self._cluster.retry(lambda: once([]), what="describing users")
        return {
            result.user: _mechanisms(result.credential_infos)
            for result in response.results
            if not result.error_code
        }

    async def create_user(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = DEFAULT_MECHANISMS,
        iterations: int = _DEFAULT_ITERATIONS,
    ) -> None:
        """Create a user, or change the password. The password stays here; a salted hash is sent.

        Connections that are open stay authenticated.
        """
        chosen = [_mechanism(name) for name in mechanisms]
        if not user or not password or not chosen:
            raise ValueError("User, password and mechanisms must not be empty")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(
                f"Invalid iterations {iterations}: must be from {MIN_ITERATIONS} to"
                f" {MAX_ITERATIONS}"
            )
        upsertions = []
        for mechanism in chosen:
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = await asyncio.to_thread(mechanism.salted_password, password, salt, iterations)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=user,
                    mechanism=mechanism.value,
                    iterations=iterations,
                    salt=salt,
                    salted_password=salted,
                )
            )
        await self._alter(
            AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions),
            user,
            f"creating user {user!r}",
        )

    async def delete_users(self, *users: str) -> None:
        """Delete users, with all their mechanisms. Raises RESOURCE_NOT_FOUND for unknown ones."""
        known = await self.describe_user_scram_credentials(*users)

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            deletions = [
                ScramCredentialDeletion(name=user, mechanism=_mechanism(name).value)
                for user in pending
                for name in known[user]
            ]
            return await self._send_alteration(
                AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[])
            )

        await self._each(users, attempt, "deleting users")

    async def _alter(self, request: AlterUserScramCredentialsRequest, user: str, what: str) -> None:
        async def attempt(_pending: list[str]) -> Mapping[str, Outcome[None]]:
            return await self._send_alteration(request)

        await self._each([user], attempt, what)

    async def _send_alteration(
        self, request: AlterUserScramCredentialsRequest
    ) -> dict[str, Outcome[None]]:
        response = await self._cluster.send_to_controller(
            request, AlterUserScramCredentialsResponse
        )
        return {
            result.user: outcome(result.error_code, result.error_message, None)
            for result in response.results
        }


def _mechanism(name: str) -> ScramMechanism:
    mechanism = ScramMechanism.of(name.upper())
    if mechanism is None:
        raise ValueError(f"Invalid mechanism {name!r}: use one of {', '.join(DEFAULT_MECHANISMS)}")
    return mechanism


def _results(
    response: DescribeUserScramCredentialsResponse,
) -> dict[str, Outcome[dict[str, int]]]:
    return {
        result.user: outcome(
            result.error_code, result.error_message, _mechanisms(result.credential_infos)
        )
        for result in response.results
    }


def _mechanisms(infos: Iterable[CredentialInfo]) -> dict[str, int]:
    names = {member.value: member.mechanism for member in ScramMechanism}
    return {names[info.mechanism]: info.iterations for info in infos if info.mechanism in names}
