"""Temporary keys: content of their tokens, and their end."""

import base64

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant, TenantRole, new_access_key
from auth.errors import AuthError, ExpiredToken, InvalidClientTokenId, OptInRequired
from auth.grants import Grant, NothingLeft, narrowed
from auth.principal import SCOPES
from auth.tokens.api_keys import new_api_key
from auth.tokens.service_keys import ROTATE_SECONDS
from auth.tokens.sessions import OpenSession
from tests.auth.credential_world import ACCOUNT, OTHER, CredentialWorld


@pytest.fixture
async def base(world: CredentialWorld) -> AccessKey:
    key = new_access_key(ACCOUNT)
    await world.credentials.put(key)
    return key


@pytest.fixture
async def role(world: CredentialWorld) -> TenantRole:
    role = TenantRole(ACCOUNT, "worker", "AROAEXAMPLE")
    await world.credentials.put_role(role)
    return role


def grant_of(world: CredentialWorld, base: str = "", role: TenantRole | None = None, account: str = ACCOUNT) -> Grant:
    return Grant(
        account=account,
        principal_id="AROAEXAMPLE:tests",
        arn=f"arn:aws:sts::{account}:assumed-role/worker/tests",
        credential="",
        role="user",
        scopes=SCOPES,
        prefixes=(),
        expires_s=int(world.clock()) + 900,
        base=base,
        assumed="" if role is None else f"{role.account}/{role.name}",
        role_id="" if role is None else role.role_id,
    )


async def begin(world: CredentialWorld, grant: Grant) -> tuple[OpenSession, str]:
    session, token = await world.sessions.start(grant)
    opened = await world.sessions.find(token.encode())
    assert opened.session == session
    await opened.check(world.credentials, world.clock())
    return opened, token


async def test_any_frontend_reads_a_token_without_anything_stored_for_it(
    world: CredentialWorld, base: AccessKey, role: TenantRole
) -> None:
    opened, token = await begin(world, grant_of(world, base.access_key_id, role))
    other = world.again()
    seen = await other.sessions.find(token.encode())
    assert seen.session == opened.session
    await seen.check(other.credentials, world.clock())
    assert seen.principal == opened.principal
    assert seen.principal.credential == seen.session.access_key_id
    assert seen.session.access_key_id.startswith("ASIA")
    assert seen.tenant == Tenant(ACCOUNT, "tests")


async def test_a_token_reveals_nothing_and_its_secret_is_in_no_repr(world: CredentialWorld) -> None:
    opened, token = await begin(world, grant_of(world))
    content = base64.urlsafe_b64decode(token)
    for part in (opened.session.secret, opened.session.access_key_id, "assumed-role"):
        assert part.encode() not in content
    assert opened.session.secret not in repr(opened.session)


async def test_a_token_with_any_byte_changed_is_refused(world: CredentialWorld) -> None:
    _, token = await begin(world, grant_of(world))
    content = base64.urlsafe_b64decode(token)
    for position in range(len(content)):
        changed = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        with pytest.raises(InvalidClientTokenId):
            await world.sessions.find(base64.urlsafe_b64encode(changed))
    for cut in (0, 1, 20, 21, 36, len(content) - 1):
        with pytest.raises(InvalidClientTokenId):
            await world.sessions.find(base64.urlsafe_b64encode(content[:cut]))


@pytest.mark.parametrize("token", [b"", b"a", b"====", b"\xff\xfe", b"A" * 10_000, b"not a token at all"])
async def test_invalid_tokens(world: CredentialWorld, token: bytes) -> None:
    with pytest.raises(InvalidClientTokenId):
        await world.sessions.find(token)


async def test_tokens_outlive_the_rotation_of_the_service_keys(world: CredentialWorld) -> None:
    world.clock.now += 1
    grant = msgspec.structs.replace(grant_of(world), expires_s=int(world.clock()) + 2 * ROTATE_SECONDS)
    _, token = await begin(world, grant)
    world.clock.now += ROTATE_SECONDS
    await begin(world, grant)
    other = world.again()
    opened = await other.sessions.find(token.encode())
    await opened.check(other.credentials, world.clock())
    assert len(await world.store.credentials.list_service_keys("session")) == 2


async def refusal(world: CredentialWorld, token: str) -> type[AuthError] | None:
    """Error in this process, and in another one a second later."""
    answers: set[type[AuthError] | None] = set()
    for some in (world, world.again()):
        opened = await some.sessions.find(token.encode())
        try:
            await opened.check(some.credentials, world.clock())
            answers.add(None)
        except AuthError as error:
            answers.add(type(error))
    (answer,) = answers
    return answer


async def test_it_ends_in_time(world: CredentialWorld) -> None:
    _, token = await begin(world, grant_of(world))
    world.clock.now += 899
    assert await refusal(world, token) is None
    world.clock.now += 1
    assert await refusal(world, token) is ExpiredToken


