"""The calls of STS: permitted sessions, and their rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant, TenantRole, new_access_key
from auth.limits import Rate, TenantLimits
from auth.tokens.api_keys import new_api_key
from auth.tokens.oidc import Oidc, OidcSettings
from frontend import sts
from frontend.app import create_app
from tests.auth.outside import AUDIENCE, ISSUER, OidcIssuer
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running, sign

FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
OTHER = "111111111111"


@pytest_asyncio.fixture
async def issuer() -> OidcIssuer:
    return OidcIssuer()


@pytest_asyncio.fixture
async def service(tmp_path: Path, issuer: OidcIssuer) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as service:
        services = service.app.services
        services.oidc = Oidc(OidcSettings(ISSUER, AUDIENCE), issuer.client, clock=service.clock)
        service.app.sqs = create_app(services).sqs
        await services.credentials.create_tenant(Tenant(OTHER, "other"))
        await services.credentials.put_role(TenantRole(KEY.account, "worker", "AROAWORKER", ("send", "manage")))
        yield service


def body(action: str, **parameters: str) -> bytes:
    return urlencode({"Action": action, "Version": sts.VERSION, **parameters}).encode()


async def call(
    service: FrontendService, content: bytes, key: AccessKey = KEY, token: str | None = None, scope: str = "sts"
) -> FrontendAnswer:
    headers = FORM if token is None else {**FORM, "X-Amz-Security-Token": token}
    signed = sign("POST", "/", content, headers, service.clock(), key, scope)
    return await service.unsigned("POST", "/", content, signed)


def assume(role: str = f"arn:aws:iam::{KEY.account}:role/worker", **more: str) -> bytes:
    return body("AssumeRole", **{"RoleArn": role, "RoleSessionName": "tests", **more})


def session_of(answer: FrontendAnswer) -> tuple[AccessKey, str]:
    assert answer.status == 200, answer.content
    found = {element.tag: element.text or "" for element in answer.xml.iter()}
    return AccessKey(found["AccessKeyId"], found["SecretAccessKey"], "", ""), found["SessionToken"]


def is_error(answer: FrontendAnswer, status: int, code: str) -> bool:
    """True for an error in STS's format."""
    assert b'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"' in answer.content
    assert answer.text("RequestId") == answer.headers["x-amzn-requestid"]
    assert answer.text("Error/Type") == "Sender"
    return (answer.status, answer.code) == (status, code)


async def test_callers_learn_who_they_are(service: FrontendService) -> None:
    answer = await call(service, body("GetCallerIdentity"))
    assert answer.headers["content-type"] == "text/xml"
    result = "GetCallerIdentityResult"
    assert answer.text(f"{result}/Account") == KEY.account
    assert answer.text(f"{result}/Arn") == f"arn:aws:iam::{KEY.account}:root"
    assert answer.text(f"{result}/UserId") == KEY.principal_id
    assert answer.text("ResponseMetadata/RequestId") == answer.headers["x-amzn-requestid"]
    record, text = new_api_key(KEY.account, name="ci")
    await service.app.services.credentials.put_api_key(record)
    answer = await service.unsigned("POST", "/", body("GetCallerIdentity"), {**FORM, "Authorization": f"Bearer {text}"})
    assert answer.text(f"{result}/Arn") == f"arn:aws:iam::{KEY.account}:user/ci"


async def test_signatures_are_made_for_sts(service: FrontendService) -> None:
    answer = await call(service, body("GetCallerIdentity"), scope="sqs")
    assert is_error(answer, 403, "SignatureDoesNotMatch")
    assert "'sts'" in answer.message
    wrong = msgspec.structs.replace(KEY, secret="another-secret-than-ours")
    assert is_error(await call(service, assume(), wrong), 403, "SignatureDoesNotMatch")
    answer = await service.unsigned("POST", "/", assume(), FORM)
    assert is_error(answer, 403, "MissingAuthenticationToken")


