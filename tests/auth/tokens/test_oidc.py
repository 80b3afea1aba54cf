"""Tokens of an outside issuer: rotation, confusion, forgery, and an issuer that is slow, wrong or down."""

import base64
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from auth.errors import ExpiredToken, InvalidClientTokenId, IssuerUnreachable
from auth.principal import SCOPES
from auth.tokens.issuer_documents import FRESH_SECONDS, REFETCH_SECONDS, STALE_SECONDS
from auth.tokens.jwts import LEEWAY_SECONDS
from auth.tokens.oidc import Oidc, OidcSettings
from tests.auth.clock import Clock
from tests.auth.outside import AUDIENCE, ISSUER, NOW, OidcIssuer, public, sign
from tests.behaviour.cases import resolve
from tests.tables import beside

DISCOVERY = "/.well-known/openid-configuration"
FORGED_CLAIMS = resolve(
    beside(__file__, "forgeries.yaml")["claims of outside tokens"],
    {"too_late": NOW + LEEWAY_SECONDS + 1},
)


@pytest.fixture
def issuer() -> OidcIssuer:
    return OidcIssuer()


@pytest.fixture
def oidc(issuer: OidcIssuer, clock: Clock) -> Oidc:
    return Oidc(OidcSettings(ISSUER, AUDIENCE), issuer.client, clock=clock)


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


async def refused(oidc: Oidc, token: bytes) -> None:
    with pytest.raises(InvalidClientTokenId):
        await oidc.check(token, NOW)


async def test_a_token_is_checked_with_the_published_key(oidc: Oidc, issuer: OidcIssuer) -> None:
    token = issuer.token()
    for _ in range(3):
        outsider = await oidc.check(token, NOW)
        assert (outsider.issuer, outsider.subject, outsider.audience) == (ISSUER, "ci@example", AUDIENCE)
    assert issuer.asked == [DISCOVERY, "/keys"]


async def test_the_keys_may_be_at_a_given_place(issuer: OidcIssuer, clock: Clock) -> None:
    oidc = Oidc(OidcSettings(ISSUER, AUDIENCE, f"{ISSUER}/keys"), issuer.client, clock=clock)
    await oidc.check(issuer.token(), NOW)
    assert issuer.asked == ["/keys"]


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()])
async def test_other_kinds_of_keys(
    oidc: Oidc, issuer: OidcIssuer, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
) -> None:
    issuer.keys["other"] = key
    assert (await oidc.check(issuer.token("other"), NOW)).subject == "ci@example"


async def test_keys_rotate(oidc: Oidc, issuer: OidcIssuer, clock: Clock) -> None:
    old = issuer.token()
    await oidc.check(old, NOW)
    issuer.keys = {"rsa-2": rsa.generate_private_key(65537, 2048)}
    clock.now += REFETCH_SECONDS
    await oidc.check(issuer.token("rsa-2"), NOW)
    await refused(oidc, old)  # although it was verified before


async def test_made_up_key_ids_cause_few_fetches(oidc: Oidc, issuer: OidcIssuer, clock: Clock) -> None:
    await oidc.check(issuer.token(), NOW)
    asked = len(issuer.asked)
    stranger = rsa.generate_private_key(65537, 2048)
    for second in range(3 * REFETCH_SECONDS):
        clock.now += 1
        await refused(oidc, sign(stranger, "RS256", {"kid": f"made-up-{second}"}))
    assert len(issuer.asked) - asked <= 2 * 3
    await oidc.check(issuer.token(), NOW)


# --- forgeries -----------------------------------------------------------------------------------------------


async def test_a_token_with_any_character_changed_is_refused(oidc: Oidc, issuer: OidcIssuer) -> None:
    token = issuer.token()
    for position in range(0, len(token), 11):
        letter = b"A" if token[position : position + 1] != b"A" else b"B"
        await refused(oidc, token[:position] + letter + token[position + 1 :])


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", ""])
async def test_an_unsigned_token_is_refused(oidc: Oidc, issuer: OidcIssuer, algorithm: str) -> None:
    claims = issuer.token().split(b".")[1].decode()
    header = b64(json.dumps({"alg": algorithm, "kid": "rsa-1"}).encode())
    for signature in ("", "AAAA"):
        await refused(oidc, f"{header}.{claims}.{signature}".encode())


