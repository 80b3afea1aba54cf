"""Tokens bought with an API key, and every known way to forge one."""

import base64
import hmac
import json
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from auth.credentials import ApiKey, ServiceKey
from auth.errors import ExpiredToken, InvalidClientTokenId
from auth.grants import NothingLeft
from auth.tokens.api_keys import new_api_key
from auth.tokens.jwts import AUDIENCE, ISSUER, LEEWAY_SECONDS, SECONDS_MAX
from auth.tokens.service_keys import KEEP_SECONDS, ROTATE_SECONDS
from tests.auth.credential_world import ACCOUNT, CredentialWorld
from tests.tables import beside

FORGERIES = beside(__file__, "forgeries.yaml")


@pytest.fixture
async def key(world: CredentialWorld) -> ApiKey:
    record, _ = new_api_key(ACCOUNT, name="ci", scopes=["send", "receive"], prefixes=["a-"])
    await world.credentials.put_api_key(record)
    return record


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = token.split(".")
    return tuple(json.loads(base64.urlsafe_b64decode(part + "==")) for part in (header, claims))


async def signing_key(world: CredentialWorld) -> ServiceKey:
    (key,) = await world.store.credentials.list_service_keys("token")
    return key


async def refused(world: CredentialWorld, token: str) -> None:
    with pytest.raises(InvalidClientTokenId):
        await world.tokens.find(token.encode(), world.clock())


async def test_a_token_has_the_rights_of_its_key_on_every_frontend(world: CredentialWorld, key: ApiKey) -> None:
    token = await world.tokens.issue(key, world.clock())
    for some in (world, world.again()):
        granted = await some.tokens.find(token.encode(), world.clock())
        await granted.check(some.credentials, world.clock())
        expected = msgspec.structs.replace(
            key.principal, credential=granted.principal.credential, expires_s=int(world.clock()) + SECONDS_MAX
        )
        assert granted.principal == expected
        assert granted.principal.credential.startswith(f"hf_{key.key_id}/")


async def test_a_token_can_have_fewer_rights_but_not_more(world: CredentialWorld, key: ApiKey) -> None:
    token = await world.tokens.issue(key, world.clock(), scopes=("send", "manage"), prefixes=("a-b", "x"))
    granted = await world.tokens.find(token.encode(), world.clock())
    await granted.check(world.credentials, world.clock())
    assert (granted.principal.scopes, granted.principal.prefixes) == (("send",), ("a-b",))
    with pytest.raises(NothingLeft):
        await world.tokens.issue(key, world.clock(), scopes=("manage",))
    with pytest.raises(NothingLeft):
        await world.tokens.issue(key, world.clock(), prefixes=("x",))


@pytest.mark.parametrize("seconds", [0, 59, SECONDS_MAX + 1, -1])
async def test_the_time_of_a_token_is_bounded(world: CredentialWorld, key: ApiKey, seconds: int) -> None:
    with pytest.raises(ValueError, match="60 to 3600 seconds"):
        await world.tokens.issue(key, world.clock(), seconds=seconds)


async def test_it_ends_in_time_and_with_its_key(world: CredentialWorld, key: ApiKey) -> None:
    token = (await world.tokens.issue(key, world.clock(), seconds=60)).encode()
    world.clock.now += 59
    granted = await world.tokens.find(token, world.clock())
    await granted.check(world.credentials, world.clock())
    world.clock.now += 1
    for some in (world, world.again()):
        with pytest.raises(ExpiredToken):
            await (await some.tokens.find(token, world.clock())).check(some.credentials, world.clock())
    world.clock.now -= 10
    await world.credentials.update_api_key(msgspec.structs.replace(key, active=False))
    for some in (world, world.again()):
        with pytest.raises(InvalidClientTokenId):
            await (await some.tokens.find(token, world.clock())).check(some.credentials, world.clock())


async def test_an_administrators_token_is_one_no_longer_when_its_key_is_not(world: CredentialWorld) -> None:
    key, _ = new_api_key(ACCOUNT, role="admin")
    await world.credentials.put_api_key(key)
    granted = await world.tokens.find((await world.tokens.issue(key, world.clock())).encode(), world.clock())
    roles = []
    await granted.check(world.credentials, world.clock())
    roles.append(granted.principal.role)
    await world.credentials.update_api_key(msgspec.structs.replace(key, role="user"))
    await granted.check(world.credentials, world.clock())
    roles.append(granted.principal.role)
    assert roles == ["admin", "user"]


async def test_keys_rotate_under_tokens_in_force(world: CredentialWorld, key: ApiKey) -> None:
    await world.tokens.issue(key, world.clock())
    world.clock.now += ROTATE_SECONDS - 10
    old = await world.tokens.issue(key, world.clock())
    world.clock.now += 20
    new = await world.tokens.issue(key, world.clock())
    assert jwt.get_unverified_header(old)["kid"] != jwt.get_unverified_header(new)["kid"]
    for token in (old, new):
        await world.again().tokens.find(token.encode(), world.clock())
    world.clock.now += ROTATE_SECONDS + KEEP_SECONDS
    await world.tokens.issue(key, world.clock())
    await refused(world.again(), old)


