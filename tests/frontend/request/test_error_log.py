"""Log of calls that are refused over a long time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from frontend.request.error_log import COUNTED_SECONDS, KINDS_MOST, ErrorLog
from tests.backend.journal.support import virtual

LOG = logging.getLogger("test.refusals")


def test_the_first_is_said_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)

    async def main() -> None:
        error_log = ErrorLog(LOG)
        for number in range(250):
            error_log.say("full", "call %d", number)
            await asyncio.sleep(0.1)
        error_log.say("away", "call %d", -1)
        await asyncio.sleep(3 * COUNTED_SECONDS)
        assert [record.getMessage() for record in caplog.records] == [
            "call 0",
            "99 more calls were refused in 10 s: full",
            "100 more calls were refused in 10 s: full",
            "call -1",
            "50 more calls were refused in 10 s: full",
        ]
        error_log.say("full", "call %d", 250)
        assert caplog.records[-1].getMessage() == "call 250", "it was over, and is news again"
        await asyncio.sleep(COUNTED_SECONDS)
        assert not error_log._kinds

    virtual(main())


def test_they_have_their_lines_for_who_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        error_log = ErrorLog(LOG)
        for number in range(10):
            error_log.say("full", "call %d", number)

    caplog.set_level(logging.DEBUG, LOG.name)
    virtual(main())
    assert [record.getMessage() for record in caplog.records] == [f"call {number}" for number in range(10)]


def test_many_kinds_are_one(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        error_log = ErrorLog(LOG)
        for number in range(10 * KINDS_MOST):
            error_log.say(str(number), "call %d", number)
        assert len(error_log._kinds) == KINDS_MOST + 1
        assert len(caplog.records) == KINDS_MOST + 1

    virtual(main())


def test_several_of_a_kind_can_have_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)

    async def main() -> None:
        error_log = ErrorLog(LOG, level=logging.INFO, lines=3)
        for number in range(5):
            error_log.say("wrong", "call %d", number)
        await asyncio.sleep(COUNTED_SECONDS)
        error_log.say("wrong", "call %d", 5)
        await asyncio.sleep(2 * COUNTED_SECONDS)
        error_log.say("wrong", "call %d", 6)

    virtual(main())
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, text)
        for text in (
            "call 0",
            "call 1",
            "call 2",
            "2 more calls were refused in 10 s: wrong",
            "1 more calls were refused in 10 s: wrong",
            "call 6",
        )
    ]
