"""Access keys and API keys: create, rotate, revoke, list.  A secret is shown once, in the answer that created
it.

Callers can neither create a key with more rights than their own, nor change one with more rights or a higher
role.  A credential that expires creates no key of its own role that expires later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query

from auth.credentials import ApiKey, new_access_key, new_principal_id, user_arn
from auth.principal import Principal, Role, Scope, effective_scopes
from auth.tokens import api_keys
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.key_records import Key, KeyRecords, ended_s, id_of, stored_id_of
from frontend.rest.models import KeyGiven, KeyList, KeyMade, KeyRotation, KeyShown
from frontend.rest.problems import Problem, invalid, not_found, not_permitted
from frontend.services import Services

_RANK: dict[str, int] = {"user": 0, "admin": 1, "operator": 2}
_NAME = re.compile(r"[\w+=,.@-]{1,64}\Z", re.ASCII)
"""Pattern of user names, as in IAM."""
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")

Account = Annotated[str | None, Query(description="account of the keys; operators may name any")]
KeyId = Annotated[str, Path(description="id of an access key, or hf_... with the id of an API key", max_length=140)]


def create_router(services: Services) -> APIRouter:
    """Create the routes of keys."""
    router = rest_router("keys", ManagingRoute)
    store, records = services.credentials.store, KeyRecords(services)

    def now_s() -> int:
        return int(services.clock())

    @router.post("/keys", name="key.create", status_code=201)
    async def create(caller: CurrentCaller, given: KeyGiven, account: Account = None) -> KeyMade:
        """Create a key.  Only this answer shows its secret."""
        owner = caller.account(account)
        caller.target = user_arn(owner, given.name)
        caller.require_role("operator", "admin")
        if not _NAME.match(given.name):
            raise invalid("The name of a key's user is 1 to 64 letters, digits or characters of +=,.@-_")
        _check_rank(caller.principal, given.name, given.role)
        if given.role == "operator" and owner != caller.principal.account:
            raise not_permitted("The key of an operator can only be made in an operator's own account.")
        check_rights(caller.principal, given.scopes, given.prefixes)
        tenant = await store.get_tenant(owner)
        if tenant is None or tenant.state in ("deleting", "deleted"):
            raise not_found(f"tenant {owner}")
        expires_s = None if given.expires_in_seconds is None else now_s() + given.expires_in_seconds
        _check_end(caller.principal, owner, given.name, given.role, expires_s, now_s())
        same_user = [key for key in await records.of(owner) if key.name == given.name]
        made, secret = _new(
            given.kind,
            owner,
            name=given.name,
            role=given.role,
            scopes=tuple(given.scopes),
            prefixes=tuple(given.prefixes),
            expires_s=expires_s,
            principal_id=same_user[0].principal_id if same_user else new_principal_id(),
        )
        caller.target = caller.made = id_of(made)
        await records.add(made)
        await records.forget_ended(owner)
        return KeyMade(**_facts(made, None), secret=secret)

    @router.get("/keys", name="key.list")
    async def list_keys(caller: CurrentCaller, account: Account = None) -> KeyList:
        """List all keys of an account, including recently revoked or expired ones."""
        owner = caller.account(account)
        caller.require_role("operator", "admin")
        keys = await records.of(owner)
        uses = await services.credentials.last_uses([stored_id_of(key) for key in keys])
        return KeyList(keys=[KeyShown(**_facts(key, uses.get(stored_id_of(key)))) for key in keys])

    @router.post("/keys/{key_id}/rotate", name="key.rotate", status_code=201)
    async def rotate(caller: CurrentCaller, key_id: KeyId, asked: KeyRotation, account: Account = None) -> KeyMade:
        """Create a key like this one, which stays valid for a while so that its users can switch."""
        old = await _found(caller, key_id, account)
        # The caller receives the new key, so rotation must not give more rights than the caller has.
        _check_rank(caller.principal, old.name, old.role)
        check_rights(caller.principal, old.scopes, old.prefixes)
        if not old.active:
            raise Problem(409, "KeyRevoked", f"The key {key_id} is revoked; make a new one.")
        expires_s = None if old.expires_s is None else now_s() + old.expires_s - old.created_s
        if caller.principal.credential == id_of(old):
            expires_s = old.expires_s  # no key extends its own lifetime
        _check_end(caller.principal, old.account, old.name, old.role, expires_s, now_s())
        made, secret = _new(
            "api" if isinstance(old, ApiKey) else "access",
            old.account,
            name=old.name,
            role=old.role,
            scopes=old.scopes,
            prefixes=old.prefixes,
            expires_s=expires_s,
            principal_id=old.principal_id,
        )
        caller.made = id_of(made)
        await records.add(made)
        ends = now_s() + asked.keep_seconds
        await records.change(
            old, lambda key: {"expires_s": ends if key.expires_s is None else min(ends, key.expires_s)}
        )
        await records.forget_ended(old.account)
        return KeyMade(**_facts(made, None), secret=secret)

    @router.delete("/keys/{key_id}", name="key.revoke")
    async def revoke(caller: CurrentCaller, key_id: KeyId, account: Account = None) -> KeyShown:
        """Revoke the key, everywhere within a second.  It cannot be made valid again."""
        key = await _found(caller, key_id, account)
        check_rights(caller.principal, key.scopes, key.prefixes)
        if key.active and key.role == "operator":
            others = [
                one for one in await records.of(key.account) if one.role == "operator" and _state(one) == "active"
            ]
            if [id_of(one) for one in others] == [id_of(key)]:
                raise Problem(409, "LastOperator", "This is the last key of an operator; make another one first.")
        revoked = await records.change(
            key, lambda now: {} if not now.active else {"active": False, "revoked_s": now_s()}
        )
        await records.forget_ended(key.account)
        return KeyShown(**_facts(revoked, None))

    def _new(kind: str, account: str, *, principal_id: str, **facts: Any) -> tuple[Key, str]:
        if kind == "api":
            return api_keys.new_api_key(account, principal_id=principal_id, created_s=now_s(), **facts)
        made = msgspec.structs.replace(new_access_key(account), principal_id=principal_id, created_s=now_s(), **facts)
        return made, made.secret

    async def _found(caller: RestCaller, key_id: str, account: str | None) -> Key:
        """Find a key that the caller may change."""
        owner = caller.account(account)
        caller.target = key_id
        caller.require_role("operator", "admin")
        key = await records.get(key_id)
        if key is None or key.account != owner:
            raise not_found(f"key {key_id} in account {owner}")
        if _RANK[key.role] > _RANK[caller.principal.role]:
            raise not_permitted(f"The key {key_id} is an {key.role}'s.")
        return key

    def _state(key: Key) -> str:
        if not key.active:
            return "revoked"
        return "active" if ended_s(key, now_s()) is None else "expired"

    def _facts(key: Key, last_used: int | None) -> dict[str, Any]:
        return {
            "id": id_of(key),
            "kind": "api" if isinstance(key, ApiKey) else "access",
            "account": key.account,
            "name": key.name,
            "role": key.role,
            "scopes": list(key.scopes),
            "prefixes": list(key.prefixes),
            "state": _state(key),
            "created": key.created_s,
            "expires": key.expires_s,
            "last_used": last_used,
        }

    return router


def _check_rank(principal: Principal, name: str, role: Role) -> None:
    """Check that the caller may hold a key of this user and role."""
    if name == "root" and not (principal.role == "operator" or principal.is_root):
        raise not_permitted("Only the account's root, or an operator, can make a key for root.")
    if _RANK[role] > _RANK[principal.role]:
        raise not_permitted(f"Your role is {principal.role}: you cannot make the key of an {role}.")


def _check_end(principal: Principal, account: str, name: str, role: Role, expires_s: int | None, now_s: int) -> None:
    """Check that the caller, whose own credential may expire, can create a key with this expiry.

    Administrators create keys for others, which may last longer.  But a key of the caller's own rank would
    extend the caller's credential.
    """
    ends_s = principal.expires_s
    equal = role == principal.role or (name == "root" and account == principal.account)
    if ends_s is None or not equal or (expires_s is not None and expires_s <= ends_s):
        return
    left = max(0, ends_s - now_s)
    raise not_permitted(
        f"Your own credential ends in {left} seconds, and a key with its role cannot last longer. Let the new one "
        f"expire in {left} seconds at most, or make it with a credential that lasts."
    )


def check_rights(principal: Principal, scopes: Sequence[Scope], prefixes: Sequence[str]) -> None:
    """Check that the caller may grant or revoke these rights: no more than its own."""
    for prefix in prefixes:
        if not _PREFIX.match(prefix):
            raise invalid(f"{prefix[:100]!r} cannot begin the name of a queue.")
    more = set(scopes) - effective_scopes(principal.scopes)
    if more:
        raise not_permitted(f"Your key does not have the scope {sorted(more)[0]!r} itself.")
    narrow = principal.prefixes
    if narrow and not (prefixes and all(prefix.startswith(narrow) for prefix in prefixes)):
        names = " or ".join(narrow)
        raise not_permitted(
            f"Your key is for names that begin with {names}; so must be the keys that it makes, changes or revokes."
        )
