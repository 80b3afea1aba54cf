"""Documents of invoices over REST: permissions, and answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.credentials import AccessKey
from billing.reports.questions import DocumentAsked
from billing.reports.reader import NotFound, ReportUnavailable
from frontend import document_jobs as module
from frontend.document_jobs import Documents
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.documents import DocumentJobs
from tests.frontend.cases import CALLERS, OTHER, add_callers, key
from tests.frontend.service import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.test_document_jobs import HeldReader

OPERATOR, ADMIN, USER = (CALLERS[name] for name in ("operator", "admin", "user"))


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await add_callers(made)
        services = made.app.services
        services.lake = reader = HeldReader({})
        services.documents = documents = Documents(made.store.documents, reader, made.clock)
        yield made
        await documents.close()


def reader(service: FrontendService) -> HeldReader:
    found = service.app.services.lake
    assert isinstance(found, HeldReader)
    return found


async def ask(
    service: FrontendService, body: Any, by: AccessKey = ADMIN, query: str = "", period: str = "2026-11"
) -> FrontendAnswer:
    return await service.rest("POST", f"/invoices/{period}/documents{query}", body, by=by)


async def get(service: FrontendService, path: str, by: AccessKey = ADMIN) -> FrontendAnswer:
    return await service.signed("GET", path, b"", {}, by)


async def ended(service: FrontendService, path: str, by: AccessKey = ADMIN) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := (await get(service, path, by)).json)["state"] in ("queued", "running"):
            await asyncio.sleep(0.005)
    job: dict[str, Any] = found
    return job


@pytest.mark.parametrize(
    ("kind", "media", "disposition"), [("pdf", "application/pdf", "inline"), ("email", "message/rfc822", "attachment")]
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
    assert early.problem == (409, "DocumentNotReady")
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


async def test_a_failed_document_has_its_error(service: FrontendService) -> None:
    reader(service).let.set()
    for error, code, detail in (
        (NotFound("2026-11 is not closed yet"), "NotFound", "2026-11 is not closed yet."),
        (ReportUnavailable("it was not made"), "UsageUnavailable", "It was not made; try again later."),
    ):
        reader(service).fails = error
        path = (await ask(service, {"kind": "pdf"})).headers["location"]
        failed = await ended(service, path)
        assert (failed["state"], failed["error"], failed["bytes"]) == ("failed", {"code": code, "detail": detail}, None)
        content = await get(service, f"{path}/content")
        assert content.problem == (409, "DocumentFailed")
        assert content.json["detail"] == detail


async def test_a_document_is_shown_to_the_account_that_requested_it(service: FrontendService) -> None:
    reader(service).let.set()
    lesser = key("lesserkey", role="admin")
    await service.store.credentials.put_access_key(lesser)
    own = (await ask(service, {"kind": "pdf"})).headers["location"]
    await ended(service, own)
    other = (await ask(service, {"kind": "pdf"}, OPERATOR, f"?account={OTHER}")).headers["location"]
    assert (await ended(service, other, OPERATOR))["account"] == OTHER
    assert (await get(service, f"{other}/content", OPERATOR)).content == b"pdf of 2026-11"
    for path, by in ((own, OPERATOR), (other, ADMIN)):
        for part in ("", "/content"):
            assert (await get(service, path + part, by)).problem == (404, "NotFound"), "another account asked for it"
    assert (OPERATOR.account, lesser.account) == (KEY.account, KEY.account)
    for part in ("", "/content"):
        refused = await get(service, other + part, lesser)
        assert refused.problem == (403, "AccessDenied"), "of the operator's account, and no operator"
        assert (await get(service, own + part, USER)).problem == (403, "AccessDenied")


async def test_a_busy_frontend_refuses_with_a_time_to_wait(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for month in ("2026-11", "2026-10"):  # one is made, the other waits
        assert (await ask(service, {"kind": "pdf"}, period=month)).status == 202
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    refused = await ask(service, {"kind": "pdf"}, OPERATOR)
    assert (refused.problem, refused.headers["retry-after"]) == ((503, "Busy"), "30")


async def test_the_jobs_of_a_tenant_go_with_it(service: FrontendService) -> None:
    await ask(service, {"kind": "pdf"})
    tenant = await service.tenant(OTHER)
    await delete_tenant(service.app.services, tenant)
    assert await service.store.documents.document_jobs(OTHER) == DocumentJobs(OTHER)
