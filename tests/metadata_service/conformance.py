"""Conformance suite of every :class:`~metadata_service.store.MetadataStore`.

A test module of a store imports :class:`StoreConformance`, subclasses it, and gives it a fixture ``store``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal, cast

import msgspec
import pytest

from auth.credentials import AccessKey, ApiKey, ServiceKey, Tenant, TenantRole, new_access_key
from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from auth.limits import Rate, TenantLimits
from metadata_service.alarms import Alarm, AlarmStatus, Notification, WatchedAlarm
from metadata_service.clusters.partition_map import settled, split
from metadata_service.documents import DocumentError, DocumentJob, DocumentJobs
from metadata_service.models import (
    FIRST_CLUSTER,
    BackendCluster,
    BusyPartition,
    ClusterEntry,
    ClusterReport,
    Heartbeat,
    LogEntry,
    ManagerDecision,
    ManagerEntry,
    PieceRef,
    Queue,
    ReportedNode,
    ShardEntry,
    cluster_of,
    partition_id,
)
from metadata_service.store import (
    ClusterStore,
    ConditionFailed,
    MetadataStore,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
    TooManyQueues,
)

ACCOUNT = "000000000000"
NOW_MS = 1_800_000_000_123


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
) -> Queue:
    return await store.create_queue(account, name, attributes or {}, {}, now_ms=now_ms, hold_seconds=hold_seconds)


class QueueConformance:
    """Queues."""

    async def test_a_created_queue_is_what_every_read_gives(self, store: MetadataStore) -> None:
        queue = await store.create_queue(
            ACCOUNT, "orders", {"DelaySeconds": "5"}, {"team": "a b"}, now_ms=NOW_MS, hold_seconds=60
        )
        assert queue.version == 1
        assert queue.attributes == {"DelaySeconds": "5"}
        assert queue.tags == {"team": "a b"}
        assert queue.created_s == queue.modified_s == NOW_MS // 1000
        assert len(queue.partitions) == 1
        assert len(queue.handle_key) == 16
        assert await store.get_queue(ACCOUNT, "orders") == queue
        assert await store.get_queue_by_id(queue.queue_id) == queue

    async def test_ids_and_keys_are_never_given_out_twice(self, store: MetadataStore) -> None:
        queues = []
        for _ in range(3):
            queue = await create(store, "again", hold_seconds=0)
            await store.delete_queue(queue.queue_id, now_ms=NOW_MS)
            queues.append(queue)
        assert [queue.queue_id for queue in queues] == sorted({queue.queue_id for queue in queues})
        assert len({partition.id for queue in queues for partition in queue.partitions}) == 3
        assert len({queue.handle_key for queue in queues}) == 3

    async def test_a_partition_names_its_cluster(self, store: MetadataStore) -> None:
        plain = await create(store, "plain")
        assert [partition.id for partition in plain.partitions] == [1]
        assert partition_id(0, 1) == 1
        spread = await store.create_queue(
            ACCOUNT, "spread", {}, {}, now_ms=NOW_MS, hold_seconds=0, clusters=(3, 0, 3, 4095)
        )
        assert [cluster_of(partition.id) for partition in spread.partitions] == [3, 0, 3, 4095]
        assert [partition.slot for partition in spread.partitions] == [0, 1, 2, 3]
        more = [*await store.new_partition_ids(3, 3), *await store.new_partition_ids(0, 1)]
        assert [cluster_of(number) for number in more] == [3, 3, 3, 0]
        other = await store.create_queue(ACCOUNT, "other", {}, {}, now_ms=NOW_MS, hold_seconds=0, clusters=(3,))
        made = [partition.id for queue in (plain, spread, other) for partition in queue.partitions] + more
        assert len(set(made)) == len(made)
        assert await store.get_queue(ACCOUNT, "spread") == spread

    async def test_partitions_that_are_made_at_once_differ(self, store: MetadataStore) -> None:
        made = await asyncio.gather(*(store.new_partition_ids(7, 2) for _ in range(10)))
        assert len({number for some in made for number in some}) == 20

    async def test_a_missing_queue(self, store: MetadataStore) -> None:
        with pytest.raises(QueueNotFound):
            await store.get_queue(ACCOUNT, "none")
        assert await store.get_queue_by_id(1) is None
        with pytest.raises(QueueNotFound):
            await store.delete_queue(1, now_ms=NOW_MS)
        with pytest.raises(QueueNotFound):
            await store.update_queue(1, 1, now_ms=NOW_MS, tags={})
        with pytest.raises(QueueNotFound):
            await store.begin_purge(1, now_ms=NOW_MS, interval_seconds=60)

    async def test_a_name_is_unique_in_its_account(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        with pytest.raises(QueueExists) as raised:
            await create(store, "orders", {"DelaySeconds": "9"})
        assert raised.value.queue == queue
        other = await create(store, "orders", account="111111111111")
        assert other.queue_id != queue.queue_id
        assert await store.get_queue("111111111111", "orders") == other
        assert await store.get_queue(ACCOUNT, "orders") == queue

    async def test_only_one_of_concurrent_creations_wins(self, store: MetadataStore) -> None:
        outcomes = await asyncio.gather(*(create(store, "race") for _ in range(20)), return_exceptions=True)
        queues = [outcome for outcome in outcomes if isinstance(outcome, Queue)]
        assert len(queues) == 1
        losers = [outcome for outcome in outcomes if isinstance(outcome, QueueExists)]
        assert len(losers) == 19
        assert all(loser.queue == queues[0] for loser in losers)

    async def test_an_account_has_no_more_queues_than_it_may(self, store: MetadataStore) -> None:
        async def make(name: str, account: str = ACCOUNT, hold_seconds: float = 0) -> Queue:
            return await store.create_queue(
                account, name, {}, {}, now_ms=NOW_MS, hold_seconds=hold_seconds, queues_most=2
            )

        outcomes = await asyncio.gather(*(make(f"q{n}") for n in range(5)), return_exceptions=True)
        queues = [outcome for outcome in outcomes if isinstance(outcome, Queue)]
        assert len(queues) == 2
        assert sum(isinstance(outcome, TooManyQueues) for outcome in outcomes) == 3
        with pytest.raises(QueueExists):
            await make(queues[0].name)
        await make("q0", account="111111111111")
        await store.delete_queue(queues[0].queue_id, now_ms=NOW_MS)
        with pytest.raises(QueueDeletedRecently):
            await make(queues[0].name, hold_seconds=60)
        await make("another")
        await create(store, "one more without a bound")

    async def test_a_deleted_name_is_held(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        assert await store.delete_queue(queue.queue_id, now_ms=NOW_MS) == queue
        assert await store.get_queue_by_id(queue.queue_id) is None
        with pytest.raises(QueueNotFound):
            await store.get_queue(ACCOUNT, "orders")
        with pytest.raises(QueueNotFound):
            await store.delete_queue(queue.queue_id, now_ms=NOW_MS)
        with pytest.raises(QueueDeletedRecently) as raised:
            await create(store, "orders", now_ms=NOW_MS + 59_999)
        assert raised.value.seconds_left == pytest.approx(0.001, abs=0.0005)
        await create(store, "orders", account="111111111111", now_ms=NOW_MS + 1)
        again = await create(store, "orders", now_ms=NOW_MS + 60_000)
        assert again.queue_id > queue.queue_id

    async def test_held_names_do_not_leave_early_with_others(self, store: MetadataStore) -> None:
        for number in range(40):
            queue = await create(store, f"q{number}", now_ms=NOW_MS)
            await store.delete_queue(queue.queue_id, now_ms=NOW_MS + number * 1000)
        for number in range(40):
            with pytest.raises(QueueDeletedRecently):
                await create(store, f"q{number}", now_ms=NOW_MS + number * 1000 + 59_999)
            await create(store, f"q{number}", now_ms=NOW_MS + number * 1000 + 60_000)

    async def test_an_update_replaces_what_it_names(self, store: MetadataStore) -> None:
        queue = await create(store, "orders", {"DelaySeconds": "5"})
        tagged = await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS + 5000, tags={"a": "b"})
        assert (tagged.version, tagged.attributes, tagged.tags) == (2, {"DelaySeconds": "5"}, {"a": "b"})
        assert tagged.modified_s == queue.modified_s
        changed = await store.update_queue(queue.queue_id, 2, now_ms=NOW_MS + 5000, attributes={"Policy": "{}"})
        assert (changed.version, changed.attributes, changed.tags) == (3, {"Policy": "{}"}, {"a": "b"})
        assert changed.modified_s == queue.modified_s + 5
        assert changed.created_s == queue.created_s
        assert (changed.handle_key, changed.partitions) == (queue.handle_key, queue.partitions)
        assert await store.get_queue(ACCOUNT, "orders") == changed

    async def test_an_update_from_an_old_version_is_refused(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        newer = await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "1"})
        with pytest.raises(ConditionFailed):
            await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "2"})
        assert await store.get_queue(ACCOUNT, "orders") == newer

    async def test_the_partitions_of_a_queue_change(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        assert queue.map_version == 0
        partitions = split(queue, [1 << 50, 1 << 51])
        await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "1"})
        with pytest.raises(ConditionFailed):
            await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, partitions=partitions)
        changed = await store.update_queue(queue.queue_id, 2, now_ms=NOW_MS + 5000, partitions=partitions)
        assert (changed.version, changed.map_version, changed.partitions) == (3, 3, partitions)
        assert (changed.tags, changed.modified_s) == ({"a": "1"}, queue.modified_s)
        done = await store.update_queue(queue.queue_id, 3, now_ms=NOW_MS, partitions=settled(partitions))
        assert (done.version, done.map_version, done.partitions) == (4, 3, settled(partitions))
        assert await store.get_queue(ACCOUNT, "orders") == done == await store.get_queue_by_id(queue.queue_id)

    async def test_concurrent_updates_never_overwrite_each_other_unseen(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")

        async def add(tag: str) -> None:
            while True:
                known = await store.get_queue(ACCOUNT, "orders")
                try:
                    tags = {**known.tags, tag: ""}
                    await store.update_queue(queue.queue_id, known.version, now_ms=NOW_MS, tags=tags)
                except ConditionFailed:
                    continue
                return

        await asyncio.gather(*(add(f"t{number}") for number in range(10)))
        final = await store.get_queue(ACCOUNT, "orders")
        assert set(final.tags) == {f"t{number}" for number in range(10)}
        assert final.version == 11

    async def test_names_are_listed_in_order_and_in_pages(self, store: MetadataStore) -> None:
        names = ["a", "ab", "ab-1", "ab_1", "aB", "b", "B", "b.fifo"]
        for name in names:
            await create(store, name)
        await create(store, "abc", account="111111111111")
        assert await store.list_queues(ACCOUNT, limit=100) == sorted(names)
        pages, after = [], ""
        while page := await store.list_queues(ACCOUNT, after=after, limit=3):
            pages.append(page)
            after = page[-1]
        assert [name for page in pages for name in page] == sorted(names)
        assert [len(page) for page in pages] == [3, 3, 2]

    async def test_names_are_listed_by_prefix(self, store: MetadataStore) -> None:
        for name in ["a", "ab", "ab-1", "aB", "b", "a_b", "axb"]:
            await create(store, name)
        assert await store.list_queues(ACCOUNT, prefix="ab", limit=10) == ["ab", "ab-1"]
        assert await store.list_queues(ACCOUNT, prefix="ab", after="ab", limit=10) == ["ab-1"]
        assert await store.list_queues(ACCOUNT, prefix="ab", after="ab-1", limit=10) == []
        assert await store.list_queues(ACCOUNT, prefix="ab", after="zz", limit=10) == []
        assert await store.list_queues(ACCOUNT, prefix="a_", limit=10) == ["a_b"]
        assert await store.list_queues(ACCOUNT, prefix="%", limit=10) == []
        assert await store.list_queues(ACCOUNT, prefix="none", limit=10) == []

    async def test_a_purge_is_numbered_and_limited(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        first = await store.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=60)
        assert (first.purge_id, first.purged_ms, first.version) == (1, NOW_MS, 2)
        assert first.modified_s == queue.modified_s
        with pytest.raises(PurgeInProgress) as raised:
            await store.begin_purge(queue.queue_id, now_ms=NOW_MS + 59_999, interval_seconds=60)
        assert raised.value.seconds_left == pytest.approx(0.001, abs=0.0005)
        second = await store.begin_purge(queue.queue_id, now_ms=NOW_MS + 60_000, interval_seconds=60)
        assert second.purge_id == 2
        assert await store.get_queue(ACCOUNT, "orders") == second

    async def test_a_clock_that_went_back_holds_nothing_for_longer(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        await store.begin_purge(queue.queue_id, now_ms=NOW_MS + 10**9, interval_seconds=60)
        with pytest.raises(PurgeInProgress) as purged:
            await store.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=60)
        assert purged.value.seconds_left == 60
        await store.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=0)
        await store.delete_queue(queue.queue_id, now_ms=NOW_MS + 10**9)
        with pytest.raises(QueueDeletedRecently) as deleted:
            await create(store, "orders", now_ms=NOW_MS)
        assert deleted.value.seconds_left == 60
        await create(store, "orders", now_ms=NOW_MS, hold_seconds=0)

    async def test_sources_of_a_dead_letter_queue(self, store: MetadataStore) -> None:
        dlq, other = "arn:aws:sqs:us-east-1:000000000000:dlq", "arn:aws:sqs:us-east-1:000000000000:dlq2"
        queues = [await create(store, f"s{number}", redrive_to(dlq)) for number in range(4)]
        await create(store, "elsewhere", redrive_to(other))
        await create(store, "without")
        await create(store, "stranger", redrive_to(dlq), account="111111111111")
        assert await store.dead_letter_sources(ACCOUNT, dlq, limit=10) == ["s0", "s1", "s2", "s3"]
        assert await store.dead_letter_sources(ACCOUNT, dlq, limit=2) == ["s0", "s1"]
        assert await store.dead_letter_sources(ACCOUNT, dlq, after="s1", limit=2) == ["s2", "s3"]
        await store.update_queue(queues[0].queue_id, 1, now_ms=NOW_MS, attributes=redrive_to(other))
        await store.update_queue(queues[1].queue_id, 1, now_ms=NOW_MS, attributes={})
        await store.update_queue(queues[2].queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        await store.delete_queue(queues[3].queue_id, now_ms=NOW_MS)
        assert await store.dead_letter_sources(ACCOUNT, dlq, limit=10) == ["s2"]
        assert await store.dead_letter_sources(ACCOUNT, other, limit=10) == ["elsewhere", "s0"]


class ChangeConformance:
    """Feed of changed queues."""

    async def test_every_change_of_a_queue_is_told_from_the_last_look_on(self, store: MetadataStore) -> None:
        queue = await create(store, "orders")
        start = await store.queue_changes(None)
        assert start.names == []
        assert await store.queue_changes(start.last) == start
        await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
        (first, names) = await store.queue_changes(start.last)
        assert names == [(ACCOUNT, "orders")]
        assert await store.queue_changes(first) == (first, [])
        assert await store.queue_changes(None) == (first, [])
        other = await create(store, "other")
        await store.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=0)
        await store.delete_queue(other.queue_id, now_ms=NOW_MS)
        (second, names) = await store.queue_changes(first)
        assert set(names or ()) == {(ACCOUNT, "orders"), (ACCOUNT, "other")}
        assert set((await store.queue_changes(start.last)).names or ()) == {(ACCOUNT, "orders"), (ACCOUNT, "other")}
        assert (await store.queue_changes(second)).names == []

    async def test_changes_that_come_together_are_all_told(self, store: MetadataStore) -> None:
        queues = [await create(store, f"q{number}") for number in range(5)]
        start = (await store.queue_changes(None)).last
        await asyncio.gather(
            *(store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"}) for queue in queues)
        )
        assert sorted((await store.queue_changes(start)).names or ()) == [(ACCOUNT, queue.name) for queue in queues]

    async def test_who_comes_from_elsewhere_is_to_forget_all(self, store: MetadataStore) -> None:
        last = (await store.queue_changes(None)).last
        assert await store.queue_changes(last + 5) == (last, None)


class EntryConformance:
    """Logs and shards."""

    async def test_incarnations_are_numbered(self, store: MetadataStore) -> None:
        first = await store.new_incarnation("a")
        second = await store.new_incarnation("a")
        stranger = await store.new_incarnation("b")
        assert [(entry.node, entry.incarnation) for entry in (first, second, stranger)] == [
            ("a", 1),
            ("a", 2),
            ("b", 1),
        ]
        assert 1 <= first.log_id < second.log_id < stranger.log_id
        assert all(entry.state == "open" and entry.version == 1 for entry in (first, second, stranger))
        assert await store.logs() == [first, second, stranger]
        assert await store.logs("a") == [first, second]
        assert await store.logs("c") == []

    async def test_concurrent_incarnations_differ(self, store: MetadataStore) -> None:
        entries = await asyncio.gather(*(store.new_incarnation("a") for _ in range(10)))
        assert len({entry.log_id for entry in entries}) == 10
        assert {entry.incarnation for entry in entries} == set(range(1, 11))

    async def test_a_log_changes_only_from_its_version(self, store: MetadataStore) -> None:
        entry = await store.new_incarnation("a")
        recovering = await store.update_log(msgspec.structs.replace(entry, state="recovering", recovering_by=7))
        assert (recovering.state, recovering.recovering_by, recovering.version) == ("recovering", 7, 2)
        with pytest.raises(ConditionFailed):
            await store.update_log(msgspec.structs.replace(entry, floor_segment=3))
        sealed = await store.update_log(msgspec.structs.replace(recovering, state="sealed", sealed_seq=99))
        assert await store.logs("a") == [sealed]
        with pytest.raises(ConditionFailed):
            await store.update_log(LogEntry(log_id=1000, node="none", incarnation=1))

    async def test_only_one_of_concurrent_log_changes_wins(self, store: MetadataStore) -> None:
        entry = await store.new_incarnation("a")
        changes = [msgspec.structs.replace(entry, state="recovering", recovering_by=number) for number in range(2, 12)]
        outcomes = await asyncio.gather(*(store.update_log(change) for change in changes), return_exceptions=True)
        winners = [outcome for outcome in outcomes if isinstance(outcome, LogEntry)]
        assert len(winners) == 1
        assert await store.logs() == winners

    async def test_shards_are_kept_whole(self, store: MetadataStore) -> None:
        full = ShardEntry(
            shard=3,
            owner_log=5,
            epoch=2,
            checkpoint=PieceRef(log_id=5, file=1, offset=64, length=1 << 33, crc=0xFFFFFFFF),
            checkpoint_log=5,
            checkpoint_seq=1 << 50,
            chain=((4, 1, 0), (5, 2, 17)),
            live=((4, 1), (5, 0)),
        )
        bare = ShardEntry(shard=1, owner_log=5, epoch=1)
        stored = await store.update_shards([full, bare])
        assert stored == [msgspec.structs.replace(full, version=1), msgspec.structs.replace(bare, version=1)]
        assert await store.shards() == [stored[1], stored[0]]

    async def test_shards_change_all_or_none(self, store: MetadataStore) -> None:
        before = await store.update_shards([ShardEntry(shard=shard, owner_log=1, epoch=1) for shard in range(3)])
        with pytest.raises(ConditionFailed):
            await store.update_shards(
                [
                    msgspec.structs.replace(before[0], epoch=2),
                    ShardEntry(shard=7, owner_log=1, epoch=1),
                    msgspec.structs.replace(before[1], epoch=2, version=5),
                ]
            )
        assert await store.shards() == before
        with pytest.raises(ConditionFailed):
            await store.update_shards([ShardEntry(shard=0, owner_log=9, epoch=9)])
        with pytest.raises(ConditionFailed):
            await store.update_shards([ShardEntry(shard=9, owner_log=9, epoch=9, version=1)])
        after = await store.update_shards([msgspec.structs.replace(entry, epoch=2) for entry in before])
        assert [entry.version for entry in after] == [2, 2, 2]
        assert await store.shards() == after
        assert await store.update_shards([]) == []

    async def test_a_look_sees_every_change_that_was_answered(self, store: MetadataStore) -> None:
        assert await store.poll_entries() == ([], [])
        first, second = await store.new_incarnation("a"), await store.new_incarnation("b")
        assert await store.poll_entries() == ([first, second], [])
        (shard,) = await store.update_shards([ShardEntry(shard=1, owner_log=1, epoch=1)])
        recovering = await store.update_log(msgspec.structs.replace(first, state="recovering", recovering_by=2))
        assert await store.poll_entries() == ([recovering, second], [shard])
        (other,) = await store.update_shards([ShardEntry(shard=0, owner_log=2, epoch=1)])
        sealed = await store.update_log(msgspec.structs.replace(recovering, state="sealed", sealed_seq=7))
        assert await store.poll_entries() == ([sealed, second], [other, shard])
        accepted = await store.update_log(msgspec.structs.replace(sealed, accepted=True))
        moved = await store.update_shards([msgspec.structs.replace(one, epoch=2) for one in (other, shard)])
        third = await store.new_incarnation("a")
        for _ in range(2):
            assert await store.poll_entries() == ([accepted, second, third], moved)
            assert await store.logs() == [accepted, second, third]
            assert await store.shards() == moved


class ClusterConformance:
    """Heartbeats, and the assignment of shards."""

    @pytest.fixture
    def cluster(self, store: Any) -> ClusterStore:
        return cast(ClusterStore, store)

    async def test_the_latest_heartbeat_of_each_node_is_kept(self, cluster: ClusterStore) -> None:
        assert await cluster.heartbeats() == []
        first, later = Heartbeat("b", 1, 1, 1, 10, "unix:/b"), Heartbeat("b", 1, 1, 2, 20)
        again, other = Heartbeat("b", 3, 2, 1, 5), Heartbeat("a", 2, 1, 7, 1 << 50)
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
        assert none == ClusterEntry()
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(ClusterEntry(version=1))
        stored = await cluster.update_cluster(ClusterEntry(7, ("a", "", "b"), ("b",)))
        assert stored == ClusterEntry(7, ("a", "", "b"), ("b",), 1)
        assert await cluster.cluster() == stored
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(none)
        newer = await cluster.update_cluster(msgspec.structs.replace(stored, manager=8))
        assert (newer.manager, newer.version) == (8, 2)
        with pytest.raises(ConditionFailed):
            await cluster.update_cluster(stored)
        assert await cluster.cluster() == newer

    async def test_only_one_is_elected(self, cluster: ClusterStore) -> None:
        wishes = [cluster.update_cluster(ClusterEntry(manager)) for manager in range(1, 11)]
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        winners = [outcome for outcome in outcomes if isinstance(outcome, ClusterEntry)]
        assert len(winners) == 1
        assert await cluster.cluster() == winners[0]


class RegistryConformance:
    """Backend clusters, their reports, and the manager's entry."""

    async def test_clusters_get_numbers(self, store: MetadataStore) -> None:
        assert await store.backend_clusters() == []
        east = await store.register_cluster("east")
        assert east == BackendCluster("east", 1)
        local = await store.register_cluster(FIRST_CLUSTER)
        west = await store.register_cluster("west")
        assert (local.number, west.number) == (0, 2)
        assert await store.register_cluster("east") == east
        assert await store.backend_clusters() == [local, east, west]

    async def test_clusters_that_are_registered_at_once_differ(self, store: MetadataStore) -> None:
        names = [f"c{number}" for number in range(6)]
        made = await asyncio.gather(*(store.register_cluster(name) for name in (*names, *names)))
        assert [cluster.name for cluster in made] == names * 2
        assert made[:6] == made[6:]
        assert sorted(cluster.number for cluster in made[:6]) == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("name", ["", "East", "a-b", "1a", "a" * 25, "é", "a\n"])
    async def test_what_cannot_be_a_clusters_name(self, store: MetadataStore, name: str) -> None:
        with pytest.raises(ValueError, match="cannot have the name"):
            await store.register_cluster(name)
        assert await store.backend_clusters() == []

    async def test_a_cluster_changes_only_from_its_version(self, store: MetadataStore) -> None:
        with pytest.raises(ConditionFailed):
            await store.update_backend_cluster(BackendCluster("east", 1))
        east = await store.register_cluster("east")
        retiring = await store.update_backend_cluster(
            msgspec.structs.replace(east, state="retiring", weight=2.5, drained=("b1",))
        )
        assert retiring == BackendCluster("east", 1, 2.5, "retiring", ("b1",), 2)
        with pytest.raises(ConditionFailed):
            await store.update_backend_cluster(east)
        with pytest.raises(ConditionFailed):
            await store.update_backend_cluster(msgspec.structs.replace(retiring, number=2))
        assert await store.backend_clusters() == [retiring]
        assert await store.register_cluster("east") == retiring

    async def test_the_latest_report_of_each_cluster_is_kept(self, store: MetadataStore) -> None:
        assert await store.cluster_reports() == []
        nodes = (ReportedNode("b1", "unix:/b1", True, 3, 12, 128, 0.25), ReportedNode("b2", live=False, draining=True))
        first = ClusterReport(1, 5, 1, 100, 0.25, "b1", nodes, 3, 128, (BusyPartition(1 << 40 | 1, 7, 4000.5),))
        await store.report_cluster(first)
        assert await store.cluster_reports() == [first]
        later = msgspec.structs.replace(first, count=2, time_ms=90)
        other = ClusterReport(0, 1, 1, 50, 0.5)
        await store.report_cluster(later)
        await store.report_cluster(first)  # it arrives late
        await store.report_cluster(other)
        assert await store.cluster_reports() == [other, later]
        elected = msgspec.structs.replace(first, term=6, manager="b2")
        await store.report_cluster(elected)
        await store.report_cluster(msgspec.structs.replace(later, count=3))  # from a manager that was replaced
        assert await store.cluster_reports() == [other, elected]

    async def test_the_managers_entry_changes_only_from_its_version(self, store: MetadataStore) -> None:
        none = await store.manager()
        assert none == ManagerEntry()
        with pytest.raises(ConditionFailed):
            await store.update_manager(ManagerEntry(version=1))
        wishes = [store.update_manager(ManagerEntry(f"m{number}", "x")) for number in range(5)]
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        (elected,) = [outcome for outcome in outcomes if isinstance(outcome, ManagerEntry)]
        assert await store.manager() == elected
        assert elected.version == 1
        decided = msgspec.structs.replace(elected, decisions=(ManagerDecision(NOW_MS, "nothing"),))
        assert await store.update_manager(decided) == msgspec.structs.replace(decided, version=2)
        with pytest.raises(ConditionFailed):
            await store.update_manager(elected)
        assert await store.manager() == msgspec.structs.replace(decided, version=2)


