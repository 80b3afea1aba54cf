"""Usage and invoices over REST: permissions, and answers.  The lake has its own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from billing.lake.periods import Period
from billing.reports.questions import (
    DIRECT_FORMATS,
    MEDIA_TYPES,
    ContentAsked,
    DirectFormat,
    InvoiceAsked,
    InvoicesAsked,
    UsageAsked,
)
from billing.reports.reader import NotFound, QuestionRefused, Reader, ReportUnavailable, Unmade
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.rest.resources.test_tenants import ADMIN, OPERATOR, USER
from tests.frontend.rest.test_app import OTHER, problem


class Answering(Reader):
    """Reader with a given answer, which records its questions."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: bytes | Exception = b'{"an":"answer"}'

    async def ask(self, asked: UsageAsked | InvoicesAsked | InvoiceAsked | ContentAsked) -> bytes:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for key in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(key)
        made.app.services.lake = Answering()
        yield made


def reader(service: FrontendService) -> Answering:
    found = service.app.services.lake
    assert isinstance(found, Answering)
    return found


async def get(service: FrontendService, path: str, by: AccessKey = ADMIN, accept: str | None = None) -> FrontendAnswer:
    return await service.signed("GET", f"/v1{path}", b"", {} if accept is None else {"Accept": accept}, by)


async def test_a_tenant_asks_about_itself(service: FrontendService) -> None:
    service.clock.now = 1_795_305_600  # 2026-11-22
    answer = await get(service, "/usage")
    assert (answer.status, answer.content) == (200, b'{"an":"answer"}')
    assert answer.headers["content-type"] == "application/json"
    await get(service, "/usage?month=2026-10&by=queue&limit=7")
    await get(service, f"/usage?account={OTHER}&from=2026-10-30&to=2026-11-02&by=tag&tag=team")
    day = "2026-11-03"
    await get(service, f"/usage?day={day}&by=hour")
    assert reader(service).asked == [
        UsageAsked(Period.of_month("2026-11"), "day", OTHER, None, 1000),
        UsageAsked(Period.of_month("2026-10"), "queue", OTHER, None, 7),
        UsageAsked(Period.between("2026-10-30", "2026-11-02"), "tag", OTHER, "team", 1000),
        UsageAsked(Period.of_day(day), "hour", OTHER, None, 1000),
    ]


async def test_operators_ask_about_anybody_and_all(service: FrontendService) -> None:
    for asked in (f"account={OTHER}", "account=all", "month=2026-11"):
        assert (await get(service, f"/usage?{asked}", OPERATOR)).status == 200
        assert (await get(service, f"/invoices?{asked.replace('month', 'period')}", OPERATOR)).status == 200
    accounts = [one.account for one in reader(service).asked]
    assert accounts == [OTHER, OTHER, None, None, KEY.account, KEY.account]


@pytest.mark.parametrize("path", ["/usage", "/invoices", "/invoices/2026-11"])
async def test_nobody_sees_what_is_not_theirs(service: FrontendService, path: str) -> None:
    for account in (KEY.account, "999999999999"):
        refused = await get(service, f"{path}?account={account}")
        assert problem(refused) == (403, "AccessDenied"), "the same whether there is such an account or not"
        assert refused.json["detail"] == "Only an operator may work on another account."
    assert problem(await get(service, path, USER)) == (403, "AccessDenied")
    narrow = msgspec.structs.replace(ADMIN, access_key_id="AKIANARROW0000000000", scopes=("send",))
    await service.store.put_access_key(narrow)
    assert problem(await get(service, path, narrow)) == (403, "AccessDenied")
    assert reader(service).asked == []
    assert {line["outcome"] for line in service.audited()} == {"refused"}


