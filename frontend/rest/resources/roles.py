"""Roles of tenants, for sessions (STS's AssumeRole), tokens bought with keys, and the caller itself."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query

from auth.credentials import AccessKey, ApiKey, TenantRole, check_account, new_principal_id
from auth.lookup import CachedKey
from auth.principal import EVERY_SCOPE, effective_scopes
from auth.store import Conflict
from auth.tokens.api_keys import PREFIX
from frontend.rest.caller import CurrentCaller, ManagingRoute, rest_router
from frontend.rest.models import CallerShown, RoleGiven, RoleList, RoleShown, TokenAsked, TokenMade
from frontend.rest.problems import Problem, invalid, not_found, not_permitted
from frontend.rest.resources.keys import check_rights
from frontend.services import Services

ROLES_MAX = 1_000
"""Maximum number of roles of an account, as in IAM."""
_TRIES = 4
_NAME = re.compile(r"[\w+=,.@-]{1,64}\Z", re.ASCII)
_SUBJECT = re.compile(r"[!-~]{1,255}\Z")

Account = Annotated[str | None, Query(description="account of the roles; operators may name any")]
Name = Annotated[str, Path(description="name of the role: arn:aws:iam::ACCOUNT:role/NAME", max_length=64)]


def create_router(services: Services) -> APIRouter:
    """Create the routes of roles and tokens."""
    router = rest_router("roles", ManagingRoute)
    credentials, store = services.credentials, services.credentials.store

    @router.put("/roles/{name}", name="role.set")
    async def set_role(caller: CurrentCaller, name: Name, given: RoleGiven, account: Account = None) -> RoleShown:
        """Create or change a role.  Rights removed from it are removed from its running sessions at once.

        Callers cannot change a role with more rights than their own.
        """
        owner = caller.account(account)
        caller.target = f"arn:aws:iam::{owner}:role/{name}"
        caller.require_role("operator", "admin")
        if not _NAME.match(name):
            raise invalid("The name of a role is 1 to 64 letters, digits or characters of +=,.@-_")
        check_rights(caller.principal, given.scopes, given.prefixes)
        for trusted in given.trusted_accounts:
            try:
                check_account(trusted)
            except ValueError as error:
                raise invalid(str(error)) from None
        for subject in given.trusted_subjects:
            if not _SUBJECT.match(subject):
                raise invalid(f"{subject[:100]!r} cannot be the subject of a token.")
        tenant = await store.get_tenant(owner)
        if tenant is None or tenant.state in ("deleting", "deleted"):
            raise not_found(f"tenant {owner}")
        facts = {
            "scopes": tuple(given.scopes),
            "prefixes": tuple(given.prefixes),
            "trusted_accounts": tuple(given.trusted_accounts),
            "trusted_subjects": tuple(given.trusted_subjects),
            "session_seconds_max": given.session_seconds_max,
        }
        for _ in range(_TRIES):
            known = await store.get_role(owner, name)
            if known is None:
                if len(await store.list_roles(owner)) >= ROLES_MAX:
                    raise Problem(409, "TooManyRoles", f"The account {owner} has {ROLES_MAX} roles; delete some.")
                made = TenantRole(owner, name, new_principal_id("AROA"), created_s=int(services.clock()))
                role = msgspec.structs.replace(made, **facts)
                await credentials.put_role(role)
                return _shown(role)
            check_rights(caller.principal, known.scopes, known.prefixes)
            try:
                return _shown(await credentials.update_role(msgspec.structs.replace(known, **facts)))
            except Conflict:
                continue
        raise Problem(409, "Conflict", f"The role {name} is being changed by others; try again.")

    @router.get("/roles", name="role.list")
    async def list_roles(caller: CurrentCaller, account: Account = None) -> RoleList:
        """List all roles of an account."""
        owner = caller.account(account)
        caller.require_role("operator", "admin")
        return RoleList(roles=[_shown(role) for role in await store.list_roles(owner)])

    @router.delete("/roles/{name}", name="role.delete", status_code=204)
    async def delete_role(caller: CurrentCaller, name: Name, account: Account = None) -> None:
        """Delete a role with no more rights than the caller's; its sessions end, everywhere within a second."""
        owner = caller.account(account)
        caller.target = f"arn:aws:iam::{owner}:role/{name}"
        caller.require_role("operator", "admin")
        known = await store.get_role(owner, name)
        if known is not None:
            check_rights(caller.principal, known.scopes, known.prefixes)
        if not await credentials.delete_role(owner, name):
            raise not_found(f"role {name} in account {owner}")

    @router.post("/token", name="token.buy", tags=["tokens"], status_code=201)
    async def buy(caller: CurrentCaller, asked: TokenAsked) -> TokenMade:
        """Issue a short-lived token (JWT) with the rights of the calling key, or fewer."""
        credential = caller.target = caller.principal.credential
        known: CachedKey[AccessKey] | CachedKey[ApiKey] | None
        if credential.startswith(PREFIX):
            known = await credentials.find_api_key(credential.removeprefix(PREFIX))
        else:
            known = await credentials.find(credential)
        if known is None or caller.principal != known.principal:
            raise not_permitted("Only an access key or an API key can buy a token: neither a session, nor a token.")
        try:
            token = await services.tokens.issue(
                known.key,
                services.clock(),
                seconds=asked.seconds,
                scopes=None if asked.scopes is None else tuple(asked.scopes),
                prefixes=tuple(asked.prefixes),
            )
        except ValueError as error:
            raise invalid(f"{error}.") from None
        caller.made = (await services.tokens.find(token.encode(), services.clock())).grant.credential
        return TokenMade(token=token, expires=int(services.clock()) + asked.seconds)

    @router.get("/caller", name="caller.show", tags=["tokens"])
    async def show_caller(caller: CurrentCaller) -> CallerShown:
        """Show the calling credential and its current rights."""
        principal = caller.principal
        tenant = caller.call.tenant
        return CallerShown(
            account=principal.account,
            account_name=tenant.name,
            arn=principal.arn,
            credential=principal.credential,
            role=principal.role,
            scopes=[scope for scope in EVERY_SCOPE if scope in effective_scopes(principal.scopes)],
            prefixes=list(principal.prefixes),
            expires=principal.expires_s,
            region=services.settings.region,
            features=_features(services),
            trace_url=services.settings.trace_url,
        )

    return router


def _features(services: Services) -> list[Literal["streams", "topics"]]:
    features: list[Literal["streams", "topics"]] = [] if services.streams is None else ["streams"]
    if services.topics is not None and services.settings.sns:
        features.append("topics")
    return features


def _shown(role: TenantRole) -> RoleShown:
    return RoleShown(
        arn=role.arn,
        name=role.name,
        account=role.account,
        scopes=list(role.scopes),
        prefixes=list(role.prefixes),
        trusted_accounts=list(role.trusted_accounts),
        trusted_subjects=list(role.trusted_subjects),
        session_seconds_max=role.session_seconds_max,
        created=role.created_s,
    )
