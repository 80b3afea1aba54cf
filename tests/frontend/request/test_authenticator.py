"""Wrong API keys, and tokens of an outside issuer; tests/frontend/cases/credentials.yaml has the rest."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from auth.credentials import ApiKey, Tenant
from auth.tokens.api_keys import new_api_key
from auth.tokens.oidc import OidcSettings
from frontend.request.access import FACTS, is_administrator
from frontend.request.request import Call
from tests.auth.outside import AUDIENCE, ISSUER, OidcIssuer
from tests.frontend.service import KEY, FrontendAnswer, FrontendService, running

JSON = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def both(service: FrontendService, headers: Mapping[str, str]) -> AsyncIterator[FrontendAnswer]:
    yield await service.unsigned("POST", "/", b"{}", {**JSON, **headers})
    yield await service.unsigned("POST", "/", b"Action=ListQueues", {**FORM, **headers})
    yield await service.unsigned("GET", "/?Action=ListQueues", b"", headers)


def bearer(token: str | bytes) -> dict[str, str]:
    return {"Authorization": f"Bearer {token if isinstance(token, str) else token.decode()}"}


@pytest_asyncio.fixture
async def api_key(service: FrontendService) -> tuple[ApiKey, str]:
    record, text = new_api_key(KEY.account, name="ci")
    await service.app.services.credentials.put_api_key(record)
    return record, text


async def test_a_wrong_api_key(service: FrontendService, api_key: tuple[ApiKey, str]) -> None:
    _, text = api_key
    _, stranger = new_api_key(KEY.account)
    wrong_secret = text[:-1] + ("0" if text[-1] != "0" else "1")
    for presented in (stranger, wrong_secret, text[:-1], text + "0", "hf_", "", "x", text.upper(), f"{text} {text}"):
        async for answer in both(service, bearer(presented)):
            assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
            assert text[20:].encode() not in answer.content
    async for answer in both(service, {"Authorization": text}):
        assert answer.code == "MissingAuthenticationToken"


async def test_the_log_names_an_api_key_but_not_its_secret(
    service: FrontendService, api_key: tuple[ApiKey, str], caplog: pytest.LogCaptureFixture
) -> None:
    record, text = api_key
    caplog.set_level("INFO")
    wrong_secret = text[:-1] + ("0" if text[-1] != "0" else "1")
    await service.unsigned("POST", "/", b"{}", {**JSON, **bearer(wrong_secret)})
    assert f"hf_{record.key_id}" in caplog.text
    assert record.key_id in str(service.audited())
    for text_of_log in (caplog.text, str(service.audited())):
        assert text[20:-1] not in text_of_log


# --- an outside issuer -----------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def trusting(tmp_path: Path) -> AsyncIterator[tuple[FrontendService, OidcIssuer]]:
    issuer = OidcIssuer()
    async with running(tmp_path, trusted=(issuer, OidcSettings(ISSUER, AUDIENCE))) as service:
        yield service, issuer


@pytest.mark.parametrize("subject", ["repo:example/app:environment:root", "a:user/root", "a:assumed-role/r/s"])
async def test_a_subject_does_not_choose_a_kind_of_caller(
    trusting: tuple[FrontendService, OidcIssuer], subject: str
) -> None:
    service, issuer = trusting
    oidc = service.app.services.oidc
    assert oidc is not None
    outsider = await oidc.check(issuer.token(sub=subject, holdfast_account=KEY.account), service.clock())
    principal = oidc.principal(outsider)
    assert principal.arn.endswith(subject)
    assert not is_administrator(principal)

    async def receive() -> None:
        raise AssertionError

    call = Call("r", principal, "", receive, Tenant(KEY.account, "tests"), {})
    assert FACTS["aws:principaltype"](call) == "User"
    assert FACTS["aws:username"](call) is None


async def test_an_issuer_that_cannot_be_reached_is_not_the_callers_fault(
    trusting: tuple[FrontendService, OidcIssuer],
) -> None:
    service, issuer = trusting
    token = issuer.token(holdfast_account=KEY.account)
    issuer.keys.clear()
    issuer.answer = lambda request: httpx.Response(503)
    async for answer in both(service, bearer(token)):
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