async def test_all_accounts_are_for_operators(service: FrontendService) -> None:
    for path in ("/usage", "/invoices"):
        assert problem(await get(service, f"{path}?account=all")) == (403, "AccessDenied")
    assert problem(await get(service, "/invoices/2026-11?account=all", OPERATOR)) == (400, "InvalidRequest")
    assert reader(service).asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/usage?month=2026-13",
        "/usage?month=2026-11&day=2026-11-01",
        "/usage?from=2026-11-01",
        "/usage?by=minute",
        "/usage?tag=team",
        "/usage?limit=0",
        "/usage?limit=100000",
        "/usage?moth=2026-11",
        "/usage?account=12",
        "/invoices?period=now",
        "/invoices/now",
        "/invoices/2026-11?format=docx",
        "/invoices/2026-11?format=pdf",
        "/invoices/2026-11?draft=perhaps",
    ],
)
async def test_what_cannot_be_asked_is_said(service: FrontendService, path: str) -> None:
    answer = await get(service, path, OPERATOR)
    assert problem(answer) == (400, "InvalidRequest")
    assert reader(service).asked == []


async def test_without_usage_it_is_said_how_to_switch_it_on(service: FrontendService) -> None:
    service.app.services.lake = None
    for path in ("/usage", "/invoices", "/invoices/2026-11"):
        answer = await get(service, path)
        assert problem(answer) == (409, "UsageNotCounted")
        assert 'usage = "on"' in answer.json["detail"]


async def test_what_becomes_of_a_question(service: FrontendService) -> None:
    for error, expected, said in (
        (NotFound("2026-11 is not closed yet"), (404, "NotFound"), "2026-11 is not closed yet."),
        (QuestionRefused("the month is odd"), (400, "InvalidRequest"), "The month is odd."),
        (Unmade("x is missing"), (409, "NotInstalled"), "The service cannot make this: x is missing."),
        (ReportUnavailable("it was not read"), (503, "UsageUnavailable"), "It was not read; try again later."),
    ):
        reader(service).answer = error
        answer = await get(service, "/invoices/2026-11")
        assert problem(answer) == expected
        assert answer.json["detail"] == said


@pytest.mark.parametrize(
    ("asked", "accept", "expected"),
    [
        ("", None, "json"),
        ("", "*/*", "json"),
        ("", "application/json", "json"),
        ("", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "html"),
        ("", "application/pdf, text/csv;q=0.9", "focus-csv"),
        ("", "text/*", "html"),
        ("", "application/vnd.apache.parquet", "focus-parquet"),
        ("", "image/png, application/json;q=0.2", "json"),
        ("&format=focus-csv", "text/html", "focus-csv"),
        ("&format=focus-parquet", None, "focus-parquet"),
    ],
)
async def test_the_format_is_the_one_asked_for(
    service: FrontendService, asked: str, accept: str | None, expected: DirectFormat
) -> None:
    reader(service).answer = b"\x00 what it is \xff"
    answer = await get(service, f"/invoices/2026-11?draft=true{asked}", accept=accept)
    assert (answer.status, answer.content) == (200, b"\x00 what it is \xff")
    assert answer.headers["content-type"] == MEDIA_TYPES[expected]
    assert f'filename="invoice-2026-11-{OTHER}.' in answer.headers["content-disposition"]
    assert reader(service).asked == [InvoiceAsked(OTHER, "2026-11", expected, True)]


@pytest.mark.parametrize(
    "accept", ["image/png", "application/pdf", "application/json;q=0", "application/json;q=many", "nonsense"]
)
async def test_a_format_that_there_is_not(service: FrontendService, accept: str) -> None:
    answer = await get(service, "/invoices/2026-11", accept=accept)
    assert problem(answer) == (406, "NotAcceptable")
    assert "text/html" in answer.json["detail"]
    assert "POST /v1/invoices/{period}/documents" in answer.json["detail"]


async def test_reading_is_no_act(service: FrontendService) -> None:
    for path in ("/usage", "/invoices", "/invoices/2026-11"):
        assert (await get(service, path)).status == 200
    assert service.audited() == []


async def test_the_documentation_describes_it(service: FrontendService) -> None:
    paths = (await service.unsigned("GET", "/openapi.json", b"", {})).json["paths"]
    parameters = {one["name"] for one in paths["/v1/usage"]["get"]["parameters"]}
    assert {"month", "day", "from", "to", "by", "tag", "account", "limit"} <= parameters
    content = paths["/v1/invoices/{period}"]["get"]["responses"]["200"]["content"]
    assert {MEDIA_TYPES[form].partition(";")[0] for form in DIRECT_FORMATS} == content.keys()
