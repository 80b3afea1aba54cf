"""Shards that change their node: hand-over, takeover, and crashes between any two steps."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest

from backend import api
from backend.journal.types import LogInUse
from backend.node import Node
from backend.recovery.ownership import NoSuchOwner
from metadata_service.models import ShardEntry
from metadata_service.store import StoreError
from tests.backend.calls import count_messages, delete, receive, send
from tests.simulator.world.fleet import Fleet, partition_of

SHARD = 5
MOVED, KEPT = partition_of(SHARD), partition_of(6)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


def two_nodes(fleet: Fleet) -> tuple[Node, Node, api.Target, api.Target]:
    """Make a node that owns all, with a queue in the shard that will move and one in another, and an empty node."""
    first, second = fleet.start("a", range(api.SHARDS)), fleet.start("b")
    moved, kept = fleet.queue(first, MOVED), fleet.queue(first, KEPT)
    fleet.send(first, moved, *(b"moved %d" % number for number in range(25)))
    fleet.send(first, kept, b"kept")
    return first, second, moved, kept


BODIES = sorted(b"moved %d" % number for number in range(25))


def hand_over(fleet: Fleet, source: str, target: str, shards: set[int]) -> None:
    fleet.run(fleet.nodes[source].ownership.hand_over(shards, fleet.nodes[target].ownership.log_id))
    assert fleet.run(fleet.nodes[target].ownership.take(shards)) == shards


# --- hand-over ------------------------------------------------------------------------------------------


def test_a_shard_is_handed_over_with_everything_in_it(fleet: Fleet) -> None:
    first, second, moved, kept = two_nodes(fleet)
    claimed = fleet.receive(first, moved)  # 10 in flight, one of them deleted
    fleet.run(delete(first, moved, claimed[0]))
    started_at = fleet.loop.now
    hand_over(fleet, "a", "b", {SHARD})
    assert fleet.loop.now - started_at < 1
    assert fleet.run(count_messages(second, moved)).in_flight == 9
    assert fleet.run(delete(second, moved, *claimed[1:])) == [0] * 9
    assert len(fleet.all_bodies(second, moved)) == 15
    with pytest.raises(api.NotOwner) as caught:
        fleet.send(first, moved, b"late")
    assert (caught.value.shard, caught.value.owner) == (SHARD, "b")
    assert fleet.all_bodies(first, kept) == [b"kept"]
    fleet.send(second, moved, b"new")
    assert fleet.all_bodies(second, moved) == [b"new"]
    assert second.owned == {SHARD}


def test_a_shard_that_is_given_away_while_its_entry_is_read_is_not_opened_again(fleet: Fleet) -> None:
    """Two nodes served it, as the entry read still named this node's log.  (Found by the ordinary seed 356.)"""
    first, second, moved, _ = two_nodes(fleet)
    entries = first.ownership._entries
    read = entries.shards

    async def late() -> list[ShardEntry]:
        found = await read()
        await given
        return found

    with mock.patch.object(first.ownership, "_entries", mock.Mock(wraps=entries, shards=late)):
        given = fleet.loop.create_task(first.ownership.hand_over({SHARD}, second.ownership.log_id))
        assert fleet.run(first.ownership.take({SHARD})) == set()
    assert fleet.run(second.ownership.take({SHARD})) == {SHARD}
    assert SHARD not in first.owned
    assert fleet.all_bodies(second, moved) == BODIES


def test_a_completed_handover_survives_the_death_of_either_node(fleet: Fleet) -> None:
    _, second, moved, kept = two_nodes(fleet)
    hand_over(fleet, "a", "b", {SHARD})
    fleet.send(second, moved, b"new")
    fleet.kill("a")
    assert fleet.all_bodies(second, moved) == sorted([*BODIES, b"new"])
    fleet.kill("b")
    first, second = fleet.start("a"), fleet.start("b")
    assert second.owned == {SHARD}
    assert first.owned == set(range(api.SHARDS)) - {SHARD}
    assert fleet.all_bodies(first, kept) == [b"kept"]
    assert fleet.run(count_messages(second, moved)).in_flight == 26


