"""The console's sign-in with the OIDC issuer, as calls without a credential: who may exchange what, and how often."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import orjson
import pytest

from auth.tokens.oidc import ConsoleClient, OidcSettings
from frontend.console.sign_in import ADDRESS_BURST, BODY_BYTES_MAX, EXCHANGES_MAX, ConsoleSignIn
from frontend.settings import FrontendSettings
from tests.auth.code_issuer import CLIENT, CodeIssuer
from tests.auth.outside import AUDIENCE, ISSUER
from tests.frontend.service import HOST, KEY, FrontendAnswer, FrontendService, running

PATH = "/console/sign-in"
HOME = f"http://{HOST}/console"
VERIFIER = "v" * 43
NONCE = "n" * 43
SETTINGS = OidcSettings(ISSUER, AUDIENCE, console=ConsoleClient(CLIENT))
JSON = {"content-type": "application/json"}


@pytest.fixture
def issuer() -> CodeIssuer:
    issuer = CodeIssuer()
    issuer.claims = {"holdfast_account": KEY.account}
    return issuer


@pytest.fixture
async def service(tmp_path: Path, issuer: CodeIssuer) -> AsyncIterator[FrontendService]:
    async with running(tmp_path, trusted=(issuer, SETTINGS)) as service:
        yield service


async def code_of(service: FrontendService, issuer: CodeIssuer) -> dict[str, str]:
    """Begin a sign-in as the page does, and sign in at the issuer; returns the body of the exchange."""
    common = (await service.client.get(f"http://{HOST}{PATH}")).json()
    challenge = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    begun = {**common["parameters"], "state": "s", "nonce": NONCE, "code_challenge": challenge}
    back = dict(parse_qsl(urlsplit(issuer.authorize(begun)).query))
    return {"code": back["code"], "code_verifier": VERIFIER, "nonce": NONCE, "redirect_uri": HOME}


async def exchange(service: FrontendService, body: Any, headers: dict[str, str] = JSON) -> FrontendAnswer:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return await service.unsigned("POST", PATH, content, headers)


async def test_a_code_becomes_a_session_of_its_tenant(service: FrontendService, issuer: CodeIssuer) -> None:
    answer = await exchange(service, await code_of(service, issuer))
    assert answer.status == 200, answer.content
    assert answer.json == {"token": issuer.issued[1], "sign_out": f"{ISSUER}/goodbye?client_id={CLIENT}"}
    assert answer.headers["cache-control"] == "no-store"
    caller = await service.client.get(
        f"http://{HOST}/v1/caller", headers={"authorization": f"Bearer {answer.json['token']}"}
    )
    assert caller.json()["account"] == KEY.account
    assert caller.json()["expires"] == int(issuer.now()) + 300


async def test_the_page_is_told_where_to_go(service: FrontendService, issuer: CodeIssuer) -> None:
    answer = await service.client.get(f"http://{HOST}{PATH}")
    assert answer.json() == {
        "authorization_endpoint": f"{ISSUER}/authorize?realm=tests",
        "parameters": {
            "response_type": "code",
            "client_id": CLIENT,
            "redirect_uri": HOME,
            "scope": "openid",
            "code_challenge_method": "S256",
            "audience": AUDIENCE,
        },
        "issuer_names_itself": True,
    }
    page = await service.client.get(f"http://{HOST}/console")
    assert f'<meta name="holdfast-issuer" content="{ISSUER}">' in page.text


@pytest.mark.parametrize(
    "redirect_uri",
    ["https://stranger.example/console", f"http://{HOST}/console/", f"http://{HOST}/", f"https://{HOST}/console", ""],
)
async def test_a_foreign_redirect_uri_is_refused(
    service: FrontendService, issuer: CodeIssuer, redirect_uri: str
) -> None:
    body = await code_of(service, issuer)
    answer = await exchange(service, body | {"redirect_uri": redirect_uri})
    assert answer.problem == (400, "InvalidRequest")
    assert f"The redirect_uri has to be {HOME}" in answer.json["detail"]
    assert issuer.forms == [], "the issuer is not asked"


async def test_the_address_may_be_set(tmp_path: Path, issuer: CodeIssuer) -> None:
    settings = FrontendSettings(external_url="https://q.example.com")
    async with running(tmp_path, settings, trusted=(issuer, SETTINGS)) as service:
        body = await code_of(service, issuer)
        assert issuer.requests[-1]["redirect_uri"] == "https://q.example.com/console"
        assert (await exchange(service, body)).problem == (400, "InvalidRequest")
        assert (await exchange(service, body | {"redirect_uri": "https://q.example.com/console"})).status == 200


@pytest.mark.parametrize(
    ("body", "headers", "problem"),
    [
        (b"", JSON, (400, "InvalidRequest")),
        (b"[]", JSON, (400, "InvalidRequest")),
        (b"{", JSON, (400, "InvalidRequest")),
        (b"\xff", JSON, (400, "InvalidRequest")),
        ({"code": "c"}, JSON, (400, "InvalidRequest")),
        ({}, {"content-type": "text/plain"}, (400, "InvalidRequest")),
        ({}, {}, (400, "InvalidRequest")),
        (b" " * (BODY_BYTES_MAX + 1), JSON, (413, "RequestEntityTooLarge")),
    ],
)
async def test_bodies_are_bounded_and_checked(
    service: FrontendService, issuer: CodeIssuer, body: Any, headers: dict[str, str], problem: tuple[int, str]
) -> None:
    assert (await exchange(service, body, headers)).problem == problem
    assert issuer.asked == []


async def test_other_methods_are_refused(service: FrontendService) -> None:
    for method in ("PUT", "DELETE", "OPTIONS"):
        answer = await service.unsigned(method, PATH, b"", {})
        assert answer.problem == (405, "MethodNotAllowed")
        assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_an_address_has_so_many_exchanges(service: FrontendService, issuer: CodeIssuer) -> None:
    for _ in range(int(ADDRESS_BURST)):
        assert (await exchange(service, {})).status == 400
    body = await code_of(service, issuer)
    throttled = await exchange(service, body)
    assert throttled.problem == (429, "RequestThrottled")
    assert int(throttled.headers["retry-after"]) >= 1
    assert issuer.forms == []
    transport = httpx.ASGITransport(app=service.app, client=("192.0.2.7", 1))
    async with httpx.AsyncClient(transport=transport) as other:
        assert (await other.post(f"http://{HOST}{PATH}", json=body)).status_code == 200


async def test_so_many_exchanges_run_at_the_same_time(service: FrontendService, issuer: CodeIssuer) -> None:
    sign_in = service.app._sign_in
    assert isinstance(sign_in, ConsoleSignIn)
    sign_in._exchanges = EXCHANGES_MAX
    body = await code_of(service, issuer)
    busy = await exchange(service, body)
    assert busy.problem == (503, "ServiceUnavailable")
    sign_in._exchanges = EXCHANGES_MAX - 1
    assert (await exchange(service, body)).status == 200
    assert (await exchange(service, body)).status == 401
    assert sign_in._exchanges == EXCHANGES_MAX - 1, "each has ended"


async def test_a_refusal_is_logged_and_audited_without_the_code(
    service: FrontendService, issuer: CodeIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    body = await code_of(service, issuer) | {"code_verifier": "w" * 43}
    with caplog.at_level("DEBUG"):
        answer = await exchange(service, body)
    assert answer.problem == (401, "InvalidGrant")
    assert "Sign in again" in answer.json["detail"]
    (line,) = service.audited()
    assert (line["action"], line["outcome"], line["reason"]) == ("sign-in", "refused", "InvalidGrant")
    assert answer.json["request_id"] in caplog.text
    for secret in (body["code"], body["code_verifier"], NONCE):
        assert secret not in caplog.text + answer.content.decode() + service.audit_file.read_text()


async def test_an_issuer_that_is_away(service: FrontendService, issuer: CodeIssuer) -> None:
    issuer.answer = lambda request: httpx.Response(500)
    answer = await service.unsigned("GET", PATH, b"", {})
    assert answer.problem == (503, "IssuerUnreachable")
    assert ISSUER in answer.json["detail"]
    body = {"code": "c", "code_verifier": VERIFIER, "nonce": NONCE, "redirect_uri": HOME}
    assert (await exchange(service, body)).problem == (503, "IssuerUnreachable")
    assert len(issuer.asked) == 1, "nobody makes the service ask without end"


@pytest.mark.parametrize("console", [True, False])
async def test_it_is_offered_only_to_a_console_with_a_client(tmp_path: Path, issuer: CodeIssuer, console: bool) -> None:
    oidc = OidcSettings(ISSUER, AUDIENCE, console=None if console else ConsoleClient(CLIENT))
    async with running(tmp_path, FrontendSettings(console=console), trusted=(issuer, oidc)) as service:
        for method in ("GET", "POST"):
            answer = await service.client.request(method, f"http://{HOST}{PATH}", content=b"{}", headers=JSON)
            assert answer.status_code in (400, 403, 404)
            assert "xml" in answer.headers["content-type"], "it is a call of SQS like any other"
        if console:
            assert '<meta name="holdfast-issuer" content="">' in (await service.client.get(HOME)).text
    assert issuer.asked == []
