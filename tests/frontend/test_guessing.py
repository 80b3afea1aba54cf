"""Guessing of keys at the endpoint: slowed for those who fail, and for nobody else."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from auth import guessing
from auth.guessing import ALLOWED
from tests.frontend.fakes import KEY, Service, sign

JSON = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}


async def test_guesses_are_answered_slowly_and_the_holder_of_the_key_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = msgspec.structs.replace(KEY, secret="another-secret-than-ours")
    headers = sign("POST", "/", b"{}", JSON, service.clock(), wrong)
    waits: list[float] = []

    async def wait(seconds: float) -> bool:
        waits.append(seconds)
        await held.wait()
        return True

    held = asyncio.Event()
    monkeypatch.setattr(service.app.sqs.guesses, "wait", wait)
    for _ in range(ALLOWED):
        assert (await service.unsigned("POST", "/", b"{}", headers)).code == "SignatureDoesNotMatch"
    assert waits == []
    slow = asyncio.ensure_future(service.unsigned("POST", "/", b"{}", headers))
    rest = asyncio.ensure_future(service.unsigned("GET", "/v1/queues", b"", {"Authorization": "Bearer hf_x"}))
    while len(waits) < 2:
        await asyncio.sleep(0)
    assert (await service.json("ListQueues")).status == 200  # of the same address, with the same key id
    assert not slow.done()
    assert not rest.done()
    held.set()
    assert (await slow).code == "SignatureDoesNotMatch"
    assert (await rest).status == 401
    assert sum("again and again" in record.message for record in caplog.records) == 1


async def test_beyond_the_answers_that_wait_the_connection_is_closed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guessing, "WAITING_MOST", 0)
    wrong = sign("POST", "/", b"{}", JSON, service.clock(), msgspec.structs.replace(KEY, secret="another-secret"))
    for _ in range(ALLOWED):
        assert "connection" not in (await service.unsigned("POST", "/", b"{}", wrong)).headers
    assert (await service.unsigned("POST", "/", b"{}", wrong)).headers["connection"] == "close"
    rest = await service.unsigned("GET", "/v1/queues", b"", {"Authorization": "Bearer hf_x"})
    assert (rest.status, rest.headers["connection"]) == (401, "close")
