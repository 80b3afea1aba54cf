"""Live numbers as server-sent events: shared by followers, and ended with the follower's credential."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, MutableMapping
from typing import Any

import pytest

from auth.errors import IssuerUnreachable
from auth.principal import Principal
from backend.api import QueueMeasures
from frontend.app import FrontendApp
from frontend.rest.live import events, feeds
from frontend.rest.live.feeds import TooManyFollowers
from tests.frontend.cases import CALLERS
from tests.frontend.service import HOST, KEY, FrontendService
from tests.servers.waiting import until

OPERATOR = CALLERS["operator"]


class EventsConnection:
    """A connection that follows live numbers."""

    def __init__(self, app: FrontendApp, query: str, token: str) -> None:
        self.stalled = asyncio.Event()
        """Set while the client does not read."""
        self.on_send: Callable[[], None] = lambda: None
        self._received: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events",
            "raw_path": b"/v1/events",
            "query_string": query.encode(),
            "headers": [(b"host", HOST.encode()), (b"authorization", b"Bearer " + token.encode())],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "http_version": "1.1",
            "server": (HOST, 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self.stalled.is_set():
            await asyncio.Event().wait()
        self.on_send()
        await self._received.put(message)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def status(self) -> int:
        return int((await self._received.get())["status"])

    async def event(self) -> tuple[str, Any] | None:
        """The next event; None: the answer has ended."""
        while (body := (await self._received.get())["body"]) == feeds.BEAT:
            pass
        if not body:
            return None
        kind, data = body.decode().rstrip().split("\n")
        return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def close(self) -> None:
        self._gone.set()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(feeds, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(feeds, "PAUSE_FACTOR", 0)


async def api_key(service: FrontendService, **rights: Any) -> tuple[str, str]:
    if await service.store.credentials.get_access_key(OPERATOR.access_key_id) is None:
        await service.store.credentials.put_access_key(OPERATOR)
    asked = {"name": "viewer", "kind": "api", "role": "admin", **rights}
    made = (await service.rest("POST", "/keys", asked, by=OPERATOR)).json
    return made["id"], made["secret"]


@pytest.fixture
async def connections(service: FrontendService) -> AsyncIterator[list[EventsConnection]]:
    """Connections that are closed at the end."""
    made: list[EventsConnection] = []
    yield made
    for one in made:
        await one.close()


def depth(event: tuple[str, Any] | None) -> Any:
    assert event is not None
    kind, shown = event
    assert kind == "queue", shown
    return next(one["value"] for one in shown["metrics"] if one["name"] == "ApproximateNumberOfMessagesVisible")


async def test_followers_of_a_queue_share_what_is_computed(
    service: FrontendService, connections: list[EventsConnection]
) -> None:
    await service.make_queue("q")
    _, key = await api_key(service)
    connections += [EventsConnection(service.app, "queue=q", key) for _ in range(20)]
    for one in connections:
        assert await one.status() == 200
        assert depth(await one.event()) == 0
    before = len(service.backend.calls_of(QueueMeasures))
    await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "b"})
    sent = [asyncio.create_task(one.event()) for one in connections]
    while not all(task.done() for task in sent):
        await asyncio.sleep(0)
    assert {depth(task.result()) for task in sent} == {1}
    assert len(service.backend.calls_of(QueueMeasures)) - before < 20, "not once for each"


async def test_a_list_is_followed(service: FrontendService, connections: list[EventsConnection]) -> None:
    await service.make_queue("q")
    _, key = await api_key(service)
    connections.append(EventsConnection(service.app, "prefix=q&limit=5", key))
    assert await connections[0].status() == 200
    event = await connections[0].event()
    assert event is not None
    assert event[0] == "queues"
    assert [one["name"] for one in event[1]["queues"]] == ["q"]


async def test_it_ends_when_the_key_is_revoked(service: FrontendService, connections: list[EventsConnection]) -> None:
    await service.make_queue("q")
    key_id, key = await api_key(service)
    _, other = await api_key(service)
    connections += [EventsConnection(service.app, "queue=q", one) for one in (key, key, other)]
    for one in connections:
        assert await one.status() == 200
        await one.event()
    await service.rest("DELETE", f"/keys/{key_id}", by=OPERATOR)
    revoked, its_twin, stays = connections
    assert await revoked.event() is None
    assert await its_twin.event() is None
    await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "b"})
    assert depth(await stays.event()) == 1


async def test_a_session_is_followed_until_its_token_expires(
    service: FrontendService, connections: list[EventsConnection]
) -> None:
    _, key = await api_key(service, scopes=["send"])  # which shows no queues
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    bought = await service.unsigned("POST", "/v1/token", b'{"seconds": 60}', headers)
    connections.append(EventsConnection(service.app, "session=true", bought.json["token"]))
    assert await connections[0].status() == 200
    assert await connections[0].event() == ("session", {"expires": bought.json["expires"]})
    service.clock.now += 61
    assert await connections[0].event() is None
    connections.append(EventsConnection(service.app, "session=true", bought.json["token"]))
    assert await connections[1].status() == 401


async def test_it_ends_when_the_tenant_is_suspended_or_the_process_drains(
    service: FrontendService, connections: list[EventsConnection]
) -> None:
    await service.make_queue("q")
    _, key = await api_key(service)
    connections.append(EventsConnection(service.app, "queue=q", key))
    assert await connections[0].status() == 200
    await connections[0].event()
    service.app.start_drain()
    assert await connections[0].event() is None


async def test_nothing_is_computed_without_followers(service: FrontendService) -> None:
    await service.make_queue("q")
    _, key = await api_key(service)
    one = EventsConnection(service.app, "queue=q", key)
    assert await one.status() == 200
    await one.event()
    await one.close()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "feeds"])


@pytest.mark.parametrize(
    ("query", "rights", "status"),
    [
        ("queue=none", {}, 404),
        ("queue=q!", {}, 400),
        ("account=999999999999", {}, 403),
        ("", {"scopes": ["send"]}, 403),
        ("queue=other", {"prefixes": ["q"]}, 403),
        ("sort=colour", {}, 400),
        ("limit=0", {}, 400),
        ("limit=101", {}, 400),
    ],
)
async def test_what_is_refused(
    service: FrontendService,
    connections: list[EventsConnection],
    query: str,
    rights: dict[str, Any],
    status: int,
) -> None:
    await service.make_queue("q")
    _, key = await api_key(service, **rights)
    connections.append(EventsConnection(service.app, query, key))
    assert await connections[0].status() == status


async def test_followers_count_as_waiting_receives(
    service: FrontendService, connections: list[EventsConnection]
) -> None:
    await service.make_queue("q")
    _, key = await api_key(service)
    await service.rest("PATCH", f"/tenants/{KEY.account}/limits", {"long_polls": 1}, by=OPERATOR)
    for status in (200, 429):
        connections.append(EventsConnection(service.app, "queue=q", key))
        assert await connections[-1].status() == status
    await connections[0].close()
    connections.append(EventsConnection(service.app, "queue=q", key))
    assert await connections[-1].status() == 200


async def test_a_process_has_a_bounded_number_of_followers(
    service: FrontendService, connections: list[EventsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "FOLLOWERS_MAX", 1)
    await service.make_queue("q")
    _, key = await api_key(service)
    for status in (200, 503):
        connections.append(EventsConnection(service.app, "queue=q", key))
        assert await connections[-1].status() == status


def follower_of(account: str, credential: str = "k") -> Principal:
    return Principal(account, "AID", f"arn:aws:iam::{account}:root", credential)


def test_an_account_and_a_credential_have_shares_of_the_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FOLLOWERS_MAX", 100)
    slots = feeds.FollowerSlots()

    def taken(account: str, credential: str) -> int:
        for count in range(feeds.FOLLOWERS_MAX):
            try:
                slots.take(follower_of(account, credential))
            except TooManyFollowers:
                return count
        raise AssertionError("one account took all")

    assert taken("1", "a") == 25
    assert taken("1", "b") == 25, "half of the process's"
    assert taken("1", "c") == 0
    assert taken("2", "a") == 13, "a quarter of what the other account leaves"
    for _ in range(25):
        slots.release(follower_of("1", "a"))
    slots.take(follower_of("1", "c"))


class FeedClients:
    """Followers of feeds that are computed here."""

    def __init__(self) -> None:
        self.feeds = feeds.Feeds()
        self._keys: list[tuple[Any, feeds.Follower]] = []

    def follow(self, account: str, read: Any, check: Any = None, name: str = "f") -> feeds.Follower:
        async def valid() -> None: ...

        feed = feeds.Feed(account, "queue", read)
        made = self.feeds.follow((account, name), feed, follower_of(account), name.encode(), check or valid)
        self._keys.append(made)
        return made[1]

    def close(self) -> None:
        for key, follower in self._keys:
            self.feeds.leave(key, follower)


@pytest.fixture
async def clients() -> AsyncIterator[FeedClients]:
    made = FeedClients()
    yield made
    made.close()


async def numbers() -> bytes:
    return b"{}"


async def fails() -> Any:
    raise IssuerUnreachable("the issuer is away")


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_credential_that_cannot_be_checked_ends_its_follower_alone(
    clients: FeedClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "CHECK_SECONDS_MAX", 0.01)
    stays = clients.follow("1", numbers, name="stays")
    ended = [clients.follow("1", numbers, check, f"f{at}") for at, check in enumerate((fails, never))]
    await until(lambda: all(one.ended for one in ended))
    assert await stays.next() is not None
    assert not stays.ended


async def test_an_unknown_error_is_an_event(clients: FeedClients) -> None:
    event = await clients.follow("1", fails).next()
    assert event is not None
    assert event.startswith(b"event: problem")
    assert b"issuer" not in event


async def test_a_slow_account_does_not_delay_others(clients: FeedClients, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = clients.follow("1", never)
    assert await clients.follow("2", numbers).next() is not None
    await until(lambda: clients.feeds.computed > 5)
    clients.follow("1", numbers, name="another")
    assert slow.feed.version == 0


async def test_a_computation_has_a_maximum_duration(clients: FeedClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "READ_SECONDS_MAX", 0.01)
    event = await clients.follow("1", never).next()
    assert event is not None
    assert b"503" in event


async def test_the_first_value_does_not_wait_for_the_pause(
    clients: FeedClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(feeds, "PAUSE_SECONDS_MAX", 1e9)
    for account in ("1", "2", "1"):
        assert await clients.follow(account, numbers, name=f"f{clients.feeds.computed}").next() is not None
    assert clients.feeds.computed == 3


async def test_a_failed_task_ends_the_followers_and_others_begin_new_ones(
    clients: FeedClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(feeds.FeedTurns, "next", broken)
        assert await clients.follow("1", numbers).next() is None
    assert await clients.follow("1", numbers).next() is not None


async def test_waiting_costs_no_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0.0

    def spend(seconds: float) -> None:
        nonlocal spent
        spent += seconds

    async def waits() -> str:
        spend(1)
        asyncio.get_running_loop().call_soon(spend, 100)
        await asyncio.sleep(0)
        spend(2)
        return "done"

    monkeypatch.setattr(feeds, "thread_time", lambda: spent)
    used = feeds.ProcessorTime()
    assert await used.measure(waits()) == "done"
    assert used.seconds == 3, "the time of another task is not counted"


async def test_what_followers_cost_lengthens_the_pause(
    service: FrontendService, connections: list[EventsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computations cost nothing here, and what is written costs a year, after which a first value does not wait."""
    spent = 0.0

    def spend() -> None:
        nonlocal spent
        spent += 365 * 86_400

    monkeypatch.setattr(feeds, "thread_time", lambda: spent)
    monkeypatch.setattr(feeds, "PAUSE_FACTOR", 1)
    monkeypatch.setattr(feeds, "PAUSE_SECONDS_MAX", 1e9)
    for name in ("q", "other"):
        await service.make_queue(name)
    key_id, key = await api_key(service)
    connections += [EventsConnection(service.app, f"queue={name}", key) for name in ("q", "other")]
    for one in connections:
        assert await one.status() == 200
        assert depth(await one.event()) == 0
    computed = len(service.backend.calls_of(QueueMeasures))
    await until(lambda: len(service.backend.calls_of(QueueMeasures)) > computed + 4)
    connections[0].on_send = spend
    await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "b"})
    assert depth(await connections[0].event()) == 1
    await service.make_queue("third")
    connections.append(EventsConnection(service.app, "queue=third", key))
    assert await connections[2].status() == 200
    assert depth(await connections[2].event()) == 0
    computed = len(service.backend.calls_of(QueueMeasures))
    await service.rest("DELETE", f"/keys/{key_id}", by=OPERATOR)
    for one in connections:
        assert await one.event() is None
    assert len(service.backend.calls_of(QueueMeasures)) <= computed + 1, "one may have been under way"


