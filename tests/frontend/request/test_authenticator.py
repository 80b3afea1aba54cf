"""Credentials of requests: API keys, tokens and sessions, in both protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, ApiKey, Tenant
from auth.grants import Grant
from auth.tokens.api_keys import new_api_key
from auth.tokens.oidc import Oidc, OidcSettings
from frontend.app import create_app
from frontend.request.access import FACTS, is_administrator
from frontend.request.call import Call
from tests.auth.outside import AUDIENCE, ISSUER, OidcIssuer
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running, sign

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


async def test_an_api_key_needs_no_signature(service: FrontendService, api_key: tuple[ApiKey, str]) -> None:
    record, text = api_key
    async for answer in both(service, bearer(text)):
        assert answer.status == 200
    async for answer in both(service, {"Authorization": f"bEARER   {text}  "}):
        assert answer.status == 200
    headers = {**JSON, **bearer(text), "X-Amz-Target": "AmazonSQS.CreateQueue"}
    made = await service.unsigned("POST", "/", b'{"QueueName": "q"}', headers)
    assert made.json["QueueUrl"] == service.url("q")
    credentials = service.app.services.credentials
    await credentials.close()
    assert await credentials.store.key_uses([record.key_id]) == {record.key_id: int(service.clock())}


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


async def test_an_api_key_is_refused_when_revoked_expired_or_suspended(
    service: FrontendService, api_key: tuple[ApiKey, str]
) -> None:
    record, text = api_key
    credentials = service.app.services.credentials
    async for answer in both(service, bearer(text)):
        assert answer.status == 200
    record = await credentials.update_api_key(msgspec.structs.replace(record, expires_s=int(service.clock())))
    async for answer in both(service, bearer(text)):
        assert (answer.status, answer.code) == (403, "ExpiredToken")
    record = await credentials.update_api_key(msgspec.structs.replace(record, expires_s=None, active=False))
    async for answer in both(service, bearer(text)):
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
    await credentials.update_api_key(msgspec.structs.replace(record, active=True))
    await credentials.update_tenant(Tenant(KEY.account, "tests", "suspended"))
    async for answer in both(service, bearer(text)):
        assert (answer.status, answer.code) == (403, "OptInRequired")


async def test_a_token_that_an_api_key_bought(service: FrontendService, api_key: tuple[ApiKey, str]) -> None:
    record, _ = api_key
    token = await service.app.services.tokens.issue(record, service.clock(), seconds=60)
    async for answer in both(service, bearer(token)):
        assert answer.status == 200
    async for answer in both(service, bearer(token[:-2])):
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
    service.clock.now += 60
    async for answer in both(service, bearer(token)):
        assert (answer.status, answer.code) == (403, "ExpiredToken")


# --- an outside issuer -----------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def trusting(tmp_path: Path) -> AsyncIterator[tuple[FrontendService, OidcIssuer]]:
    async with running(tmp_path) as service:
        issuer = OidcIssuer()
        service.app.services.oidc = Oidc(OidcSettings(ISSUER, AUDIENCE), issuer.client, clock=service.clock)
        service.app.sqs = create_app(service.app.services).sqs
        yield service, issuer


async def test_a_token_of_the_trusted_issuer(trusting: tuple[FrontendService, OidcIssuer]) -> None:
    service, issuer = trusting
    async for answer in both(service, bearer(issuer.token(holdfast_account=KEY.account))):
        assert answer.status == 200
    for token in (
        issuer.token(holdfast_account="999999999999"),
        issuer.token(holdfast_account=KEY.account, aud="others"),
        issuer.token(holdfast_account=KEY.account, iss="https://stranger.example"),
    ):
        async for answer in both(service, bearer(token)):
            assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
    expired = issuer.token(holdfast_account=KEY.account, exp=service.clock() - 600)
    async for answer in both(service, bearer(expired)):
        assert (answer.status, answer.code) == (403, "ExpiredToken")
    await service.app.services.credentials.update_tenant(Tenant(KEY.account, "tests", "suspended"))
    async for answer in both(service, bearer(issuer.token(holdfast_account=KEY.account))):
        assert (answer.status, answer.code) == (403, "OptInRequired")


@pytest.mark.parametrize("subject", ["repo:example/app:environment:root", "a:user/root", "a:assumed-role/r/s"])
async def test_who_chooses_a_subject_does_not_choose_a_kind_of_caller(
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


async def test_without_a_trusted_issuer_its_tokens_are_refused(service: FrontendService) -> None:
    async for answer in both(service, bearer(OidcIssuer().token(holdfast_account=KEY.account))):
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")


# --- sessions: a token is valid only with its own key
# ----------------------------------------------------------


async def test_a_session_token_goes_with_its_own_key(service: FrontendService) -> None:
    grant = Grant(
        KEY.account, "AROA:s", f"arn:aws:sts::{KEY.account}:assumed-role/r/s", "", "user", ("manage",), (),
        int(service.clock()) + 900, KEY.access_key_id,
    )  # fmt: skip
    session, token = await service.app.services.sessions.begin(grant)
    other, other_token = await service.app.services.sessions.begin(grant)
    temporary = AccessKey(session.access_key_id, session.secret, KEY.account, "")

    async def call(key: AccessKey, session_token: str | None) -> FrontendAnswer:
        headers = JSON if session_token is None else {**JSON, "X-Amz-Security-Token": session_token}
        signed = sign("POST", "/", b"{}", headers, service.clock(), key)
        return await service.unsigned("POST", "/", b"{}", signed)

    assert (await call(temporary, token)).status == 200
    for key, wrong in (
        (temporary, None),
        (temporary, other_token),
        (KEY, token),
        (temporary, "nonsense"),
        (temporary, token[:-4]),
    ):
        answer = await call(key, wrong)
        assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
    forged = msgspec.structs.replace(temporary, secret=other.secret)
    assert (await call(forged, token)).code == "SignatureDoesNotMatch"
    service.clock.now += 900
    assert (await call(temporary, token)).code == "ExpiredToken"
