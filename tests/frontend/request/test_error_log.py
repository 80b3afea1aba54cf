"""Log of calls that are refused over a long time."""

import asyncio
import logging

import pytest

from frontend.request.error_log import COUNTED_SECONDS, KINDS_MAX, ErrorLog
from tests.backend.journal.support import virtually

LOG = logging.getLogger("test.refusals")


@virtually
async def test_the_first_is_said_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
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


@virtually
async def test_they_have_log_lines_if_enabled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOG.name)
    error_log = ErrorLog(LOG)
    for number in range(10):
        error_log.say("full", "call %d", number)
    assert [record.getMessage() for record in caplog.records] == [f"call {number}" for number in range(10)]


@virtually
async def test_many_kinds_are_one(caplog: pytest.LogCaptureFixture) -> None:
    error_log = ErrorLog(LOG)
    for number in range(10 * KINDS_MAX):
        error_log.say(str(number), "call %d", number)
    assert len(error_log._kinds) == KINDS_MAX + 1
    assert len(caplog.records) == KINDS_MAX + 1


@virtually
async def test_several_of_a_kind_can_have_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    error_log = ErrorLog(LOG, level=logging.INFO, lines=3)
    for number in range(5):
        error_log.say("wrong", "call %d", number)
    await asyncio.sleep(COUNTED_SECONDS)
    error_log.say("wrong", "call %d", 5)
    await asyncio.sleep(2 * COUNTED_SECONDS)
    error_log.say("wrong", "call %d", 6)
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
