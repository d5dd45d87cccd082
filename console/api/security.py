"""ACLs, users and quotas, where the cluster has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ottla.client import AclFilter

from ..models import Acl, Entity, Page, Password, Quota, QuotaChanges, User
from .dependencies import ClientDep, NamePath, PagingDep, Writable, rejecting_values

router = APIRouter(tags=["security"])


@router.get("/acls")
async def list_acls(
    client: ClientDep,
    paging: PagingDep,
    search: Annotated[
        str, Query(max_length=249, description="A part of the principal or resource.")
    ] = "",
) -> Page[Acl]:
    """Return the ACLs."""
    found = [
        Acl.of(one)
        for one in await client.admin.describe_acls()
        if search.casefold() in f"{one.principal} {one.resource_name}".casefold()
    ]
    found.sort(key=lambda one: (one.principal, one.resource_type, one.resource_name, one.operation))
    return Page[Acl].of(found, paging.offset, paging.limit)


@router.post("/acls", status_code=201, dependencies=[Writable])
async def create_acl(client: ClientDep, acl: Acl) -> Acl:
    """Create an ACL. One that exists already is no error."""
    await client.admin.create_acls(acl.binding())
    return acl


@router.delete("/acls", dependencies=[Writable])
async def delete_acl(client: ClientDep, acl: Acl) -> list[Acl]:
    """Delete an ACL; return it, or nothing if there was none."""
    wanted = AclFilter.of(acl.binding())
    deleted = await client.admin.delete_acls(wanted)
    return [Acl.of(one) for one in deleted[wanted]]


@router.get("/users")
async def list_users(client: ClientDep, paging: PagingDep) -> Page[User]:
    """Return the users of SCRAM."""
    known = await client.admin.describe_user_scram_credentials()
    found = [User(name=name, mechanisms=some) for name, some in sorted(known.items())]
    return Page[User].of(found, paging.offset, paging.limit)


@router.put("/users/{user:path}", status_code=204, dependencies=[Writable])
async def set_password(client: ClientDep, user: NamePath, new: Password) -> None:
    """Create a user, or change the password. Brokers receive a salted hash of it."""
    with rejecting_values():
        await client.admin.create_user(
            user, new.password, mechanisms=new.mechanisms, iterations=new.iterations
        )


@router.delete("/users/{user:path}", status_code=204, dependencies=[Writable])
async def delete_user(client: ClientDep, user: NamePath) -> None:
    """Delete a user."""
    await client.admin.delete_users(user)


@router.get("/quotas")
async def list_quotas(client: ClientDep, paging: PagingDep) -> Page[Quota]:
    """Return the client quotas."""
    known = await client.admin.describe_client_quotas()
    found = [
        Quota(entity=Entity.of(entity), quotas=quotas)
        for entity, quotas in sorted(known.items(), key=lambda item: str(item[0]))
    ]
    return Page[Quota].of(found, paging.offset, paging.limit)


@router.put("/quotas", status_code=204, dependencies=[Writable])
async def alter_quotas(client: ClientDep, changes: QuotaChanges) -> None:
    """Set and remove quotas of an entity; the others keep their values."""
    with rejecting_values():
        await client.admin.alter_client_quotas(
            changes.entity.entity(), changes.set, unset=changes.unset
        )
