"""Idle connections of the bench: opened by processes of their own, each after one answered call."""

import asyncio

import pytest

from bench.idle_callers import IdleCallers
from bench.servers.servers import CREDENTIALS, ServerError
from tests.bench.fake_sqs import FakeSqs
from tests.servers.signing import SigningCredentials

COUNT = 130


async def test_each_connection_has_made_a_call_and_they_end_together() -> None:
    async with FakeSqs(CREDENTIALS) as fake:
        callers = IdleCallers(fake.port, COUNT)
        await asyncio.to_thread(callers.__enter__)
        assert fake.calls == {"ListQueues": COUNT}
        await asyncio.to_thread(callers.__exit__, None, None, None)


async def test_a_refused_call_is_an_error() -> None:
    async with FakeSqs(SigningCredentials("AKIATEST", "another secret")) as fake:
        with pytest.raises(ServerError):
            await asyncio.to_thread(IdleCallers(fake.port, 1).__enter__)