async def test_a_session_acts_for_its_role(service: FrontendService) -> None:
    answer = await call(service, assume())
    key, token = session_of(answer)
    arn = f"arn:aws:sts::{KEY.account}:assumed-role/worker/tests"
    assert answer.text("AssumeRoleResult/AssumedRoleUser/Arn") == arn
    assert answer.text("AssumeRoleResult/AssumedRoleUser/AssumedRoleId") == "AROAWORKER:tests"
    assert answer.text("AssumeRoleResult/Credentials/Expiration") == "2027-01-15T09:00:00Z"
    identity = await call(service, body("GetCallerIdentity"), key, token)
    assert identity.text("GetCallerIdentityResult/Arn") == arn
    listed = await call(service, urlencode({"Action": "ListQueues"}).encode(), key, token, "sqs")
    assert listed.status == 200
    service.clock.now += 3600
    assert is_error(await call(service, body("GetCallerIdentity"), key, token), 403, "ExpiredToken")


async def test_a_session_ends_with_the_key_behind_it(service: FrontendService) -> None:
    key, token = session_of(await call(service, assume()))
    await service.app.services.credentials.put(msgspec.structs.replace(KEY, active=False))
    assert is_error(await call(service, body("GetCallerIdentity"), key, token), 403, "InvalidClientTokenId")


async def test_a_session_begins_no_other(service: FrontendService) -> None:
    key, token = session_of(await call(service, assume()))
    assert is_error(await call(service, assume(), key, token), 403, "AccessDenied")


async def test_a_role_gives_no_more_than_the_key_has(service: FrontendService) -> None:
    credentials = service.app.services.credentials
    narrow = msgspec.structs.replace(
        new_access_key(KEY.account), scopes=("send", "receive"), prefixes=("a-",), role="operator"
    )
    await credentials.put(narrow)
    key, token = session_of(await call(service, assume(), narrow))
    opened = await service.app.services.sessions.find(token.encode())
    await opened.check(credentials, service.clock())
    principal = opened.principal
    assert (principal.role, principal.scopes, principal.prefixes) == ("user", ("send",), ("a-",))
    assert principal.credential == key.access_key_id
    receiver = msgspec.structs.replace(new_access_key(KEY.account), scopes=("receive",))
    await credentials.put(receiver)
    answer = await call(service, assume(), receiver)
    assert is_error(answer, 403, "AccessDenied")
    assert "no scope is left" in answer.message


async def test_a_deny_of_a_user_binds_no_session_and_prefixes_do(service: FrontendService) -> None:
    """As in IAM, a session has its role's identity; the documentation says how to exclude a user in any role."""
    user = msgspec.structs.replace(new_access_key(KEY.account), name="dev")
    narrow = msgspec.structs.replace(new_access_key(KEY.account), name="dev", prefixes=("other-",))
    for made in (user, narrow):
        await service.app.services.credentials.put(made)

    async def statuses(*denied: str) -> list[int]:
        principals = [f"arn:aws:iam::{KEY.account}:{one}" for one in denied]
        statement = {"Effect": "Deny", "Principal": {"AWS": principals}, "Action": "sqs:SendMessage"}
        policy = orjson.dumps({"Version": "2012-10-17", "Statement": [statement]}).decode()
        set_ = await service.json("SetQueueAttributes", {"QueueUrl": "q", "Attributes": {"Policy": policy}})
        assert set_.status == 200, set_.content
        found = []
        for key in (user, narrow):
            session, token = session_of(await call(service, assume(), key))
            content = urlencode({"Action": "SendMessage", "QueueUrl": "q", "MessageBody": "b"}).encode()
            found.append((await call(service, content, key, scope="sqs")).status)
            found.append((await call(service, content, session, token, "sqs")).status)
        return found

    await service.make_queue("q")
    assert await statuses("user/dev") == [403, 200, 403, 403]
    assert await statuses("user/dev", "role/worker") == [403, 403, 403, 403]


