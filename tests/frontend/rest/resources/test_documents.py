"""Documents of invoices over REST: permissions, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from billing.reports.questions import DocumentAsked
from billing.reports.reader import NotFound, ReportUnavailable
from frontend.rest import document_jobs as module
from frontend.rest.document_jobs import Documents
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.documents import DocumentJobs
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.rest.resources.test_tenants import ADMIN, OPERATOR, USER
from tests.frontend.rest.test_app import OTHER, key, problem
from tests.frontend.rest.test_document_jobs import HeldReader


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for one in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(one)
        services = made.app.services
        services.lake = reader = HeldReader({})
        services.documents = documents = Documents(made.store, reader, made.clock)
        yield made
        await documents.close()


def reader(service: FrontendService) -> HeldReader:
    found = service.app.services.lake
    assert isinstance(found, HeldReader)
    return found


async def ask(
    service: FrontendService, body: Any, by: AccessKey = ADMIN, query: str = "", period: str = "2026-11"
) -> FrontendAnswer:
    headers = {"Content-Type": "application/json"}
    return await service.signed("POST", f"/v1/invoices/{period}/documents{query}", orjson.dumps(body), headers, by)


async def get(service: FrontendService, path: str, by: AccessKey = ADMIN) -> FrontendAnswer:
    return await service.signed("GET", path, b"", {}, by)


async def ended(service: FrontendService, path: str, by: AccessKey = ADMIN) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := (await get(service, path, by)).json)["state"] in ("queued", "running"):
            await asyncio.sleep(0.005)
    job: dict[str, Any] = found
    return job


@pytest.mark.parametrize(
    ("kind", "media", "disposition"),
    [("pdf", "application/pdf", "inline"), ("email", "message/rfc822", "attachment")],
)
async def test_from_the_request_to_the_document(
    service: FrontendService, kind: str, media: str, disposition: str
) -> None:
    asked = await ask(service, {"kind": kind})
    assert asked.status == 202
    job = asked.json
    path = asked.headers["location"]
    assert path == f"/v1/invoices/2026-11/documents/{job['id']}"
    assert {name: job[name] for name in ("account", "period", "kind", "draft", "state", "created_at", "error")} == {
        "account": OTHER,
        "period": "2026-11",
        "kind": kind,
        "draft": False,
        "state": "queued",
        "created_at": 1_800_000_000,
        "error": None,
    }
    again = await ask(service, {"kind": kind})
    assert (again.status, again.json["id"]) == (202, job["id"])
    shown = await get(service, path)
    assert (shown.status, shown.headers["retry-after"]) == (200, "2")
    early = await get(service, f"{path}/content")
    assert problem(early) == (409, "DocumentNotReady")
    assert early.headers["retry-after"] == "2"
    reader(service).let.set()
    done = await ended(service, path)
    assert (done["state"], done["bytes"], done["attempts"]) == ("done", len(f"{kind} of 2026-11"), 1)
    assert done["expires_at"] == 1_800_000_000 + 24 * 3600
    content = await get(service, f"{path}/content")
    assert (content.status, content.content) == (200, f"{kind} of 2026-11".encode())
    assert content.headers["content-type"] == media
    assert content.headers["content-disposition"].startswith(f'{disposition}; filename="invoice-2026-11-{OTHER}.')
    kept = await ask(service, {"kind": kind})
    assert (kept.status, kept.json["id"], kept.headers["location"]) == (200, job["id"], path)
    assert reader(service).asked == [DocumentAsked(OTHER, "2026-11", kind, draft=False)]  # type: ignore[arg-type]
    acts = [(line["action"], line["target"], line["outcome"]) for line in service.audited()]
    tried = ("document.create", f"invoice 2026-11 of {OTHER} as {kind}", "done")
    assert acts[0] == tried
    assert {act[0] for act in acts} == {"document.create", "document.content"}
    assert [act[2] for act in acts if act[0] == "document.content"] == ["refused"], "what was early"


async def test_what_failed_says_why(service: FrontendService) -> None:
    reader(service).let.set()
    for error, code in (
        (NotFound("2026-11 is not closed yet"), "NotFound"),
        (ReportUnavailable("it was not made"), "UsageUnavailable"),
    ):
        reader(service).fails = error
        path = (await ask(service, {"kind": "pdf"})).headers["location"]
        failed = await ended(service, path)
        assert (failed["state"], failed["error"]["code"], failed["bytes"]) == ("failed", code, None)
        content = await get(service, f"{path}/content")
        assert problem(content) == (409, "DocumentFailed")
        assert content.json["detail"] == failed["error"]["detail"]


async def test_nobody_sees_what_is_not_theirs(service: FrontendService) -> None:
    reader(service).let.set()
    for by, query in ((ADMIN, f"?account={KEY.account}"), (ADMIN, "?account=all"), (USER, "")):
        assert (await ask(service, {"kind": "pdf"}, by, query)).status in (400, 403)
    narrow = key("narrowkey", role="admin", scopes=("send",))
    lesser = key("lesserkey", role="admin")
    for one in (narrow, lesser):
        await service.store.put_access_key(one)
    assert problem(await ask(service, {"kind": "pdf"}, narrow)) == (403, "AccessDenied")
    assert reader(service).asked == []
    own = (await ask(service, {"kind": "pdf"})).headers["location"]
    await ended(service, own)
    theirs = (await ask(service, {"kind": "pdf"}, OPERATOR, f"?account={OTHER}")).headers["location"]
    assert (await ended(service, theirs, OPERATOR))["account"] == OTHER
    assert (await get(service, f"{theirs}/content", OPERATOR)).content == b"pdf of 2026-11"
    for path, by in ((own, OPERATOR), (theirs, ADMIN)):
        for part in ("", "/content"):
            assert problem(await get(service, path + part, by)) == (404, "NotFound"), "another account asked for it"
    assert (OPERATOR.account, lesser.account) == (KEY.account, KEY.account)
    for part in ("", "/content"):
        refused = await get(service, theirs + part, lesser)
        assert problem(refused) == (403, "AccessDenied"), "of the operator's account, and no operator"
        assert problem(await get(service, own + part, USER)) == (403, "AccessDenied")


@pytest.mark.parametrize(
    ("period", "body"),
    [
        ("now", {"kind": "pdf"}),
        ("2026-13", {"kind": "pdf"}),
        ("2026-11", {"kind": "json"}),
        ("2026-11", {}),
        ("2026-11", {"kind": "pdf", "recipient": "a@b.example"}),
    ],
)
async def test_what_cannot_be_asked_is_said(service: FrontendService, period: str, body: Any) -> None:
    assert problem(await ask(service, body, period=period)) == (400, "InvalidRequest")
    assert await service.store.document_jobs(OTHER) == DocumentJobs(OTHER)


async def test_what_there_is_not(service: FrontendService) -> None:
    path = (await ask(service, {"kind": "pdf"})).headers["location"]
    for other in (path.replace("2026-11", "2026-10"), "/v1/invoices/2026-11/documents/none"):
        for part in ("", "/content"):
            answer = await get(service, other + part)
            assert problem(answer) == (404, "NotFound")
            assert "24 hours" in answer.json["detail"]


async def test_too_much_is_refused_with_a_time_to_wait(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for month in range(1, module.OPEN_MAX + 1):
        assert (await ask(service, {"kind": "pdf"}, period=f"2026-{month:02}")).status == 202
    refused = await ask(service, {"kind": "pdf"}, period="2025-01")
    assert (problem(refused), refused.headers["retry-after"]) == ((429, "TooManyDocuments"), "30")
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    refused = await ask(service, {"kind": "pdf"}, OPERATOR)
    assert (problem(refused), refused.headers["retry-after"]) == ((503, "Busy"), "30")


async def test_without_usage_it_is_said_how_to_switch_it_on(service: FrontendService) -> None:
    service.app.services.documents = None
    for answer in (await ask(service, {"kind": "pdf"}), await get(service, "/v1/invoices/2026-11/documents/1")):
        assert problem(answer) == (409, "UsageNotCounted")
        assert 'usage = "on"' in answer.json["detail"]


async def test_the_jobs_of_a_tenant_go_with_it(service: FrontendService) -> None:
    await ask(service, {"kind": "pdf"})
    tenant = await service.store.get_tenant(OTHER)
    assert tenant is not None
    await delete_tenant(service.app.services, tenant)
    assert await service.store.document_jobs(OTHER) == DocumentJobs(OTHER)


async def test_the_documentation_describes_it(service: FrontendService) -> None:
    paths = (await service.unsigned("GET", "/openapi.json", b"", {})).json["paths"]
    create = paths["/v1/invoices/{period}/documents"]["post"]
    assert {"200", "202"} <= create["responses"].keys()
    content = paths["/v1/invoices/{period}/documents/{job_id}/content"]["get"]["responses"]["200"]["content"]
    assert {"application/pdf", "message/rfc822"} == content.keys()
