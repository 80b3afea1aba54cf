"""The cache of topics and their subscriptions."""

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