@pytest.mark.parametrize("how", ["revoked", "deleted", "expired", "suspended"])
async def test_it_ends_with_the_key_behind_it(world: CredentialWorld, base: AccessKey, how: str) -> None:
    _, token = await begin(world, grant_of(world, base.access_key_id))
    other_process = world.again()
    seen = await other_process.sessions.find(token.encode())
    await seen.check(other_process.credentials, world.clock())
    expected: type[AuthError] = InvalidClientTokenId
    if how == "revoked":
        await world.credentials.update_access_key(msgspec.structs.replace(base, active=False))
    elif how == "deleted":
        await world.credentials.delete_access_key(base.access_key_id)
    elif how == "expired":
        await world.credentials.update_access_key(msgspec.structs.replace(base, expires_s=int(world.clock())))
        expected = ExpiredToken
    else:
        await world.credentials.update_tenant(Tenant(ACCOUNT, "tests", "suspended"))
        expected = OptInRequired
    assert await refusal(world, token) is expected
    world.clock.now += 1
    with pytest.raises(expected):
        await seen.check(other_process.credentials, world.clock())


async def test_it_may_rest_on_an_api_key(world: CredentialWorld) -> None:
    record, _ = new_api_key(ACCOUNT)
    await world.credentials.put_api_key(record)
    _, token = await begin(world, grant_of(world, f"hf_{record.key_id}"))
    assert await refusal(world, token) is None
    await world.credentials.delete_api_key(record.key_id)
    assert await refusal(world, token) is InvalidClientTokenId


async def test_it_ends_with_its_role_and_a_new_role_of_that_name_is_another(
    world: CredentialWorld, role: TenantRole
) -> None:
    _, token = await begin(world, grant_of(world, role=role))
    await world.credentials.delete_role(ACCOUNT, "worker")
    assert await refusal(world, token) is InvalidClientTokenId
    await world.credentials.put_role(msgspec.structs.replace(role, role_id="AROAANOTHER"))
    assert await refusal(world, token) is InvalidClientTokenId
    await world.credentials.put_role(role)
    assert await refusal(world, token) is None


async def test_rights_removed_from_key_or_role_are_removed_from_the_session(
    world: CredentialWorld, base: AccessKey, role: TenantRole
) -> None:
    opened, _ = await begin(world, grant_of(world, base.access_key_id, role))
    assert (opened.principal.scopes, opened.principal.prefixes) == (SCOPES, ())
    await world.credentials.put(msgspec.structs.replace(base, scopes=("send", "receive"), prefixes=("a-",)))
    await opened.check(world.credentials, world.clock())
    assert (opened.principal.scopes, opened.principal.prefixes) == (("send", "receive"), ("a-",))
    role = await world.credentials.update_role(
        msgspec.structs.replace(role, scopes=("receive",), prefixes=("a-b", "c"))
    )
    await opened.check(world.credentials, world.clock())
    assert (opened.principal.scopes, opened.principal.prefixes) == (("receive",), ("a-b",))
    await world.credentials.update_role(msgspec.structs.replace(role, scopes=("manage",)))
    with pytest.raises(InvalidClientTokenId):
        await opened.check(world.credentials, world.clock())


async def test_both_tenants_of_a_session_across_accounts_have_to_be_active(
    world: CredentialWorld, base: AccessKey
) -> None:
    role = TenantRole(OTHER, "worker", "AROAEXAMPLE", trusted_accounts=(ACCOUNT,))
    await world.credentials.put_role(role)
    opened, token = await begin(world, grant_of(world, base.access_key_id, role, OTHER))
    assert opened.tenant.account == opened.principal.account == OTHER
    suspended = await world.credentials.update_tenant(Tenant(OTHER, "tests", "suspended"))
    assert await refusal(world, token) is OptInRequired
    await world.credentials.update_tenant(msgspec.structs.replace(suspended, state="active"))
    assert await refusal(world, token) is None
    await world.credentials.update_tenant(Tenant(ACCOUNT, "tests", "deleted"))
    assert await refusal(world, token) is OptInRequired


def test_rights_that_two_sets_have_in_common() -> None:
    assert narrowed(SCOPES, (), ("manage", "send"), ()) == (("send", "manage"), ())
    assert narrowed(SCOPES, ("a",), SCOPES, ()) == (SCOPES, ("a",))
    assert narrowed(SCOPES, (), SCOPES, ("a",)) == (SCOPES, ("a",))
    assert narrowed(SCOPES, ("ab", "c"), SCOPES, ("a", "cd", "e")) == (SCOPES, ("ab", "cd"))
    for prefixes, scopes in ((("x",), ("send",)), ((), ("receive",))):
        with pytest.raises(NothingLeft):
            narrowed(("send",), ("a",), scopes, prefixes)  # type: ignore[arg-type]
