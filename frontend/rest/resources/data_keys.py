"""Routes of a tenant's named data keys, for administrators of the account."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from auth.encryption.named_keys import (
    DataKeyDestroyed,
    NamedKey,
    NamedKeys,
    NamedKeyUnknown,
    TooManyNamedKeys,
    key_name,
)
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import DataKeyDestruction, DataKeyList, DataKeyNamed, DataKeyShown
from frontend.rest.problems import Problem, invalid, not_found
from frontend.services import Services
from telemetry.texts import shown

Account = Annotated[str | None, Query(description="account of the data keys; operators may name any")]


def create_router(services: Services) -> APIRouter:
    """Create the routes of named data keys."""
    router = rest_router("data keys", ManagingRoute)

    def keys() -> NamedKeys:
        if services.keyring is None:
            raise Problem(409, "EncryptionOff", "Encryption is switched off on this service (HOLDFAST_ENCRYPTION).")
        return services.keyring.named

    def named(caller: RestCaller, owner: str, text: str) -> str:
        """Normalize the name of a key."""
        name = key_name(text, services.settings.region, owner)
        caller.target = f"data key {shown(name or text)} of {owner}"
        if not name:
            raise invalid("alias/aws/sqs means the tenant's own data keys, which are not named ones.")
        return name

    @router.get("/data-keys", name="data_key.list")
    async def list_data_keys(caller: CurrentCaller, account: Account = None) -> DataKeyList:
        """List the named data keys of an account, including destroyed ones, by name.  Each was created by its
        first use."""
        owner = caller.account(account)
        caller.require_role("operator", "admin")
        return DataKeyList(data_keys=[_shown(key) for key in await keys().all(owner)])

    @router.post("/data-keys/rotate", name="data_key.rotate")
    async def rotate(caller: CurrentCaller, asked: DataKeyNamed, account: Account = None) -> DataKeyShown:
        """Add a version, which encrypts messages sent from now on; messages encrypted by older versions can
        still be read."""
        owner = caller.account(account)
        name = named(caller, owner, asked.name)
        caller.require_role("operator", "admin")
        try:
            return _shown(await keys().rotate(owner, name))
        except NamedKeyUnknown:
            raise not_found(f"data key {shown(name)}") from None
        except DataKeyDestroyed:
            raise Problem(409, "DataKeyDestroyed", f"The data key {shown(name)} was destroyed.") from None
        except TooManyNamedKeys as error:
            raise Problem(409, "TooManyVersions", f"No version can be added: {error}.") from None

    @router.post("/data-keys/destroy", name="data_key.destroy")
    async def destroy(caller: CurrentCaller, asked: DataKeyDestruction, account: Account = None) -> DataKeyShown:
        """Destroy a data key: everything that it has encrypted becomes unreadable for ever, and its name is not
        reused.

        It can be repeated.
        """
        owner = caller.account(account)
        name = named(caller, owner, asked.name)
        caller.require_role("operator", "admin")
        if asked.confirm != asked.name:
            raise invalid("This cannot be undone: confirm it by the member `confirm`, with the same text as `name`.")
        try:
            return _shown(await keys().destroy(owner, name))
        except NamedKeyUnknown:
            raise not_found(f"data key {shown(name)}") from None

    return router


def _shown(key: NamedKey) -> DataKeyShown:
    return DataKeyShown(
        name=key.name,
        account=key.account,
        state="active" if key.destroyed_s is None else "destroyed",
        versions=len(key.versions),
        created=key.created_s,
        rotated=key.versions[-1].created_s if len(key.versions) > 1 else None,
        destroyed=key.destroyed_s,
    )
