"""Guessing of keys at the endpoint: delays only for failures."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import msgspec
import pytest

from auth import guessing
from auth.guessing import ALLOWED
from tests.behaviour.wire import WireRequest
from tests.behaviour.world import asgi_scope
from tests.frontend.service import KEY, FrontendService, sign

JSON = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}


async def test_guesses_are_answered_slowly_and_the_holder_of_the_key_is_not(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = msgspec.structs.replace(KEY, secret="another-secret-than-ours")
    headers = sign("POST", "/", b"{}", JSON, service.clock(), wrong)
    waits: list[float] = []

    async def wait(seconds: float) -> bool:
        waits.append(seconds)
        await held.wait()
        return True

    held = asyncio.Event()
    monkeypatch.setattr(service.app.pipeline.guesses, "wait", wait)
    for _ in range(ALLOWED):
        assert (await service.unsigned("POST", "/", b"{}", headers)).code == "SignatureDoesNotMatch"
    assert waits == []
    slow = asyncio.ensure_future(service.unsigned("POST", "/", b"{}", headers))
    rest = asyncio.ensure_future(service.unsigned("GET", "/v1/queues", b"", {"Authorization": "Bearer hf_x"}))
    while len(waits) < 2:
        await asyncio.sleep(0)
    assert (await service.json("ListQueues")).status == 200  # from the same address, with the same key id
    assert not slow.done()
    assert not rest.done()
    held.set()
    assert (await slow).code == "SignatureDoesNotMatch"
    assert (await rest).status == 401
    assert sum("repeated sign-in failures" in record.message for record in caplog.records) == 1


@mock.patch.object(guessing, "WAITING_MAX", 0)
async def test_beyond_the_answers_that_wait_the_connection_is_closed(service: FrontendService) -> None:
    wrong = sign("POST", "/", b"{}", JSON, service.clock(), msgspec.structs.replace(KEY, secret="another-secret"))
    for _ in range(ALLOWED):
        assert "connection" not in (await service.unsigned("POST", "/", b"{}", wrong)).headers
    assert (await service.unsigned("POST", "/", b"{}", wrong)).headers["connection"] == "close"
    rest = await service.unsigned("GET", "/v1/queues", b"", {"Authorization": "Bearer hf_x"})
    assert (rest.status, rest.headers["connection"]) == (401, "close")


class Body(bytes):
    """Counts the instances still in memory."""

    kept = 0

    def __new__(cls, content: bytes) -> Body:
        cls.kept += 1
        return super().__new__(cls, content)

    def __del__(self) -> None:
        Body.kept -= 1


@pytest.mark.parametrize(
    ("path", "headers", "service_name"),
    [
        ("/", JSON, "sqs"),
        ("/", {"Content-Type": "application/x-www-form-urlencoded"}, "sts"),
        ("/v1/queues/q/messages", {"Content-Type": "text/plain"}, "sqs"),
    ],
)
async def test_no_body_is_kept_while_an_answer_waits(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str], service_name: str
) -> None:
    """Otherwise 256 of them would take 2 GiB."""
    content = b"Action=AssumeRole&Version=2011-06-15"
    wrong = msgspec.structs.replace(KEY, secret="another-secret-than-ours")
    signed = sign("POST", path, content, headers, service.clock(), wrong, service_name)
    kept: list[int] = []

    async def wait(seconds: float) -> bool:
        await asyncio.sleep(0)
        kept.append(Body.kept)
        return True

    guesses = service.app.pipeline.guesses
    monkeypatch.setattr(guesses, "delay", lambda *_: 1.0)
    monkeypatch.setattr(guesses, "wait", wait)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": Body(content), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = asgi_scope(WireRequest("POST", path, signed, "", content), client="192.0.2.1")
    await service.app(scope, receive, send)
    assert sent[0]["status"] in (401, 403)
    assert b"SignatureDoesNotMatch" in sent[1]["body"]
    assert kept == [0]
