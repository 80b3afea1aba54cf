"""Push of queues over a backend in memory: outcomes, pauses, order, shares, and the usage that is counted."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from backend.api import ChangeVisibility, Delete, Receive, ReceivedMessage, Unavailable, Watch
from billing.metering.meter import Meter
from frontend.push import queue_pusher as module
from frontend.push.capacity import UNITS
from frontend.push.endpoint import Endpoints
from frontend.push.format import QueueFormat
from frontend.push.instruments import PUSHES
from frontend.push.queue_pusher import PushContext, QueuePusher
from frontend.push.request import PushRequest
from frontend.push.target import PushTarget, secrets_of_queue
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView
from tests.frontend.push.endpoints import OK, PushedCall, PushEndpoint, serving, status
from tests.frontend.service import KEY, NAMING, FrontendService, running
from tests.servers.waiting import until


class _World:
    """A service, an endpoint, and pushers that the test starts."""

    def __init__(self, service: FrontendService, server: PushEndpoint, endpoints: Endpoints) -> None:
        self.service = service
        self.server = server
        self.context = PushContext(service.app.services, endpoints)
        self.pushers: list[QueuePusher] = []

    async def queue(self, name: str = "q", **attributes: str) -> str:
        return await self.service.make_queue(name, **{"HoldfastPushUrl": self.server.url, **attributes})

    async def push(self, name: str = "q") -> QueuePusher:
        pusher = QueuePusher(self.context, KEY.account, name)
        self.pushers.append(pusher)
        pusher.start()
        return pusher

    async def send(self, url: str, *bodies: str, group: str | None = None) -> None:
        for body in bodies:
            members: dict[str, Any] = {"QueueUrl": url, "MessageBody": body}
            if group is not None:
                members["MessageGroupId"] = group
            answer = await self.service.json("SendMessage", members)
            assert answer.status == 200, answer.content

    async def set(self, url: str, **attributes: str) -> None:
        answer = await self.service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": attributes})
        assert answer.status == 200, answer.content

    async def delivered(self, count: int) -> None:
        """Wait until so many calls were received and nothing is stored any more."""
        await until(lambda: len(self.server.calls) >= count)
        await until(self.is_empty)

    async def is_given_back(self, times: int) -> None:
        await until(lambda: len(self.given_back()) == times)

    async def is_empty(self) -> bool:
        return not await self.service.backend.stored()

    def given_back(self) -> list[int]:
        """Visibility timeouts with which messages were given back."""
        return [
            seconds for command in self.service.backend.calls_of(ChangeVisibility) for _, seconds in command.changes
        ]


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_World]:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)  # a step of the test's clock wakes no one who waits
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(tmp_path))
        server = await stack.enter_async_context(serving())
        endpoints = Endpoints([ip_network("127.0.0.0/8")])
        stack.callback(endpoints.close)
        made = _World(service, server, endpoints)
        yield made
        for pusher in made.pushers:
            await pusher.stop(10)
        assert made.context.capacity.free == UNITS, "all capacity is given back"
        assert made.context.calls == 0


async def test_messages_are_delivered_and_deleted(world: _World) -> None:
    url = await world.queue()
    await world.send(url, "first")
    await world.push()
    await world.delivered(1)
    await world.send(url, *map(str, range(30)))
    await world.delivered(31)
    assert sorted(world.server.bodies) == sorted(["first", *map(str, range(30))])
    queue = await world.service.store.queues.get_queue(KEY.account, "q")
    (secret,) = secrets_of_queue(queue, NAMING)
    assert all(call.is_signed_by(secret) for call in world.server.calls)
    assert len({call.headers["holdfast-message-id"] for call in world.server.calls}) == 31
    assert world.server.calls[0].headers["holdfast-receive-count"] == "1"
    (receive, *_) = world.service.backend.calls_of(Receive)
    assert receive.options.visibility_seconds == 30, "the queue's own, which is longer than a call"


async def test_message_stays_hidden_for_longer_than_a_call(world: _World) -> None:
    url = await world.queue(VisibilityTimeout="0", HoldfastPushTimeoutSeconds="60")
    await world.send(url, "a")
    await world.push()
    await world.delivered(1)
    (receive, *_) = world.service.backend.calls_of(Receive)
    assert receive.options.visibility_seconds == 60 + module.MARGIN_SECONDS


async def test_new_secret_signs_beside_the_previous_one(world: _World) -> None:
    url = await world.queue()
    await world.push()
    shown = await world.service.rest("GET", "/queues/q/push-secret")
    assert shown.json == {"version": 1, "secret": shown.json["secret"], "previous": None}
    await world.set(url, HoldfastPushSecretVersion="2")
    await world.send(url, "a")
    await world.delivered(1)
    now = (await world.service.rest("GET", "/queues/q/push-secret")).json
    assert (now["version"], now["previous"]) == (2, shown.json["secret"])
    assert world.server.calls[0].is_signed_by(now["secret"], 0)
    assert world.server.calls[0].is_signed_by(now["previous"], 1)
    assert world.service.audited()[-1]["action"] == "queue.push_secret"


@pytest.mark.parametrize("code", [500, 404, 301, 302, 400, 204])
async def test_only_2xx_delivers(world: _World, code: int) -> None:
    url = await world.queue(HoldfastPushMinimumBackoffSeconds="100")
    world.server.answers(status(code))
    await world.send(url, "a")
    await world.push()
    if code == 204:
        await world.delivered(1)
        return
    await until(world.given_back)
    assert 100 <= world.given_back()[0] <= 120
    assert not world.service.backend.calls_of(Delete)
    assert not world.pushers[0].paused, "other messages may be delivered"


async def test_refused_message_goes_to_the_dead_letter_queue(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JITTER", 0)
    dead = await world.service.make_queue("dead")
    redrive = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{KEY.account}:dead", "maxReceiveCount": 3})
    url = await world.queue(RedrivePolicy=redrive, HoldfastPushMaximumBackoffSeconds="15")
    world.server.answers(*[status(500)] * 100)
    await world.send(url, "poison")
    await world.push()
    for attempt in range(1, 4):
        await world.is_given_back(attempt)
        world.service.clock.now += 16
    assert world.given_back() == [10, 15, 15]

    async def dead_bodies() -> list[str]:
        return await world.service.received(dead)

    received: list[str] = []

    async def moved() -> bool:
        received.extend(await dead_bodies())
        return bool(received)

    await until(moved)
    assert received == ["poison"]
    assert [call.headers["holdfast-receive-count"] for call in world.server.calls] == ["1", "2", "3"]


async def test_fifo_keeps_the_order_of_groups(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JITTER", 0)
    url = await world.queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    refused: list[str] = []

    async def answer(call: PushedCall) -> bytes:
        if call.body.endswith("1") and call.body not in refused:
            refused.append(call.body)
            return status(500)
        return OK

    world.server.answer = answer
    groups = ("a", "b", "c")
    for number in range(4):
        for group in groups:
            await world.send(url, f"{group}{number}", group=group)
    await world.push("q.fifo")
    await until(lambda: len(world.given_back()) == 3)
    assert sorted(world.server.bodies) == ["a0", "a1", "b0", "b1", "c0", "c1"], "a failed message holds its group"
    world.service.clock.now += 11
    await world.delivered(15)
    for group in groups:
        of_group = [body for body in world.server.bodies if body.startswith(group)]
        assert of_group == [f"{group}0", f"{group}1", f"{group}1", f"{group}2", f"{group}3"]
    assert {call.headers["holdfast-receive-count"] for call in world.server.calls if call.body[1] in "023"} == {"1"}


async def test_calls_at_once_are_bounded(world: _World) -> None:
    gate = asyncio.Event()

    async def wait(_: PushedCall) -> bytes:
        await gate.wait()
        return OK

    world.server.answer = wait
    url = await world.queue(HoldfastPushConcurrency="3")
    await world.send(url, *map(str, range(20)))
    await world.push()
    await until(lambda: world.server.open == 3)
    gate.set()
    await world.delivered(20)
    assert world.server.open_max == 3


@pytest.mark.parametrize("code", [429, 503])
async def test_throttling_slows_the_whole_queue_down(world: _World, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(module, "JITTER", 0)
    world.server.answers(status(code, "Retry-After: 200"))
    url = await world.queue(HoldfastPushConcurrency="1")
    await world.send(url, *map(str, range(5)))
    pusher = await world.push()
    await until(world.given_back)
    assert world.given_back() == [200]
    assert pusher.paused
    assert len(world.server.calls) == 1
    pusher._paused_until = 0.0
    world.service.clock.now += 201
    await world.delivered(6)


async def test_unreachable_endpoint_gets_fewer_calls(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS_FIRST", 1000)
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS_MAX", 1000)
    url = await world.queue(HoldfastPushUrl="http://127.0.0.1:1/", HoldfastPushConcurrency="100")
    await world.send(url, *map(str, range(40)))
    pusher = await world.push()
    await until(lambda: pusher.paused and not pusher._calls)
    assert pusher._allowed == 1
    receives = len(world.service.backend.calls_of(Receive))
    assert len(world.given_back()) <= 20, "the others were not received"
    await world.set(url, HoldfastPushUrl=world.server.url)
    await until(lambda: len(world.server.calls) >= 20)
    assert not pusher.paused, "another endpoint starts anew"
    assert len(world.service.backend.calls_of(Receive)) > receives


async def test_dead_endpoint_delays_no_other_queue(world: _World) -> None:
    gate = asyncio.Event()

    async def wait(call: PushedCall) -> bytes:
        if call.path.startswith("/dead"):
            await gate.wait()
        return OK

    world.server.answer = wait
    dead = world.server.url.replace("/push", "/dead")
    for number in range(3):
        url = await world.queue(f"dead{number}", HoldfastPushUrl=dead, HoldfastPushConcurrency="1000")
        await world.send(url, *map(str, range(20)))
        await world.push(f"dead{number}")
    await until(lambda: world.server.open >= 30)
    url = await world.queue()
    await world.push()
    await world.send(url, *(f"live{number}" for number in range(50)))
    await until(lambda: sum(body.startswith("live") for body in world.server.bodies) == 50)
    gate.set()
    await world.delivered(110)


async def test_errors_of_the_backend_are_survived(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ERROR_PAUSE_SECONDS_FIRST", 0.01)
    url = await world.queue()
    backend = world.service.backend
    failing = {"left": 3}

    async def fail(command: Any) -> Any:
        if failing["left"]:
            failing["left"] -= 1
            raise Unavailable("not now")
        return await backend.inside.call(command)

    backend.replaced[Receive] = fail
    await world.send(url, "a")
    await world.push()
    await world.delivered(1)
    assert not failing["left"]
    failing["left"] = 2
    backend.replaced = {Delete: fail}
    await world.send(url, "b")
    await world.delivered(2)
    assert world.server.bodies == ["a", "b"], "the delete was repeated, not the push"
    failing["left"] = module.DELETE_TRIES
    await world.send(url, "c")
    await until(lambda: not failing["left"])
    world.service.clock.now += 31
    await world.delivered(4)
    assert world.server.bodies == ["a", "b", "c", "c"]


async def test_wakeups_without_messages_do_not_spin(world: _World) -> None:
    await world.queue()

    async def always(_: Watch) -> bool:
        return True

    world.service.backend.replaced[Watch] = always
    await world.push()
    await until(lambda: len(world.service.backend.calls_of(Receive)) >= 2)
    before = len(world.service.backend.calls_of(Receive))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(world.service.backend.calls_of(Receive)) <= before + 1


async def test_pusher_ends_with_its_queue(world: _World) -> None:
    url = await world.queue()
    await world.send(url, "a")
    pusher = await world.push()
    await world.delivered(1)
    await world.service.json("DeleteQueue", {"QueueUrl": url})
    await until(lambda: pusher.ended)
    off = await world.queue("off", HoldfastPushUrl="")
    await world.send(off, "b")
    pusher = await world.push("off")
    await until(lambda: pusher.ended)
    assert world.server.bodies == ["a"]


async def test_endpoint_that_was_removed_gets_nothing_more(world: _World) -> None:
    url = await world.queue()
    await world.send(url, "a")
    held = await world.context.capacity.acquire("other", 0, UNITS, 1)
    pusher = await world.push()
    await until(lambda: world.context.capacity._waiting)
    await world.set(url, HoldfastPushUrl="")
    world.context.capacity.release("other", 0, UNITS * held)
    await until(lambda: pusher.ended)
    assert not world.server.calls
    assert await world.service.received(url) == ["a"], "it was not received by the pusher"


async def test_signature_is_left_out_without_secrets_and_what_is_obsolete_is_not_pushed(world: _World) -> None:
    url = await world.queue()

    class Format(QueueFormat):
        async def find_target(self, view: QueueView) -> PushTarget | None:
            target = await super().find_target(view)
            return None if target is None else msgspec.structs.replace(target, secrets=())

        async def build_request(
            self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
        ) -> PushRequest | None:
            return (
                None if stored.body == "obsolete" else PushRequest({"X-Format": "other"}, f"<{stored.body}>".encode())
            )

    world.context.queue_format = Format(NAMING)
    await world.send(url, "a", "obsolete")
    await world.push()
    await world.delivered(1)
    (call,) = world.server.calls
    assert (call.body, call.headers["x-format"]) == ("<a>", "other")
    assert "holdfast-signature" not in call.headers


async def test_queue_delivered_at_most_once(world: _World) -> None:
    url = await world.queue(HoldfastDeliveryGuarantee="at-most-once")
    world.server.answers(status(500))
    await world.send(url, "a", "b")
    await world.push()
    await world.delivered(2)
    assert not world.given_back()
    assert not world.service.backend.calls_of(Delete)


async def test_stop_finishes_calls_in_progress(world: _World) -> None:
    gate = asyncio.Event()

    async def wait(_: PushedCall) -> bytes:
        await gate.wait()
        return OK

    world.server.answer = wait
    url = await world.queue(HoldfastPushConcurrency="2")
    await world.send(url, "a", "b", "c")
    pusher = await world.push()
    await until(lambda: world.server.open == 2)
    stopping = asyncio.create_task(pusher.stop(20))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert len(await world.service.backend.stored()) == 1
    assert len(world.server.calls) == 2


async def test_pushes_are_metered_as_calls_of_a_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)
    meter = Meter.start(tmp_path / "usage", "host")
    async with running(tmp_path, meter=meter) as service, serving() as server:
        endpoints = Endpoints([ip_network("127.0.0.0/8")])
        world = _World(service, server, endpoints)
        before = list(PUSHES.counts)
        url = await world.queue()
        server.answers(status(500))
        await world.send(url, "x" * 100_000)
        pusher = await world.push()
        await until(world.given_back)
        await pusher.stop(10)
        service.clock.now += 31
        again = await world.push()
        await world.delivered(2)
        await again.stop(10)
        cells = [(name, cell) for name, cell in meter.cells_of.items() if isinstance(name, tuple)]
        counted = {name[2]: meter.counters[cell : cell + 9] for name, cell in cells if len(name) == 4}
        receive, delete, change = (
            list(counted[action]) for action in ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility")
        )
        assert (receive[0], receive[4], receive[5], receive[7]) == (2, 4, 2, 200_000)
        assert (delete[0], delete[4], delete[5]) == (1, 1, 1)
        assert (change[0], change[4], change[5]) == (1, 1, 1)
        grown = [now - then for now, then in zip(PUSHES.counts, before, strict=True)]
        assert grown[PUSHES.index("delivered")] == 1
        assert grown[PUSHES.index("refused")] == 1
        endpoints.close()
    await meter.close()
