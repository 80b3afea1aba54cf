"""Jobs that make documents, with several frontends over one store; the test controls a fake reader."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from auth.credentials import Tenant
from billing.reports.questions import ContentAsked, DirectlyAsked, DocumentAsked, DocumentMade
from billing.reports.reader import NotFound, Reader
from frontend import document_jobs as module
from frontend.document_jobs import Busy, Documents, TooManyOpen, Wanted
from metadata_service.documents import DocumentJob, DocumentJobs
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import DocumentStore, StoreUnavailable
from tests.auth.clock import Clock
from tests.servers.waiting import until

ASKER, OTHER = "111111111111", "222222222222"
NOVEMBER = Wanted(ASKER, "2026-11", "pdf", draft=False)
DRAFT = Wanted(ASKER, "2026-12", "pdf", draft=True)


class HeldReader(Reader):
    """Reader that makes documents when the test allows it, in a lake that it shares with others."""

    def __init__(self, lake: dict[str, bytes]) -> None:
        self.lake = lake
        self.let = asyncio.Event()
        self.asked: list[DocumentAsked] = []
        self.fails: Exception | None = None

    async def make(self, asked: DocumentAsked) -> DocumentMade:
        self.asked.append(asked)
        await self.let.wait()
        if self.fails is not None:
            raise self.fails
        path = f"documents/{asked.account}/{asked.period}.{asked.kind}"
        self.lake[path] = f"{asked.kind} of {asked.period}".encode()
        return DocumentMade(path, len(self.lake[path]))

    async def ask(self, asked: DirectlyAsked | ContentAsked) -> bytes:
        assert isinstance(asked, ContentAsked)
        if asked.path not in self.lake:
            raise NotFound("the document no longer exists")
        return self.lake[asked.path]


class DocumentFrontend:
    """One of several frontends."""

    def __init__(self, store: DocumentStore, clock: Clock, lake: dict[str, bytes], stale_seconds: float) -> None:
        self.reader = HeldReader(lake)
        self.documents = Documents(store, self.reader, clock, beat_seconds=0.01, stale_seconds=stale_seconds)

    async def kill(self) -> None:
        """End it without a shutdown: its work is lost, and nothing more is stored."""
        self.documents.store = DocumentsAway()
        await self.documents.close()


class DocumentsAway(DocumentStore):
    """A store that is unavailable."""

    async def document_jobs(self, account: str) -> DocumentJobs:
        raise StoreUnavailable("away")

    async def update_document_jobs(self, jobs: DocumentJobs) -> DocumentJobs:
        raise StoreUnavailable("away")

    async def delete_document_jobs(self, account: str) -> None:
        raise StoreUnavailable("away")


class DocumentService:
    """A store, and the frontends over it."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.clock = Clock(1_800_000_000.0)
        self.lake: dict[str, bytes] = {}
        self.frontends: list[DocumentFrontend] = []

    def frontend(self, stale_seconds: float = 0.1) -> DocumentFrontend:
        self.frontends.append(DocumentFrontend(self.store.documents, self.clock, self.lake, stale_seconds))
        return self.frontends[-1]


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[DocumentService]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    made = DocumentService(store)
    try:
        for account in (ASKER, OTHER):
            await store.credentials.put_tenant(Tenant(account, "some"))
        yield made
    finally:
        for one in made.frontends:
            await one.documents.close()
        await store.close()


async def job_in(frontend: DocumentFrontend, job: DocumentJob, *states: str) -> DocumentJob:
    """Ask this frontend for the job until it is in one of these states."""
    async with asyncio.timeout(60):
        while True:
            found = await frontend.documents.find(ASKER, job.job_id)
            assert found is not None
            if found.state in states:
                return found
            await asyncio.sleep(0.005)


async def made_by(frontend: DocumentFrontend, job: DocumentJob) -> None:
    """Ask this frontend for the job until it makes the document."""
    async with asyncio.timeout(60):
        while not frontend.reader.asked:
            await frontend.documents.find(ASKER, job.job_id)
            await asyncio.sleep(0.005)


