"""The cache of topics and their subscriptions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from metadata_service.nodes import cached_topics
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import SubscriptionExists, TopicExists, TopicNotFound
from metadata_service.topics import NewSubscription, NewTopic, Subscription, SubscriptionChange, Topic
from tests.closing import closing

ACCOUNT = "0" * 12


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "metadata.sqlite")
    async with closing(opened):
        yield opened


def new_topic(name: str = "news") -> NewTopic:
    return NewTopic(ACCOUNT, name, {}, {}, 0, {})


async def subscribe(client: TopicClient, topic: Topic, endpoint: str, policy: str = "{}") -> Subscription:
    new = NewSubscription(topic.topic_id, ACCOUNT, "sqs", endpoint, {"FilterPolicy": policy}, 0)
    return await client.create_subscription(topic, new)


async def test_what_is_created_or_read_is_cached(store: SQLiteStore) -> None:
    client = TopicClient(store.topics)
    assert client.cached(ACCOUNT, "news") is None
    topic = await client.create(new_topic())
    assert client.cached(ACCOUNT, "news") is topic
    other = TopicClient(store.topics)
    with pytest.raises(TopicExists):
        await other.create(new_topic())
    assert other.cached(ACCOUNT, "news") == await other.get(ACCOUNT, "news") == topic
    changed = await client.update(topic, attributes={"DisplayName": "n"})
    assert client.cached(ACCOUNT, "news") is changed
    await client.delete(changed)
    assert client.cached(ACCOUNT, "news") is None
    with pytest.raises(TopicNotFound):
        await other.get(ACCOUNT, "news")
    assert other.cached(ACCOUNT, "news") is None


async def test_subscriptions_are_cached_with_the_version_of_their_topic(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_topics, "PAGE", 2)
    client = TopicClient(store.topics)
    topic = await client.create(new_topic())
    assert await client.subscriptions(topic) == ()
    made = [await subscribe(client, topic, f"arn:{number}") for number in range(5)]
    assert client.cached(ACCOUNT, "news") is None, "the next call reads the new version"
    known = await client.get(ACCOUNT, "news")
    found = await client.subscriptions(known)
    assert {one.endpoint for one in found} == {one.endpoint for one in made}
    assert await client.subscriptions(known) is found
    with pytest.raises(SubscriptionExists):
        await subscribe(client, topic, "arn:1")
    await client.update_subscription(made[0], SubscriptionChange({"RawMessageDelivery": "true"}))
    assert await client.delete_subscription(made[1])
    assert not await client.delete_subscription(made[1])
    now = await client.subscriptions(await client.get(ACCOUNT, "news"))
    assert len(now) == 4
    assert [one.attributes for one in now if one.subscription_id == made[0].subscription_id] == [
        {"RawMessageDelivery": "true"}
    ]
    assert await client.subscriptions(known) is now, "an older version of the topic gets the newer subscriptions"


async def test_the_memory_of_cached_subscriptions_is_limited(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_topics, "SUBSCRIPTIONS_BYTES_MAX", 40_000)
    client = TopicClient(store.topics)
    topics = [await client.create(new_topic(name)) for name in ("a", "b", "c")]
    for topic in topics:
        for number in range(3):
            await subscribe(client, topic, f"arn:{number}", " " * 10_000)
    known = [await client.get(ACCOUNT, topic.name) for topic in topics]
    first, last = await client.subscriptions(known[0]), await client.subscriptions(known[2])
    assert await client.subscriptions(known[2]) is last, "those of one topic stay, whatever their size"
    again = await client.subscriptions(known[0])
    assert again is not first
    assert again == first


async def test_changes_by_other_processes_are_seen_after_a_poll(store: SQLiteStore) -> None:
    client, other = TopicClient(store.topics), TopicClient(store.topics)
    watch = ChangeWatch(store.changes, client)
    await watch.poll()
    topic = await client.create(new_topic())
    await subscribe(other, topic, "arn:q")
    assert client.cached(ACCOUNT, "news") == topic
    await watch.poll()
    assert client.cached(ACCOUNT, "news") is None
    assert len(await client.subscriptions(await client.get(ACCOUNT, "news"))) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits for other processes, which take no time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_a_shared_topic_is_cached_for_a_while_after_each_poll(store: SQLiteStore) -> None:
    client = TopicClient(store.topics, shared=True)
    watch = ChangeWatch(store.changes, client)
    topic = await client.create(new_topic())
    assert client.cached(ACCOUNT, "news") is None, "nothing was polled yet"
    await watch.poll()
    assert client.cached(ACCOUNT, "news") is topic
    now = asyncio.get_running_loop().time()
    client.checked(now - cached_topics.LEASE_SECONDS + 60)
    assert client.cached(ACCOUNT, "news") is topic
    client.checked(now - cached_topics.LEASE_SECONDS)
    assert client.cached(ACCOUNT, "news") is None
    assert cached_topics.LEARNED_SECONDS > cached_topics.LEASE_SECONDS


async def test_changes_are_answered_when_all_processes_know_them(store: SQLiteStore, waits: list[float]) -> None:
    client = TopicClient(store.topics, shared=True)
    topic = await client.create(new_topic())
    made = await subscribe(client, topic, "arn:q")
    assert len(waits) == 1
    await client.update_subscription(made, SubscriptionChange({}))
    assert len(waits) == 2
    assert await client.delete_subscription(made)
    assert waits == [cached_topics.LEARNED_SECONDS] * 3
    pending = NewSubscription(topic.topic_id, ACCOUNT, "sqs", "arn:p", {}, 0, token="t")
    await client.create_subscription(topic, pending)
    assert len(waits) == 3, "nothing is delivered to it yet"
    alone = TopicClient(store.topics)
    assert await alone.delete_subscription(await subscribe(alone, topic, "arn:r"))
    assert len(waits) == 3


async def test_a_change_that_was_made_before_is_recorded_again(store: SQLiteStore, waits: list[float]) -> None:
    client, other = TopicClient(store.topics, shared=True), TopicClient(store.topics)
    topic = await client.create(new_topic())
    made = await subscribe(client, topic, "arn:q")

    async def is_recorded() -> bool:
        version = (await other.get(ACCOUNT, "news")).version
        changed, waits[:] = version > versions[-1], []
        versions.append(version)
        return changed

    versions = [(await other.get(ACCOUNT, "news")).version]
    with pytest.raises(SubscriptionExists):
        await subscribe(client, topic, "arn:q")
    assert waits
    assert await is_recorded()
    await client.publish_changes(ACCOUNT, "news")
    assert waits
    assert await is_recorded()
    await other.delete_subscription(made)
    assert await is_recorded()
    assert not await client.delete_subscription(made)
    assert waits
    assert await is_recorded()
    await client.publish_changes(ACCOUNT, "another")
    assert not await is_recorded()
