"""A lake for the frontend's tests."""

import asyncio
from typing import Any

from billing.reports.questions import ContentAsked, DirectlyAsked, DocumentAsked, DocumentMade
from billing.reports.reader import Reader


class AnsweringReader(Reader):
    """Reader with a given answer, which records its questions."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: bytes | Exception = b'{"an":"answer"}'

    async def ask(self, asked: DirectlyAsked | ContentAsked) -> bytes:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def make(self, asked: DocumentAsked) -> DocumentMade:
        """Never end: a document that is asked for stays on its way."""
        self.asked.append(asked)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")
