"""AlterUserScramCredentials: add, replace and remove the credentials of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.protocol.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

from ...security.credentials import CredentialChange, alter_credentials
from ..authorization import ALTER, CLUSTER, check
from ..errors import ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Handle AlterUserScramCredentials."""
    changes = [CredentialChange(one.name, one.mechanism) for one in request.deletions]
    changes += [
        CredentialChange(
            one.name,
            one.mechanism,
            iterations=one.iterations,
            salt=bytes(one.salt),
            salted_password=bytes(one.salted_password),
        )
        for one in request.upsertions
    ]
    outcomes: Mapping[str, Exception | None]
    try:
        check(broker, context, ALTER, CLUSTER)
    except ApiError as error:
        outcomes = dict.fromkeys((change.name for change in changes), error)
    else:
        outcomes = await alter_credentials(broker.controller, broker.topics.image, changes)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name,
                error_code=0 if error is None else error_code_of(error),
                error_message=None if error is None else error_message_of(error),
            )
            for name, error in outcomes.items()
        ]
    )