class CredentialConformance:
    """Tenants, keys and roles."""

    async def test_tenants(self, store: MetadataStore) -> None:
        assert await store.get_tenant(ACCOUNT) is None
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        limited = Tenant(ACCOUNT, "root", "suspended", 5, TenantLimits(calls=Rate(5, 10), queues=7))
        await store.put_tenant(limited)
        assert await store.get_tenant(ACCOUNT) == limited

    async def test_a_tenant_is_created_once(self, store: MetadataStore) -> None:
        tenants = [Tenant(ACCOUNT, f"number {number}") for number in range(4)]
        outcomes = await asyncio.gather(*map(store.create_tenant, tenants), return_exceptions=True)
        (winner,) = [tenant for tenant, outcome in zip(tenants, outcomes, strict=True) if outcome is None]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 3
        assert await store.get_tenant(ACCOUNT) == winner
        await store.update_tenant(msgspec.structs.replace(winner, state="deleted"))
        with pytest.raises(ConditionFailed):
            await store.create_tenant(winner)

    async def test_tenants_are_listed_in_order_and_in_pages(self, store: MetadataStore) -> None:
        accounts = [f"{number:012}" for number in (5, 3, 11, 2, 7)]
        for account in accounts:
            await store.create_tenant(Tenant(account, account))
        listed = [tenant.account for tenant in await store.list_tenants(limit=3)]
        assert listed == sorted(accounts)[:3]
        rest = [tenant.account for tenant in await store.list_tenants(after=listed[-1], limit=3)]
        assert rest == sorted(accounts)[3:]
        assert await store.list_tenants(after=rest[-1], limit=3) == []

    async def test_a_change_is_conditional_on_the_version(self, store: MetadataStore) -> None:
        """A revocation and a concurrent change do not undo each other unnoticed."""
        tenant, key = Tenant(ACCOUNT, "root"), new_access_key(ACCOUNT)
        api_key, role = ApiKey("k" * 16, b"digest", ACCOUNT, "AIDA"), TenantRole(ACCOUNT, "worker", "AROA")
        for update in (
            store.update_tenant(tenant),
            store.update_access_key(key),
            store.update_api_key(api_key),
            store.update_role(role),
        ):
            with pytest.raises(ConditionFailed):
                await update
        await store.create_tenant(tenant)
        await store.put_access_key(key)
        await store.put_api_key(api_key)
        await store.put_role(role)
        suspended = msgspec.structs.replace(tenant, state="suspended")
        assert await store.update_tenant(suspended) == msgspec.structs.replace(suspended, version=2)
        revoked = msgspec.structs.replace(key, active=False)
        assert await store.update_access_key(revoked) == msgspec.structs.replace(revoked, version=2)
        revoked_api_key = msgspec.structs.replace(api_key, active=False)
        assert await store.update_api_key(revoked_api_key) == msgspec.structs.replace(revoked_api_key, version=2)
        narrowed = msgspec.structs.replace(role, scopes=("send",))
        assert await store.update_role(narrowed) == msgspec.structs.replace(narrowed, version=2)
        for update in (
            store.update_tenant(tenant),
            store.update_access_key(key),
            store.update_api_key(api_key),
            store.update_role(role),
        ):
            with pytest.raises(ConditionFailed):
                await update
        assert await store.get_tenant(ACCOUNT) == msgspec.structs.replace(suspended, version=2)
        assert await store.get_access_key(key.access_key_id) == msgspec.structs.replace(revoked, version=2)
        assert await store.get_api_key(api_key.key_id) == msgspec.structs.replace(revoked_api_key, version=2)
        assert await store.get_role(ACCOUNT, "worker") == msgspec.structs.replace(narrowed, version=2)

    async def test_only_one_of_concurrent_changes_wins(self, store: MetadataStore) -> None:
        tenant = Tenant(ACCOUNT, "root")
        await store.create_tenant(tenant)
        changes = [msgspec.structs.replace(tenant, name=f"number {number}") for number in range(4)]
        outcomes = await asyncio.gather(*map(store.update_tenant, changes), return_exceptions=True)
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Tenant)]
        assert await store.get_tenant(ACCOUNT) == winner

    async def test_access_keys_are_told_apart_by_how_their_secret_begins(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        secrets = ("plain-secret", "mark", "mar", "other mark ", "mark rest", "mark ")
        for number, secret in enumerate(secrets):
            await store.put_access_key(AccessKey(f"AKIA{number:016d}", secret, ACCOUNT, "AIDA"))
        found = {key.secret for key in await store.access_keys_without("mark ")}
        assert found == {"plain-secret", "mark", "mar", "other mark "}
        await store.scrub()
        assert len(await store.list_access_keys(ACCOUNT)) == len(secrets)

    async def test_access_keys(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        await store.put_tenant(Tenant("111111111111", "other"))
        keys = sorted((new_access_key(ACCOUNT) for _ in range(3)), key=lambda key: key.access_key_id)
        for key in [*keys, new_access_key("111111111111")]:
            await store.put_access_key(key)
        assert await store.list_access_keys(ACCOUNT) == keys
        assert await store.get_access_key(keys[1].access_key_id) == keys[1]
        assert await store.get_access_key("AKIANONE000000000000") is None
        inactive = msgspec.structs.replace(keys[1], active=False, scopes=("send",), prefixes=("a-",), expires_s=9)
        await store.put_access_key(inactive)
        assert await store.get_access_key(inactive.access_key_id) == inactive
        assert await store.delete_access_key(keys[0].access_key_id)
        assert not await store.delete_access_key(keys[0].access_key_id)
        assert await store.list_access_keys(ACCOUNT) == [inactive, keys[2]]

    async def test_api_keys(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        await store.put_tenant(Tenant("111111111111", "other"))
        keys = [ApiKey(f"key-{number}", bytes([number, 0, 255]), ACCOUNT, "AIDA", name="ci") for number in range(3)]
        for key in [*keys, ApiKey("key-of-other", b"d", "111111111111", "AIDA")]:
            await store.put_api_key(key)
        assert await store.list_api_keys(ACCOUNT) == keys
        assert await store.get_api_key("key-1") == keys[1]
        assert await store.get_api_key("key-9") is None
        assert await store.delete_api_key("key-1")
        assert not await store.delete_api_key("key-1")
        assert await store.list_api_keys(ACCOUNT) == [keys[0], keys[2]]

    @pytest.mark.parametrize("state", [None, "deleted"])
    async def test_a_key_needs_its_tenant(self, store: MetadataStore, state: Literal["deleted"] | None) -> None:
        if state is not None:
            await store.put_tenant(Tenant(ACCOUNT, "gone", state))
        with pytest.raises(ValueError, match="no tenant"):
            await store.put_access_key(AccessKey("AKIAEXAMPLE000000000", "secret-secret", ACCOUNT, "AIDA"))
        with pytest.raises(ValueError, match="no tenant"):
            await store.put_api_key(ApiKey("k" * 16, b"d", ACCOUNT, "AIDA"))
        with pytest.raises(ValueError, match="no tenant"):
            await store.put_role(TenantRole(ACCOUNT, "worker", "AROA"))

    async def test_last_uses(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        key = new_access_key(ACCOUNT)
        await store.put_access_key(key)
        assert await store.key_uses([key.access_key_id]) == {}
        await store.record_uses({key.access_key_id: 100, "other": 50})
        await store.record_uses({key.access_key_id: 90, "other": 60})
        many = [f"unknown-{number}" for number in range(2_000)]
        assert await store.key_uses([*many, key.access_key_id, "other"]) == {key.access_key_id: 100, "other": 60}
        assert await store.get_access_key(key.access_key_id) == key
        await store.delete_access_key(key.access_key_id)
        assert await store.key_uses([key.access_key_id]) == {}

    async def test_roles(self, store: MetadataStore) -> None:
        for account in (ACCOUNT, "111111111111"):
            await store.put_tenant(Tenant(account, "some"))
        roles = [TenantRole(ACCOUNT, name, "AROA", trusted_accounts=("111111111111",)) for name in ("a", "b")]
        for role in [*roles, TenantRole("111111111111", "a", "AROA")]:
            await store.put_role(role)
        assert await store.list_roles(ACCOUNT) == roles
        assert await store.get_role(ACCOUNT, "b") == roles[1]
        assert await store.get_role("111111111111", "b") is None
        assert await store.delete_role(ACCOUNT, "a")
        assert not await store.delete_role(ACCOUNT, "a")
        assert await store.list_roles(ACCOUNT) == roles[1:]

    async def test_alarms(self, store: MetadataStore) -> None:
        def alarm(name: str, alarm_id: str, account: str = ACCOUNT) -> Alarm:
            return Alarm(
                account, name, alarm_id, "q", "m", "LessThanThreshold", 1.5, 3, "example.com", b"\x00sealed", 7
            )

        with pytest.raises(ValueError, match="no tenant"):
            await store.put_alarm(alarm("deep", "1"))
        other = "111111111111"
        for account in (ACCOUNT, other):
            await store.put_tenant(Tenant(account, "some"))
        assert await store.alarm_accounts() in ([], [ACCOUNT]), "perhaps it was tried"
        deep, old, theirs = alarm("deep", "1"), alarm("old", "2"), alarm("deep", "3", other)
        for one in (old, deep, theirs):
            await store.put_alarm(one)
        assert await store.alarm_accounts() == [ACCOUNT, other]
        assert await store.list_alarms(ACCOUNT) == [WatchedAlarm(deep), WatchedAlarm(old)]
        told = Notification("n", 8, "OK", "ALARM", 0.5, "why")
        status = AlarmStatus("ALARM", 5, 0.25, 4, 3, (told,), 2, "trouble", 1)
        stored = await store.update_alarm_status(deep, status)
        assert stored == msgspec.structs.replace(status, version=1)
        assert await store.get_alarm(ACCOUNT, "deep") == WatchedAlarm(deep, stored)
        assert await store.get_alarm(other, "deep") == WatchedAlarm(theirs)
        with pytest.raises(ConditionFailed):
            await store.update_alarm_status(deep, status)
        again = alarm("deep", "4")
        await store.put_alarm(again)
        assert await store.get_alarm(ACCOUNT, "deep") == WatchedAlarm(again), "it begins anew"
        with pytest.raises(ConditionFailed):
            await store.update_alarm_status(deep, AlarmStatus())
        assert await store.delete_alarm(ACCOUNT, "deep")
        assert not await store.delete_alarm(ACCOUNT, "deep")
        assert await store.get_alarm(ACCOUNT, "deep") is None
        with pytest.raises(ConditionFailed):
            await store.update_alarm_status(again, AlarmStatus())
        assert await store.list_alarms(ACCOUNT) == [WatchedAlarm(old)]
        await store.put_tenant(Tenant(ACCOUNT, "some", "deleting"))
        with pytest.raises(ValueError, match="no tenant"):
            await store.put_alarm(deep)

    async def test_of_those_who_would_look_after_alarms_one_does(self, store: MetadataStore) -> None:
        wishes = [store.update_alarm_keeper(ManagerEntry(f"f{place}", f"{place}")) for place in range(3)]
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        (keeper,) = [outcome for outcome in outcomes if isinstance(outcome, ManagerEntry)]
        assert await store.alarm_keeper() == keeper
        assert (await store.manager()).version == 0, "another office"
        with pytest.raises(ConditionFailed):
            await store.update_alarm_keeper(ManagerEntry())

    async def test_service_keys(self, store: MetadataStore) -> None:
        keys = [ServiceKey(f"k{9 - number}", "session", bytes([number, 255]), number) for number in range(3)]
        for key in (keys[1], keys[0], keys[2], ServiceKey("other", "token", b"s", 0)):
            await store.put_service_key(key)
        assert await store.list_service_keys("session") == keys
        await store.delete_service_key(keys[0].key_id)
        await store.delete_service_key(keys[0].key_id)
        assert await store.list_service_keys("session") == keys[1:]

    async def test_a_service_key_is_added_once(self, store: MetadataStore) -> None:
        keys = [ServiceKey("lasting", "naming", bytes([number]), number) for number in range(5)]
        outcomes = await asyncio.gather(*map(store.add_service_key, keys), return_exceptions=True)
        (winner,) = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 4
        assert await store.list_service_keys("naming") == [winner]
        await store.delete_service_key("lasting")
        await store.add_service_key(keys[0])
        assert await store.list_service_keys("naming") == keys[:1]


class DataKeyConformance:
    """Wrapped data keys, and their numbers of uses."""

    async def test_data_keys(self, store: MetadataStore) -> None:
        ids = [await store.new_data_key_id() for _ in range(3)]
        assert ids == [1, 2, 3]
        keys = [
            DataKey(account, key_id, "mk-1", bytes([0, 255, key_id]), created_s=7)
            for account, key_id in zip((ACCOUNT, "111111111111", ACCOUNT), ids, strict=True)
        ]
        for key in reversed(keys):
            await store.add_data_key(key)
        assert await store.data_keys() == keys
        assert await store.data_keys(ACCOUNT) == [keys[0], keys[2]]
        assert await store.data_keys("222222222222") == []

    async def test_a_data_key_is_wrapped_anew_only_from_what_the_caller_knew(self, store: MetadataStore) -> None:
        key = DataKey(ACCOUNT, await store.new_data_key_id(), "mk-1", b"old")
        newer = msgspec.structs.replace(key, master_id="mk-2", wrapped=b"new")
        assert not await store.rewrap_data_key(newer, "mk-1")
        await store.add_data_key(key)
        assert await store.rewrap_data_key(newer, "mk-1")
        assert not await store.rewrap_data_key(key, "mk-1")
        assert await store.data_keys() == [newer]

    async def test_seals_are_counted_up_to_a_bound(self, store: MetadataStore) -> None:
        key = DataKey(ACCOUNT, await store.new_data_key_id(), "mk-1", b"wrapped")
        assert not await store.reserve_seals(key.key_id, 1, 100)
        await store.add_data_key(key)
        granted = await asyncio.gather(*(store.reserve_seals(key.key_id, 30, 100) for _ in range(5)))
        assert sorted(granted) == [False, False, True, True, True]
        assert await store.reserve_seals(key.key_id, 10, 100)
        assert not await store.reserve_seals(key.key_id, 1, 100)
        await store.rewrap_data_key(msgspec.structs.replace(key, master_id="mk-2"), "mk-1")
        assert not await store.reserve_seals(key.key_id, 1, 100)
        assert await store.reserve_seals(key.key_id, 1 << 31, 1 << 32)

    async def test_destroyed_data_keys_are_gone_and_their_ids_do_not_come_again(self, store: MetadataStore) -> None:
        others = DataKey("111111111111", await store.new_data_key_id(), "mk-1", b"others")
        await store.add_data_key(others)
        for _ in range(2):
            await store.add_data_key(DataKey(ACCOUNT, await store.new_data_key_id(), "mk-1", b"mine"))
        assert await store.destroy_data_keys(ACCOUNT) == 2
        assert await store.destroy_data_keys(ACCOUNT) == 0
        assert await store.data_keys() == [others]
        assert await store.new_data_key_id() == 4


class NamedKeyConformance:
    """Named data keys: created once, changed by version, destroyed at any version."""

    @staticmethod
    def key(name: str, account: str = ACCOUNT, *ids: int) -> NamedKey:
        versions = tuple(DataKey(account, key_id, "mk-1", bytes([0, 255, key_id]), 5) for key_id in ids or (1,))
        return NamedKey(account, name, versions, 5, seals=9)

    async def test_named_keys(self, store: MetadataStore) -> None:
        other = "111111111111"
        with pytest.raises(ValueError, match="no tenant"):
            await store.create_named_key(self.key("a"))
        for account in (ACCOUNT, other):
            await store.put_tenant(Tenant(account, "some"))
        assert await store.named_keys() == []
        names = ("alias/a/b", f"arn:aws:kms:eu-west-1:{other}:key/x", "k\u00e9y with spaces", "n" * 2048)
        made = [await store.create_named_key(self.key(name)) for name in reversed(names)][::-1]
        assert made == [msgspec.structs.replace(self.key(name), version=1) for name in names]
        theirs = await store.create_named_key(self.key(names[0], other, 2, 3))
        assert await store.named_keys(ACCOUNT) == made
        assert await store.named_keys(other) == [theirs]
        assert await store.named_keys("222222222222") == []
        assert await store.named_keys() == sorted([*made, theirs], key=lambda key: (key.account, key.name))
        assert await store.get_named_key(other, names[0]) == theirs
        assert await store.get_named_key(other, names[1]) is None
        assert await store.data_keys() == [], "no data keys of the tenant itself"
        await store.put_tenant(Tenant(ACCOUNT, "some", "deleting"))
        with pytest.raises(ValueError, match="no tenant"):
            await store.create_named_key(self.key("late"))

    async def test_a_named_key_is_made_once_and_changed_by_its_version(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "some"))
        outcomes = await asyncio.gather(
            *(store.create_named_key(self.key("k", ACCOUNT, number)) for number in range(1, 6)), return_exceptions=True
        )
        (made,) = [outcome for outcome in outcomes if isinstance(outcome, NamedKey)]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 4
        changes = [msgspec.structs.replace(made, seals=made.seals + number) for number in range(1, 6)]
        outcomes = await asyncio.gather(*map(store.update_named_key, changes), return_exceptions=True)
        (stored,) = [outcome for outcome in outcomes if isinstance(outcome, NamedKey)]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 4
        assert stored.version == made.version + 1
        assert await store.get_named_key(ACCOUNT, "k") == stored
        with pytest.raises(ConditionFailed):
            await store.update_named_key(msgspec.structs.replace(stored, name="other"))

    async def test_a_destroyed_named_key_has_nothing_wrapped_and_its_name_stays(self, store: MetadataStore) -> None:
        await store.put_tenant(Tenant(ACCOUNT, "some"))
        made = await store.create_named_key(self.key("k", ACCOUNT, 1, 2))
        await store.create_named_key(self.key("kept"))
        gone = await store.destroy_named_key(ACCOUNT, "k", 77)
        assert gone is not None
        assert [(one.key_id, one.wrapped) for one in gone.versions] == [(1, b""), (2, b"")]
        assert (gone.destroyed_s, gone.version) == (77, made.version + 1)
        assert await store.destroy_named_key(ACCOUNT, "k", 99) == gone == await store.get_named_key(ACCOUNT, "k")
        with pytest.raises(ConditionFailed):
            await store.update_named_key(made)
        with pytest.raises(ConditionFailed):
            await store.create_named_key(self.key("k"))
        assert await store.destroy_named_key(ACCOUNT, "never", 77) is None
        assert [key.destroyed_s for key in await store.named_keys(ACCOUNT)] == [77, None]

    async def test_a_tenants_named_keys_go_with_its_data_keys(self, store: MetadataStore) -> None:
        for account in (ACCOUNT, "111111111111"):
            await store.put_tenant(Tenant(account, "some"))
        for name in ("a", "b"):
            await store.create_named_key(self.key(name))
        theirs = await store.create_named_key(self.key("a", "111111111111", 3))
        await store.add_data_key(DataKey(ACCOUNT, await store.new_data_key_id(), "mk-1", b"own"))
        assert await store.destroy_data_keys(ACCOUNT) == 3
        assert await store.destroy_data_keys(ACCOUNT) == 0
        assert await store.named_keys() == [theirs]
        assert await store.get_tenant(ACCOUNT) == Tenant(ACCOUNT, "some")


class DocumentConformance:
    """Jobs of documents: one record of an account, changed by its version."""

    async def test_document_jobs(self, store: MetadataStore) -> None:
        job = DocumentJob("j1", "222222222222", "2026-11", "email", draft=True, created_s=5)
        failed = msgspec.structs.replace(job, job_id="j2", state="failed", error=DocumentError("Code", "It is so."))
        with pytest.raises(ValueError, match="no tenant"):
            await store.update_document_jobs(DocumentJobs(ACCOUNT, (job,)))
        await store.put_tenant(Tenant(ACCOUNT, "some"))
        assert await store.document_jobs(ACCOUNT) == DocumentJobs(ACCOUNT)
        firsts = [DocumentJobs(ACCOUNT, (msgspec.structs.replace(job, job_id=f"{n}"),)) for n in range(5)]
        outcomes = await asyncio.gather(*map(store.update_document_jobs, firsts), return_exceptions=True)
        (stored,) = [outcome for outcome in outcomes if isinstance(outcome, DocumentJobs)]
        assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 4
        assert await store.document_jobs(ACCOUNT) == stored
        newer = await store.update_document_jobs(msgspec.structs.replace(stored, jobs=(job, failed)))
        assert (newer.version, newer.jobs) == (stored.version + 1, (job, failed))
        assert await store.document_jobs(ACCOUNT) == newer
        with pytest.raises(ConditionFailed):
            await store.update_document_jobs(stored)
        assert await store.document_jobs("111111111111") == DocumentJobs("111111111111")
        await store.put_tenant(Tenant(ACCOUNT, "some", "deleting"))
        for _ in range(2):
            await store.delete_document_jobs(ACCOUNT)
        assert await store.document_jobs(ACCOUNT) == DocumentJobs(ACCOUNT)
        with pytest.raises(ConditionFailed):
            await store.update_document_jobs(newer)
        with pytest.raises(ValueError, match="no tenant"):
            await store.update_document_jobs(DocumentJobs(ACCOUNT, (job,)))


class StoreConformance(
    QueueConformance,
    ChangeConformance,
    EntryConformance,
    RegistryConformance,
    CredentialConformance,
    DataKeyConformance,
    NamedKeyConformance,
    DocumentConformance,
):
    """All parts of the suite."""
