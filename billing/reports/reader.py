"""Queries on the lake, each in a process of its own (:mod:`billing.reports.read`).

So a serving process loads neither pyarrow nor the libraries that render documents, and a document that takes a second
of CPU does not block it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import msgspec

from billing.reports.questions import (
    MAKING_SECONDS_MAX,
    AnswerHeader,
    Asked,
    ContentAsked,
    DirectlyAsked,
    DocumentAsked,
    DocumentMade,
    Question,
)

logger = logging.getLogger("holdfast.usage")

AT_ONCE: Final = 2
"""Maximum concurrent reader processes; further callers wait."""
TIMEOUT_SECONDS: Final = 50.0
"""Timeout including the wait for a free process; less than clients wait."""


class NotFound(Exception):
    """The lake does not contain it."""


class QuestionRefused(Exception):
    """The question is invalid; the text says why."""


class Unmade(Exception):
    """The document cannot be made on this machine; the text says what is missing."""


class ReportUnavailable(Exception):
    """The lake cannot be read now.  The reason is only logged: the lake's location concerns operators only."""


class Reader:
    """Runs queries on a lake."""

    def __init__(self, lake: str, python: Sequence[str] = (sys.executable,)) -> None:
        """Set up queries.

        ``lake``: its URL, or a folder.  ``python``: the command that runs a module with ``-m``.
        """
        self._lake = lake
        self._command = (*python, "-m", "billing.reports.read")
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, asked: DirectlyAsked | ContentAsked) -> bytes:
        """Return the content of the answer.

        Raises :class:`NotFound`, :class:`QuestionRefused`, :class:`Unmade` and :class:`ReportUnavailable`.
        """
        return await self._ask(asked, TIMEOUT_SECONDS, self._turns)

    async def make(self, asked: DocumentAsked) -> DocumentMade:
        """Make a document and store it in the lake, outside the limit of concurrent :meth:`ask` calls.

        Raises the same errors as :meth:`ask`.
        """
        return msgspec.json.decode(await self._ask(asked, MAKING_SECONDS_MAX, nullcontext()), type=DocumentMade)

    async def _ask(self, asked: Asked, seconds: float, turn: asyncio.Semaphore | nullcontext[None]) -> bytes:
        try:
            async with asyncio.timeout(seconds), turn:
                answered, content = await self._answer(msgspec.json.encode(Question(self._lake, asked)))
        except TimeoutError:
            done = "made" if isinstance(asked, DocumentAsked) else "read"
            logger.error("%r was not %s within %.0f s", asked, done, seconds)
            raise ReportUnavailable(f"the request was not {done} within {seconds:.0f} s") from None
        match answered.outcome:
            case "found":
                if answered.text:
                    logger.warning("%s", answered.text)
                return content
            case "none":
                raise NotFound(answered.text)
            case "refused":
                raise QuestionRefused(answered.text)
            case "unmade":
                raise Unmade(answered.text)
            case "unavailable":
                logger.error("%s", answered.text)
                raise ReportUnavailable("the usage lake cannot be read now")

    async def _answer(self, question: bytes) -> tuple[AnswerHeader, bytes]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            printed, errors = await process.communicate(question)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        head, _, content = printed.partition(b"\n")
        if process.returncode != 0:
            logger.error("the lake was not read: %s", errors.decode(errors="replace").strip() or process.returncode)
            raise ReportUnavailable("the usage lake was not read")
        return msgspec.json.decode(head, type=AnswerHeader), content
