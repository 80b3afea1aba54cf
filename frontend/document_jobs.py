"""Documents of invoices (PDF, e-mail), made by jobs that all frontends share.

A document takes seconds of computing, on a busy machine minutes: longer than a client waits for an answer.  So a
request stores a job and is answered at once.  The records of the jobs are in the metadata
(:mod:`metadata_service.documents`), and the documents in the usage lake beside their invoices.  All frontends read
both, so a client may ask any of them.

A job belongs to the account that requested it.  A queued job belongs to no frontend: each frontend that receives a
request for it, or a query of its state, adds it to its own waiting list, and the first one to reach it runs it.  While
a frontend makes a document, it increments the job's beats.  A frontend takes over a running job if it is asked about
it and the beats have not changed for :data:`STALE_SECONDS` of its own clock.  So clocks may differ, and no process
monitors the others; a job whose frontend ended continues at the next query of its state.  Making a document twice
costs only the work: it is sent to nobody, and both results are the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from billing.reports.questions import ContentAsked, DocumentAsked, DocumentKind, DocumentMade
from billing.reports.reader import NotFound, QuestionRefused, Reader, ReportUnavailable, Unmade
from metadata_service.documents import DocumentError, DocumentJob, DocumentJobs
from metadata_service.store import ConditionFailed, DocumentStore, StoreError

OPEN_MAX: Final = 8
"""Maximum number of queued and running jobs of an account."""
KEPT_MAX: Final = 50
"""Maximum number of jobs of an account; the oldest ended ones are removed first."""
WAITING_MAX: Final = 1_000
"""Maximum number of jobs in the waiting list of a frontend, which makes one document at a time."""
KEPT_SECONDS: Final = 24 * 3600
"""Time for which an ended job is kept."""
OPEN_SECONDS_MAX: Final = 3600
"""Time after which a job that is not done has failed."""
ATTEMPTS_MAX: Final = 3
BEAT_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
END_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to store the outcome of a job."""
RELEASE_SECONDS: Final = 2.0
_SEEN_MAX: Final = 10_000
_TRIES: Final = 8

AGAIN: Final = "ask for it again"

logger = logging.getLogger("holdfast.documents")

T = TypeVar("T")

ReaderError = NotFound | QuestionRefused | Unmade | ReportUnavailable
READER_ERRORS: Final = (NotFound, QuestionRefused, Unmade, ReportUnavailable)


class TooManyOpen(Exception):
    """The account has :data:`OPEN_MAX` jobs that have not ended."""


class Busy(Exception):
    """This frontend has :data:`WAITING_MAX` waiting jobs."""


class Wanted(NamedTuple):
    """A requested document."""

    account: str
    """Account of the invoice."""
    period: str
    kind: DocumentKind
    draft: bool


class _Key(NamedTuple):
    requester: str
    """Account that requested the document."""
    job_id: str


class _Seen(NamedTuple):
    """Latest beat of another frontend's job, and the time when this frontend first read it."""

    runner: str
    beats: int
    since: float