async def test_a_role_of_another_account_has_to_trust_the_callers(service: FrontendService) -> None:
    credentials = service.app.services.credentials
    role = TenantRole(OTHER, "shared", "AROASHARED", trusted_accounts=(KEY.account,))
    await credentials.put_role(role)
    await credentials.put_role(TenantRole(OTHER, "private", "AROAPRIVATE"))
    key, token = session_of(await call(service, assume(role.arn)))
    answer = await call(service, body("GetCallerIdentity"), key, token)
    assert answer.text("GetCallerIdentityResult/Account") == OTHER
    refusals = [await call(service, assume(f"arn:aws:iam::{OTHER}:role/{name}")) for name in ("private", "none")]
    assert all(is_error(answer, 403, "AccessDenied") for answer in refusals)
    assert refusals[0].message.replace("private", "none") == refusals[1].message
    await credentials.put_role(msgspec.structs.replace(role, trusted_accounts=()))
    assert is_error(await call(service, assume(role.arn)), 403, "AccessDenied")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"RoleArn": "worker"}, "RoleArn"),
        ({"RoleArn": f"arn:aws:iam::{KEY.account}:role/a/../b"}, "RoleArn"),
        ({"RoleArn": f"arn:aws:iam::{KEY.account}:role/worker\n"}, "RoleArn"),
        ({"RoleSessionName": "x"}, "RoleSessionName"),
        ({"RoleSessionName": "a b"}, "RoleSessionName"),
        ({"RoleSessionName": "a/b"}, "RoleSessionName"),
        ({"DurationSeconds": "899"}, "900 to 3600"),
        ({"DurationSeconds": "3601"}, "900 to 3600"),
        ({"DurationSeconds": "-1"}, "number of seconds"),
        ({"DurationSeconds": "²"}, "number of seconds"),
        ({"Policy": "{}"}, "Policy is not supported"),
        ({"PolicyArns.member.1.arn": "arn:x"}, "not supported"),
        ({"TokenCode": "123456"}, "not supported"),
    ],
)
async def test_bad_parameters_are_told(service: FrontendService, more: dict[str, str], told: str) -> None:
    answer = await call(service, assume(**more))
    assert is_error(answer, 400, "ValidationError")
    assert told in answer.message


async def test_other_actions(service: FrontendService) -> None:
    for action in ("GetSessionToken", "ListQueues", "", "<script>"):
        assert is_error(await call(service, body(action)), 400, "InvalidAction")
    ET.fromstring((await call(service, body("<&>"))).content)


async def test_a_refused_sign_in_is_audited(service: FrontendService) -> None:
    await call(service, body("GetCallerIdentity"), msgspec.structs.replace(KEY, secret="another-secret-than-ours"))
    assert service.audited()[-1]["reason"] == "SignatureDoesNotMatch"
    assert is_error(await call(service, assume(f"arn:aws:iam::{OTHER}:role/none")), 403, "AccessDenied")
    line = service.audited()[-1]
    assert (line["action"], line["credential"], line["reason"]) == ("sign-in", KEY.access_key_id, "AccessDenied")


async def test_a_session_that_begins_is_audited(service: FrontendService, issuer: OidcIssuer) -> None:
    key, token = session_of(await call(service, assume()))
    (line,) = service.audited()
    assert (line["action"], line["outcome"], line["made"]) == ("sts:AssumeRole", "done", key.access_key_id)
    assert (line["credential"], line["principal"]) == (KEY.access_key_id, f"arn:aws:iam::{KEY.account}:root")
    assert (line["target"], line["address"]) == (f"arn:aws:sts::{KEY.account}:assumed-role/worker/tests", "127.0.0.1")
    role = TenantRole(KEY.account, "deployer", "AROADEPLOYER", trusted_subjects=("ci@example",))
    await service.app.services.credentials.put_role(role)
    answer = await service.unsigned("POST", "/", web(issuer.token()), FORM)
    by_web, web_token = session_of(answer)
    line = service.audited()[-1]
    assert (line["action"], line["made"]) == ("sts:AssumeRoleWithWebIdentity", by_web.access_key_id)
    assert (line["credential"], line["principal"]) == ("oidc:ci@example", "")
    assert line["request_id"] == answer.headers["x-amzn-requestid"]
    await call(service, body("GetCallerIdentity"))
    assert len(service.audited()) == 2
    for secret in (key.secret, token, by_web.secret, web_token):
        assert secret not in service.audit_file.read_text()


