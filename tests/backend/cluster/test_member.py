"""A cluster that manages itself: election, assignment, drains, and takeovers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import cast

import msgspec
import pytest

from backend.api import SHARDS, NotOwner, Target, shard_of
from backend.clocks.cluster_clocks import Clocks
from backend.cluster.failure_detector import DEAD_SECONDS, FailureDetector
from backend.cluster.member import GATHER_SECONDS, MOVES_MAX, Member, decide, drain, undrain, with_takeovers
from backend.cluster.reporter import GONE_SHOWN_MS, REPORT_SECONDS, Reporter
from backend.cluster.view import View
from backend.node import Node
from holdfast.process.node import TRIES
from metadata_service.models import (
    BackendCluster,
    BusyPartition,
    ClusterEntry,
    ClusterReport,
    Heartbeat,
    LogEntry,
    ShardEntry,
)
from metadata_service.store import ClusterRegistry, ConditionFailed, StoreUnavailable
from tests.backend.calls import count_messages, send
from tests.simulator.world.fleet import NOW, Fleet, partition_of

QUEUES = [partition_of(shard) for shard in range(0, SHARDS, 16)]


class _Registry:
    """A :class:`~metadata_service.store.ClusterRegistry` of one cluster, in memory."""

    def __init__(self) -> None:
        self.registered = BackendCluster("east", 1)
        self.reports: list[ClusterReport] = []

    async def register_cluster(self, name: str) -> BackendCluster:
        assert name == self.registered.name
        return self.registered

    async def report_cluster(self, report: ClusterReport) -> None:
        self.reports.append(report)

    @property
    def report(self) -> ClusterReport:
        return max(self.reports, key=lambda report: (report.term, report.count))


class _Cluster(Fleet):
    """Nodes that are members of a cluster, with a queue in every sixteenth shard."""

    def __init__(self, *names: str) -> None:
        super().__init__(7, segment_bytes=64 << 10)
        self.members: dict[str, Member] = {}
        self.registry = _Registry()
        self.stored: set[bytes] = set()
        self.cut: set[str] = set()
        """Nodes that no frontend reaches."""
        for name in names:
            self.join(name)

    def join(self, name: str, expected: Collection[str] = ()) -> Node:
        for left in reversed(range(TRIES)):
            try:
                node = self.start(name)
                break
            except ConditionFailed:  # others take its shards at this moment: it restarts, as a real process does
                if not left:
                    raise
                self.loop.run_for(1)
        process = self.processes[name]

        def clock() -> int:
            return int((NOW + self.loop.now) * 1000)

        reporter = Reporter(cast(ClusterRegistry, self.registry), "east", clock)
        member = Member(
            *(name, node, process.store, clock, f"{name}:1"),
            reporter=reporter,
            expected=expected,
            callers=lambda: [] if name in self.cut else ["f1", "f2"],
            release=f"1.0.{name}",
        )
        self.members[name] = member

        async def begin() -> None:
            member.start()

        self.run(begin())
        return node

    def living(self) -> dict[str, Node]:
        return {name: node for name, node in self.nodes.items() if self.processes[name].alive}

    def owner(self, shard: int) -> Node | None:
        owners = [node for node in self.living().values() if shard in node.owned]
        assert len(owners) <= 1
        return owners[0] if owners else None

    def settled(self) -> bool:
        """Return whether all shards are served, each by its intended owner."""
        wanted = self.store._cluster.assignment
        nodes = self.living()
        return len(wanted) == SHARDS and all(
            name in nodes and shard in nodes[name].owned for shard, name in enumerate(wanted)
        )

    def wait_until_stable(self, seconds: float) -> float:
        """Wait until it has settled, not only between two batches of moves; returns the time it took."""
        started_at = self.loop.now
        while True:
            self.loop.until(self.settled, seconds)
            ended, decided = self.loop.now, self.store._cluster
            self.loop.run_for(2.5)
            if self.settled() and self.store._cluster == decided:
                break
        assert ended - started_at < seconds
        return ended - started_at

    def store_some(self, count: int = 1) -> None:
        """Send messages to each queue, with retries until they are acknowledged."""
        for number in QUEUES:
            target = Target(number, number, 1)
            if number not in self.store.queues:
                node = self.owner_of(number)
                self.queue(node, number)
            for _ in range(count):
                body = b"%d" % len(self.stored)
                self.run(send(self.owner_of(number), target, body))
                self.stored.add(body)

    def owner_of(self, partition: int) -> Node:
        shard = shard_of(partition)
        self.loop.until(lambda: self.owner(shard) is not None, 30)
        node = self.owner(shard)
        assert node is not None
        return node

    @property
    def manager(self) -> str:
        return self.store._logs[self.store._cluster.manager].node

    @property
    def other(self) -> str:
        return next(name for name in self.nodes if name != self.manager)

    def check_found(self) -> None:
        """Check that all messages are there that were stored, and no other."""
        found: set[bytes] = set()
        for number in QUEUES:
            found.update(self.all_bodies(self.owner_of(number), Target(number, number, 1)))
        assert found == self.stored

    def shares(self) -> Counter[str]:
        return Counter({name: len(node.owned) for name, node in self.living().items()})


@pytest.fixture
def three() -> Iterator[_Cluster]:
    cluster = _Cluster("a", "b", "c")
    cluster.wait_until_stable(60)
    cluster.store_some()
    yield cluster
    cluster.close()


@pytest.fixture
def empty() -> Iterator[_Cluster]:
    cluster = _Cluster()
    yield cluster
    cluster.close()


def test_members_share_the_shards_and_elect_one_manager(three: _Cluster) -> None:
    shares = three.shares()
    assert sum(shares.values()) == SHARDS
    assert all(80 <= share <= 91 for share in shares.values())
    managers = {node.ownership.log_id for node in three.nodes.values()} & {three.store._cluster.manager}
    assert len(managers) == 1
    before = three.store._cluster
    three.loop.run_for(30)
    assert three.store._cluster == before
    for number in QUEUES:
        owner = three.owner_of(number)
        for name, node in three.nodes.items():
            if node is not owner:
                with pytest.raises(NotOwner) as caught:
                    three.run(count_messages(node, Target(number, number, 1)))
                assert caught.value.owner not in (None, name)
                assert three.nodes[caught.value.owner] is owner
    three.check_found()


def test_a_node_that_joins_takes_its_share_and_nothing_else_moves(three: _Cluster) -> None:
    before = three.store._cluster.assignment
    three.join("d")
    three.wait_until_stable(60)
    after = three.store._cluster.assignment
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"d"}
    assert 60 <= three.shares()["d"] <= 68
    three.store_some()
    three.check_found()


def test_a_member_has_settled_when_it_has_its_share_and_nothing_is_on_its_way(three: _Cluster) -> None:
    def all_have() -> bool:
        return all(three.members[name].placed.is_set() for name in three.living())

    assert all_have()
    three.join("d")
    three.loop.until(three.members["d"].placed.is_set, 60)
    assert 60 <= three.shares()["d"] <= 68
    three.loop.until(all_have, 1)
    assert three.settled()
    three.kill("a")
    three.loop.until(lambda: not three.members["d"].placed.is_set(), 10)
    three.loop.until(all_have, 60)
    assert three.settled()
    assert not three.shares()["a"]


@pytest.mark.parametrize("what", ["the manager", "another"])
def test_shards_of_a_dead_node_are_served_again_within_ten_seconds(three: _Cluster, what: str) -> None:
    victim = three.manager if what == "the manager" else three.other
    had = three.nodes[victim].owned
    three.kill(victim)
    started_at = three.loop.now
    three.loop.until(lambda: all(three.owner(shard) is not None for shard in had), 30)
    assert three.loop.now - started_at < 10
    three.store_some()
    three.check_found()
    three.join(victim)
    three.wait_until_stable(60)
    assert all(80 <= share <= 91 for share in three.shares().values())


def test_a_drained_node_is_empty_within_twenty_seconds_and_full_again_afterwards(three: _Cluster) -> None:
    started_at = three.loop.now
    assert three.run(three.members["b"].leave(20))
    assert three.loop.now - started_at < 20
    assert not three.nodes["b"].owned
    three.wait_until_stable(30)
    three.store_some()
    three.check_found()
    three.run(undrain(three.store, "b"))
    three.wait_until_stable(60)
    assert 80 <= three.shares()["b"] <= 91


def test_two_that_give_to_each_other_do_not_wait_for_each_other(three: _Cluster) -> None:
    """A drain is revoked halfway: shards that have arrived are kept, whatever is still to be given."""
    three.run(drain(three.store, "b"))
    three.loop.run_for(0.4)
    three.run(undrain(three.store, "b"))
    since: dict[int, float] = {}
    longest = 0.0
    until = three.loop.now + 30
    while three.loop.now < until:
        three.loop.run_for(0.1)
        for shard in range(SHARDS):
            if three.owner(shard) is None:
                since.setdefault(shard, three.loop.now)
            elif shard in since:
                longest = max(longest, three.loop.now - since.pop(shard))
    assert not since
    assert longest < 2
    three.check_found()


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_node_that_left_has_nothing_underway(three: _Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that ended then would leave its last shards to a takeover, unserved for some seconds."""
    log_id = three.nodes[name].ownership.log_id
    at_once = three.store.update_shards

    async def slowly(entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        await asyncio.sleep(0.3)
        return await at_once(entries)

    monkeypatch.setattr(three.store, "update_shards", slowly)

    async def leave() -> bool:
        left = await three.members[name].leave(60)
        await three.members[name].stop()
        return left

    assert three.run(leave())
    assert log_id not in {entry.owner_log for entry in three.run(three.store.shards())}


def test_a_rolling_restart_loses_nothing(three: _Cluster) -> None:
    for name in ("a", "b", "c"):
        assert three.run(three.members[name].leave(20))
        three.run(three.members[name].stop())
        three.run(three.nodes[name].close())
        three.kill(name)
        three.store_some()
        three.join(name)
        three.wait_until_stable(60)
    three.check_found()


@pytest.mark.parametrize("what", ["the manager", "another"])
def test_an_unreachable_node_hands_over(three: _Cluster, what: str, caplog: pytest.LogCaptureFixture) -> None:
    victim = three.manager if what == "the manager" else three.other
    three.cut = {victim}
    three.loop.until(lambda: not three.nodes[victim].owned, 15)
    three.wait_until_stable(15)
    assert f"node {victim} is live, but most callers of the cluster cannot reach it" in caplog.text
    assert [node.name for node in three.registry.report.nodes if node.unreachable] == [victim]
    assert three.processes[victim].alive, "nothing was fenced"
    three.store_some()
    three.cut = set()
    three.loop.until(lambda: 80 <= three.shares()[victim] <= 91, 30)
    three.wait_until_stable(30)
    three.check_found()


def test_shards_stay_if_no_node_is_reachable(three: _Cluster) -> None:
    before = three.store._cluster.assignment
    three.cut = {"a", "b"}
    three.loop.until(lambda: set(three.shares()) == {"c"} or three.shares()["c"] == SHARDS, 30)
    three.cut = {"a", "b", "c"}
    three.loop.run_for(30)
    assert three.shares()["c"] < SHARDS, "nobody calls, so nobody is missed"
    assert three.settled()
    assert set(before) == {"a", "b", "c"}


def test_the_first_assignment_waits_for_those_that_start_together(empty: _Cluster) -> None:
    names = ("a", "b", "c")
    for name in names:
        empty.join(name, names)
        empty.loop.run_for(2)
    empty.loop.until(empty.settled, 30)
    assert all(80 <= share <= 91 for share in empty.shares().values())
    assert all(entry.epoch == 1 for entry in empty.store._shards.values()), "none had another owner before"


def test_the_first_assignment_does_not_wait_for_ever(empty: _Cluster) -> None:
    empty.join("a", ("a", "b"))
    empty.loop.run_for(GATHER_SECONDS - 2)
    assert not empty.shares()["a"]
    empty.loop.until(lambda: empty.shares()["a"] == SHARDS, 5)


def test_without_another_node_to_drain_to_the_shards_stay(three: _Cluster) -> None:
    for name in ("a", "b"):
        assert three.run(three.members[name].leave(20))
    three.wait_until_stable(10)
    started_at = three.loop.now
    assert not three.run(three.members["c"].leave(20))
    assert three.loop.now - started_at < 1
    three.loop.run_for(10)
    assert three.nodes["c"].owned == set(range(SHARDS))
    three.check_found()


def test_a_node_returns_while_another_recovers_its_log(three: _Cluster) -> None:
    victim = three.other
    dead = three.nodes[victim].ownership.log_id
    three.kill(victim)
    three.loop.until(lambda: three.store._logs[dead].state == "recovering", 30)
    while not three.nodes[victim].ready or not three.processes[victim].alive:
        try:
            three.join(victim)
        except ConditionFailed:  # the node that recovers its log has taken the shards: it restarts
            three.kill(victim)
    three.wait_until_stable(60)
    assert three.store._logs[dead].state == "sealed"
    three.check_found()


def test_a_takeover_whose_recoverer_dies_is_finished_by_another(three: _Cluster) -> None:
    manager, victim = three.manager, three.other
    dead = three.nodes[victim].ownership.log_id
    three.kill(victim)
    three.loop.until(lambda: three.store._logs[dead].state == "recovering", 30)
    three.kill(manager)
    (last,) = three.living().values()
    three.loop.until(lambda: last.owned == set(range(SHARDS)), 30)
    assert three.store._logs[dead].state == "sealed"
    three.check_found()


def test_in_an_outage_of_the_metadata_no_node_declares_another_dead(three: _Cluster) -> None:
    three.store.failing = 1.0
    three.loop.run_for(60)
    three.store.failing = 0.0
    three.loop.run_for(20)
    assert {entry.state for entry in three.store._logs.values()} == {"open"}
    assert {log.node for log in three.store._logs.values()} == set(three.nodes)
    three.wait_until_stable(30)
    three.check_found()


def test_a_node_that_hangs_keeps_its_shards_until_it_is_killed(three: _Cluster) -> None:
    """On local files its lock is the fence."""
    log_id, had = three.nodes["b"].ownership.log_id, three.nodes["b"].owned
    three.run(three.members["b"].stop())  # its heartbeats stop, and the process lives
    three.loop.run_for(30)
    assert three.store._logs[log_id].state == "open"
    assert three.nodes["b"].owned == had
    three.kill("b")
    three.loop.until(lambda: all(three.owner(shard) is not None for shard in had), 10)
    three.check_found()


# --- reports ----------------------------------------------------------------------------------------------


def test_the_manager_reports_how_the_cluster_is(three: _Cluster) -> None:
    three.loop.run_for(3 * REPORT_SECONDS)
    report, store = three.registry.report, three.store
    assert (report.cluster, report.manager, report.term) == (1, three.manager, store._cluster.version)
    assert three.loop.now - (report.time_ms / 1000 - NOW) <= REPORT_SECONDS + 0.1
    assert [(node.name, node.address, node.live) for node in report.nodes] == [
        ("a", "a:1", True),
        ("b", "b:1", True),
        ("c", "c:1", True),
    ]
    assert {node.name: node.shards for node in report.nodes} == three.shares()
    assert (report.moving, report.unassigned) == (0, 0)
    assert {one.manager for one in three.registry.reports if one.term == report.term} == {three.manager}


def test_when_the_manager_dies_the_next_one_reports(three: _Cluster) -> None:
    victim = three.manager
    three.kill(victim)
    three.wait_until_stable(60)
    three.loop.run_for(2 * REPORT_SECONDS)
    report = three.registry.report
    assert report.manager != victim
    assert {node.name for node in report.nodes if node.live} == three.living().keys()
    assert {node.name: node.shards for node in report.nodes if node.live} == three.shares()
    (gone,) = [node for node in report.nodes if not node.live]
    assert (gone.name, gone.gone, gone.shards, set(gone.owners)) == (victim, True, 0, set(three.living()))
    assert 0 <= report.time_ms - gone.taken_over_ms < 60_000
    three.join(victim)
    three.wait_until_stable(60)
    three.loop.run_for(2 * REPORT_SECONDS)
    assert all(node.live for node in three.registry.report.nodes), "it is back"
    assert three.store._cluster.takeovers == ()


def test_a_node_that_left_is_not_missed_and_one_that_ended_is_for_a_day(three: _Cluster) -> None:
    three.run(three.members["a"].leave(60))
    three.run(three.members["a"].stop())
    three.kill("a")
    three.kill("b")
    three.wait_until_stable(60)
    three.loop.run_for(2 * REPORT_SECONDS)
    assert [(node.name, node.live) for node in three.registry.report.nodes] == [("b", False), ("c", True)]
    view = three.members["c"].managed
    assert view is not None
    (note,) = view.cluster.takeovers
    assert with_takeovers(view, view.cluster, [], note.time_ms + GONE_SHOWN_MS - 1).takeovers == (note,)
    assert with_takeovers(view, view.cluster, [], note.time_ms + GONE_SHOWN_MS).takeovers == ()


def test_a_takeover_is_noted_after_a_failed_change(three: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, store = three.other, three.processes[three.manager].store
    update_cluster: Callable[[ClusterEntry], Awaitable[ClusterEntry]] = store.update_cluster
    failed: list[ClusterEntry] = []

    async def fail_at_first(entry: ClusterEntry) -> ClusterEntry:
        if entry.takeovers and not failed:
            failed.append(entry)
            raise StoreUnavailable("too few nodes answered in time")
        return await update_cluster(entry)

    monkeypatch.setattr(store, "update_cluster", fail_at_first)
    three.kill(victim)
    three.wait_until_stable(60)
    three.loop.run_for(2 * REPORT_SECONDS)
    assert failed
    (note,) = three.store._cluster.takeovers
    assert (note.node, set(note.owners)) == (victim, set(three.living()))
    (gone,) = [node for node in three.registry.report.nodes if not node.live]
    assert (gone.name, gone.gone, gone.taken_over_ms) == (victim, True, note.time_ms)


def test_a_node_that_an_operator_drains_stays_empty_also_when_it_starts_anew(three: _Cluster) -> None:
    three.registry.registered = BackendCluster("east", 1, drained=("b",))
    three.loop.until(lambda: not three.nodes["b"].owned, 30)
    three.loop.run_for(2 * REPORT_SECONDS)
    assert [node.name for node in three.registry.report.nodes if node.draining] == ["b"]
    three.run(three.members["b"].stop())
    three.run(three.nodes["b"].close())
    three.kill("b")
    three.store_some()
    three.join("b")
    three.loop.run_for(10)
    assert not three.nodes["b"].owned
    three.registry.registered = BackendCluster("east", 1)
    three.loop.until(lambda: 80 <= three.shares()["b"] <= 91, 60)
    three.wait_until_stable(30)
    three.check_found()


def test_without_the_entries_of_the_cluster_nothing_is_reported(three: _Cluster) -> None:
    three.store.failing = 1.0
    three.loop.run_for(2 * REPORT_SECONDS)
    before = len(three.registry.reports)
    three.loop.run_for(20)
    assert len(three.registry.reports) == before
    three.store.failing = 0.0
    three.loop.until(lambda: len(three.registry.reports) > before, 30)


def test_the_fullest_disk_and_the_mean_of_the_cpu_count(three: _Cluster) -> None:
    three.loop.run_for(2 * REPORT_SECONDS)
    manager = next(one for one in three.members.values() if one._managed is not None)
    view = manager._managed
    assert view is not None

    def used(**shares: tuple[float, float]) -> View:
        live = {
            name: msgspec.structs.replace(view.live[name], cpu=cpu, storage=storage, busy=(BusyPartition(7, 7, cpu),))
            for name, (cpu, storage) in shares.items()
        }
        return view._replace(live=live)

    reporter = Reporter(cast(ClusterRegistry, three.registry), "east", lambda: 0)
    for shares, expected in [
        ({"a": (0.9, 0.1), "b": (0.3, 0.1)}, 0.6),
        ({"a": (0.9, 0.1), "b": (0.3, 0.8)}, 0.8),
        ({"c": (0.25, 0.1)}, 0.25),
    ]:
        three.run(reporter.report("a", used(**shares), lambda _: 0.0))
        assert three.registry.reports[-1].utilisation == pytest.approx(expected)
        assert [busy.rate for busy in three.registry.reports[-1].busy] == sorted(
            (cpu for cpu, _ in shares.values()), reverse=True
        )


def test_a_node_that_died_is_reported_though_it_has_no_shards(three: _Cluster) -> None:
    view = view_of({shard: "aab"[shard % 3] for shard in range(200)}, "b", ("b",) * 3)
    view = view._replace(silent={name: Heartbeat(name, ord(name), 1, 1, 0, f"{name}:1") for name in "ac"})
    reporter = Reporter(cast(ClusterRegistry, three.registry), "east", lambda: 0)
    three.run(reporter.report("b", view, lambda log_id: {ord("a"): 4.5}.get(log_id, 0.0)))
    report = three.registry.reports[-1]
    assert [(node.name, node.live, node.shards, node.silent_ms) for node in report.nodes] == [
        ("a", False, 134, 4500),
        ("b", True, 66, 0),
        ("c", False, 0, 0),
    ]
    assert [node.gone for node in report.nodes] == [False, False, True]
    assert (report.moving, report.unassigned) == (0, SHARDS - 66)


def test_a_shard_between_two_living_nodes_moves(three: _Cluster) -> None:
    view = view_of({0: "a", 1: "b", 2: "a"}, "ab", ("b", "b", "c"))
    reporter = Reporter(cast(ClusterRegistry, three.registry), "east", lambda: 0)
    three.run(reporter.report("b", view, lambda _: 0.0))
    assert (three.registry.reports[-1].moving, three.registry.reports[-1].unassigned) == (1, SHARDS - 3)


def test_a_new_node_is_reported_before_it_serves_a_shard(three: _Cluster) -> None:
    """Otherwise callers that find nodes by the reports would be sent to an owner that they cannot find."""
    three.loop.until(lambda: len(three.registry.report.nodes) == 3, 10)
    started_at = len(three.registry.reports)
    three.loop.until(lambda: len(three.registry.reports) > started_at, 10)  # the next periodic report is due later
    node = three.join("d")
    three.loop.until(lambda: bool(node.owned), 20)
    assert [one.name for one in three.registry.report.nodes] == ["a", "b", "c", "d"]
    assert [one.release for one in three.registry.report.nodes] == ["1.0.a", "1.0.b", "1.0.c", "1.0.d"]


# --- decisions --------------------------------------------------------------------------------------------


def view_of(owners: dict[int, str], live: str, assignment: tuple[str, ...] = (), draining: str = "") -> View:
    """Make a view.  Nodes have names of one letter, which determines their log ids."""
    names = sorted({*owners.values(), *live})
    logs = {ord(name): LogEntry(ord(name), name, 1) for name in names}
    shards = {shard: ShardEntry(shard, ord(name), 1) for shard, name in owners.items()}
    beats = {name: Heartbeat(name, ord(name), 1, 1, 0) for name in live}
    return View(ClusterEntry(1, assignment, tuple(draining), 3), logs, shards, beats, {})


def test_unowned_shards_are_assigned_at_once() -> None:
    entry = decide(view_of({}, "ab"))
    assert set(entry.assignment) == {"a", "b"}
    assert max(Counter(entry.assignment).values()) <= 135
    assert (entry.manager, entry.version) == (1, 3)
    orphans = decide(view_of(dict.fromkeys(range(SHARDS), "a"), "bc"))
    assert set(orphans.assignment) == {"b", "c"}


def test_nodes_not_known_to_be_live_get_no_shards() -> None:
    assert set(decide(view_of({1: "a"}, "")).assignment) == {""}


def test_moves_are_limited_together_with_those_under_way() -> None:
    owners = dict.fromkeys(range(SHARDS), "a")
    first = decide(view_of(owners, "ab"))
    assert Counter(first.assignment) == {"a": SHARDS - MOVES_MAX, "b": MOVES_MAX}
    assert decide(view_of(owners, "ab", first.assignment)).assignment == first.assignment
    moved = [shard for shard, name in enumerate(first.assignment) if name == "b"]
    owners.update(dict.fromkeys(moved[:10], "b"))
    second = decide(view_of(owners, "ab", first.assignment))
    assert Counter(second.assignment)["b"] == MOVES_MAX + 10


def test_a_draining_node_gives_up_what_it_has() -> None:
    owners = {shard: "ab"[shard % 2] for shard in range(SHARDS)}
    entry = decide(view_of(owners, "ab", draining="a"))
    assert Counter(entry.assignment) == {"a": 128 - MOVES_MAX, "b": 128 + MOVES_MAX}


# --- the watch --------------------------------------------------------------------------------------------


def beats(**counts: int) -> list[Heartbeat]:
    return [Heartbeat(name, ord(name), 1, count, 0) for name, count in counts.items()]


def test_a_heartbeat_that_stands_still_for_four_seconds_is_dead() -> None:
    watch = FailureDetector()
    for tick in range(20):
        watch.record(beats(a=tick + 1, b=min(tick + 1, 5)), [97, 98, 99], tick / 2, tick)
        assert watch.alive(97) == (tick > 0)
        assert watch.alive(98) == (0 < tick < 4 + 2 * DEAD_SECONDS)
        assert watch.dead(98) == (tick >= 4 + 2 * DEAD_SECONDS)
        assert watch.dead(99) == (tick >= 2 * DEAD_SECONDS), "it never beat"
        assert not watch.dead(97)


def test_time_in_which_the_watcher_saw_nothing_does_not_count() -> None:
    watch = FailureDetector()
    watch.record(beats(a=1), [97], 0.0, 0)
    for tick in range(1, 40):
        watch.blind()
        watch.record(beats(a=1), [97], tick, tick)
    watch.record(beats(a=1), [97], 1000.0, 40)  # the process was suspended
    assert not watch.dead(97)
    assert not watch.alive(97), "nor was it ever seen to move"


def test_the_clusters_time_is_the_lower_median_of_the_clocks() -> None:
    clocks = Clocks()
    for count in range(1, 8):
        seen = [Heartbeat("a", 1, 1, count, 3_600_000 + count * 1000), Heartbeat("b", 2, 1, count, count * 1000 - 20)]
        now = count * 1000 + (400 if count % 4 else 10)
        clocks.record(seen, now, 50_000 + now)
    assert clocks.ahead_ms([1, 2]) == 0, "b is a little behind, a far ahead"
    assert clocks.ahead_ms([1]) == 0, "one says so, and the other otherwise"
    assert clocks.ahead_ms([2]) == -30, "what was seen soonest counts"
    assert clocks.ahead_ms([]) is clocks.ahead_ms([3]) is None
    clocks.record([], 9000, 59_000)
    assert clocks.ahead_ms([1, 2]) is None, "nobody is there who could say"


def test_a_node_can_be_drained_twice(three: _Cluster) -> None:
    three.run(drain(three.store, "b"))
    three.run(drain(three.store, "b"))
    three.run(undrain(three.store, "x"))
    assert three.store._cluster.draining == ("b",)
