"""The out-cluster manager over a store in a file.

The test sets the clusters' reports, and the backends carry out a map at once.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from auth.credentials import Tenant
from metadata_service import models
from metadata_service.clusters import partition_map
from metadata_service.clusters.directory import ClusterDirectory, change_cluster
from metadata_service.clusters.election import FORGOTTEN_MS, STAND_BY_SECONDS, TAKE_OVER_SECONDS, Election
from metadata_service.clusters.manager import NOTICED_SECONDS, WALK_SECONDS, Manager, MapChangeFailed
from metadata_service.clusters.policy import SILENT_SECONDS, SplitRule
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreUnavailable
from metadata_service.streams import NewStream
from tests.metadata_service.conformance import ACCOUNT, NOW_MS
from tests.metadata_service.faulty import Faults

RULE = SplitRule(partition_rate=1000, hot_seconds=30, cold_seconds=120)


class _World:
    """Clusters, queues, and a manager over them."""

    def __init__(self, store: SQLiteStore) -> None:
        self.now = 1000.0
        self.store = store
        self.faults = Faults(store)
        self.fleet = ClusterDirectory(store.clusters, clock=lambda: self.now, wall=lambda: 0.0)
        self.election = self.electorate("m1")
        self.manager = self.manager_of(self.election)
        self.rates: dict[int, float] = {}
        """Rates by queue."""
        self.silent: set[str] = set()
        self.unable = ""
        """Reason why the backends can do nothing; empty: they can."""
        self.holding: set[int] = set()
        """Drained partitions that are not empty."""
        self._count = 0

    def electorate(self, name: str) -> Election:
        return Election(self.faults.store.clusters, name, listed=True, clock=lambda: self.now, wall=lambda: self.now)

    def manager_of(self, election: Election, rule: SplitRule | None = RULE) -> Manager:
        return Manager(self.faults.store, self.fleet, election, self, rule=rule, clock=lambda: self.now)

    async def clusters(self, *names: str) -> None:
        for name in names:
            await self.store.clusters.register_cluster(name)
        await self.report()

    async def make(self, name: str, clusters: tuple[int, ...] = (0,), **attributes: str) -> models.Queue:
        return await self.store.queues.create_queue(
            models.NewQueue(ACCOUNT, name, attributes, {}, now_ms=NOW_MS, hold_seconds=0, clusters=clusters)
        )

    async def queue(self, name: str = "q") -> models.Queue:
        return await self.store.queues.get_queue(ACCOUNT, name)

    async def places(self, name: str = "q") -> list[int]:
        """Clusters of the open partitions."""
        return [models.cluster_of(one.id) for one in partition_map.open_ones((await self.queue(name)).partitions)]

    async def report(self) -> None:
        self._count += 1
        for cluster in await self.store.clusters.backend_clusters():
            if cluster.name in self.silent:
                continue
            busy = []
            for queue_id, rate in self.rates.items():
                queue = await self.store.queues.get_queue_by_id(queue_id)
                taking = partition_map.open_ones(queue.partitions) if queue is not None else []
                busy += [
                    models.BusyPartition(one.id, queue_id, rate / len(taking))
                    for one in taking
                    if models.cluster_of(one.id) == cluster.number
                ]
            await self.store.clusters.report_cluster(
                models.ClusterReport(cluster.number, 1, self._count, 0, 0.1, "b", busy=tuple(busy))
            )
        await self.fleet.refresh()

    # --- acts ---

    async def split(self, queue: models.Queue, clusters: Sequence[int]) -> models.Queue:
        return await self._change(queue, partition_map.split(queue, [await self._new_id(one) for one in clusters]))

    async def drain(self, queue: models.Queue, ids: Collection[int]) -> models.Queue:
        return await self._change(queue, partition_map.drain(queue, ids))

    async def move(self, queue: models.Queue, places: Mapping[int, int]) -> models.Queue:
        new = {before: await self._new_id(cluster) for before, cluster in places.items()}
        return await self._change(queue, partition_map.move(queue, new))

    async def finish(self, queue_id: int) -> bool:
        """Hand over the tokens at once, and remove empty draining partitions."""
        if self.unable:
            raise MapChangeFailed(self.unable)
        queue = await self.store.queues.get_queue_by_id(queue_id)
        assert queue is not None
        gone = [one.id for one in queue.partitions if one.state == "draining" and one.id not in self.holding]
        left = partition_map.without(partition_map.without_token_sources(queue.partitions), gone)
        if left != queue.partitions:
            queue = await self._change(queue, left)
        return all(one.state == "open" for one in queue.partitions)

    async def _new_id(self, cluster: int) -> int:
        return (await self.store.queues.new_partition_ids(cluster, 1))[0]

    async def _change(self, queue: models.Queue, changed: Sequence[models.Partition]) -> models.Queue:
        return await self.store.queues.update_queue(queue.queue_id, queue.version, now_ms=NOW_MS, partitions=changed)

    # --- time ---

    async def pass_time(self, seconds: float, manager: Manager | None = None) -> None:
        """Pass time in steps of two seconds: the clusters report, the manager runs, and carries out its decisions."""
        for _ in range(int(seconds / 2)):
            self.now += 2
            await self.report()
            await (manager or self.manager).tick()
            acts = (manager or self.manager)._working.values()
            if acts:
                await asyncio.wait(acts, timeout=5)

    async def decisions(self) -> list[str]:
        """Decisions as of the next beat."""
        await self.pass_time(2)
        return [decision.text for decision in (await self.store.clusters.manager()).decisions]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[_World]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    await store.credentials.put_tenant(Tenant(ACCOUNT, "tests"))
    world = _World(store)
    yield world
    await world.manager.rest()
    await store.close()


# --- hot and cold -------------------------------------------------------------------------------------


async def test_a_hot_queue_is_split_over_the_clusters_and_drained_back_when_it_is_cold(world: _World) -> None:
    await world.clusters("local", "east", "west")
    queue = await world.make("q")
    world.rates[queue.queue_id] = 3000.0
    await world.pass_time(RULE.hot_seconds)
    assert len((await world.queue()).partitions) == 1, "it may be over in a moment"
    await world.pass_time(4)
    split = await world.queue()
    assert len(split.partitions) == 8
    assert not partition_map.changing(split.partitions)
    assert set(await world.places()) == {0, 1, 2}
    assert await world.decisions() == [
        f"queue {ACCOUNT}/q is split from 1 to 8 partitions: 3,000 messages a second, for 1,000 a partition"
    ]
    await world.pass_time(400)
    assert await world.queue() == split, "at the same rate it stays so"
    world.rates.clear()
    await world.pass_time(RULE.cold_seconds + 4)
    assert len((await world.queue()).partitions) == 4
    await world.pass_time(3 * RULE.cold_seconds)
    assert (await world.queue()).partitions == split.partitions[:1]


async def test_a_silent_cluster_proves_nothing(world: _World) -> None:
    await world.clusters("local", "east")
    await world.make("q", (0, 1))
    world.silent = {"east"}
    await world.pass_time(SILENT_SECONDS + 3 * RULE.cold_seconds)
    assert len((await world.queue()).partitions) == 2
    world.silent.clear()
    await world.pass_time(RULE.cold_seconds + 6)
    assert len((await world.queue()).partitions) == 1


async def test_a_queue_keeps_what_it_was_made_with(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q", (0, 0, 0), HoldfastPartitions="3")
    world.rates[queue.queue_id] = 9000.0
    await world.pass_time(RULE.hot_seconds + 6)
    assert len(await world.places()) == 32
    world.rates.clear()
    await world.pass_time(6 * RULE.cold_seconds)
    assert await world.places() == [0, 0, 0]
    await pin(world, queue, 1)
    await world.pass_time(4)
    assert await world.places() == [0]


async def test_fifo_queues_are_left_alone(world: _World) -> None:
    await world.clusters("local")
    hot = await world.make("hot.fifo", FifoQueue="true")
    await world.make("cold.fifo", (0, 0, 0), FifoQueue="true")
    world.rates[hot.queue_id] = 9000.0
    await world.pass_time(2 * RULE.cold_seconds)
    assert await world.places("hot.fifo") == [0]
    assert await world.places("cold.fifo") == [0, 0, 0]


async def test_without_a_rule_only_an_operator_splits(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    world.rates[queue.queue_id] = 9000.0
    manager = world.manager_of(world.election, rule=None)
    await world.pass_time(200, manager)
    assert await world.places() == [0]
    await pin(world, queue, 2)
    await world.pass_time(4, manager)
    assert await world.places() == [0, 0]
    await manager.rest()


# --- an operator's setting ----------------------------------------------------------------------------


async def pin(world: _World, queue: models.Queue, count: int) -> None:
    entry = await world.store.clusters.manager()
    await world.store.clusters.update_manager(msgspec.structs.replace(entry, pins=(models.Pin(queue.queue_id, count),)))


async def test_an_operators_pin_overrides_all_rates(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    await pin(world, queue, 3)
    await world.pass_time(4)
    assert await world.places() == [0, 0, 0]
    await world.pass_time(2 * RULE.cold_seconds)
    assert await world.places() == [0, 0, 0]
    world.rates[queue.queue_id] = 9000.0
    await pin(world, queue, 1)
    await world.pass_time(100)
    assert await world.places() == [0]
    assert [text.partition(" is ")[2] for text in await world.decisions()] == [
        "split from 1 to 3 partitions: set by an operator",
        "drained back from 3 to 1 partitions: set by an operator",
    ]
    entry = await world.store.clusters.manager()
    await world.store.clusters.update_manager(msgspec.structs.replace(entry, pins=()))
    await world.pass_time(RULE.hot_seconds + 6)
    assert len(await world.places()) > 1


# --- clusters that are being retired ------------------------------------------------------------------


async def retire(world: _World, name: str) -> None:
    await change_cluster(world.store.clusters, name, lambda cluster: msgspec.structs.replace(cluster, state="retiring"))


async def test_queues_move_off_a_cluster_that_is_being_retired(world: _World) -> None:
    await world.clusters("local", "east")
    for number in range(20):
        await world.make(f"q{number}", (number % 2,))
    await world.make("q.fifo", (1, 1), FifoQueue="true")
    holding = (await world.queue("q1")).partitions[0].id
    world.holding = {holding}
    await retire(world, "east")
    await world.pass_time(6)
    for number in range(20):
        assert await world.places(f"q{number}") == [0]
    assert await world.places("q.fifo") == [0, 0]
    assert [one.state for one in (await world.queue("q1")).partitions] == ["draining", "open"]
    await world.pass_time(2 * WALK_SECONDS + NOTICED_SECONDS)
    assert not any("turned off" in text for text in await world.decisions()), "q1 still has messages there"
    assert not any(cluster.emptied for cluster in await world.store.clusters.backend_clusters())
    world.holding.clear()
    await world.pass_time(2 * WALK_SECONDS + 4)
    assert [models.cluster_of(one.id) for one in (await world.queue("q1")).partitions] == [0]
    decisions = await world.decisions()
    assert decisions.count("no queue is in cluster east any more: it may be turned off") == 1
    assert {cluster.name: cluster.emptied for cluster in await world.store.clusters.backend_clusters()} == {
        "local": False,
        "east": True,
    }
    assert f"queue {ACCOUNT}/q1 moves off cluster east, which is being retired" in decisions
    assert len(decisions) == 12


async def test_a_cluster_with_topics_or_groups_is_not_emptied(world: _World) -> None:
    await world.clusters("local", "east", "west")
    await world.make("q", (1,))
    stream = await world.store.streams.create_stream(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS, (0, 1, 1)))
    await world.store.streams.group_cluster(ACCOUNT, 2)
    await retire(world, "east")
    await retire(world, "west")
    await world.pass_time(2 * WALK_SECONDS + NOTICED_SECONDS)
    assert await world.places() == [0]
    stays = (
        "cluster {} still has {} topics, and the consumer groups of {} accounts, which cannot be moved: it must not be "
        "turned off"
    )
    decisions = await world.decisions()
    assert {stays.format("east", 1, 0), stays.format("west", 0, 1)} < set(decisions)
    assert not any(cluster.emptied for cluster in await world.store.clusters.backend_clusters())
    await world.store.streams.delete_stream(stream.stream_id)
    await world.pass_time(2 * WALK_SECONDS)
    assert [cluster.name for cluster in await world.store.clusters.backend_clusters() if cluster.emptied] == ["east"]


async def test_with_no_other_cluster_a_queue_stays_where_it_is(world: _World) -> None:
    await world.clusters("local")
    await world.make("q")
    await retire(world, "local")
    await world.pass_time(WALK_SECONDS + 4)
    assert await world.places() == [0]
    assert await world.decisions() == [
        f"queue {ACCOUNT}/q cannot be changed now, and is tried again: "
        "no backend cluster accepts new queues: local is being retired"
    ]
    await world.clusters("east")
    await world.pass_time(WALK_SECONDS + 4)
    assert await world.places() == [1]


# --- unfinished changes -------------------------------------------------------------------------------


async def test_another_completes_an_unfinished_one(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    world.unable = "the backends are away"
    await pin(world, queue, 2)
    await world.pass_time(4)
    await world.manager.rest()
    left = await world.queue()
    assert partition_map.changing(left.partitions)
    world.unable = ""
    second = world.manager_of(world.electorate("m2"))
    await world.pass_time(TAKE_OVER_SECONDS + 6, second)
    assert (await world.store.clusters.manager()).manager == "m2"
    assert (await world.queue()).partitions == partition_map.without_token_sources(left.partitions)
    await second.rest()


async def test_missing_support_of_the_backends_is_logged_once(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    world.unable = "node b1 is away"
    await pin(world, queue, 2)
    await world.pass_time(3 * WALK_SECONDS)
    decisions = await world.decisions()
    assert [text for text in decisions if "cannot" in text] == [
        f"queue {ACCOUNT}/q cannot be changed now, and is tried again: node b1 is away"
    ]
    world.unable = ""
    await world.pass_time(WALK_SECONDS + 4)
    assert not partition_map.changing((await world.queue()).partitions)


async def test_a_change_from_an_old_version_is_not_made(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    real = world.store.queues.new_partition_ids

    async def meanwhile(cluster: int, count: int) -> list[int]:
        await world.store.queues.update_queue(queue.queue_id, queue.version, now_ms=NOW_MS, tags={"a": "b"})
        return await real(cluster, count)

    monkeypatch.setattr(world.store.queues, "new_partition_ids", meanwhile)
    await pin(world, queue, 2)
    await world.pass_time(2)
    monkeypatch.undo()
    assert await world.places() == [0]
    assert (await world.queue()).tags == {"a": "b"}
    await world.pass_time(4)
    assert await world.places() == [0, 0]
    assert (await world.queue()).tags == {"a": "b"}


async def test_a_queue_that_is_deleted_meanwhile_is_forgotten(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q", (0, 0))
    await world.pass_time(4)
    assert queue.queue_id in world.manager._split
    await world.store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)
    await world.pass_time(RULE.cold_seconds + 10)
    assert not world.manager._split
    assert await world.decisions() == []


# --- election of the manager --------------------------------------------------------------------------


async def test_one_of_several_is_elected_and_when_it_is_gone_the_next(world: _World) -> None:
    one, other = world.electorate("m1"), world.electorate("m2")
    assert await one.stand() is not None
    for _ in range(20):
        world.now += 2
        assert await other.stand() is None
        assert await one.stand() is not None
    for _ in range(int(TAKE_OVER_SECONDS / 2)):
        world.now += 2
        assert await other.stand() is None
    world.now += 2
    assert await other.stand() is not None
    assert await one.stand() is None, "it was replaced"
    await other.resign()
    assert (await world.store.clusters.manager()).manager == ""
    assert await one.stand() is not None
    await other.resign()
    assert (await world.store.clusters.manager()).manager == "m1", "only its own place is given up"


async def test_standby_and_ended_processes_are_listed(world: _World) -> None:
    one, other, third = (world.electorate(name) for name in ("m1", "m2", "m3"))

    async def listed() -> list[tuple[str, str]]:
        return [
            (candidate.name, candidate.successor) for candidate in (await world.store.clusters.manager()).candidates
        ]

    async def pass_time(*elections: Election, seconds: float) -> None:
        until = world.now + seconds
        while world.now < until:
            world.now += 2
            for election in elections:
                await election.stand()

    await pass_time(one, other, third, seconds=2 * STAND_BY_SECONDS)
    assert sorted(await listed()) == [("m1", ""), ("m2", ""), ("m3", "")]
    await third.resign()
    assert sorted(await listed()) == [("m1", ""), ("m2", "")], "it took leave"
    await pass_time(other, seconds=TAKE_OVER_SECONDS + 6)  # the first has ended
    assert sorted(await listed()) == [("m1", "m2"), ("m2", "")]
    (gone,) = [candidate for candidate in (await world.store.clusters.manager()).candidates if candidate.gone_ms]
    assert gone.time_ms < gone.gone_ms <= world.now * 1000
    await pass_time(other, seconds=FORGOTTEN_MS / 1000)
    assert await listed() == [("m2", "")]
    again = world.electorate("m2")
    await pass_time(again, seconds=TAKE_OVER_SECONDS + 6)
    assert await listed() == [("m2", "")], "it is back under its name"


async def test_a_suspended_or_isolated_node_does_not_take_over_at_once(world: _World) -> None:
    one, other = world.electorate("m1"), world.electorate("m2")
    await one.stand()
    await other.stand()
    world.now += 1000
    assert await other.stand() is None
    world.now += 2
    assert await other.stand() is None
    assert await one.stand() is not None


async def test_an_operators_change_does_not_cost_the_manager_its_place(world: _World) -> None:
    await world.election.stand()
    world.election.publish("something")
    entry = await world.store.clusters.manager()
    await world.store.clusters.update_manager(msgspec.structs.replace(entry, pins=(models.Pin(7, 2),)))
    stored = await world.election.stand()
    assert stored is not None
    assert (stored.manager, stored.pins, stored.decisions) == (
        "m1",
        (models.Pin(7, 2),),
        (models.ManagerDecision(1_000_000, "something"),),
    )
    assert stored.time_ms == 1_000_000


async def test_without_the_metadata_nothing_continues(world: _World) -> None:
    await world.clusters("local")
    queue = await world.make("q")
    world.unable = "away"
    await pin(world, queue, 2)
    await world.pass_time(4)
    managers_task = asyncio.create_task(world.manager.run())
    world.faults.fail("manager")
    while "manager" not in world.faults.calls[-2:] or world.manager._working:
        await asyncio.sleep(0.01)
    assert not world.manager._split
    managers_task.cancel()
    await asyncio.wait([managers_task])
    with pytest.raises(StoreUnavailable):
        await world.manager.tick()
