"""AlterClientQuotas: set and remove client quotas; an invalid entity fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.coord.quotas import (
    MAX_ENTITIES,
    InvalidQuotaError,
    QuotaEdit,
    QuotaEntity,
    Quotas,
    quota_entity,
    quota_record,
)
from ottla.protocol.api.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasEntryResult,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import ALTER_CONFIGS, CLUSTER, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ottla.coord.metadata_image import KeyValue

    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Handle AlterClientQuotas."""
    errors: dict[int, Exception] = {}

    def plan() -> list[KeyValue]:
        errors.clear()
        planned: dict[QuotaEntity, Quotas] = {}
        for number, entry in enumerate(request.entries):
            try:
                check(broker, context, ALTER_CONFIGS, CLUSTER)
                _plan(broker, entry, planned)
            except InvalidQuotaError as error:
                errors[number] = ApiError(ErrorCode.INVALID_REQUEST, str(error))
            except ApiError as error:
                errors[number] = error
        if request.validate_only:
            return []
        return [quota_record(entity, quotas) for entity, quotas in planned.items()]

    try:
        await broker.controller.change(plan)
    except EXPECTED_ERRORS as failure:
        errors |= {
            number: failure for number in range(len(request.entries)) if number not in errors
        }
    return AlterClientQuotasResponse(
        entries=[_result(entry, errors.get(number)) for number, entry in enumerate(request.entries)]
    )


def _plan(
    broker: Broker, entry: AlterClientQuotasEntry, planned: dict[QuotaEntity, Quotas]
) -> None:
    """Add the quotas that an entity will have. Raises InvalidQuotaError and ApiError."""
    quotas = broker.topics.image.quotas
    entity = quota_entity((part.entity_type, part.entity_name) for part in entry.entity)
    if entity in planned:
        raise InvalidQuotaError("Duplicate quota entity in the request")
    edited = quotas.edited(entity, _edits(entry))
    is_new = bool(edited) and entity not in quotas.by_entity
    if is_new and len(quotas.by_entity) + len(planned) >= MAX_ENTITIES:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"Too many entities with quotas: {MAX_ENTITIES} exist"
        )
    planned[entity] = edited


def _edits(entry: AlterClientQuotasEntry) -> Sequence[QuotaEdit]:
    return [QuotaEdit(op.key, None if op.remove else op.value) for op in entry.ops]


def _result(entry: AlterClientQuotasEntry, error: Exception | None) -> AlterClientQuotasEntryResult:
    if error is None:
        return AlterClientQuotasEntryResult(entity=entry.entity)
    return AlterClientQuotasEntryResult(
        error_code=error_code_of(error),
        error_message=error_message_of(error),
        entity=entry.entity,
    )