def test_a_shard_moves_back_and_forth(fleet: Fleet) -> None:
    _, _, moved, _ = two_nodes(fleet)
    ids = set()
    for turn in range(6):
        source, target = ("a", "b") if turn % 2 == 0 else ("b", "a")
        hand_over(fleet, source, target, {SHARD})
        (stored,) = fleet.run(send(fleet.nodes[target], moved, b"turn %d" % turn))
        ids.add(stored.message_id)
    assert len(ids) == 6
    fleet.kill("a")
    fleet.kill("b")
    first = fleet.start("a")
    assert SHARD in first.owned
    assert fleet.all_bodies(first, moved) == sorted([*BODIES, *(b"turn %d" % turn for turn in range(6))])


def test_calls_in_progress_end_before_the_shard_is_released(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    empty = fleet.queue(first, partition_of(SHARD, 1))
    poll = fleet.loop.create_task(receive(first, empty, 1, 30, 20))
    sends = [fleet.loop.create_task(send(first, moved, b"under way %d" % n)) for n in range(50)]
    fleet.loop.run_for(0.0)
    hand_over(fleet, "a", "b", {SHARD})
    assert isinstance(poll.exception(), api.NotOwner)
    answered = sum(task.done() and task.exception() is None for task in sends)
    assert all(task.done() for task in sends)
    stored = [body for body in fleet.all_bodies(second, moved) if body.startswith(b"under way")]
    assert len(stored) == answered == 50


def test_a_checkpoint_that_cannot_be_written_leaves_the_shard_where_it_is(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    fleet.processes["a"].capacity_bytes = 0
    successor = second.ownership.log_id
    with pytest.raises(Exception, match="no space for a checkpoint"):
        fleet.run(first.ownership.hand_over({SHARD}, successor))
    fleet.processes["a"].capacity_bytes = 1 << 40
    fleet.send(first, moved, b"more")
    assert fleet.all_bodies(first, moved) == sorted([*BODIES, b"more"])
    assert fleet.run(second.ownership.take({SHARD})) == set()


def test_nothing_is_given_to_a_log_that_has_ended(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    successor = second.ownership.log_id
    fleet.kill("b")
    fleet.start("b")
    for log_id in (successor, first.ownership.log_id, 999):
        with pytest.raises(NoSuchOwner):
            fleet.run(first.ownership.hand_over({SHARD}, log_id))
    assert fleet.all_bodies(first, moved) == BODIES


def test_a_shard_given_to_an_incarnation_that_has_just_ended_is_the_next_ones(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    fleet.run(first.ownership.hand_over({SHARD}, second.ownership.log_id))
    fleet.kill("b")
    second = fleet.start("b")
    assert second.owned == {SHARD}
    assert fleet.all_bodies(second, moved) == BODIES


@pytest.mark.parametrize("applied", [False, True])
def test_no_node_serves_with_an_unknown_outcome(fleet: Fleet, applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was given up may still take effect: only another change makes the outcome certain."""
    first, second, moved, _ = two_nodes(fleet)
    real = fleet.store.update_shards
    late: list[object] = []

    async def lost(entries: list[object]) -> list[object]:
        if applied:
            await real(entries)  # type: ignore[arg-type]
        else:
            late.append(entries)
        raise StoreError("the outcome is not known")

    monkeypatch.setattr(fleet.store, "update_shards", lost)
    with pytest.raises(StoreError):
        fleet.run(first.ownership.hand_over({SHARD}, second.ownership.log_id))
    with pytest.raises(api.NotOwner):
        fleet.send(first, moved, b"nobody's")
    fleet.loop.run_for(5)
    with pytest.raises(api.NotOwner):
        fleet.send(first, moved, b"nobody's")
    monkeypatch.setattr(fleet.store, "update_shards", real)
    fleet.loop.run_for(5)  # the owner resolves the outcome by itself
    with pytest.raises(api.NotOwner) as caught:
        fleet.send(first, moved, b"nobody's")
    assert caught.value.owner == "b"
    for entries in late:  # delayed requests arrive now
        with pytest.raises(StoreError):
            fleet.run(real(entries))  # type: ignore[arg-type]
    assert fleet.run(second.ownership.left_behind()) == {SHARD}
    assert fleet.run(second.ownership.take({SHARD})) == {SHARD}
    assert fleet.all_bodies(second, moved) == BODIES


def test_the_old_owner_keeps_what_the_new_one_points_into(fleet: Fleet) -> None:
    first, second, moved, kept = two_nodes(fleet)
    hand_over(fleet, "a", "b", {SHARD})
    before = set(fleet.disk.paths())
    for _ in range(20):
        fleet.send(first, kept, bytes(6000))
    for _ in range(3):
        fleet.run(first.checkpoint())
        fleet.run(second.checkpoint())
    assert "/journal/a-1/00000001.log" in set(fleet.disk.paths()) & before
    assert fleet.all_bodies(second, moved) == BODIES
    fleet.run(second.call(api.Purge(moved, 1)))
    fleet.run(second.checkpoint())
    fleet.run(first.checkpoint())
    assert len(fleet.all_bodies(first, kept)) == 21
    fleet.run(first.call(api.Purge(kept, 1)))
    fleet.run(first.checkpoint())
    assert "/journal/a-1/00000001.log" not in fleet.disk.paths()


# --- takeover -------------------------------------------------------------------------------------------


def take_over(fleet: Fleet, name: str, dead: int, shards: set[int]) -> None:
    ownership = fleet.nodes[name].ownership
    fleet.run(ownership.seal(dead))
    assert fleet.run(ownership.take(shards)) == shards


def test_several_take_over_what_a_dead_node_had(fleet: Fleet) -> None:
    first, second, moved, kept = two_nodes(fleet)
    third, dead = fleet.start("c"), first.ownership.log_id
    fleet.kill("a")
    take_over(fleet, "b", dead, {SHARD})
    assert fleet.run(third.ownership.take(set(range(api.SHARDS)))) == set(range(api.SHARDS)) - {SHARD}
    assert fleet.all_bodies(second, moved) == BODIES
    assert fleet.all_bodies(third, kept) == [b"kept"]
    with pytest.raises(api.NotOwner) as caught:
        fleet.send(third, moved, b"x")
    assert caught.value.owner == "b"
    assert fleet.start("a").owned == set()
    assert {entry.epoch for entry in fleet.run(fleet.store.shards())} == {2}


def test_a_dead_nodes_log_is_deleted_when_its_shards_have_checkpoints(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    dead = first.ownership.log_id
    fleet.run(first.call(api.Purge(moved, 1)))
    fleet.kill("a")
    take_over(fleet, "b", dead, set(range(api.SHARDS)))
    fleet.run(second.call(api.Purge(api.Target(KEPT, KEPT, 1), 1)))
    fleet.loop.until(lambda: not any(path.startswith("/journal/a-1/") for path in fleet.disk.paths()), 10)
    assert fleet.all_bodies(second, moved) == []


def test_the_fence_of_a_living_owner_holds(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    with pytest.raises(LogInUse):
        fleet.run(second.ownership.seal(first.ownership.log_id))
    assert fleet.run(second.ownership.take({SHARD})) == set()
    fleet.send(first, moved, b"more")
    assert len(fleet.all_bodies(first, moved)) == 26


def test_an_owner_that_was_cut_off_never_answers_what_its_successor_did_not_read(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    sends = []
    for number in range(40):  # it dies with rows under way, of which some are on the disk
        sends.append(fleet.loop.create_task(send(first, moved, b"late %d" % number)))
        fleet.loop.run_for(0.0007)
    dead = first.ownership.log_id
    fleet.kill("a")
    answered = {b"late %d" % number for number, task in enumerate(sends) if task.done()}
    assert 0 < len(answered) < 40
    take_over(fleet, "b", dead, {SHARD})
    stored = set(fleet.all_bodies(second, moved))
    assert answered <= stored
    fleet.loop.run_for(60)
    assert {b"late %d" % number for number, task in enumerate(sends) if task.done()} == answered


def test_only_one_of_two_takers_gets_a_shard(fleet: Fleet) -> None:
    first, second, moved, _ = two_nodes(fleet)
    third, dead = fleet.start("c"), first.ownership.log_id
    fleet.kill("a")
    fleet.run(second.ownership.seal(dead))

    async def both() -> list[set[int] | BaseException]:
        takers = (second.ownership.take({SHARD}), third.ownership.take({SHARD}))
        return list(await asyncio.gather(*takers, return_exceptions=True))

    taken = [one for one in fleet.run(both()) if one == {SHARD}]
    assert len(taken) == 1
    assert len(second.owned | third.owned) == 1
    owner = second if second.owned else third
    assert fleet.all_bodies(owner, moved) == BODIES


def test_a_shard_that_is_given_to_a_log_that_has_been_let_go_of_is_not_damaged(fleet: Fleet) -> None:
    """Its owner does not know yet that the successor was taken for dead, nor that its log was removed."""
    first, second, moved, _ = two_nodes(fleet)
    other = fleet.queue(first, partition_of(9))
    hand_over(fleet, "a", "b", {9})
    fleet.send(second, other, b"x")
    gone = second.ownership.entry
    fleet.kill("b")
    second = fleet.start("b")
    fleet.run(second.call(api.Purge(other, 1)))
    fleet.run(second.checkpoint())
    assert not [path for path in fleet.disk.paths() if path.startswith(f"/journal/b-{gone.incarnation}/")]
    assert first._checkpointer is not None
    fleet.run(first._checkpointer.hand_over([SHARD], gone))
    with pytest.raises(NoSuchOwner):
        fleet.run(first.ownership.hand_over({6}, gone.log_id))
    assert fleet.run(second.ownership.take({SHARD})) == {SHARD}
    assert fleet.all_bodies(second, moved) == BODIES


# --- crashes --------------------------------------------------------------------------------------------


def everything(fleet: Fleet, *targets: api.Target) -> list[list[bytes]]:
    """Kill all nodes, and let one take over everything."""
    for name in fleet.processes:
        fleet.kill(name)
    last = fleet.start("last", range(api.SHARDS))
    return [fleet.all_bodies(last, target) for target in targets]


def crash_at_each_step(victim: str, attempt: str) -> Iterator[tuple[Fleet, api.Target, api.Target, bool]]:
    """Kill the victim before each of its steps in turn, or just after it before it learns the outcome."""
    for lost in (False, True):
        step = 0
        while True:
            fleet = Fleet(step)
            first, second, moved, kept = two_nodes(fleet)
            process = fleet.processes[victim]
            if lost:
                process.lose_at = process.steps + step
            else:
                process.kill_at = process.steps + step
            if attempt == "takeover":
                fleet.kill("a")
                done = fleet.unless_killed("b", second.ownership.seal(first.ownership.log_id)) and fleet.unless_killed(
                    "b", second.ownership.take({SHARD})
                )
            else:
                give = first.ownership.hand_over({SHARD}, second.ownership.log_id)
                done = fleet.unless_killed("a", give) and fleet.unless_killed("b", second.ownership.take({SHARD}))
            yield fleet, moved, kept, done
            fleet.close()
            if done and step > 12:
                break
            step += 1


@pytest.mark.parametrize(("victim", "attempt"), [("a", "hand-over"), ("b", "takeover")])
def test_a_crash_between_any_two_steps_loses_nothing(victim: str, attempt: str) -> None:
    crashes = 0
    for fleet, moved, kept, done in crash_at_each_step(victim, attempt):
        crashes += not done
        if attempt == "takeover" and not done:  # another node completes it
            third = fleet.start("c")
            dead = next(entry for entry in fleet.run(fleet.store.logs("a")))
            take_over(fleet, "c", dead.log_id, set())
            for log in fleet.run(fleet.store.logs("b")):
                fleet.run(third.ownership.seal(log.log_id))
            fleet.run(third.ownership.take(set(range(api.SHARDS))))
            assert third.owned == set(range(api.SHARDS))
            assert fleet.all_bodies(third, moved) == BODIES
            assert fleet.all_bodies(third, kept) == [b"kept"]
        else:
            assert everything(fleet, moved, kept) == [BODIES, [b"kept"]]
    assert crashes > 4


def test_a_log_that_fails_during_a_hand_over(fleet: Fleet) -> None:
    """The owner restarts; the shard is its own again, or the other's, and complete."""
    first, second, moved, _ = two_nodes(fleet)
    sends = [fleet.loop.create_task(send(first, moved, b"under way")) for _ in range(3)]
    fleet.loop.run_for(0.0)
    fleet.processes["a"].failing_syncs = 1
    with pytest.raises((api.Unavailable, StoreError)):
        fleet.run(first.ownership.hand_over({SHARD}, second.ownership.log_id))
    fleet.loop.until(lambda: first.ready, 60)
    fleet.run(second.ownership.take({SHARD}))
    owner = second if SHARD in second.owned else first
    answered = sum(task.exception() is None for task in sends)
    bodies = fleet.all_bodies(owner, moved)
    assert bodies[:25] == BODIES
    assert len(bodies) >= 25 + answered
