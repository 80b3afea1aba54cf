"""The alarm keeper and webhook delivery: over a real store, two frontends and a hook on the loopback."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from backend.api import Measures, NotificationCounts, QueueMeasures, Unavailable
from frontend import alarm_keeper as module
from frontend.alarm_keeper import Keeper, _Office
from frontend.alarms.alarms import AlarmDefinition, Alarms
from frontend.alarms.webhooks import Webhooks
from metadata_service.alarms import AlarmStatus, Notification
from metadata_service.clusters.election import Election
from metadata_service.store import StoreUnavailable
from metadata_service.topics import NewTopic
from tests.frontend.hooks import Hook
from tests.frontend.service import KEY, FrontendService, running
from tests.servers.waiting import until

VISIBLE = "ApproximateNumberOfMessagesVisible"
LOOPBACK = (ip_network("127.0.0.0/8"),)


class _World:
    """A service, its alarms, and keepers driven by the test."""

    def __init__(self, service: FrontendService, listening: Hook) -> None:
        self.service = service
        self.services = service.app.services
        self.hook = listening
        assert self.services.keyring is not None
        self.alarms = Alarms(service.store.alarms, self.services.keyring, Webhooks(LOOPBACK), service.clock)
        self.now = 0.0
        self.keepers: list[Keeper] = []

    def keeper(self, name: str = "one") -> Keeper:
        election = Election(_Office(self.service.store.alarms), name, clock=lambda: self.now, wall=lambda: self.now)
        made = Keeper(self.services, self.alarms, name, election=election, seconds=60)
        self.keepers.append(made)
        return made

    async def make(self, name: str = "deep", threshold: float = 2, metric: str = VISIBLE, queue: str = "q") -> str:
        asked = AlarmDefinition(queue, metric, "GreaterThanThreshold", threshold, 1, self.hook.url)
        _, secret = await self.alarms.create(KEY.account, name, asked)
        return secret

    async def send(self, count: int = 1) -> None:
        for _ in range(count):
            await self.service.send(self.service.url("q"), "b")

    async def status(self, name: str = "deep") -> AlarmStatus:
        found = await self.service.store.alarms.get_alarm(KEY.account, name)
        assert found is not None
        return found.status

    async def minute(self, keeper: Keeper) -> None:
        """Let the keeper evaluate a minute later."""
        self.service.clock.now += 60
        keeper._accounts = await self.service.store.alarms.alarm_accounts()
        await keeper.evaluate()

    async def until(self, condition: Callable[[AlarmStatus], object], name: str = "deep") -> AlarmStatus:
        async with asyncio.timeout(20):
            while not condition(status := await self.status(name)):
                await asyncio.sleep(0.01)
        return status


@pytest_asyncio.fixture
async def world(tmp_path: Path, listening: Hook, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_World]:
    monkeypatch.setattr(module, "PAUSE_SECONDS_FIRST", 0.01)
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(tmp_path))
        made = _World(service, listening)
        stack.push_async_callback(made.alarms.close)
        await service.make_queue("q")
        yield made
        for one in made.keepers:
            await one.close()


async def test_an_alarm_rings_and_calms_down(world: _World) -> None:
    secret = await world.make()
    keeper = world.keeper()
    await world.minute(keeper)
    assert (await world.status()).state == "OK"
    await world.send(3)
    await world.minute(keeper)
    status = await world.until(lambda status: status.delivered_s)
    assert (status.state, status.waiting, status.value) == ("ALARM", (), 3)
    (calls,) = world.hook.calls
    assert calls.is_signed_by(secret)
    assert calls.json["alarm"] == {
        "account": KEY.account,
        "name": "deep",
        "queue": "q",
        "metric": VISIBLE,
        "comparison": "GreaterThanThreshold",
        "threshold": 2.0,
        "minutes": 1,
    }
    assert (calls.json["type"], calls.json["previous_state"], calls.json["state"]) == (
        "alarm.state_changed",
        "OK",
        "ALARM",
    )
    assert calls.json["id"] == calls.headers["Idempotency-Key"]
    await world.minute(keeper)
    assert await world.status() == status, "it stays so, and nothing is written"
    await world.service.json("PurgeQueue", {"QueueUrl": world.service.url("q")})
    await world.minute(keeper)
    await world.until(lambda status: status.state == "OK" and not status.waiting)
    assert [one.json["state"] for one in world.hook.calls] == ["ALARM", "OK"]


async def test_counted_traffic_is_charged_by_its_rate(world: _World) -> None:
    sent, since = 1_000_000, 1
    backend = world.service.backend

    async def counting(command: QueueMeasures) -> list[Measures]:
        (one,) = await backend.inside.call(command)
        return [msgspec.structs.replace(one, sent=sent, since_ms=since)]

    backend.replaced[QueueMeasures] = counting
    await world.make(metric="NumberOfMessagesSent", threshold=100)
    keeper = world.keeper()
    await world.minute(keeper)
    assert (await world.status()).since_s == 0, "nobody knows what was in a minute"
    sent += 100
    await world.minute(keeper)
    assert (await world.status()).state == "OK"
    sent += 101
    await world.minute(keeper)
    assert ((await world.status()).state, (await world.status()).value) == ("ALARM", 101)
    sent, since = 5, 2
    await world.minute(keeper)
    assert ((await world.status()).state, (await world.status()).value) == ("OK", 5), "it was counted anew"


async def test_an_alarm_watches_a_topic_by_its_hidden_queue(world: _World) -> None:
    failed = 0
    backend = world.service.backend
    created = NewTopic(account=KEY.account, name="t", attributes={}, tags={}, now_ms=1, queue_attributes={})
    topic = await world.service.store.topics.create_topic(created)

    async def counting(command: QueueMeasures) -> list[Measures]:
        assert command.target.queue_id == topic.topic_id
        return [Measures(1, "~t", since_ms=1, notifications=NotificationCounts(failed=failed))]

    backend.replaced[QueueMeasures] = counting
    await world.make(metric="NumberOfNotificationsFailed", threshold=0, queue="~t")
    keeper = world.keeper()
    await world.minute(keeper)
    failed = 3
    await world.minute(keeper)
    status = await world.until(lambda status: status.delivered_s)
    assert (status.state, status.value) == ("ALARM", 3)
    (call,) = world.hook.calls
    assert call.json["reason"].startswith("NumberOfNotificationsFailed of topic t is 3, and has been > 0")
    assert (call.json["alarm"]["topic"], "queue" in call.json["alarm"]) == ("t", False)
    await world.service.store.topics.delete_topic(topic.topic_id)
    world.service.app.services.metadata.invalidate(KEY.account, "~t")
    for _ in range(4):
        await world.minute(keeper)
    assert (await world.status()).state == "INSUFFICIENT_DATA"


async def test_a_failed_webhook_is_called_again_with_the_same_id(world: _World) -> None:
    await world.make()
    world.hook.statuses = [500, 503]
    await world.send(3)
    keeper = world.keeper()
    await world.minute(keeper)
    status = await world.until(lambda status: status.delivered_s)
    assert (status.trouble, status.lost) == ("", 0)
    assert len(world.hook.calls) == 3
    assert len({one.json["id"] for one in world.hook.calls}) == 1


async def test_trouble_is_shown_and_given_up_in_the_end(world: _World) -> None:
    await world.make()
    world.hook.statuses = [404] * 1000
    await world.send(3)
    await world.minute(world.keeper())
    status = await world.until(lambda status: status.trouble)
    assert (status.trouble, len(status.waiting)) == ("the webhook at 127.0.0.1 has answered 404", 1)
    world.service.clock.now += module.GIVE_UP_SECONDS
    status = await world.until(lambda status: status.lost)
    assert (status.waiting, status.lost, status.state) == ((), 1, "ALARM")


async def test_the_next_process_sends_unsent_notifications(world: _World) -> None:
    await world.make()
    await world.send(3)
    one = world.keeper()
    world.hook.gate.clear()
    await world.minute(one)
    await until(lambda: world.hook.calls)
    await one.close()  # in the middle of the call
    assert len((await world.status()).waiting) == 1
    world.hook.gate.set()
    await world.minute(world.keeper("other"))
    await world.until(lambda status: status.delivered_s)
    assert len({calls.json["id"] for calls in world.hook.calls}) == 1
    assert len(world.hook.calls) == 2


async def test_concurrent_evaluations_make_one_notification(world: _World) -> None:
    await world.make()
    await world.send(3)
    one, other = world.keeper(), world.keeper("other")
    world.service.clock.now += 60
    for each in (one, other):
        each._accounts = [KEY.account]
    await asyncio.gather(one.evaluate(), other.evaluate())
    await world.until(lambda status: status.delivered_s and not status.waiting)
    assert len({calls.json["id"] for calls in world.hook.calls}) == 1


async def test_an_unavailable_queue_keeps_its_state_for_a_while(world: _World) -> None:
    await world.make()
    keeper = world.keeper()
    await world.minute(keeper)
    world.service.backend.fail_with = Unavailable("away")
    await world.minute(keeper)
    await world.minute(keeper)
    assert (await world.status()).state == "OK"
    await world.minute(keeper)
    assert (await world.status()).state == "INSUFFICIENT_DATA"


async def test_alarms_of_a_suspended_tenant_are_silent(world: _World) -> None:
    await world.make()
    await world.send(3)
    tenant = await world.service.tenant()
    await world.service.store.credentials.update_tenant(msgspec.structs.replace(tenant, state="suspended"))
    await world.minute(world.keeper())
    assert await world.status() == AlarmStatus()


async def test_a_deleted_alarm_sends_nothing(world: _World) -> None:
    await world.make()
    world.hook.statuses = [500] * 1000
    await world.send(3)
    keeper = world.keeper()
    await world.minute(keeper)
    await until(lambda: world.hook.calls)
    await world.service.store.alarms.delete_alarm(KEY.account, "deep")
    await until(lambda: not keeper._deliveries)


async def test_one_stands_in_when_the_other_has_gone(world: _World) -> None:
    one, other = world.keeper(), world.keeper("other")
    await one.turn()
    assert (await world.service.store.alarms.alarm_keeper()).version == 0, "without alarms there is no office"
    await world.make()
    await world.send(3)
    for each in (one, other):
        each._ask_due = 0
        await each.turn()
    assert (one._keeping, other._keeping) == (True, False)
    await world.until(lambda status: status.delivered_s)
    await one.close()
    await other.turn()
    assert other._keeping
    for _ in range(10):  # this process is suspended, and a third one sees it
        world.now += 2
        third = world.keepers[2] if len(world.keepers) > 2 else world.keeper("third")
        await third.turn()
    assert third._keeping
    await other.turn()
    assert not other._keeping


async def test_a_store_that_cannot_be_read_ends_it_and_is_reported_once(
    world: _World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.make()
    keeper = world.keeper()
    await keeper.turn()
    assert keeper._keeping
    stand = keeper._election.stand
    failures = 0

    async def failing() -> Any:
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise StoreUnavailable("away")
        return await stand()

    monkeypatch.setattr(keeper._election, "stand", failing)
    monkeypatch.setattr(module, "STAND_SECONDS", 0.01)
    with caplog.at_level(logging.ERROR, "holdfast.alarms"):
        keeper.start()
        await until(lambda: failures >= 4 and keeper._keeping)
    assert sum("cannot be evaluated now" in line.getMessage() for line in caplog.records) == 1


async def test_one_tenants_dead_hooks_keep_no_other_waiting(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of concurrent calls of an account is limited."""
    under_way = under_way_max = 0
    release = asyncio.Event()

    async def notify(alarm: Any, notification: Notification, *, test: bool = False) -> None:
        nonlocal under_way, under_way_max
        under_way += 1
        under_way_max = max(under_way_max, under_way)
        await release.wait()
        under_way -= 1

    monkeypatch.setattr(world.alarms, "notify", notify)
    for number in range(12):
        await world.make(f"deep-{number}")
    await world.send(3)
    keeper = world.keeper()
    await world.minute(keeper)
    await until(lambda: under_way >= module.CALLS_OF_ACCOUNT_AT_ONCE)
    await asyncio.sleep(0)
    release.set()
    for number in range(12):
        await world.until(lambda status: status.delivered_s, f"deep-{number}")
    assert under_way_max == module.CALLS_OF_ACCOUNT_AT_ONCE
