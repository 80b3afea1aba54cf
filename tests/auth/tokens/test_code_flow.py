"""Codes of the OIDC issuer: what is exchanged, what is refused and why, and an issuer that answers wrongly."""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from auth.errors import IssuerUnreachable, SignInRefused
from auth.tokens.code_flow import CodeFlow, PresentedCode
from auth.tokens.issuer_documents import FRESH_SECONDS, REFETCH_SECONDS
from auth.tokens.oidc import ConsoleClient, Oidc, OidcSettings
from tests.auth.clock import Clock
from tests.auth.code_issuer import CLIENT, CodeIssuer
from tests.auth.outside import AUDIENCE, ISSUER, NOW, sign

HOME = "https://queue.example.com/console"
VERIFIER = "v" * 43
NONCE = "n" * 43
DISCOVERY = "/.well-known/openid-configuration"


@pytest.fixture
def issuer() -> CodeIssuer:
    return CodeIssuer()


def flow_of(issuer: CodeIssuer, clock: Clock, audience: str = AUDIENCE, **client: Any) -> CodeFlow:
    console = ConsoleClient(CLIENT, **client)
    oidc = Oidc(OidcSettings(ISSUER, audience, role_claim="role", console=console), issuer.client, clock=clock)
    return CodeFlow(oidc, console)


@pytest.fixture
def flow(issuer: CodeIssuer, clock: Clock) -> CodeFlow:
    return flow_of(issuer, clock)


def code_of(issuer: CodeIssuer, flow: CodeFlow, **instead: str) -> PresentedCode:
    """Sign in at the issuer; ``instead``: other values than those with which the sign-in began."""
    challenge = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    begun = {**flow.request_parameters(HOME), "state": "s", "nonce": NONCE, "code_challenge": challenge}
    back = dict(parse_qsl(urlsplit(issuer.authorize(begun)).query))
    return PresentedCode(
        **{"code": back["code"], "code_verifier": VERIFIER, "nonce": NONCE, "redirect_uri": HOME, **instead}
    )


async def refusal(flow: CodeFlow, presented: PresentedCode, issuer: CodeIssuer) -> SignInRefused:
    with pytest.raises(SignInRefused) as caught:
        await flow.exchange(presented, NOW)
    for secret in (presented.code, presented.code_verifier, presented.nonce, *issuer.issued):
        assert secret not in caught.value.message
    assert caught.value.__cause__ is None
    return caught.value


async def test_a_code_is_exchanged_for_the_access_token(flow: CodeFlow, issuer: CodeIssuer) -> None:
    presented = code_of(issuer, flow)
    token = await flow.exchange(presented, NOW)
    assert token == issuer.issued[1]
    assert issuer.forms == [
        {
            "grant_type": "authorization_code",
            "code": presented.code,
            "code_verifier": VERIFIER,
            "redirect_uri": HOME,
            "client_id": CLIENT,
        }
    ]
    assert issuer.request_headers[-1]["origin"] == "https://queue.example.com"
    assert issuer.requests[-1]["audience"] == AUDIENCE
    assert issuer.asked == [DISCOVERY, "/token", DISCOVERY, "/keys"]


async def test_the_id_token_serves_where_access_tokens_are_no_jwts(issuer: CodeIssuer, clock: Clock) -> None:
    flow = flow_of(issuer, clock, CLIENT, token="id", scopes="openid profile")
    issuer.added = {"access_token": "opaque"}
    assert await flow.exchange(code_of(issuer, flow), NOW) == issuer.issued[2]
    assert "audience" not in issuer.requests[-1]
    assert issuer.requests[-1]["scope"] == "openid profile"


async def test_a_code_is_used_once_and_by_its_own_page(flow: CodeFlow, issuer: CodeIssuer) -> None:
    used = code_of(issuer, flow)
    await flow.exchange(used, NOW)
    for presented in (
        used,
        code_of(issuer, flow, code="invented"),
        code_of(issuer, flow, code_verifier="w" * 43),
        code_of(issuer, flow, redirect_uri="https://stranger.example/console"),
    ):
        refused = await refusal(flow, presented, issuer)
        assert refused.code == "InvalidGrant"
        assert "Sign in again" in refused.message


