"""SIGTERM under load, and two processes on one data folder."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.closing import closing
from tests.faults.tools.bodies import body_of
from tests.faults.tools.client import Client, InDoubt, Unreachable, url_of
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic
from tests.servers.waiting import until

CLIENTS = 16


class _Sender:
    """Sends until the server has ended.  No send may be refused."""

    def __init__(self, server: FaultyServer, name: str) -> None:
        self.acknowledged: set[str] = set()
        self.unanswered: set[str] = set()
        self.calls = 0
        self._server = server
        self._name = name

    async def run(self) -> None:
        async with closing(Client(self._server)) as client:
            while True:
                self.calls += 1
                key = f"{self._name}-{self.calls}"
                try:
                    await client.call("SendMessage", QueueUrl=url_of("letters"), MessageBody=body_of(key, 30))
                except Unreachable:
                    return
                except InDoubt:
                    self.unanswered.add(key)
                else:
                    self.acknowledged.add(key)


@pytest.fixture(params=[0, 2], ids=["one-process", "two-frontends"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyServer]:
    """A server in one process, and one of several."""
    made = FaultyServer(tmp_path, {"FRONTENDS": str(request.param)})
    yield made
    made.kill()


async def test_a_call_is_answered_or_was_never_taken(either: FaultyServer) -> None:
    server = either
    await server.start_with()
    client = Client(server)
    await client.call("CreateQueue", QueueName="letters")
    await client.call("CreateQueue", QueueName="empty")
    poll = asyncio.create_task(client.call("ReceiveMessage", QueueUrl=url_of("empty"), WaitTimeSeconds=20))
    senders = [_Sender(server, str(number)) for number in range(CLIENTS)]
    tasks = [asyncio.create_task(sender.run()) for sender in senders]
    await until(lambda: sum(sender.calls for sender in senders) >= 500)
    process = server.running()
    process.send_signal(signal.SIGTERM)
    assert await poll == {}, "a long poll ends with an empty answer"
    await client.close()
    await asyncio.gather(*tasks)
    assert await asyncio.to_thread(process.wait, 30) == 0
    server.kill()
    await server.start_with()
    stored = [key for key, _ in await client.receive_all(url_of("letters"), VisibilityTimeout=600)]
    await client.close()
    acknowledged = {key for sender in senders for key in sender.acknowledged}
    unanswered = {key for sender in senders for key in sender.unanswered}
    assert len(stored) == len(set(stored))
    assert set(stored) == acknowledged, f"unanswered and yet stored: {unanswered & set(stored)}"


@pytest.mark.long
async def test_restarts_under_load(either: FaultyServer) -> None:
    server = either
    await server.start_with()
    async with Traffic(server, 7).running() as traffic:
        for _ in range(3):
            await traffic.answered(100)
            assert await asyncio.to_thread(server.stop) == 0
            await server.start_with()
        await traffic.check()


async def test_a_second_process_refuses(server: FaultyServer, tmp_path: Path) -> None:
    await server.start_with()
    other = FaultyServer(tmp_path / "other", data=server.data)
    with pytest.raises(RuntimeError, match=rf"ended with 1:[\s\S]*in use by another Holdfast \(process {server.pid}\)"):
        await other.start_with()
    assert "Traceback" not in other.log_text()
    assert server.ready()
    await asyncio.to_thread(server.stop)
    await other.start_with()
    assert await asyncio.to_thread(other.stop) == 0


@pytest.mark.long
async def test_a_second_signal_ends_it_at_once_and_loses_nothing(server: FaultyServer) -> None:
    await server.start_with()
    async with Traffic(server, 8).running() as traffic:
        await traffic.answered(100)
        process = server.running()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, 30)
        assert code in (0, 128 + signal.SIGTERM)
        server.kill()
        await server.start_with()
        await traffic.check()
