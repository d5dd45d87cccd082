"""DescribeClientQuotas: the client quotas of entities that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.quotas import (
    CLIENT_ID,
    IP,
    USER,
    FilterComponent,
    InvalidQuotaError,
    MatchType,
    check_filter,
)
from ottla.protocol.api.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Handle DescribeClientQuotas."""
    try:
        components = [
            FilterComponent(one.entity_type, MatchType(one.match_type), one.match)
            for one in request.components
        ]
    except ValueError:
        return _error(ErrorCode.INVALID_REQUEST, "Unknown match type: expected 0, 1 or 2")
    try:
        check_filter(components)
    except InvalidQuotaError as error:
        return _error(ErrorCode.INVALID_REQUEST, str(error))
    for component in components:
        if component.entity_type not in (USER, CLIENT_ID, IP):
            # The type may be that of a newer version, as in Kafka.
            return _error(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unknown quota entity type {component.entity_type!r}",
            )
    return DescribeClientQuotasResponse(
        entries=[
            EntryData(
                entity=[
                    EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in entity
                ],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()],
            )
            for entity, quotas in broker.topics.image.quotas.matching(
                components, is_strict=request.strict
            )
        ]
    )


def _error(code: ErrorCode, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message)