async def test_a_code_of_another_sign_in_is_refused(flow: CodeFlow, issuer: CodeIssuer) -> None:
    """An injected code: even an issuer that does not check the verifier does not sign the victim in as another."""
    refused = await refusal(flow, code_of(issuer, flow, nonce="m" * 43), issuer)
    assert (refused.code, "not of this sign-in" in refused.message) == ("InvalidIdToken", True)


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": None},
        {"nonce": 5},
        {"aud": AUDIENCE},
        {"aud": [CLIENT, AUDIENCE]},
        {"azp": "another"},
        {"aud": [CLIENT, AUDIENCE], "azp": "another"},
        {"iss": "https://stranger.example"},
        {"exp": NOW - 61},
        {"iat": NOW + 61},
        {"sub": None},
    ],
)
async def test_an_id_token_that_is_not_for_this_sign_in(
    flow: CodeFlow, issuer: CodeIssuer, claims: dict[str, Any]
) -> None:
    token = sign(
        issuer.keys["rsa-1"], "RS256", {"kid": "rsa-1"}, **{"aud": CLIENT, "nonce": NONCE, "exp": NOW + 9, **claims}
    )
    issuer.added = {"id_token": token.decode()}
    assert (await refusal(flow, code_of(issuer, flow), issuer)).code == "InvalidIdToken"


async def test_an_id_token_for_several_audiences_names_the_client(flow: CodeFlow, issuer: CodeIssuer) -> None:
    token = issuer.token(aud=[CLIENT, AUDIENCE], azp=CLIENT, nonce=NONCE)
    issuer.added = {"id_token": token.decode()}
    await flow.exchange(code_of(issuer, flow), NOW)


async def test_a_forged_id_token(flow: CodeFlow, issuer: CodeIssuer) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    token = sign(stranger, "RS256", {"kid": "rsa-1"}, aud=CLIENT, nonce=NONCE)
    issuer.added = {"id_token": token.decode()}
    assert (await refusal(flow, code_of(issuer, flow), issuer)).code == "InvalidIdToken"


@pytest.mark.parametrize(
    ("added", "claims", "words"),
    [
        ({"access_token": None}, {}, "without an access token"),
        ({"id_token": None}, {}, "scope openid"),
        ({"access_token": "opaque"}, {}, "not a JWT"),
        ({"access_token": "A" * 9000}, {}, "at most 8192"),
        ({}, {"aud": "another"}, f"audience {AUDIENCE}"),
        ({}, {"holdfast_account": None}, "holdfast_account has to be the 12 digits"),
        ({}, {"role": "god"}, "user, admin or operator"),
    ],
)
async def test_the_reason_is_named_when_the_issuer_is_not_set_up(
    flow: CodeFlow, issuer: CodeIssuer, added: dict[str, Any], claims: dict[str, Any], words: str
) -> None:
    issuer.added = added
    if claims:
        issuer.added = {"access_token": issuer.token(**claims).decode()}
    assert words in (await refusal(flow, code_of(issuer, flow), issuer)).message


