"""Conformance suite of every :class:`~metadata_service.store.MetadataStore`.

A test module of a store imports :class:`StoreConformance`, subclasses it, and gives it a fixture ``store``.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import msgspec
import pytest

from auth.credentials import ServiceKey, Tenant, new_access_key
from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from metadata_service import models
from metadata_service.clusters.partition_map import split, without_token_sources
from metadata_service.documents import DocumentJob, DocumentJobs
from metadata_service.store import (
    ClusterStore,
    ConditionFailed,
    MetadataStore,
    QueueDeletedRecently,
    QueueExists,
    StoreUnavailable,
    StreamExists,
    StreamNotFound,
    SubscriptionExists,
    TooManyQueues,
    TooManyStreams,
    TooManyTopics,
    TopicExists,
    TopicNotFound,
)
from metadata_service.streams import PARTITIONS_MAX, NewStream, Stream, stream_id_of
from metadata_service.topics import (
    NewSubscription,
    NewTopic,
    Subscription,
    SubscriptionChange,
    SubscriptionPage,
    Topic,
    with_subscription,
)
from tests.metadata_service import store_cases
from tests.metadata_service.store_cases import StoreCase, load

T = TypeVar("T")
Opening = Callable[[], AbstractAsyncContextManager[MetadataStore]]

ACCOUNT = "000000000000"
NOW_MS = store_cases.NOW_MS


def redrive_to(arn: str) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}, separators=(",", ":"))}


async def create(
    store: MetadataStore,
    name: str,
    attributes: dict[str, str] | None = None,
    *,
    account: str = ACCOUNT,
    now_ms: int = NOW_MS,
    hold_seconds: float = 60,
) -> models.Queue:
    return await store.queues.create_queue(
        models.NewQueue(account, name, attributes or {}, {}, now_ms=now_ms, hold_seconds=hold_seconds)
    )


async def create_topic(store: MetadataStore, name: str) -> Topic:
    return await store.topics.create_topic(NewTopic(ACCOUNT, name, {}, {}, NOW_MS, {}))


async def subscribe(store: MetadataStore, topic: Topic, endpoint: str) -> Subscription:
    return await store.topics.create_subscription(NewSubscription(topic.topic_id, ACCOUNT, "sqs", endpoint, {}, NOW_MS))


async def create_stream(store: MetadataStore, name: str, partitions: int = 1) -> Stream:
    return await store.streams.create_stream(NewStream(ACCOUNT, name, {}, {}, NOW_MS, (0,) * partitions))


async def only_one_of(kind: type[T], *calls: Awaitable[T]) -> T:
    """Make calls at once, of which one succeeds; returns its answer.  The others fail by their conditions."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, kind)]
    assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == len(calls) - 1
    return winner


class Conformance:
    """A part of the suite."""

    @pytest.fixture
    def other(self, store: MetadataStore) -> MetadataStore:
        """The same store as another process has opened it, where that makes a difference."""
        return store


