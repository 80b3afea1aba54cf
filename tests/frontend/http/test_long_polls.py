"""Waiting receives: ended by a message, by the client's disconnect, and by a drain."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from backend.api import OverLimit, Receive, ReceivedMessage
from frontend.http.asgi import ClientGone
from frontend.http.long_polls import LongPolls
from frontend.queues.payload import FORMAT, Payload, encode
from frontend.request import instruments
from tests.behaviour.wire import WireRequest
from tests.behaviour.world import asgi_scope
from tests.frontend.request.test_throttle import limit
from tests.frontend.service import FrontendService, sign

MESSAGE = ReceivedMessage("m", "h", encode(Payload(FORMAT, "body", b"\0" * 16, "sender")), 1, 1, 1000, 1000)


async def never() -> Any:
    await asyncio.Future()


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def test_the_awaited_value_is_returned() -> None:
    polls = LongPolls()
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(polls.run(future, never, "nothing"))
    await asyncio.sleep(0)
    future.set_result("something")
    assert await task == "something"


async def test_a_drain_ends_the_wait_with_nothing() -> None:
    polls = LongPolls()
    tasks = [asyncio.create_task(polls.run(never(), never, "nothing")) for _ in range(3)]
    await asyncio.sleep(0)
    polls.drain()
    assert await asyncio.gather(*tasks) == ["nothing"] * 3
    assert polls.draining


class Late:
    """An awaitable that is past cancellation."""

    def __init__(self) -> None:
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.cancelled = asyncio.Event()

    async def __call__(self) -> str:
        try:
            return await asyncio.shield(self.result)
        except asyncio.CancelledError:
            self.cancelled.set()
            return await self.result


async def test_messages_that_arrive_during_a_drain_are_returned() -> None:
    polls, late = LongPolls(), Late()
    task = asyncio.create_task(polls.run(late(), never, "nothing"))
    await asyncio.sleep(0)
    polls.drain()
    await late.cancelled.wait()
    late.result.set_result("something")
    assert await task == "something"
    assert task.cancelling() == 0


async def test_messages_that_arrive_after_the_client_has_left_are_not_returned() -> None:
    polls, late, receive = LongPolls(), Late(), _Telling()
    task = asyncio.create_task(polls.run(late(), receive, "nothing"))
    await asyncio.sleep(0)
    assert receive.on_gone is not None
    receive.on_gone()
    await late.cancelled.wait()
    late.result.set_result("something")
    with pytest.raises(ClientGone):
        await task
    assert task.cancelling() == 0


async def test_a_client_that_leaves_ends_the_wait() -> None:
    polls = LongPolls()
    cancelled = asyncio.Event()

    async def waiting() -> str:
        try:
            return await never()  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ClientGone):
        await polls.run(waiting(), gone, "nothing")
    assert cancelled.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


class _Telling:
    """A ``receive`` of our own server."""

    def __init__(self) -> None:
        self.on_gone: Callable[[], None] | None = None

    def __call__(self) -> Awaitable[Any]:
        raise AssertionError("nobody has to receive")

    def call_when_gone(self, on_gone: Callable[[], None] | None) -> None:
        self.on_gone = on_gone


async def test_a_reported_disconnect_ends_the_wait() -> None:
    receive = _Telling()
    task = asyncio.create_task(LongPolls().run(never(), receive, "nothing"))
    await asyncio.sleep(0)
    assert receive.on_gone is not None
    receive.on_gone()
    with pytest.raises(ClientGone):
        await task
    assert receive.on_gone is None


async def test_once_the_wait_is_over_no_notification_is_needed() -> None:
    receive = _Telling()
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(LongPolls().run(future, receive, "nothing"))
    await asyncio.sleep(0)
    on_gone = receive.on_gone
    assert on_gone is not None
    future.set_result("something")
    await asyncio.sleep(0)
    on_gone()  # the client disconnects while its answer is being written
    assert await task == "something"
    assert receive.on_gone is None
    assert task.cancelling() == 0


async def test_another_cancellation_is_passed_on() -> None:
    polls = LongPolls()
    task = asyncio.create_task(polls.run(never(), never, "nothing"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_what_is_waited_for_is_passed_on() -> None:
    async def failing() -> str:
        raise OverLimit

    with pytest.raises(OverLimit):
        await LongPolls().run(failing(), never, "nothing")


class _Waiting:
    """Receives that wait for the test."""

    def __init__(self, service: FrontendService) -> None:
        service.backend.replaced[Receive] = self._receive
        self.waiting = asyncio.Event()
        self.result: asyncio.Future[list[ReceivedMessage]] = asyncio.get_running_loop().create_future()
        self.short: list[ReceivedMessage] | Exception = []
        self.waits: list[float] = []
        self.released = False

    async def _receive(self, command: Receive) -> list[ReceivedMessage]:
        self.waits.append(command.wait_time)
        if not command.wait_time:
            if isinstance(self.short, Exception):
                raise self.short
            return self.short
        self.waiting.set()
        try:
            return await self.result
        except asyncio.CancelledError:
            self.released = True
            raise


class Poll:
    """A signed ReceiveMessage on a raw connection, or one of REST at a path."""

    def __init__(self, service: FrontendService, url: str, *, rest: str | None = None, **members: Any) -> None:
        body = orjson.dumps({"QueueUrl": url, "WaitTimeSeconds": 20, **members})
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
        method, target = "POST", "/"
        if rest is not None:
            method, target, body, headers = "GET", rest, b"", {}
        signed = sign(method, target, body, headers, service.clock())
        path, _, query = target.partition("?")
        self.scope = asgi_scope(WireRequest(method, path, signed, query, body))
        self.body: bytes | None = body
        self.left = asyncio.Event()
        self.sent: list[Any] = []
        send: Callable[[Any], Awaitable[None]] = self.send
        self.task = asyncio.create_task(service.app(self.scope, self.receive, send))

    async def receive(self) -> dict[str, Any]:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def answer(self) -> Any:
        await self.task
        assert self.sent[0]["status"] == 200, self.sent
        return orjson.loads(self.sent[1]["body"])


async def waiting_backend(service: FrontendService) -> tuple[_Waiting, str]:
    url = await service.make_queue("q")
    return _Waiting(service), url


async def test_a_poll_ends_with_the_first_message(service: FrontendService) -> None:
    backend, url = await waiting_backend(service)
    poll = Poll(service, url, MaxNumberOfMessages=10)
    await backend.waiting.wait()
    backend.result.set_result([MESSAGE])
    assert (await poll.answer())["Messages"][0]["Body"] == "body"
    assert backend.waits == [20]


async def test_a_receive_from_a_queue_that_is_not_empty_is_none_that_waits(service: FrontendService) -> None:
    backend, url = await waiting_backend(service)
    await limit(service, long_polls=0)
    backend.short = [MESSAGE]
    assert (await Poll(service, url).answer())["Messages"]
    assert backend.waits == [0]


async def test_a_poll_at_the_limit_in_flight_waits_and_is_answered_with_nothing(service: FrontendService) -> None:
    backend, url = await waiting_backend(service)
    await limit(service, long_polls=1)
    backend.short = OverLimit()
    poll = Poll(service, url)
    await backend.waiting.wait()
    backend.result.set_result([])
    assert await poll.answer() == {}
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 0})
    assert (answer.status, answer.code) == (403, "OverLimit")
    assert answer.message.startswith("Too many messages have been received without being deleted.")


@pytest.mark.parametrize("rest", [None, "/v1/queues/q/messages?wait=20"])
async def test_a_client_that_leaves_lets_its_claim_go(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, rest: str | None
) -> None:
    backend, url = await waiting_backend(service)
    counted: list[str] = []
    monkeypatch.setattr(instruments, "answered", lambda *_: counted.append("answered"))
    monkeypatch.setattr(instruments, "gone", lambda *_: counted.append("gone"))
    poll = Poll(service, url, rest=rest)
    await backend.waiting.wait()
    poll.left.set()
    await poll.task
    assert backend.released
    assert poll.sent == []
    assert counted == ["gone"], "neither metered nor counted as answered"


async def test_a_drain_answers_with_nothing(service: FrontendService) -> None:
    backend, url = await waiting_backend(service)
    poll = Poll(service, url)
    await backend.waiting.wait()
    service.app.start_drain()
    assert await poll.answer() == {}
    assert backend.released
    backend.waits.clear()
    assert await Poll(service, url).answer() == {}
    assert backend.waits == [0]


async def test_the_queue_determines_the_wait_of_a_receive(service: FrontendService) -> None:
    backend, url = await waiting_backend(service)
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"ReceiveMessageWaitTimeSeconds": "7"}})
    poll = Poll(service, url, WaitTimeSeconds=None)
    await backend.waiting.wait()
    assert backend.waits[-1] == 7
    backend.result.set_result([])
    assert await poll.answer() == {}