async def test_one_key_is_checked_once_for_all_that_it_follows(
    service: FrontendService, connections: list[EventsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    ended = feeds._end_invalid

    async def noted(groups: Iterator[list[feeds.Follower]]) -> None:
        waiting = list(groups)
        rounds.append(len(waiting))
        await ended(iter(waiting))

    monkeypatch.setattr(feeds, "_end_invalid", noted)
    _, key = await api_key(service)
    for name in ("q", "other"):
        await service.make_queue(name)
        connections.append(EventsConnection(service.app, f"queue={name}", key))
        assert await connections[-1].status() == 200
        await connections[-1].event()
    seen = len(rounds)
    await until(lambda: len(rounds) > seen + 1)
    assert rounds[-1] == 1


async def test_a_client_that_does_not_read_is_disconnected(
    service: FrontendService, connections: list[EventsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SEND_SECONDS_MAX", 0.01)
    await service.make_queue("q")
    _, key = await api_key(service)
    one = EventsConnection(service.app, "queue=q", key)
    connections.append(one)
    assert await one.status() == 200
    await one.event()
    one.stalled.set()
    await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "b"})
    await until(one.task.done)
    assert one.task.exception() is None


async def test_a_follower_without_news_gets_the_age_of_its_numbers(
    service: FrontendService, connections: list[EventsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BEAT_SECONDS", 0.01)
    await service.make_queue("q")
    _, key = await api_key(service)
    connections.append(EventsConnection(service.app, "limit=5", key))
    assert await connections[0].status() == 200
    shown = await connections[0].event()
    assert shown is not None
    assert shown[0] == "queues"
    age = await connections[0].event()
    assert age is not None
    assert (age[0], list(age[1])) == ("age", ["seconds"])
    assert age[1]["seconds"] >= 0


async def test_an_account_whose_last_follower_left_early_is_served_again() -> None:
    """A computation that is cancelled before its first step does not know that it was its account's turn."""
    made = feeds.Feeds()

    async def read() -> bytes:
        return b"{}"

    async def valid() -> None: ...

    def follow() -> tuple[Hashable, feeds.Follower]:
        return made.follow("key", feeds.Feed(OPERATOR.account, "queues", read), OPERATOR.principal, b"", valid)

    key, first = follow()
    await asyncio.sleep(0)  # the computation is a task now, which has not begun
    made.leave(key, first)
    key, second = follow()
    async with asyncio.timeout(30):
        assert await second.next() == b"event: queues\ndata: {}\n\n"
    made.leave(key, second)