class QueueConformance(Conformance):
    """Queues."""

    @pytest.mark.parametrize("case", load("queues"))
    async def test_queue_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_ids_and_keys_are_never_given_out_twice(self, store: MetadataStore) -> None:
        queues = []
        for _ in range(3):
            queue = await create(store, "again", hold_seconds=0)
            await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)
            queues.append(queue)
        assert [queue.queue_id for queue in queues] == sorted({queue.queue_id for queue in queues})
        assert len({partition.id for queue in queues for partition in queue.partitions}) == 3
        assert len({queue.handle_key for queue in queues}) == 3

    async def test_a_partition_names_its_cluster(self, store: MetadataStore) -> None:
        plain = await create(store, "plain")
        assert [partition.id for partition in plain.partitions] == [1]
        assert models.partition_id(0, 1) == 1
        spread = await store.queues.create_queue(
            models.NewQueue(ACCOUNT, "spread", {}, {}, now_ms=NOW_MS, hold_seconds=0, clusters=(3, 0, 3, 4095))
        )
        assert [models.cluster_of(partition.id) for partition in spread.partitions] == [3, 0, 3, 4095]
        assert [partition.slot for partition in spread.partitions] == [0, 1, 2, 3]
        more = [*await store.queues.new_partition_ids(3, 3), *await store.queues.new_partition_ids(0, 1)]
        assert [models.cluster_of(number) for number in more] == [3, 3, 3, 0]
        other = await store.queues.create_queue(
            models.NewQueue(ACCOUNT, "other", {}, {}, now_ms=NOW_MS, hold_seconds=0, clusters=(3,))
        )
        made = [partition.id for queue in (plain, spread, other) for partition in queue.partitions] + more
        assert len(set(made)) == len(made)
        assert await store.queues.get_queue(ACCOUNT, "spread") == spread

    async def test_partitions_that_are_made_at_once_differ(self, store: MetadataStore) -> None:
        made = await asyncio.gather(*(store.queues.new_partition_ids(7, 2) for _ in range(10)))
        assert len({number for some in made for number in some}) == 20

    async def test_only_one_of_concurrent_creations_wins(self, store: MetadataStore, other: MetadataStore) -> None:
        creations = [create(one, "race") for one in (store, other) * 10]
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, models.Queue)]
        assert [outcome.queue for outcome in outcomes if isinstance(outcome, QueueExists)] == [winner] * 19
        for one in (store, other):
            assert await one.queues.get_queue(ACCOUNT, "race") == winner
            assert await one.queues.get_queue_by_id(winner.queue_id) == winner

    async def test_an_account_has_no_more_queues_than_it_may(self, store: MetadataStore, other: MetadataStore) -> None:
        async def make(
            name: str, account: str = ACCOUNT, hold_seconds: float = 0, by: MetadataStore = store
        ) -> models.Queue:
            return await by.queues.create_queue(
                models.NewQueue(account, name, {}, {}, now_ms=NOW_MS, hold_seconds=hold_seconds, queues_max=2)
            )

        creations = [make(f"q{n}", by=(store, other)[n % 2]) for n in range(8)]
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        queues = [outcome for outcome in outcomes if isinstance(outcome, models.Queue)]
        assert len(queues) == 2
        assert sum(isinstance(outcome, TooManyQueues) for outcome in outcomes) == 6
        with pytest.raises(QueueExists):
            await make(queues[0].name)
        await make("q0", account="111111111111")
        await store.queues.delete_queue(queues[0].queue_id, now_ms=NOW_MS)
        with pytest.raises(QueueDeletedRecently):
            await make(queues[0].name, hold_seconds=60)
        await make("another")
        await create(store, "one more without a bound")

    async def test_held_names_do_not_leave_early_with_others(self, store: MetadataStore) -> None:
        for number in range(40):
            queue = await create(store, f"q{number}", now_ms=NOW_MS)
            await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS + number * 1000)
        for number in range(40):
            with pytest.raises(QueueDeletedRecently):
                await create(store, f"q{number}", now_ms=NOW_MS + number * 1000 + 59_999)
            await create(store, f"q{number}", now_ms=NOW_MS + number * 1000 + 60_000)

    async def test_the_partitions_of_a_queue_change(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        assert queue.map_version == 0
        partitions = split(queue, [1 << 50, 1 << 51])
        await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "1"})
        with pytest.raises(ConditionFailed):
            await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, partitions=partitions)
        changed = await store.queues.update_queue(queue.queue_id, 2, now_ms=NOW_MS + 5000, partitions=partitions)
        assert (changed.version, changed.map_version, changed.partitions) == (3, 3, partitions)
        assert (changed.tags, changed.modified_s) == ({"a": "1"}, queue.modified_s)
        done = await store.queues.update_queue(
            queue.queue_id, 3, now_ms=NOW_MS, partitions=without_token_sources(partitions)
        )
        assert (done.version, done.map_version, done.partitions) == (4, 3, without_token_sources(partitions))
        assert (
            await store.queues.get_queue(ACCOUNT, "orders")
            == done
            == await store.queues.get_queue_by_id(queue.queue_id)
        )

    async def test_concurrent_updates_never_overwrite_each_other_unseen(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        queue = await create(store, "orders")

        async def add(by: MetadataStore, tag: str) -> None:
            while True:
                known = await by.queues.get_queue(ACCOUNT, "orders")
                try:
                    tags = {**known.tags, tag: ""}
                    await by.queues.update_queue(queue.queue_id, known.version, now_ms=NOW_MS, tags=tags)
                except ConditionFailed:
                    continue
                return

        await asyncio.gather(*(add((store, other)[number % 2], f"t{number}") for number in range(10)))
        final = await store.queues.get_queue(ACCOUNT, "orders")
        assert set(final.tags) == {f"t{number}" for number in range(10)}
        assert final.version == 11


class StreamConformance(Conformance):
    """Streams, the cluster of consumer groups, and ids of producers."""

    @pytest.mark.parametrize("case", load("streams"))
    async def test_stream_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_topic_ids_and_ids_of_partitions_are_never_given_out_twice(self, store: MetadataStore) -> None:
        streams = []
        for _ in range(3):
            stream = await create_stream(store, "again", 2)
            await store.streams.delete_stream(stream.stream_id)
            streams.append(stream)
        assert [stream.stream_id for stream in streams] == sorted({stream.stream_id for stream in streams})
        assert len({number for stream in streams for number in stream.partition_ids}) == 6
        assert len({stream.topic_id for stream in streams}) == 3
        assert [stream_id_of(stream.topic_id) for stream in streams] == [stream.stream_id for stream in streams]

    async def test_only_one_of_concurrent_creations_of_a_stream_wins(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        creations = [create_stream(one, "race") for one in (store, other) * 5]
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Stream)]
        assert [outcome.stream for outcome in outcomes if isinstance(outcome, StreamExists)] == [winner] * 9
        for one in (store, other):
            assert await one.streams.get_stream(ACCOUNT, "race") == winner
            assert await one.streams.get_stream_by_id(winner.stream_id) == winner
            assert await one.streams.list_streams(ACCOUNT, limit=10) == [winner]

    async def test_quotas_of_streams_hold_if_many_are_made_at_once(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        def made(number: int, streams_max: int | None, partitions_max: int | None) -> Awaitable[Stream]:
            new = NewStream(f"{number // 8:012d}", f"s{number}", {}, {}, NOW_MS, (0, 0), streams_max, partitions_max)
            return (store, other)[number % 2].streams.create_stream(new)

        outcomes = await asyncio.gather(
            *(made(number, 3, None) for number in range(8)),
            *(made(number, None, 7) for number in range(8, 16)),
            return_exceptions=True,
        )
        for some in (outcomes[:8], outcomes[8:]):
            assert sum(isinstance(outcome, Stream) for outcome in some) == 3
            assert sum(isinstance(outcome, TooManyStreams) for outcome in some) == 5

    async def test_one_of_concurrent_additions_of_partitions_wins(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        stream = await create_stream(store, "logs")
        additions = [one.streams.add_partitions(stream.stream_id, 1, (0,) * 3) for one in (store, other) * 3]
        grown = await only_one_of(Stream, *additions)
        assert (grown.partitions, grown.version, grown.partition_ids[:1]) == (4, 2, stream.partition_ids)
        assert await other.streams.get_stream(ACCOUNT, "logs") == grown

    async def test_a_stream_deleted_while_it_grows_is_gone(self, store: MetadataStore, other: MetadataStore) -> None:
        """And its partitions no longer count."""
        stream = await create_stream(store, "logs")
        grown, deleted = await asyncio.gather(
            store.streams.add_partitions(stream.stream_id, 1, (0, 0)),
            other.streams.delete_stream(stream.stream_id),
            return_exceptions=True,
        )
        assert isinstance(deleted, Stream)
        assert isinstance(grown, StreamNotFound) or grown == deleted
        assert await store.streams.list_streams(ACCOUNT, limit=10) == []
        await store.streams.create_stream(NewStream(ACCOUNT, "new", {}, {}, NOW_MS, streams_max=1, partitions_max=1))

    async def test_a_stream_has_up_to_a_thousand_partitions(self, store: MetadataStore) -> None:
        clusters = (4095,) * (PARTITIONS_MAX - 1)
        stream = await store.streams.create_stream(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS, clusters))
        full = await store.streams.add_partitions(stream.stream_id, 1, (4095,))
        assert len(set(full.partition_ids)) == PARTITIONS_MAX
        assert await store.streams.get_stream(ACCOUNT, "logs") == full
        with pytest.raises(ValueError, match="1 to 1000 partitions, and 'logs' would have 1001"):
            await store.streams.add_partitions(stream.stream_id, 2, (0,))
        with pytest.raises(ValueError, match="1 to 1000 partitions, and 'more' would have 1001"):
            await store.streams.create_stream(NewStream(ACCOUNT, "more", {}, {}, NOW_MS, (0,) * (PARTITIONS_MAX + 1)))

    async def test_concurrent_changes_of_a_stream_never_overwrite_each_other_unseen(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        stream = await create_stream(store, "logs")

        async def change(by: MetadataStore, number: int) -> None:
            while True:
                known = await by.streams.get_stream(ACCOUNT, "logs")
                try:
                    if number % 2:
                        await by.streams.add_partitions(stream.stream_id, known.version, (0,))
                    else:
                        settings = {**known.settings, f"s{number}": ""}
                        await by.streams.update_stream(
                            stream.stream_id, known.version, now_ms=NOW_MS, settings=settings
                        )
                except ConditionFailed:
                    continue
                return

        await asyncio.gather(*(change((store, other)[number // 2 % 2], number) for number in range(8)))
        final = await other.streams.get_stream(ACCOUNT, "logs")
        assert (final.version, final.partitions, set(final.settings)) == (9, 5, {"s0", "s2", "s4", "s6"})
        assert len(set(final.partition_ids)) == 5

    async def test_one_cluster_is_chosen_for_the_groups_of_an_account(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        chosen = await asyncio.gather(
            *((store, other)[number % 2].streams.group_cluster(ACCOUNT, number) for number in range(10))
        )
        assert len(set(chosen)) == 1
        assert await other.streams.group_cluster(ACCOUNT, 77) == chosen[0] in range(10)

    async def test_concurrent_blocks_of_producer_ids_do_not_overlap(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        firsts = await asyncio.gather(
            *((store, other)[number % 2].streams.allocate_producer_ids(number) for number in range(1, 21))
        )
        given = [one for number, first in enumerate(firsts, 1) for one in range(first, first + number)]
        assert len(set(given)) == len(given) == 210
        assert min(given) > 0


class TopicConformance(Conformance):
    """Topics, their hidden queues, and subscriptions."""

    @pytest.mark.parametrize("case", load("topics"))
    async def test_topic_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_only_one_of_concurrent_creations_of_a_topic_wins(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        creations = [create_topic(one, "race") for one in (store, other) * 4]
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
        assert [outcome.topic for outcome in outcomes if isinstance(outcome, TopicExists)] == [winner] * 7
        for one in (store, other):
            assert await one.topics.get_topic(ACCOUNT, "race") == winner
            hidden = await one.queues.get_queue_by_id(winner.topic_id)
            assert hidden is not None
            assert hidden.name == "~race"

    async def test_an_endpoint_that_subscribes_many_times_at_once_has_one_subscription(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        topic = await create_topic(store, "news")
        outcomes = await asyncio.gather(
            *(subscribe(one, topic, "arn:q") for one in (store, other) * 3), return_exceptions=True
        )
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Subscription)]
        exist = [outcome.subscription for outcome in outcomes if isinstance(outcome, SubscriptionExists)]
        assert exist == [winner] * 5
        assert (await other.topics.get_topic(ACCOUNT, "news")).subscriptions == 1
        assert await other.topics.topic_subscriptions(topic.topic_id, limit=10) == [winner]

    async def test_limits_of_topics_and_subscriptions_hold_if_many_are_made_at_once(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        def made(number: int) -> Awaitable[Topic]:
            new = NewTopic(ACCOUNT, f"t{number}", {}, {}, NOW_MS, {}, topics_max=2)
            return (store, other)[number % 2].topics.create_topic(new)

        outcomes = await asyncio.gather(*map(made, range(6)), return_exceptions=True)
        topic, _ = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
        assert sum(isinstance(outcome, TooManyTopics) for outcome in outcomes) == 4
        made_subscriptions = await asyncio.gather(
            *(
                (store, other)[number % 2].topics.create_subscription(
                    NewSubscription(
                        topic.topic_id,
                        ACCOUNT,
                        "sqs",
                        f"arn:q{number}",
                        {"FilterPolicy": "{}"} if number % 2 else {},
                        NOW_MS,
                        subscriptions_max=3,
                        filter_policies_max=1,
                    )
                )
                for number in range(8)
            ),
            return_exceptions=True,
        )
        found = await store.topics.topic_subscriptions(topic.topic_id, limit=10)
        known = await store.topics.get_topic(ACCOUNT, topic.name)
        assert len(found) == sum(isinstance(outcome, Subscription) for outcome in made_subscriptions) == 3
        assert known.subscriptions == 3
        assert known.filter_policies == sum(one.has_filter_policy for one in found) <= 1

    async def test_a_topic_that_is_deleted_while_it_gets_subscriptions_has_none(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        topic = await create_topic(store, "news")
        await asyncio.gather(*(subscribe(store, topic, f"arn:{number}") for number in range(5)))
        outcomes = await asyncio.gather(
            *(subscribe(store, topic, f"arn:more-{number}") for number in range(4)),
            other.topics.delete_topic(topic.topic_id),
            return_exceptions=True,
        )
        assert isinstance(outcomes[-1], Topic)
        assert all(isinstance(outcome, Subscription | TopicNotFound) for outcome in outcomes[:-1])
        assert await store.topics.topic_subscriptions(topic.topic_id, limit=10) == []
        assert await other.topics.owner_subscriptions(ACCOUNT, limit=10) == SubscriptionPage([], "")
        assert await other.queues.get_queue_by_id(topic.topic_id) is None
        again = await create_topic(store, "news")
        assert again.topic_id > topic.topic_id
        assert await store.topics.topic_subscriptions(again.topic_id, limit=10) == []

    async def test_pages_of_subscriptions_have_each_once(self, store: MetadataStore, other: MetadataStore) -> None:
        topic = await create_topic(store, "news")
        made = [await subscribe(store, topic, f"arn:{number}") for number in range(7)]
        after, ids = b"", []
        while page := await other.topics.topic_subscriptions(topic.topic_id, after=after, limit=3):
            ids += [one.subscription_id for one in page]
            after = ids[-1]
        assert ids == sorted(one.subscription_id for one in made)
        position, found = "", []
        while True:
            owned = await other.topics.owner_subscriptions(ACCOUNT, after=position, limit=3)
            found += owned.subscriptions
            position = owned.after
            if not position:
                break
        assert sorted(one.subscription_id for one in found) == ids
        assert await other.topics.owner_subscriptions("1" * 12, limit=3) == SubscriptionPage([], "")

    async def test_concurrent_changes_of_a_subscription_never_overwrite_each_other_unseen(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        topic = await create_topic(store, "news")
        made = await subscribe(store, topic, "arn:q")

        async def change(by: MetadataStore, number: int) -> None:
            while True:
                known = await by.topics.get_subscription(topic.topic_id, made.subscription_id)
                attributes = {**known.attributes, f"a{number}": ""}
                try:
                    await by.topics.update_subscription(
                        topic.topic_id, made.subscription_id, known.version, SubscriptionChange(attributes)
                    )
                except ConditionFailed:
                    continue
                return

        await asyncio.gather(*(change((store, other)[number % 2], number) for number in range(6)))
        final = await other.topics.get_subscription(topic.topic_id, made.subscription_id)
        assert final.attributes.keys() == {f"a{number}" for number in range(6)}
        assert final.version == 7
        assert (await store.topics.get_topic(ACCOUNT, "news")).version == 8


class ChangeConformance(Conformance):
    """Feed of changed queues."""

    @pytest.mark.parametrize("case", load("changes"))
    async def test_change_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_simultaneous_changes_are_all_reported(self, store: MetadataStore) -> None:
        queues = [await create(store, f"q{number}") for number in range(5)]
        start = (await store.changes.queue_changes(None)).last
        await asyncio.gather(
            *(store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"}) for queue in queues)
        )
        assert sorted((await store.changes.queue_changes(start)).names or ()) == [
            (ACCOUNT, queue.name) for queue in queues
        ]

    async def test_a_position_of_another_feed_forgets_all(self, store: MetadataStore) -> None:
        last = (await store.changes.queue_changes(None)).last
        assert await store.changes.queue_changes(last + 5) == (last, None)


class EntryConformance(Conformance):
    """Logs and shards."""

    @pytest.mark.parametrize("case", load("entries"))
    async def test_entry_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_concurrent_incarnations_differ(self, store: MetadataStore, other: MetadataStore) -> None:
        both = (store, other) * 3
        entries = await asyncio.gather(*(one.entries.new_incarnation(node) for node in "ab" for one in both))
        assert len({entry.log_id for entry in entries}) == 12
        assert sorted((entry.node, entry.incarnation) for entry in entries) == [
            (node, number) for node in "ab" for number in range(1, 7)
        ]

    async def test_only_one_of_concurrent_log_changes_wins(self, store: MetadataStore) -> None:
        entry = await store.entries.new_incarnation("a")
        changes = [msgspec.structs.replace(entry, state="recovering", recovering_by=number) for number in range(2, 12)]
        winner = await only_one_of(models.LogEntry, *map(store.entries.update_log, changes))
        assert await store.entries.logs() == [winner]


class ClusterConformance:
    """Heartbeats, and the assignment of shards."""

    @pytest.fixture
    def cluster(self, store: Any) -> ClusterStore:
        return cast(ClusterStore, store.entries)

    async def test_the_latest_heartbeat_of_each_node_is_kept(self, cluster: ClusterStore) -> None:
        assert await cluster.heartbeats() == []
        first, later = models.Heartbeat("b", 1, 1, 1, 10, "unix:/b"), models.Heartbeat("b", 1, 1, 2, 20)
        again, other = models.Heartbeat("b", 3, 2, 1, 5), models.Heartbeat("a", 2, 1, 7, 1 << 50)
        await cluster.beat(first)
        assert await cluster.heartbeats() == [first]
        await cluster.beat(later)
        await cluster.beat(first)  # it arrives late
        await cluster.beat(other)
        assert await cluster.heartbeats() == [other, later]
        await cluster.beat(again)
        await cluster.beat(later)
        assert await cluster.heartbeats() == [other, again]

    async def test_the_cluster_changes_only_from_its_version(self, cluster: ClusterStore) -> None:
        none = await cluster.cluster()
        assert none == models.ClusterEntry()
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(models.ClusterEntry(version=1))
        stored = await cluster.update_cluster(models.ClusterEntry(7, ("a", "", "b"), ("b",)))
        assert stored == models.ClusterEntry(7, ("a", "", "b"), ("b",), 1)
        assert await cluster.cluster() == stored
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(none)
        newer = await cluster.update_cluster(msgspec.structs.replace(stored, manager=8))
        assert (newer.manager, newer.version) == (8, 2)
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(stored)
        assert await cluster.cluster() == newer

    async def test_only_one_is_elected(self, cluster: ClusterStore) -> None:
        wishes = [cluster.update_cluster(models.ClusterEntry(manager)) for manager in range(1, 11)]
        winner = await only_one_of(models.ClusterEntry, *wishes)
        assert await cluster.cluster() == winner


class RegistryConformance(Conformance):
    """Backend clusters, their reports, and the manager's entry."""

    @pytest.mark.parametrize("case", load("clusters"))
    async def test_cluster_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_clusters_that_are_registered_at_once_differ(self, store: MetadataStore) -> None:
        names = [f"c{number}" for number in range(6)]
        made = await asyncio.gather(*(store.clusters.register_cluster(name) for name in (*names, *names)))
        assert [cluster.name for cluster in made] == names * 2
        assert made[:6] == made[6:]
        assert sorted(cluster.number for cluster in made[:6]) == [1, 2, 3, 4, 5, 6]

    async def test_one_of_concurrent_managers_is_elected(self, store: MetadataStore) -> None:
        wishes = [store.clusters.update_manager(models.ManagerEntry(f"m{number}", "x")) for number in range(5)]
        elected = await only_one_of(models.ManagerEntry, *wishes)
        assert await store.clusters.manager() == elected


class CredentialConformance(Conformance):
    """Tenants, keys and roles."""

    @pytest.mark.parametrize("case", load("credentials"))
    async def test_credential_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_a_tenant_is_created_once(self, store: MetadataStore) -> None:
        tenants = [Tenant(ACCOUNT, f"number {number}") for number in range(4)]
        outcomes = await asyncio.gather(*map(store.credentials.create_tenant, tenants), return_exceptions=True)
        (winner,) = [tenant for tenant, outcome in zip(tenants, outcomes, strict=True) if outcome is None]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 3
        assert await store.credentials.get_tenant(ACCOUNT) == winner
        await store.credentials.update_tenant(msgspec.structs.replace(winner, state="deleted"))
        with pytest.raises(ConditionFailed):
            await store.credentials.create_tenant(winner)

    async def test_only_one_of_concurrent_changes_wins(self, store: MetadataStore) -> None:
        tenant = Tenant(ACCOUNT, "root")
        await store.credentials.create_tenant(tenant)
        changes = [msgspec.structs.replace(tenant, name=f"number {number}") for number in range(4)]
        winner = await only_one_of(Tenant, *map(store.credentials.update_tenant, changes))
        assert await store.credentials.get_tenant(ACCOUNT) == winner

    async def test_last_uses(self, store: MetadataStore) -> None:
        await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
        key = new_access_key(ACCOUNT)
        await store.credentials.put_access_key(key)
        assert await store.credentials.key_uses([key.access_key_id]) == {}
        await store.credentials.record_uses({key.access_key_id: 100, "other": 50})
        await store.credentials.record_uses({key.access_key_id: 90, "other": 60})
        many = [f"unknown-{number}" for number in range(2_000)]
        assert await store.credentials.key_uses([*many, key.access_key_id, "other"]) == {
            key.access_key_id: 100,
            "other": 60,
        }
        assert await store.credentials.get_access_key(key.access_key_id) == key
        await store.credentials.delete_access_key(key.access_key_id)
        assert await store.credentials.key_uses([key.access_key_id]) == {}

    async def test_one_of_concurrent_alarm_keepers_is_elected(self, store: MetadataStore) -> None:
        wishes = [store.alarms.update_alarm_keeper(models.ManagerEntry(f"f{place}", f"{place}")) for place in range(3)]
        keeper = await only_one_of(models.ManagerEntry, *wishes)
        assert await store.alarms.alarm_keeper() == keeper
        assert (await store.clusters.manager()).version == 0, "another office"
        with pytest.raises(ConditionFailed):
            await store.alarms.update_alarm_keeper(models.ManagerEntry())

    async def test_one_of_concurrent_pushers_is_elected(self, store: MetadataStore) -> None:
        wishes = [store.clusters.update_pushers(models.ManagerEntry(f"f{place}", f"{place}")) for place in range(3)]
        first = await only_one_of(models.ManagerEntry, *wishes)
        assert await store.clusters.pushers() == first
        assert (await store.clusters.manager()).version == 0, "another office"
        with pytest.raises(ConditionFailed):
            await store.clusters.update_pushers(models.ManagerEntry())

    async def test_queues_that_push_are_listed(self, store: MetadataStore, other: MetadataStore) -> None:
        assert await store.queues.push_queues() == []
        pushed = {"HoldfastPushUrl": "https://example.com/"}
        queues = [await create(store, f"q{number}", pushed) for number in range(4)]
        strange = await create(store, "strange", {"DelaySeconds": "3"}, account="000000000001")
        await create(store, "not")
        await other.queues.update_queue(queues[0].queue_id, 1, now_ms=NOW_MS, attributes={"DelaySeconds": "1"})
        await other.queues.update_queue(queues[1].queue_id, 1, now_ms=NOW_MS, tags={"HoldfastPushUrl": "no"})
        await other.queues.delete_queue(queues[2].queue_id, now_ms=NOW_MS)
        assert await store.queues.push_queues() == [(ACCOUNT, "q1"), (ACCOUNT, "q3")]
        await store.queues.update_queue(strange.queue_id, 1, now_ms=NOW_MS, attributes=pushed)
        await store.queues.update_queue(queues[1].queue_id, 2, now_ms=NOW_MS, attributes={})
        assert await other.queues.push_queues() == [(ACCOUNT, "q3"), ("000000000001", "strange")]

    async def test_a_service_key_is_added_once(self, store: MetadataStore, other: MetadataStore) -> None:
        keys = [ServiceKey("lasting", "naming", bytes([number]), number) for number in range(5)]
        adds = [(store, other)[key.created_s % 2].credentials.add_service_key(key) for key in keys]
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        (winner,) = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 4
        assert await store.credentials.list_service_keys("naming") == [winner]
        await store.credentials.delete_service_key("lasting")
        await store.credentials.add_service_key(keys[0])
        assert await store.credentials.list_service_keys("naming") == keys[:1]


class DataKeyConformance(Conformance):
    """Wrapped data keys, and their numbers of uses."""

    @pytest.mark.parametrize("case", load("data_keys"))
    async def test_key_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_data_keys(self, store: MetadataStore, other: MetadataStore) -> None:
        ids = sorted(await asyncio.gather(*(one.data_keys.new_data_key_id() for one in (store, other, store))))
        assert ids == [1, 2, 3]
        keys = [
            DataKey(account, key_id, "mk-1", bytes([0, 255, key_id]), created_s=7)
            for account, key_id in zip((ACCOUNT, "111111111111", ACCOUNT), ids, strict=True)
        ]
        for key in reversed(keys):
            await store.data_keys.add_data_key(key)
        assert await store.data_keys.data_keys() == keys
        assert await store.data_keys.data_keys(ACCOUNT) == [keys[0], keys[2]]
        assert await store.data_keys.data_keys("222222222222") == []

    async def test_seals_are_counted_up_to_a_bound(self, store: MetadataStore) -> None:
        key = DataKey(ACCOUNT, await store.data_keys.new_data_key_id(), "mk-1", b"wrapped")
        assert not await store.data_keys.reserve_seals(key.key_id, 1, 100)
        await store.data_keys.add_data_key(key)
        granted = await asyncio.gather(*(store.data_keys.reserve_seals(key.key_id, 30, 100) for _ in range(5)))
        assert sorted(granted) == [False, False, True, True, True]
        assert await store.data_keys.reserve_seals(key.key_id, 10, 100)
        assert not await store.data_keys.reserve_seals(key.key_id, 1, 100)
        await store.data_keys.rewrap_data_key(msgspec.structs.replace(key, master_id="mk-2"), "mk-1")
        assert not await store.data_keys.reserve_seals(key.key_id, 1, 100)
        assert await store.data_keys.reserve_seals(key.key_id, 1 << 31, 1 << 32)


class NamedKeyConformance(Conformance):
    """Named data keys: created once, changed by version, destroyed at any version."""

    @staticmethod
    def key(name: str, account: str = ACCOUNT, *ids: int) -> NamedKey:
        versions = tuple(DataKey(account, key_id, "mk-1", bytes([0, 255, key_id]), 5) for key_id in ids or (1,))
        return NamedKey(account, name, versions, 5, encryptions=9)

    async def test_a_named_key_is_made_once_and_changed_by_its_version(self, store: MetadataStore) -> None:
        await store.credentials.put_tenant(Tenant(ACCOUNT, "some"))
        keys = [self.key("k", ACCOUNT, number) for number in range(1, 6)]
        made = await only_one_of(NamedKey, *map(store.named_keys.create_named_key, keys))
        changes = [msgspec.structs.replace(made, encryptions=made.encryptions + number) for number in range(1, 6)]
        stored = await only_one_of(NamedKey, *map(store.named_keys.update_named_key, changes))
        assert stored.version == made.version + 1
        assert await store.named_keys.get_named_key(ACCOUNT, "k") == stored
        with pytest.raises(ConditionFailed):
            await store.named_keys.update_named_key(msgspec.structs.replace(stored, name="other"))


class DocumentConformance(Conformance):
    """Jobs of documents: one record of an account, changed by its version."""

    @pytest.mark.parametrize("case", load("documents"))
    async def test_document_case(self, store: MetadataStore, case: StoreCase) -> None:
        await case.run(store)

    async def test_one_of_concurrent_changes_of_jobs_wins(self, store: MetadataStore) -> None:
        await store.credentials.put_tenant(Tenant(ACCOUNT, "some"))
        jobs = [DocumentJob(f"{n}", ACCOUNT, "2026-11", "email", draft=True, created_s=5) for n in range(5)]
        changes = [store.documents.update_document_jobs(DocumentJobs(ACCOUNT, (job,))) for job in jobs]
        stored = await only_one_of(DocumentJobs, *changes)
        assert await store.documents.document_jobs(ACCOUNT) == stored


class LifetimeConformance:
    """A store that is closed, and opened again by the fixture ``opening``."""

    async def test_all_is_there_after_reopening(self, opening: Opening) -> None:
        async with opening() as store:
            queue = await create(store, "orders", redrive_to("arn:x"))
            stream = await create_stream(store, "orders")
            topic = await create_topic(store, "orders")
            subscription = await subscribe(store, topic, "arn:q")
            producer_id = await store.streams.allocate_producer_ids(10)
            log = await store.entries.new_incarnation("node")
            await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
            key = new_access_key(ACCOUNT)
            await store.credentials.put_access_key(key)
        async with opening() as again:
            assert await again.queues.get_queue(ACCOUNT, "orders") == queue
            assert await again.streams.get_stream(ACCOUNT, "orders") == stream
            assert await again.topics.list_topics(ACCOUNT, limit=2) == [with_subscription(topic, None, subscription)]
            assert await again.topics.topic_subscriptions(topic.topic_id, limit=2) == [subscription]
            assert await again.streams.allocate_producer_ids(1) >= producer_id + 10
            assert await again.entries.logs() == [log]
            assert await again.credentials.get_access_key(key.access_key_id) == key
            assert (await again.entries.new_incarnation("node")).incarnation == 2
            assert (await create(again, "other")).queue_id > queue.queue_id

    async def test_the_error_of_a_closed_store(self, opening: Opening) -> None:
        async with opening() as store:
            await store.close()
            with pytest.raises(StoreUnavailable, match="closed"):
                await store.queues.get_queue(ACCOUNT, "orders")
            with pytest.raises(StoreUnavailable, match="closed"):
                await create(store, "orders")


class StoreConformance(
    QueueConformance,
    StreamConformance,
    TopicConformance,
    ChangeConformance,
    EntryConformance,
    RegistryConformance,
    CredentialConformance,
    DataKeyConformance,
    NamedKeyConformance,
    DocumentConformance,
):
    """All parts of the suite."""
