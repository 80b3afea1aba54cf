"""JSON log lines: one line for any text, with the request id of the current call."""

import asyncio
import json
import logging
import sys
from typing import Any

import pytest

from telemetry import calls
from telemetry.logs import ARGUMENT_LENGTH_MAX, MESSAGE_LENGTH_MAX, JsonLines

FORM = JsonLines("frontend", "frontend-1", 4711)


def line(text: str, *arguments: object, error: BaseException | None = None) -> str:
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("holdfast.sqs", logging.WARNING, __file__, 1, text, arguments, trace)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    return FORM.format(record)


def read(text: str, *arguments: object, error: BaseException | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line(text, *arguments, error=error))
    return found


def test_fields_of_a_line() -> None:
    assert read("%d calls by %r", 3, "a") == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "holdfast.sqs",
        "message": "3 calls by 'a'",
        "role": "frontend",
        "process": "frontend-1",
        "pid": 4711,
    }


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\r\n", "\u2028\u2029\u0085", "\x00\x1b[31m", "☃", "\ud800", "{}"])
def test_any_text_is_one_line_of_ascii(text: str) -> None:
    written = line("%s", text)
    assert written.isascii()
    assert len(written.splitlines()) == 1
    assert read("%s", text)["message"] == text


def test_a_traceback_stays_on_the_line() -> None:
    with pytest.raises(ValueError, match="wrong") as caught:
        raise ValueError("wrong\nindeed")
    assert len(line("failed", error=caught.value).splitlines()) == 1
    errors = read("failed", error=caught.value)["exception"]
    assert errors.startswith("Traceback")
    assert errors.endswith("ValueError: wrong\nindeed")


async def test_a_line_has_the_request_id_of_its_call_while_that_is_under_way() -> None:
    """Background work of a call continues after its end, and does not belong to it then."""
    over, errors = asyncio.Event(), []

    async def background() -> None:
        errors.append(read("now").get("request_id"))
        await over.wait()
        errors.append(read("later").get("request_id"))

    async def call() -> asyncio.Task[None]:
        calling: calls.Calling = ["the-id"]
        calls.current.set(calling)
        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        assert read("here")["request_id"] == "the-id"
        calling[0] = None
        return task

    task = await asyncio.create_task(call())
    over.set()
    await task
    assert errors == ["the-id", None]
    assert "request_id" not in read("elsewhere")


def test_nothing_but_the_standard_library_is_loaded_for_it() -> None:
    names = {name.partition(".")[0] for name in vars(sys.modules["telemetry.logs"])}
    assert not {"orjson", "msgspec", "opentelemetry"} & names


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("%r", (LONG,)),
        ("%s and %r", (1, LONG.encode())),
        ("%(a)r", ({"a": LONG},)),
        (LONG, ()),
        ("%s", (ValueError(LONG),)),
        ("%s", ([LONG],)),
        ("%s %s %s", (LONG, LONG, LONG)),
    ],
)
def test_long_values_are_cut(text: str, arguments: tuple[object, ...]) -> None:
    message = read(text, *arguments)["message"]
    assert len(message) < MESSAGE_LENGTH_MAX + 10
    assert "..." in message


def test_a_value_of_a_client_has_some_hundred_characters() -> None:
    assert read("by %r: %s", "a", LONG)["message"] == f"by 'a': {'x' * ARGUMENT_LENGTH_MAX}..."


def test_the_text_of_an_error_in_a_traceback_is_cut() -> None:
    try:
        raise ValueError(LONG + "\nline" * 10_000)
    except ValueError as error:
        exception = read("failed", error=error)["exception"]
    assert len(exception) < 20_000
    assert exception.startswith("Traceback")
    assert "ValueError: xxx" in exception