async def test_a_job_is_queued_then_runs_and_is_done_at_any_frontend(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend(stale_seconds=1000)
    job = await one.documents.request(ASKER, NOVEMBER)
    assert (job.state, job.attempts, job.created_s) == ("queued", 0, 1_800_000_000)
    assert (await job_in(two, job, "running")).attempts == 1
    one.reader.let.set()
    done = await job_in(two, job, "done")
    assert (done.size_bytes, done.attempts) == (14, 1)
    assert await two.documents.content(ASKER, done) == b"pdf of 2026-11"
    assert two.reader.asked == []
    assert await two.documents.find(OTHER, job.job_id) is None, "it is of the account that asked for it"


async def test_a_request_that_is_repeated_gets_the_same_job_at_any_frontend(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend(stale_seconds=1000)
    frontends = [one, two] * 4
    jobs = await asyncio.gather(*(frontend.documents.request(ASKER, NOVEMBER) for frontend in frontends))
    assert len({job.job_id for job in jobs}) == 1
    one.reader.let.set()
    two.reader.let.set()
    done = await job_in(two, jobs[0], "done")
    assert await two.documents.request(ASKER, NOVEMBER) == done, "an invoice never changes"
    assert len(one.reader.asked) + len(two.reader.asked) == 1
    email = await one.documents.request(ASKER, NOVEMBER._replace(kind="email"))
    draft = await one.documents.request(ASKER, DRAFT)
    assert len({done.job_id, email.job_id, draft.job_id}) == 3
    await job_in(one, draft, "done")
    assert (await one.documents.request(ASKER, DRAFT)).job_id != draft.job_id, "a draft may be another one now"


async def test_a_job_of_a_killed_frontend_is_done_by_the_one_that_gets_the_next_request(
    service: DocumentService,
) -> None:
    one, two = service.frontend(), service.frontend()
    job = await one.documents.request(ASKER, NOVEMBER)
    await job_in(one, job, "running")
    await one.kill()
    two.reader.let.set()
    done = await job_in(two, job, "done")
    assert done.attempts == 2
    assert await two.documents.content(ASKER, done) == b"pdf of 2026-11"


async def test_a_queued_job_of_a_killed_frontend_is_made_too(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend()
    running = await one.documents.request(ASKER, NOVEMBER)
    await job_in(one, running, "running")
    queued = await one.documents.request(ASKER, DRAFT)
    assert queued.state == "queued"
    await one.kill()
    two.reader.let.set()
    assert (await job_in(two, queued, "done")).attempts == 1


async def test_a_job_that_ends_each_of_its_frontends_has_failed(service: DocumentService) -> None:
    job = await service.frontend().documents.request(ASKER, NOVEMBER)
    for attempt in range(1, module.ATTEMPTS_MAX + 1):
        frontend = service.frontends[-1]
        assert (await job_in(service.frontends[0] if attempt == 1 else frontend, job, "running")).attempts <= attempt
        await made_by(frontend, job)
        await frontend.kill()
        service.frontend()
    failed = await job_in(service.frontends[-1], job, "failed")
    assert failed.error is not None
    assert failed.error.code == "Interrupted"
    assert failed.error.detail.startswith("Each of the 3 frontends that started it ended; ask for it again")
    assert (await service.frontends[-1].documents.request(ASKER, NOVEMBER)).job_id != job.job_id


async def test_a_frontend_that_lives_keeps_its_job_however_long_it_takes(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend(stale_seconds=0.5)
    job = await one.documents.request(ASKER, NOVEMBER)
    first = await job_in(two, job, "running")
    async with asyncio.timeout(60):
        while (found := await two.documents.find(ASKER, job.job_id)) is not None and found.beats < first.beats + 100:
            await asyncio.sleep(0.005)
    assert found is not None
    assert (found.runner, two.reader.asked) == (first.runner, [])


async def test_a_frontend_that_stops_gives_its_job_back(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend(stale_seconds=1000)
    job = await one.documents.request(ASKER, NOVEMBER)
    await job_in(one, job, "running")
    await one.documents.close()
    two.reader.let.set()
    assert (await job_in(two, job, "done")).attempts == 1


async def test_a_frontend_that_was_taken_for_dead_leaves_the_job_to_the_other(service: DocumentService) -> None:
    one, two = service.frontend(), service.frontend()
    job = await one.documents.request(ASKER, NOVEMBER)
    await job_in(one, job, "running")
    store, one.documents.store = one.documents.store, DocumentsAway()
    await made_by(two, job)
    taken = await job_in(two, job, "running")
    one.documents.store = store
    await until(lambda: one.documents._making is None)
    assert (await job_in(two, job, "running")).runner == taken.runner
    two.reader.let.set()
    assert (await job_in(two, job, "done")).attempts == 2


async def test_a_job_that_is_overdue_has_failed(service: DocumentService) -> None:
    one = service.frontend()
    job = await one.documents.request(ASKER, NOVEMBER)
    await job_in(one, job, "running")
    service.clock.now += module.OPEN_SECONDS_MAX
    failed = await job_in(one, job, "failed")
    assert failed.error is not None
    assert failed.error.code == "TimedOut"
    await until(lambda: one.documents._making is None)
    assert (await job_in(one, job, "failed", "done")).state == "failed"


async def test_an_expired_document_can_be_requested_again(service: DocumentService) -> None:
    one = service.frontend()
    one.reader.let.set()
    done = await job_in(one, await one.documents.request(ASKER, NOVEMBER), "done")
    service.lake.clear()
    with pytest.raises(NotFound, match="ask for it again"):
        await one.documents.content(ASKER, done)
    again = await one.documents.request(ASKER, NOVEMBER)
    assert again.job_id != done.job_id
    await job_in(one, again, "done")


async def test_bounds(service: DocumentService, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = service.frontend(), service.frontend(stale_seconds=1000)
    months = [NOVEMBER._replace(period=f"2025-{month:02}") for month in range(1, 13)]
    jobs = [await one.documents.request(ASKER, month) for month in months[: module.OPEN_MAX]]
    for frontend in (one, two):
        with pytest.raises(TooManyOpen):
            await frontend.documents.request(ASKER, months[-1])
    assert (await two.documents.request(ASKER, months[0])).job_id == jobs[0].job_id, "that one is there"
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    with pytest.raises(Busy):
        await one.documents.request(OTHER, NOVEMBER)
    monkeypatch.setattr(module, "KEPT_MAX", 9)
    monkeypatch.setattr(module, "WAITING_MAX", 1000)
    one.reader.let.set()
    two.reader.let.set()
    for job in jobs:
        await job_in(one, job, "done")
    for month in months[module.OPEN_MAX :]:
        last = await job_in(one, await one.documents.request(ASKER, month), "done")
    assert len((await service.store.documents.document_jobs(ASKER)).jobs) == 9
    assert [job.job_id for job in jobs if await one.documents.find(ASKER, job.job_id) is None] == [
        job.job_id for job in jobs[:3]
    ]
    service.clock.now += module.KEPT_SECONDS
    assert await two.documents.find(ASKER, last.job_id) is None, "its time is over"