# --- forgeries -------------------------------------------------------------------------------------------------


async def test_a_token_with_any_character_changed_is_refused(world: CredentialWorld, key: ApiKey) -> None:
    token = await world.tokens.issue(key, world.clock())
    header, claims, signature = token.split(".")
    for position in range(0, len(token), 3):
        changed = token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
        await refused(world, changed)
    await refused(world, f"{header}.{claims}.")
    await refused(world, f"{header}.{claims}")
    await refused(world, f"{header}..{signature}")
    await refused(world, f"{token}.{signature}")
    await refused(world, token + "A" * 9000)


async def test_rights_cannot_be_added_to_a_token(world: CredentialWorld, key: ApiKey) -> None:
    token = await world.tokens.issue(key, world.clock())
    header, _, signature = token.split(".")
    content = parts_of(token)[1]
    content["grant"]["role"] = "operator"
    await refused(world, f"{header}.{b64(json.dumps(content).encode())}.{signature}")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_an_unsigned_token_is_refused(world: CredentialWorld, key: ApiKey, algorithm: str) -> None:
    header, claims = parts_of(await world.tokens.issue(key, world.clock()))
    header["alg"] = algorithm
    unsigned = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    await refused(world, f"{unsigned}.")
    await refused(world, f"{unsigned}.AAAA")


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
async def test_another_algorithm_is_refused_even_with_the_right_key(
    world: CredentialWorld, key: ApiKey, algorithm: str
) -> None:
    header, claims = parts_of(await world.tokens.issue(key, world.clock()))
    secret = (await signing_key(world)).secret + b"\0" * 32
    await world.store.credentials.put_service_key(msgspec.structs.replace(await signing_key(world), secret=secret))
    await refused(world.again(), jwt.encode(claims, secret, algorithm, headers={"kid": header["kid"]}))
    await world.again().tokens.find(
        jwt.encode(claims, secret, "HS256", headers={"kid": header["kid"]}).encode(), world.clock()
    )


async def test_another_issuers_key_pair_is_refused(world: CredentialWorld, key: ApiKey) -> None:
    header, claims = parts_of(await world.tokens.issue(key, world.clock()))
    pair = rsa.generate_private_key(65537, 2048)
    public = pair.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    await refused(world, jwt.encode(claims, pair, "RS256", headers={"kid": header["kid"]}))
    await refused(world, jwt.encode(claims, pair, "RS256", headers={"kid": header["kid"], "jwk": {"pem": public}}))


@pytest.mark.parametrize("kid", [None, "", "0" * 16, "../../etc/passwd", 7, ["a"], "x" * 5000])
async def test_a_wrong_kid(world: CredentialWorld, key: ApiKey, kid: Any) -> None:
    _, claims = parts_of(await world.tokens.issue(key, world.clock()))
    secret = (await signing_key(world)).secret
    forged = {"alg": "HS256", "typ": "JWT"} | ({} if kid is None else {"kid": kid})
    body = f"{b64(json.dumps(forged).encode())}.{b64(json.dumps(claims).encode())}"
    await refused(world, f"{body}.{b64(hmac.digest(secret, body.encode(), 'sha256'))}")


async def test_a_session_key_does_not_sign_tokens(world: CredentialWorld, key: ApiKey) -> None:
    _, claims = parts_of(await world.tokens.issue(key, world.clock()))
    other = ServiceKey("f" * 16, "session", b"s" * 32, int(world.clock()))
    await world.store.credentials.put_service_key(other)
    await refused(world.again(), jwt.encode(claims, other.secret, "HS256", headers={"kid": other.key_id}))


@pytest.mark.parametrize("change", FORGERIES["claims of own tokens"])
async def test_every_claim_counts_even_when_the_signature_is_right(
    world: CredentialWorld, key: ApiKey, change: dict[str, Any]
) -> None:
    header, claims = parts_of(await world.tokens.issue(key, world.clock()))
    assert (claims["iss"], claims["aud"]) == (ISSUER, AUDIENCE)
    for name, value in change.items():
        if value is None:
            del claims[name]
        else:
            claims[name] = value
    secret = (await signing_key(world)).secret
    await refused(world, jwt.encode(claims, secret, "HS256", headers={"kid": header["kid"]}))


async def test_clocks_may_differ_by_a_minute(world: CredentialWorld, key: ApiKey) -> None:
    token = (await world.tokens.issue(key, world.clock())).encode()
    await world.again().tokens.find(token, world.clock() - LEEWAY_SECONDS)
    with pytest.raises(InvalidClientTokenId):
        await world.again().tokens.find(token, world.clock() - LEEWAY_SECONDS - 2)


async def test_a_critical_extension_is_refused(world: CredentialWorld, key: ApiKey) -> None:
    header, claims = parts_of(await world.tokens.issue(key, world.clock()))
    secret = (await signing_key(world)).secret
    headers = {"kid": header["kid"], "crit": ["b64"], "b64": True}
    await refused(world, jwt.encode(claims, secret, "HS256", headers=headers))
