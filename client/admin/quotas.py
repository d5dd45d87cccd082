"""Client quotas: describe, alter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum

from ottla.protocol.api.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
)

from ..errors import error_of
from .requests import AdminRequests, Outcome, outcome

_EXACT, _DEFAULT, _ANY = range(3)


class QuotaName(Enum):
    """A user, client id or address that is not named."""

    #: The quotas of all that have none of their own.
    DEFAULT = "<default>"
    #: In filters: every name, and the default.
    ANY = "<any>"

    def __str__(self) -> str:
        return self.value


#: A name, the default or, in filters, any of them; None: not a part of the entity.
EntityName = str | QuotaName | None


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """What has quotas: a user, a client id, a user with a client id, or an ip address."""

    user: EntityName = None
    client_id: EntityName = None
    ip: EntityName = None

    def parts(self) -> dict[str, str | QuotaName]:
        """Return the names of its parts, by Kafka's types: user, client-id, ip."""
        named = ((one.name.replace("_", "-"), getattr(self, one.name)) for one in fields(self))
        return {entity_type: name for entity_type, name in named if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{entity_type} {name}" for entity_type, name in self.parts().items())


class QuotasAdmin(AdminRequests):
    """Admin requests about client quotas."""

    async def describe_client_quotas(
        self, entity_filter: QuotaEntity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of entities, by Kafka's names of quotas.

        The filter matches entities that have all of its parts, and with `strict` no other ones:
        `QuotaEntity(user=QuotaName.ANY)` matches alice, and alice's client "app" unless strict.
        """
        request = DescribeClientQuotasRequest(
            components=[
                _component(entity_type, name)
                for entity_type, name in (entity_filter or QuotaEntity()).parts().items()
            ],
            strict=strict,
        )

        async def once() -> DescribeClientQuotasResponse:
            response = await self._cluster.send_to_any(request, DescribeClientQuotasResponse)
            error = error_of(response.error_code, response.error_message)
            if error is not None:
                raise error
            return response

        response = await self._cluster.retry(once, what="describing client quotas")
        return {
            _entity(entry.entity): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }

    async def alter_client_quotas(
        self,
        entity: QuotaEntity,
        set: Mapping[str, float] | None = None,  # noqa: A002  # reads well in calls
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change quotas of an entity; the others keep their values. `unset` removes quotas."""
        edits = [
            *(OpData(key=key, value=float(value)) for key, value in (set or {}).items()),
            *(OpData(key=key, remove=True) for key in unset),
        ]
        if not edits:
            raise ValueError("No quota changes given: pass set or unset")
        entry = AlterClientQuotasEntry(
            entity=[
                EntityData(
                    entity_type=entity_type,
                    entity_name=None if isinstance(name, QuotaName) else name,
                )
                for entity_type, name in entity.parts().items()
            ],
            ops=edits,
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)

        async def attempt(pending: list[QuotaEntity]) -> Mapping[QuotaEntity, Outcome[None]]:
            response = await self._cluster.send_to_controller(request, AlterClientQuotasResponse)
            return {
                one: outcome(result.error_code, result.error_message, None)
                for one, result in zip(pending, response.entries, strict=False)
            }

        await self._each([entity], attempt, f"altering the quotas of {entity}")


def _component(entity_type: str, name: str | QuotaName) -> ComponentData:
    if isinstance(name, str):
        return ComponentData(entity_type=entity_type, match_type=_EXACT, match=name)
    match_type = _DEFAULT if name is QuotaName.DEFAULT else _ANY
    return ComponentData(entity_type=entity_type, match_type=match_type, match=None)


def _entity(parts: Iterable[EntityData]) -> QuotaEntity:
    names: dict[str, str | QuotaName] = {
        part.entity_type: QuotaName.DEFAULT if part.entity_name is None else part.entity_name
        for part in parts
    }
    return QuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"))