class Documents:
    """The jobs of documents, as one frontend runs them."""

    def __init__(
        self,
        store: DocumentStore,
        reader: Reader,
        clock: Callable[[], float],
        *,
        beat_seconds: float = BEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """``clock``: seconds since the epoch."""
        self.store = store
        self._reader = reader
        self._clock = clock
        self._beat_seconds = beat_seconds
        self._stale_seconds = stale_seconds
        self._waiting: OrderedDict[_Key, None] = OrderedDict()
        self._making: _Key | None = None
        self._seen: OrderedDict[_Key, _Seen] = OrderedDict()
        self._working: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop, and release the running job, which another frontend may take at once.  Repeatable."""
        self._waiting.clear()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    # --- requests -------------------------------------------------------------------------------------------------

    async def request(self, requester: str, wanted: Wanted) -> DocumentJob:
        """Return the job that makes the document: a new one, or that of an earlier request.

        A repeated request gets the same job while that is queued or running.  For an invoice, which never changes, it
        gets the same job as long as the document is kept.

        Raises :class:`TooManyOpen`, :class:`Busy` and :class:`StoreError`.
        """

        def decide(jobs: Sequence[DocumentJob]) -> tuple[Sequence[DocumentJob] | None, DocumentJob]:
            for job in jobs:
                if _wanted(job) == wanted and (job.is_open or (job.state == "done" and not job.draft)):
                    return None, job
            open_ = [job for job in jobs if job.is_open]
            for job in open_:
                self._enqueue(_Key(requester, job.job_id), job)
            if len(open_) >= OPEN_MAX:
                raise TooManyOpen
            if len(self._waiting) >= WAITING_MAX:
                raise Busy
            made = DocumentJob(secrets.token_hex(12), *wanted, created_s=int(self._clock()))
            return [*_without_oldest(jobs, KEPT_MAX - 1), made], made

        try:
            job = await self._replace(requester, decide)
        except ValueError as error:
            raise StoreError(f"account {requester} is being deleted") from error
        self._enqueue(_Key(requester, job.job_id), job)
        return job

    async def find(self, requester: str, job_id: str) -> DocumentJob | None:
        """Return the current state of a job.  Raises :class:`StoreError`."""
        record = await self.store.document_jobs(requester)
        job = next((one for one in self._current(record) if one.job_id == job_id), None)
        if job is not None:
            self._enqueue(_Key(requester, job_id), job)
        return job

    async def content(self, requester: str, job: DocumentJob) -> bytes:
        """Return the document of a job that is done.

        Raises :class:`NotFound` if the document no longer exists; the job has then failed, so that the document can be
        requested again.  Raises :class:`ReportUnavailable` and :class:`StoreError`.
        """
        try:
            return await self._reader.ask(ContentAsked(job.path))
        except NotFound:
            removed = DocumentError("DocumentGone", f"The document is no longer in the usage lake; {AGAIN}.")
            await self._change(_Key(requester, job.job_id), lambda one: self._ended(one, error=removed))
            raise NotFound(f"the document is no longer in the usage lake; {AGAIN}") from None

    def _current(self, record: DocumentJobs) -> list[DocumentJob]:
        """Return the jobs at the current time: without expired ones, and overdue ones as failed."""
        now = self._clock()
        jobs = [self._by_now(job) for job in record.jobs]
        return [job for job in jobs if job.is_open or now < job.ended_s + KEPT_SECONDS]

    def _by_now(self, job: DocumentJob) -> DocumentJob:
        due = job.created_s + OPEN_SECONDS_MAX
        if not job.is_open or self._clock() < due:
            return job
        detail = f"It was not made within {OPEN_SECONDS_MAX // 60} minutes: the service is busy; {AGAIN} later."
        return msgspec.structs.replace(job, state="failed", ended_s=due, error=DocumentError("TimedOut", detail))

    # --- running --------------------------------------------------------------------------------------------------

    def _enqueue(self, key: _Key, job: DocumentJob) -> None:
        """Add the job to this frontend's waiting list if no frontend makes it."""
        if not job.is_open or key == self._making or key in self._waiting or len(self._waiting) >= WAITING_MAX:
            return
        if job.state == "running" and not self._is_stale(key, job):
            return
        self._waiting[key] = None
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work(), name="maker of documents")

    def _is_stale(self, key: _Key, job: DocumentJob) -> bool:
        now = asyncio.get_running_loop().time()
        seen = self._seen_beat(key, job)
        if seen is None:
            self._seen[key] = _Seen(job.runner, job.beats, now)
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
            return False
        return now - seen.since >= self._stale_seconds

    def _seen_beat(self, key: _Key, job: DocumentJob) -> _Seen | None:
        """Return the job's latest beat, if this frontend has read it before."""
        seen = self._seen.get(key)
        return seen if seen is not None and (seen.runner, seen.beats) == (job.runner, job.beats) else None

    async def _work(self) -> None:
        while self._waiting:
            key, _ = self._waiting.popitem(last=False)
            self._making = key
            try:
                await self._run_job(key)
            except StoreError as error:  # the next frontend that is asked about the job continues it
                logger.error("the document %s of account %s cannot be made now: %s", key.job_id, key.requester, error)
            except Exception:
                logger.exception("the document %s of account %s cannot be made", key.job_id, key.requester)
            finally:
                self._making = None

    async def _run_job(self, key: _Key) -> None:
        job = await self._change(key, lambda one: self._claimed(key, one))
        self._seen.pop(key, None)
        if job is None or job.state != "running":
            return
        asked = DocumentAsked(job.account, job.period, job.kind, job.draft)
        making = asyncio.create_task(self._reader.make(asked), name=f"document {key.job_id}")
        beating = asyncio.create_task(self._beat(key, job.runner, making), name=f"beats of {key.job_id}")
        try:
            await asyncio.wait([making])
            if making.cancelled():
                logger.warning(
                    "the document %s is no longer this frontend's to make: it is overdue, or another took it",
                    key.job_id,
                )
                return
            try:
                made = making.result()
            except READER_ERRORS as error:
                _, cause = described(error)
                await self._store_outcome(key, job.runner, lambda one: self._ended(one, error=cause))
            else:
                await self._store_outcome(
                    key, job.runner, lambda one: self._ended(one, path=made.path, size_bytes=made.size_bytes)
                )
        except asyncio.CancelledError:
            making.cancel()
            await asyncio.wait([making])
            await self._release(key, job.runner)
            raise
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    def _claimed(self, key: _Key, job: DocumentJob) -> DocumentJob | None:
        """Return the job as running here, or as failed after too many attempts; None: another frontend makes it."""
        if job.state == "running":
            if self._seen_beat(key, job) is None:
                return None
            logger.warning("the frontend that made the document %s has ended or hangs", job.job_id)
        elif job.state != "queued":
            return None
        if job.attempts >= ATTEMPTS_MAX:
            detail = f"Each of the {job.attempts} frontends that started it ended; {AGAIN}, or ask the operator."
            return self._ended(job, error=DocumentError("Interrupted", detail))
        return msgspec.structs.replace(
            job,
            state="running",
            attempts=job.attempts + 1,
            runner=secrets.token_hex(8),
            beats=0,
            started_s=int(self._clock()),
        )

    async def _beat(self, key: _Key, runner: str, making: asyncio.Task[DocumentMade]) -> None:
        """Increment the job's beats; stop making the document once the job has ended or belongs to another frontend."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            try:
                job = await self._change(
                    key, lambda one: msgspec.structs.replace(one, beats=one.beats + 1) if _runs(one, runner) else None
                )
            except StoreError as error:
                logger.warning("the job of document %s cannot be kept up now: %s", key.job_id, error)
                continue
            if job is None:
                making.cancel()
                return

    async def _store_outcome(self, key: _Key, runner: str, decide: Callable[[DocumentJob], DocumentJob | None]) -> None:
        """Store the outcome.  Raises :class:`StoreError`: the next query of the job's state starts it again."""
        for pause in (*END_PAUSES_SECONDS, None):
            try:
                await self._change(key, lambda one: decide(one) if _runs(one, runner) else None)
                return
            except StoreError as error:
                if pause is None:
                    raise
                logger.warning("the outcome of document %s cannot be stored now: %s", key.job_id, error)
            await asyncio.sleep(pause)

    async def _release(self, key: _Key, runner: str) -> None:
        def queued(job: DocumentJob) -> DocumentJob | None:
            if not _runs(job, runner):
                return None
            return msgspec.structs.replace(job, state="queued", attempts=job.attempts - 1, runner="", started_s=0)

        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._change(key, queued)
        except (StoreError, TimeoutError) as error:
            logger.warning(
                "the document %s is made once this process is missed: %s", key.job_id, str(error) or "too late"
            )

    def _ended(
        self, job: DocumentJob, *, path: str = "", size_bytes: int = 0, error: DocumentError | None = None
    ) -> DocumentJob:
        return msgspec.structs.replace(
            job,
            state="done" if error is None else "failed",
            ended_s=int(self._clock()),
            path=path,
            size_bytes=size_bytes,
            error=error,
        )

    async def _change(self, key: _Key, decide: Callable[[DocumentJob], DocumentJob | None]) -> DocumentJob | None:
        """Change the job; None: ``decide`` returned None, or the job no longer exists.  Raises :class:`StoreError`."""

        def decide_all(jobs: Sequence[DocumentJob]) -> tuple[Sequence[DocumentJob] | None, DocumentJob | None]:
            at = next((place for place, job in enumerate(jobs) if job.job_id == key.job_id), None)
            changed = None if at is None else decide(jobs[at])
            if at is None or changed is None:
                return None, None
            return [*jobs[:at], changed, *jobs[at + 1 :]], changed

        return await self._replace(key.requester, decide_all)

    async def _replace(
        self, requester: str, decide: Callable[[Sequence[DocumentJob]], tuple[Sequence[DocumentJob] | None, T]]
    ) -> T:
        """Replace an account's jobs by those that ``decide`` returns; None: leave them.  Returns its other result.

        If another process changes them at the same time, ``decide`` is called again.  Raises :class:`StoreError`,
        ``ValueError`` if the account is being deleted, and the errors of ``decide``.
        """
        for _ in range(_TRIES):
            record = await self.store.document_jobs(requester)
            jobs, result = decide(self._current(record))
            if jobs is None:
                return result
            try:
                await self.store.update_document_jobs(msgspec.structs.replace(record, jobs=tuple(jobs)))
                return result
            except ConditionFailed:
                await asyncio.sleep(
                    random.uniform(0.01, 0.1)
                )  # so that concurrent changes of the record do not collide again
        raise StoreError(f"the documents of account {requester} are being changed by others")