async def test_a_public_key_is_no_secret(oidc: Oidc, issuer: OidcIssuer) -> None:
    """RS256 to HS256: the published key, in each form that a verifier might take for a secret."""
    import hmac

    key = issuer.keys["rsa-1"].public_key()
    claims = issuer.token().split(b".")[1].decode()
    forms = [
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public("rsa-1", issuer.keys["rsa-1"])).encode(),
    ]
    for secret in forms:
        body = f"{b64(json.dumps({'alg': 'HS256', 'kid': 'rsa-1'}).encode())}.{claims}"
        signature = b64(hmac.digest(secret, body.encode(), "sha256"))
        await refused(oidc, f"{body}.{signature}".encode())


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256"])
async def test_the_algorithm_follows_from_the_key(oidc: Oidc, issuer: OidcIssuer, algorithm: str) -> None:
    await refused(oidc, sign(issuer.keys["rsa-1"], algorithm, {"kid": "rsa-1"}))


async def test_a_key_of_another_kind_under_a_known_id(oidc: Oidc, issuer: OidcIssuer) -> None:
    await refused(oidc, sign(ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": "rsa-1"}))
    await refused(oidc, sign(rsa.generate_private_key(65537, 2048), "RS256", {"kid": "rsa-1"}))


async def test_keys_in_a_token_are_not_looked_at(oidc: Oidc, issuer: OidcIssuer) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    for headers in ({"jwk": public("rsa-1", stranger)}, {"jku": "https://stranger.example/keys"}):
        await refused(oidc, sign(stranger, "RS256", {"kid": "rsa-1", **headers}))
    assert set(issuer.asked) == {DISCOVERY, "/keys"}


async def test_no_kid(oidc: Oidc, issuer: OidcIssuer) -> None:
    await refused(oidc, sign(issuer.keys["rsa-1"], "RS256", {}))
    assert issuer.asked == []


@pytest.mark.parametrize("claims", FORGED_CLAIMS)
async def test_claims(oidc: Oidc, issuer: OidcIssuer, claims: dict[str, Any]) -> None:
    token = sign(issuer.keys["rsa-1"], "RS256", {"kid": "rsa-1"}, **claims)
    await refused(oidc, token)
    await refused(oidc, token)


async def test_clocks_may_differ_by_a_minute(oidc: Oidc, issuer: OidcIssuer) -> None:
    for claims in ({"exp": NOW - LEEWAY_SECONDS + 1}, {"nbf": NOW + LEEWAY_SECONDS}, {"aud": ["other", AUDIENCE]}):
        await oidc.check(issuer.token(**claims), NOW)
    token = issuer.token(exp=NOW + 10)
    await oidc.check(token, NOW)
    for _ in range(2):
        with pytest.raises(ExpiredToken):
            await oidc.check(token, NOW + 10 + LEEWAY_SECONDS)
    with pytest.raises(ExpiredToken):
        await oidc.check(issuer.token(exp=NOW - LEEWAY_SECONDS), NOW)


@pytest.mark.parametrize("token", [b"", b".", b"..", b"a.b.c", b"\xff.\xff.\xff", b"A" * 9000, b"e30.e30.e30"])
async def test_invalid_tokens(oidc: Oidc, token: bytes) -> None:
    await refused(oidc, token)


# --- the issuer's documents ------------------------------------------------------------------------------------


async def test_keys_that_cannot_be_used_are_left_out(oidc: Oidc, issuer: OidcIssuer) -> None:
    weak = rsa.generate_private_key(65537, 1024)
    good = rsa.generate_private_key(65537, 2048)
    issuer.extra = [
        None,
        {"kty": "oct", "kid": "secret", "k": b64(b"s" * 32)},
        {**public("encrypts", good), "use": "enc"},
        {**public("other-algorithm", good), "alg": "RS512"},
        {**public("no-verify", good), "key_ops": ["encrypt"]},
        {**public("broken", good), "n": "?"},
        {**public("private", good), "d": "AAAA"},
        {"kty": "EC", "crv": "P-521", "kid": "curve", "x": "AA", "y": "AA"},
        public("weak", weak),
    ]
    await oidc.check(issuer.token(), NOW)
    for kid in ("encrypts", "other-algorithm", "no-verify", "broken", "private"):
        await refused(oidc, sign(good, "RS256", {"kid": kid}))
    await refused(oidc, sign(b"s" * 32, "HS256", {"kid": "secret"}))
    with pytest.warns(match="1024 bits"):
        token = sign(weak, "RS256", {"kid": "weak"})
    await refused(oidc, token)


def answers(kind: str) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        if kind == "away":
            raise httpx.ConnectError("nobody there", request=request)
        if kind == "another":
            return httpx.Response(200, json={"issuer": "https://stranger.example", "jwks_uri": f"{ISSUER}/keys"})
        if kind == "plain":
            return httpx.Response(200, json={"issuer": ISSUER, "jwks_uri": "http://issuer.example/keys"})
        if kind == "endless":
            return httpx.Response(200, content=b" " * 300_000)
        if kind == "redirect":
            return httpx.Response(302, headers={"Location": "https://stranger.example"})
        return httpx.Response(200, content={"text": b"<html>", "list": b"[]", "no keys": b"{}"}[kind])

    return answer


@pytest.mark.parametrize("kind", ["away", "another", "plain", "endless", "redirect", "text", "list", "no keys"])
async def test_an_issuer_that_answers_wrongly(
    oidc: Oidc, issuer: OidcIssuer, clock: Clock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answer = answers(kind)
    for _ in range(5):
        with pytest.raises(IssuerUnreachable):
            await oidc.check(issuer.token(), NOW)
    assert len(issuer.asked) == 1
    assert "cannot be fetched" in caplog.text
    issuer.answer = None
    clock.now += REFETCH_SECONDS
    await oidc.check(issuer.token(), NOW)


async def test_known_keys_are_used_while_the_issuer_is_away(oidc: Oidc, issuer: OidcIssuer, clock: Clock) -> None:
    await oidc.check(issuer.token(), NOW)
    issuer.answer = answers("away")
    clock.now += FRESH_SECONDS
    await oidc.check(issuer.token(), NOW)
    await oidc.check(issuer.token(jti="another"), NOW)
    clock.now += STALE_SECONDS - FRESH_SECONDS
    with pytest.raises(IssuerUnreachable):
        await oidc.check(issuer.token(), NOW)


@pytest.mark.parametrize(
    "url",
    ["http://issuer.example", "ftp://issuer.example", "issuer.example", "https://", "http://127.0.0.1.example", ""],
)
def test_only_https_unless_it_is_this_machine(url: str) -> None:
    for settings in ((url, AUDIENCE), (ISSUER, AUDIENCE, url)):
        with pytest.raises(ValueError, match="not the https:// URL"):
            OidcSettings(*settings)
    with pytest.raises(ValueError, match="audience"):
        OidcSettings(ISSUER, "")
    for local in ("http://127.0.0.1:8080", "http://localhost", "http://[::1]:1"):
        OidcSettings(local, AUDIENCE)


# --- meaning of claims
# -----------------------------------------------------------------------------------------


async def test_claims_make_a_principal(issuer: OidcIssuer, clock: Clock) -> None:
    settings = OidcSettings(ISSUER, AUDIENCE, role_claim="role", scopes_claim="scope", account_claim="acct")
    oidc = Oidc(settings, issuer.client, clock=clock)
    token = issuer.token(acct="111111111111", role="admin", scope="openid send receive")
    principal = oidc.principal(await oidc.check(token, NOW))
    assert (principal.account, principal.role, principal.scopes) == ("111111111111", "admin", ("send", "receive"))
    assert principal.arn == "arn:aws:sts::111111111111:federated-user/ci@example"
    assert principal.credential == "oidc:ci@example"
    listed = oidc.principal(await oidc.check(issuer.token(acct="111111111111", scope=["manage"]), NOW))
    assert (listed.role, listed.scopes) == ("user", ("manage",))
    nothing = oidc.principal(await oidc.check(issuer.token(acct="111111111111"), NOW))
    assert nothing.scopes == ()


async def test_claims_that_are_not_configured_give_nothing(oidc: Oidc, issuer: OidcIssuer) -> None:
    principal = oidc.principal(await oidc.check(issuer.token(role="operator", scope="send"), NOW))
    assert (principal.role, principal.scopes) == ("user", SCOPES)


@pytest.mark.parametrize("claims", [{"holdfast_account": None}, {"holdfast_account": 5}, {"holdfast_account": "*"}])
async def test_claims_that_name_no_account(oidc: Oidc, issuer: OidcIssuer, claims: dict[str, Any]) -> None:
    outsider = await oidc.check(issuer.token(**claims), NOW)
    with pytest.raises(InvalidClientTokenId):
        oidc.principal(outsider)


@pytest.mark.parametrize("claims", [{"role": "god"}, {"role": 5}, {"scope": 5}, {"scope": {"send": 1}}])
async def test_claims_of_the_wrong_kind(issuer: OidcIssuer, clock: Clock, claims: dict[str, Any]) -> None:
    settings = OidcSettings(ISSUER, AUDIENCE, role_claim="role", scopes_claim="scope")
    oidc = Oidc(settings, issuer.client, clock=clock)
    outsider = await oidc.check(issuer.token(**claims), NOW)
    with pytest.raises(InvalidClientTokenId):
        oidc.principal(outsider)