async def test_the_calls_of_sts_are_limited(service: FrontendService, issuer: OidcIssuer) -> None:
    role = TenantRole(KEY.account, "deployer", "AROADEPLOYER", trusted_subjects=("ci@example",))
    await service.app.services.credentials.put_role(role)
    limits = TenantLimits(manage=Rate(0.1, 3), send=Rate(0.1, 1))
    await service.app.services.credentials.update_tenant(Tenant(KEY.account, "tests", limits=limits))
    assert (await call(service, body("GetCallerIdentity"))).status == 200
    assert (await call(service, assume())).status == 200
    assert (await service.unsigned("POST", "/", web(issuer.token()), FORM)).status == 200
    for answer in (
        await call(service, body("GetCallerIdentity")),
        await call(service, assume()),
        await service.unsigned("POST", "/", web(issuer.token()), FORM),
    ):
        assert is_error(answer, 400, "Throttling")
        assert "manage 0.1 a second, 3 at once" in answer.message
        assert answer.headers["retry-after"] == "10"
    assert (await call(service, urlencode({"Action": "ListQueues"}).encode(), scope="sqs")).code == "RequestThrottled"
    assert [line["action"] for line in service.audited()] == ["sts:AssumeRole", "sts:AssumeRoleWithWebIdentity"]
    wrong = msgspec.structs.replace(KEY, secret="another-secret-than-ours")
    assert is_error(await call(service, assume(), wrong), 403, "SignatureDoesNotMatch")


async def test_a_suspended_account_begins_no_session(service: FrontendService, issuer: OidcIssuer) -> None:
    credentials = service.app.services.credentials
    await credentials.put_role(TenantRole(OTHER, "deployer", "AROA", trusted_subjects=("ci@example",)))
    await credentials.store.put_tenant(Tenant(OTHER, "other", state="suspended"))
    credentials.tenants.forget(OTHER)
    content = web(issuer.token()).replace(KEY.account.encode(), OTHER.encode())
    assert is_error(await service.unsigned("POST", "/", content, FORM), 403, "AccessDenied")


# --- web identities --------------------------------------------------------------------------------------------


def web(token: bytes | str, role: str = "deployer", **more: str) -> bytes:
    text = token if isinstance(token, str) else token.decode()
    arn = f"arn:aws:iam::{KEY.account}:role/{role}"
    return body(
        "AssumeRoleWithWebIdentity", **{"RoleArn": arn, "RoleSessionName": "ci", "WebIdentityToken": text, **more}
    )


async def test_a_token_of_the_trusted_issuer_begins_a_session(service: FrontendService, issuer: OidcIssuer) -> None:
    credentials = service.app.services.credentials
    role = TenantRole(KEY.account, "deployer", "AROADEPLOYER", ("send",), trusted_subjects=("ci@example",))
    await credentials.put_role(role)
    answer = await service.unsigned("POST", "/", web(issuer.token()), FORM)
    key, token = session_of(answer)
    result = "AssumeRoleWithWebIdentityResult"
    assert answer.text(f"{result}/SubjectFromWebIdentityToken") == "ci@example"
    assert answer.text(f"{result}/Audience") == AUDIENCE
    assert answer.text(f"{result}/Provider") == ISSUER
    identity = await call(service, body("GetCallerIdentity"), key, token)
    assert identity.text("GetCallerIdentityResult/UserId") == "AROADEPLOYER:ci"
    await credentials.delete_role(KEY.account, "deployer")
    assert is_error(await call(service, body("GetCallerIdentity"), key, token), 403, "InvalidClientTokenId")


async def test_web_identities_that_are_refused(service: FrontendService, issuer: OidcIssuer) -> None:
    credentials = service.app.services.credentials
    await credentials.put_role(TenantRole(KEY.account, "deployer", "AROA", trusted_subjects=("ci@example",)))
    for content, status, code in (
        (web(issuer.token(sub="stranger")), 403, "AccessDenied"),
        (web(issuer.token(), role="worker"), 403, "AccessDenied"),
        (web(issuer.token(), role="none"), 403, "AccessDenied"),
        (web(issuer.token(aud="others")), 400, "InvalidIdentityToken"),
        (web("nonsense"), 400, "InvalidIdentityToken"),
        (web(""), 400, "ValidationError"),
        (web(issuer.token(exp=service.clock() - 600)), 400, "ExpiredTokenException"),
        (web(issuer.token(), Policy="{}"), 400, "ValidationError"),
    ):
        assert is_error(await service.unsigned("POST", "/", content, FORM), status, code), content
    denied = [line for line in service.audited() if line["reason"] == "AccessDenied"]
    assert [line["credential"] for line in denied] == ["oidc:stranger", "oidc:ci@example", "oidc:ci@example"]
    service.app.services.oidc = None
    answer = await service.unsigned("POST", "/", web(issuer.token()), FORM)
    assert is_error(answer, 400, "InvalidIdentityToken")
    assert "oidc_issuer" in answer.message