def described(error: ReaderError) -> tuple[int, DocumentError]:
    """HTTP status and cause of a failed question."""
    match error:
        case NotFound():
            return 404, DocumentError("NotFound", sentence(error))
        case QuestionRefused():
            return 400, DocumentError("InvalidRequest", sentence(error))
        case Unmade():
            return 409, DocumentError("NotInstalled", f"The service cannot make this: {error}.")
        case ReportUnavailable():
            return 503, DocumentError("UsageUnavailable", sentence(f"{error}; try again later"))


def sentence(text: object) -> str:
    """Text of an error as a sentence."""
    plain = str(text)
    return f"{plain[:1].upper()}{plain[1:]}."


def _wanted(job: DocumentJob) -> Wanted:
    return Wanted(job.account, job.period, job.kind, job.draft)


def _runs(job: DocumentJob, runner: str) -> bool:
    return job.state == "running" and job.runner == runner


def _without_oldest(jobs: Sequence[DocumentJob], kept_max: int) -> list[DocumentJob]:
    """Remove the jobs that ended first, so that at most ``kept_max`` remain."""
    over = len(jobs) - kept_max
    if over <= 0:
        return list(jobs)
    ended = sorted((job for job in jobs if not job.is_open), key=lambda job: job.ended_s)
    removed = {job.job_id for job in ended[:over]}
    return [job for job in jobs if job.job_id not in removed]
