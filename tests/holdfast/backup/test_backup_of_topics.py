"""Backups of a data folder with topics: subscriptions, and deliveries that are pending."""

from __future__ import annotations

import asyncio
from pathlib import Path

from backend import api
from backend.node import Node
from holdfast.backup import restore, take
from holdfast.backup.target import LocalTarget
from holdfast.backup.verify import verify
from metadata_service.models import NewQueue, Queue
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.topics import NewSubscription, NewTopic
from tests.backend.nodes import RestartableNode
from tests.backend.serving.test_publications import held_back, publication
from tests.holdfast.command import checked
from tests.servers.waiting import until

ACCOUNT = "000000000000"
BODIES = (b"first", b"second", b"third")


class _TopicNode(RestartableNode):
    """A node in a data folder as the service has it, whose queues are those of the metadata."""

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.sqlite")
        self.node = await Node.start(
            self.disk, str(self.folder / "journal"), self.store.entries, self.resolver, settings=self.settings
        )

    async def configure(self, queue: Queue) -> api.Target:
        (partition,) = (one.id for one in queue.partitions)
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue.name}"
        settings = api.PartitionSettings(partition, queue.queue_id, queue.version, arn, queue.handle_key)
        self.resolver.known[partition] = settings
        await self.node.call(api.Configure(settings))
        return api.Target(partition, queue.queue_id, queue.version)


async def test_deliveries_that_are_pending_are_made_once_after_a_restore(tmp_path: Path) -> None:
    data, target = tmp_path / "data", LocalTarget(tmp_path / "backups")
    data.mkdir()
    node = _TopicNode(data)
    await node.start()
    queues = [
        await node.store.queues.create_queue(NewQueue(ACCOUNT, name, {}, {}, now_ms=1, hold_seconds=0))
        for name in ("a", "b")
    ]
    topics = node.store.topics
    topic = await topics.create_topic(NewTopic(ACCOUNT, "news", {"DisplayName": "News"}, {"team": "shop"}, 1, {}))
    for queue in queues:
        endpoint, attributes = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue.name}", {"FilterPolicy": '{"a":["b"]}'}
        await topics.create_subscription(NewSubscription(topic.topic_id, ACCOUNT, "sqs", endpoint, attributes, 1))
    topic = await topics.get_topic(ACCOUNT, "news")
    subscriptions = await topics.topic_subscriptions(topic.topic_id, limit=10)
    hidden = await node.store.queues.get_queue_by_id(topic.topic_id)
    assert hidden is not None
    destinations = [await node.configure(queue) for queue in queues]
    source = await node.configure(hidden)
    await node.node.call(api.Publish(source, [publication(b"delivered", *destinations)]))

    async def delivered() -> bool:
        ended = node.incarnation.partitions[source.partition].fanout_task is None
        return ended and await node.count(source) == api.Counters()

    await until(delivered)
    with held_back(node.node):
        await node.node.call(api.Publish(source, [publication(body, *destinations) for body in BODIES]))
        result = await asyncio.to_thread(take.take, data, target)
    assert result.manifest.queues == 2
    await node.node.call(api.Publish(source, [publication(b"later", *destinations)]))
    await until(delivered)
    await node.stop()

    found = await verify(target, result.manifest, None, None)
    assert found.wrong == []
    assert found.state is not None
    assert [(one.name, one.messages) for one in found.state.queues] == [("a", 1), ("b", 1)]
    assert found.state.publications == len(BODIES)
    printed = await asyncio.to_thread(checked, "verify", tmp_path / "backups")
    assert "2 queues and 2 messages, 3 publications to be delivered, all of them readable" in printed.out
    restore.restore(target, result.manifest, tmp_path / "again")
    again = _TopicNode(tmp_path / "again")
    again.resolver = node.resolver
    await again.start()
    assert await again.store.topics.list_topics(ACCOUNT, limit=10) == [topic]
    assert await again.store.topics.topic_subscriptions(topic.topic_id, limit=10) == subscriptions
    for queue in (*queues, hidden):
        await again.configure(queue)

    async def delivered_again() -> bool:
        return await again.count(source) == api.Counters()

    await until(delivered_again)
    for destination in destinations:
        assert await again.take_all(destination) == [b"delivered", *BODIES]
    await again.stop()