async def test_a_client_that_needs_a_secret(
    flow: CodeFlow, issuer: CodeIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    presented = code_of(issuer, flow)
    description = "Set up a secret"
    issuer.answer = lambda request: (
        httpx.Response(401, json={"error": "invalid_client", "error_description": description})
        if request.method == "POST"
        else httpx.Response(200, json=issuer.document(request.url.path))
    )
    with caplog.at_level("INFO"):
        refused = await refusal(flow, presented, issuer)
    assert refused.code == "IssuerRefused"
    assert CLIENT in refused.message
    assert HOME in refused.message
    assert description in caplog.text


async def test_no_code_and_no_token_is_logged(
    flow: CodeFlow, issuer: CodeIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        await flow.exchange(code_of(issuer, flow), NOW)
        await refusal(flow, code_of(issuer, flow, code_verifier="w" * 43), issuer)  # its description repeats the code
    assert "invalid_grant" in caplog.text
    for secret in (*issuer.issued, VERIFIER, NONCE):
        assert secret not in caplog.text


def answer_of(kind: str) -> httpx.Response:
    match kind:
        case "endless":
            return httpx.Response(200, content=b" " * 300_000)
        case "redirect":
            return httpx.Response(307, headers={"Location": "https://stranger.example/token"}, json={})
        case "overloaded":
            return httpx.Response(429, json={"error": "slow_down"})
        case "failed":
            return httpx.Response(500, json={"error": "server_error"})
        case "strange error":
            return httpx.Response(400, json={"error": "a\nb" * 99})
    return httpx.Response(200, content={"text": b"<html>", "list": b"[]"}[kind])


@pytest.mark.parametrize(
    "kind", ["away", "slow", "endless", "redirect", "overloaded", "failed", "strange error", "text", "list"]
)
async def test_a_token_endpoint_that_answers_wrongly(
    flow: CodeFlow, issuer: CodeIssuer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    presented = code_of(issuer, flow)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=issuer.document(request.url.path))
        if kind == "away":
            raise httpx.ConnectError("nobody there", request=request)
        if kind == "slow":
            raise httpx.ReadTimeout("too slow", request=request)
        return answer_of(kind)

    issuer.answer = answer
    with pytest.raises(IssuerUnreachable):
        await flow.exchange(presented, NOW)
    assert issuer.asked[-1] == "/token" or kind == "away"
    assert "the token endpoint of the OIDC issuer" in caplog.text
    assert presented.code not in caplog.text


@pytest.mark.parametrize(
    "metadata",
    [
        {"token_endpoint": None},
        {"token_endpoint": "http://internal.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": 5},
        {"end_session_endpoint": "ftp://issuer.example"},
        {"issuer": "https://stranger.example"},
    ],
)
async def test_a_discovery_document_that_is_not_trusted(
    flow: CodeFlow, issuer: CodeIssuer, metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    issuer.metadata = metadata
    for _ in range(3):
        with pytest.raises(IssuerUnreachable):
            await flow.endpoints()
    assert issuer.asked == [DISCOVERY]
    assert "discovery document of the OIDC issuer" in caplog.text


async def test_the_discovery_document_is_kept_for_an_hour(flow: CodeFlow, issuer: CodeIssuer, clock: Clock) -> None:
    for _ in range(3):
        assert (await flow.endpoints()).names_itself
    assert len(issuer.asked) == 1
    issuer.metadata = {"token_endpoint": f"{ISSUER}/new", "end_session_endpoint": None}
    clock.now += FRESH_SECONDS
    endpoints = await flow.endpoints()
    assert (endpoints.token, endpoints.end_session) == (f"{ISSUER}/new", None)
    issuer.answer = lambda _: httpx.Response(500)
    clock.now += FRESH_SECONDS + REFETCH_SECONDS
    assert await flow.endpoints() == endpoints, "the issuer is away"


@pytest.mark.parametrize(
    "instead",
    [
        {"code": ""},
        {"code": "a\nb"},
        {"code": "c" * 4097},
        {"code_verifier": "short"},
        {"code_verifier": "v" * 129},
        {"code_verifier": "v" * 43 + "\n"},
        {"nonce": "short"},
        {"redirect_uri": "h" * 1025},
        {"client_id": "another"},
        {"client_secret": "s"},
    ],
)
def test_parameters_are_checked(instead: dict[str, str]) -> None:
    good = {"code": "c", "code_verifier": VERIFIER, "nonce": NONCE, "redirect_uri": HOME}
    assert msgspec.convert(good, PresentedCode).code == "c"
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(good | instead, PresentedCode)
    assert not any(value in str(caught.value) for value in instead.values() if len(value) > 2)
