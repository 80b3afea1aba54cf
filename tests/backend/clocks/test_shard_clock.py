"""The time of a shard, after its owner's clock is stepped, and at a change of owners."""

import random
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from backend.clocks.cluster_clocks import Clocks
from backend.clocks.node_clock import DAY_MS
from backend.clocks.shard_clock import Former, ShardClock
from backend.journal.types import Row
from backend.recovery.replay import Chained, Replay
from backend.recovery.startup import time_of_node
from metadata_service.models import Heartbeat, LogEntry
from tests.backend.clocks.test_node_clock import MachineClocks, a_machine

HOUR_MS = 3_600_000


def test_a_shard_without_a_lead_has_its_owners_time() -> None:
    machine, node = a_machine()
    shard = ShardClock(node)
    for _ in range(50):
        machine.run(0.37)
        machine.wall += 0.01
        assert shard() == node()
        assert shard.lead_ms == 0


@pytest.mark.parametrize("lead_ms", [-HOUR_MS, -250, 250, HOUR_MS])
def test_a_lead_slews_to_zero_by_a_tenth(lead_ms: int) -> None:
    machine, node = a_machine()
    shard = ShardClock(node, node() + lead_ms)
    assert shard.lead_ms == lead_ms
    before, passed_ms = shard(), 0
    while shard.lead_ms:
        machine.run(5 if abs(lead_ms) == HOUR_MS else 0.05)
        step_ms = 5000 if abs(lead_ms) == HOUR_MS else 50
        assert 0.9 * step_ms - 1 <= shard() - before <= 1.1 * step_ms + 1
        before, passed_ms = shard(), passed_ms + step_ms
    assert abs(passed_ms - 10 * abs(lead_ms)) <= step_ms
    assert shard() == node()


@pytest.mark.parametrize("lead_ms", [-HOUR_MS, HOUR_MS])
def test_a_slew_does_not_depend_on_how_often_the_time_is_read(lead_ms: int) -> None:
    machine, node = a_machine()
    often, rarely = (ShardClock(node, node() + lead_ms) for _ in range(2))
    for _ in range(2000):
        machine.run(3)
        often()
    assert abs(often() - rarely()) <= 2
    machine.run(1_000_000)
    assert often() == rarely() == node()


def test_a_step_of_the_owners_clock_moves_no_shard() -> None:
    machine, node = a_machine()
    shard, other = ShardClock(node), ShardClock(node, node() - 40_000)
    before, other_before = shard(), other()
    node.follow(HOUR_MS)
    assert node() - before == HOUR_MS
    assert shard() == before
    assert other() == other_before
    assert shard.lead_ms == -HOUR_MS
    machine.run(100)
    assert shard() - before == 110_000
    node.follow(0)
    assert shard() - before == 110_000
    machine.run(100)
    assert shard() - before == 200_000, "it had gone too fast"
    assert shard() == node()


def test_a_shard_that_is_days_ahead_runs_at_its_own_pace() -> None:
    """Slewing by a tenth would take decades, during which every timeout was 11% too long."""
    machine, node = a_machine()
    shard = ShardClock(node, node() + 400 * DAY_MS)
    before = shard()
    machine.run(7200)
    assert shard() - before == 7_200_000
    assert shard.lead_ms == 400 * DAY_MS


def test_a_suspended_machine_counts_the_time_it_slept() -> None:
    machine, node = a_machine()
    behind, ahead = ShardClock(node, node() - HOUR_MS), ShardClock(node, node() + HOUR_MS)
    before, ahead_before = behind(), ahead()
    machine.slept += 1000
    machine.wall += 1000
    machine.run(1)
    assert behind() - before == 1_101_100
    assert ahead() - ahead_before == 900_900


def test_whatever_clocks_do_a_shards_time_runs_within_a_tenth() -> None:
    """Covers steps, wall clocks that jump, and moves between owners whose clocks are apart."""
    chance = random.Random(5)
    machines = [MachineClocks() for _ in range(3)]
    machines[1].wall += 3600
    machines[2].wall -= 3600
    nodes = [machine.clock() for machine in machines]
    shard = ShardClock(nodes[0])
    started_at, passed = shard(), 0.0
    last, since = started_at, 0.0
    for _ in range(5000):
        seconds = chance.choice((0.01, 0.3, 2.0, 30.0))
        passed += seconds
        since += seconds
        for machine in machines:
            machine.run(seconds)
        what = chance.random()
        if what < 0.1:
            chance.choice(machines).wall += chance.uniform(-500, 500)
        elif what < 0.2:
            chance.choice(nodes).follow(chance.uniform(-HOUR_MS, HOUR_MS))
        elif what < 0.3:
            shard = ShardClock(chance.choice(nodes), shard())
        now = shard()
        assert last <= now
        assert 900 * since - 2 <= now - last <= 1100 * since + 2
        last, since = now, 0.0
    assert 900 * passed <= last - started_at + 5000
    assert last - started_at <= 1100 * passed + 5000


SHARD = 5


def beat(log_id: int, count: int, time_ms: int, ahead_ms: int = 0, lead_ms: int = 0, *, clock_ms: int = 0) -> Heartbeat:
    """Make a heartbeat of a node whose time is ``ahead_ms`` ahead; ``clock_ms``: lead of its clock."""
    leads = ((SHARD, lead_ms),) if lead_ms else ()
    base_lead_ms = time_ms + ahead_ms
    return Heartbeat(f"n{log_id}", log_id, 1, count, time_ms + clock_ms, "a:1", shard_time_ms=base_lead_ms, leads=leads)


def watched(*beats: Heartbeat) -> Clocks:
    """Return the clocks seen by an observer with a right clock, which has received all of them with a short delay."""
    clocks = Clocks()
    first = {one.log_id: one for one in reversed(beats)}
    clocks.record([msgspec.structs.replace(one, count=one.count - 1) for one in first.values()], START_MS, START_MS)
    for one in beats:
        now_ms = START_MS + one.count * 1000 + 300
        clocks.record([{**first, one.log_id: one}[log_id] for log_id in first], now_ms, now_ms)
        first[one.log_id] = one
    return clocks


START_MS = 100 * HOUR_MS


def at(second: float) -> int:
    return START_MS + int(second * 1000)


@pytest.mark.parametrize("wrong_ms", [-HOUR_MS, HOUR_MS])
def test_of_two_clocks_the_one_counts_by_which_both_nodes_have_gone(wrong_ms: int) -> None:
    """A third node had died: the lower median of two clocks was the wrong one if that was behind."""
    right = watched(*(beat(1, count, at(count), clock_ms=wrong_ms) for count in (1, 2, 3)))
    assert right.ahead_ms([1], 0) == 0, "the other's clock is wrong, and the other knows it"
    assert right.ahead_ms([1], 900) == 0
    wrong = Clocks()
    for count in (1, 2, 3):
        wrong.record([beat(1, count, at(count))], at(count) + wrong_ms, at(count))
    assert wrong.ahead_ms([1], -wrong_ms) == -wrong_ms


@pytest.mark.parametrize("wrong_ms", [-HOUR_MS, HOUR_MS])
def test_of_two_clocks_the_lower_one_counts_where_the_nodes_have_not_gone_by_the_same_time(wrong_ms: int) -> None:
    def ahead_ms(beat_: Callable[[int], Heartbeat], base_lead_ms: float | None) -> float | None:
        return watched(*(beat_(count) for count in (1, 2, 3))).ahead_ms([1], base_lead_ms)

    lower_ms = min(0, wrong_ms)
    knows = partial(beat, 1, clock_ms=wrong_ms)
    assert ahead_ms(lambda count: knows(count, at(count)), None) == pytest.approx(lower_ms, abs=500), "it never ran"
    assert ahead_ms(lambda count: knows(count, at(count)), wrong_ms) == pytest.approx(lower_ms, abs=500)
    alone = partial(beat, 1, ahead_ms=wrong_ms, clock_ms=wrong_ms)
    assert ahead_ms(lambda count: alone(count, at(count)), 0) == pytest.approx(lower_ms, abs=500), "it was alone"

    def earlier_release(count: int) -> Heartbeat:
        return msgspec.structs.replace(knows(count, at(count)), shard_time_ms=0)

    assert ahead_ms(earlier_release, 0) == pytest.approx(lower_ms, abs=500), "it does not say what time it goes by"


def test_of_four_clocks_two_may_be_wrong_in_the_same_direction() -> None:
    errors_ms = {1: 0, 2: -HOUR_MS, 3: -HOUR_MS}
    beats = [beat(log, count, at(count), clock_ms=off) for count in (1, 2, 3) for log, off in errors_ms.items()]
    assert watched(*beats).ahead_ms([1, 2, 3], 0) == pytest.approx(0, abs=500)
    assert watched(*beats).ahead_ms([1, 2, 3]) == pytest.approx(-HOUR_MS, abs=500)


def test_a_new_owner_continues_with_the_time_of_one_that_it_has_watched() -> None:
    def goes_on(ahead_ms: int, lead_ms: int, second: float = 4.0) -> float:
        clocks = watched(*(beat(1, count, at(count), ahead_ms, lead_ms) for count in (1, 2, 3)))
        clock_ms = at(second - 1) + ahead_ms
        wrote = Former(1, 1, clock_ms + lead_ms, clock_ms)
        return clocks.shard_time_ms(SHARD, wrote, at(second), at(second)) - at(second)

    assert goes_on(0, 0) == 0, "heartbeats are seen a little late"
    assert goes_on(0, -90_000) == -90_000 + 100
    assert goes_on(0, 90_000) == 90_000 - 100
    assert goes_on(HOUR_MS, 0) == HOUR_MS - 300
    assert goes_on(-HOUR_MS, 0) == -HOUR_MS - 300
    assert goes_on(HOUR_MS, -HOUR_MS) == pytest.approx(0, abs=500)
    assert goes_on(-HOUR_MS, HOUR_MS) == pytest.approx(0, abs=500)
    assert goes_on(0, -90_000, 903) == 0, "it would have slewed"


def test_a_node_that_has_stepped_its_clock_is_believed_anew() -> None:
    before = [beat(1, count, at(count), HOUR_MS) for count in (1, 2, 3)]
    wrote = Former(1, 1, at(2) + HOUR_MS, at(2) + HOUR_MS)
    assert watched(*before).shard_time_ms(SHARD, wrote, at(5), at(5)) - at(5) == HOUR_MS - 300
    stepped = watched(*before, beat(1, 4, at(4), 0, HOUR_MS))
    assert stepped.shard_time_ms(SHARD, wrote, at(5), at(5)) - at(5) == pytest.approx(HOUR_MS, abs=500)
    # It wrote after that, or gave the shard away, and died before its next heartbeat.
    for former in (Former(1, 1, at(3.9), at(3.9)), Former(2, 1, at(3.9), at(3.9))):
        assert watched(*before).shard_time_ms(SHARD, former, at(5), at(5)) == at(5)
    late = Former(2, 1, at(3.9), at(3.9) - HOUR_MS)
    assert watched(*before).shard_time_ms(SHARD, late, at(5), at(5)) == at(5), "it goes on where it was"


@pytest.mark.parametrize("seen", [1, 3], ids=["just seen", "watched"])
def test_a_shard_that_was_given_away_before_its_giver_stepped_its_clock_ends_nothing_early(seen: int) -> None:
    """The rows have its former time, 90 s behind: they seemed 90 s old.  (Found by seed 139 of the wrong clocks.)"""
    before = [beat(1, count, at(count), -90_000) for count in (1, 2, 3)][-seen:]
    stepped = watched(*before, beat(1, 4, at(4)))
    given = Former(2, 1, at(3.5) - 90_000, at(3.5) - 90_000)
    assert stepped.shard_time_ms(SHARD, given, at(5), at(5)) - at(5) == pytest.approx(-90_000, abs=500)
    stepped.record([beat(1, 5, at(5), 90_000)], at(5.3), at(5.3))
    assert stepped.shard_time_ms(SHARD, given, at(6), at(6)) - at(6) == pytest.approx(-90_000, abs=500), "and again"
    by_now = Former(2, 1, at(4.5), at(4.5))
    assert stepped.shard_time_ms(SHARD, by_now, at(94), at(94)) == at(94), "it was not served for 90 s"


def test_an_unobserved_shard_is_not_served_later_than_the_last_heartbeat_allows() -> None:
    def goes_on(ahead_ms: int, lead_ms: int, second: float) -> float:
        clocks = Clocks()
        clocks.record([beat(1, 9, at(0), ahead_ms, lead_ms)], at(second), at(second))
        wrote = Former(1, 1, at(0) + ahead_ms + lead_ms, at(0) + ahead_ms)
        return clocks.shard_time_ms(SHARD, wrote, at(second), at(second)) - at(0)

    assert goes_on(0, 0, 7200) == 2 * HOUR_MS
    assert goes_on(0, 90_000, 10) == 10_000 + 89_000
    assert goes_on(0, -90_000, 10) == 10_000 - 89_000
    assert goes_on(0, -HOUR_MS, 7200) == 2 * HOUR_MS - HOUR_MS + 720_000
    assert goes_on(0, HOUR_MS, 60) == HOUR_MS, "its time may have been wrong, and the shard's right"
    assert goes_on(-HOUR_MS, HOUR_MS, 10) == 10_000, "and it was"
    assert goes_on(HOUR_MS, -HOUR_MS, 10) == 0


def test_a_lead_that_no_heartbeat_has_named_yet_is_in_the_journal() -> None:
    """A node took a shard, wrote rows of it and died within a second; the next owner opened it an hour too late."""
    clocks = watched(*(beat(1, count, at(count)) for count in (1, 2, 3)))
    assert clocks.shard_time_ms(SHARD, Former(1, 1, at(3) - HOUR_MS, at(3)), at(4), at(4)) - at(4) == -HOUR_MS + 100
    written_late = Former(1, 1, at(3) - 900, at(3))
    assert clocks.shard_time_ms(SHARD, written_late, at(4), at(4)) == at(4)
    behind_or_written_late = Former(1, 1, at(1), at(3))
    assert clocks.shard_time_ms(SHARD, behind_or_written_late, at(4), at(4)) - at(4) == -2000 + 100
    no_lead_named_since = watched(*(beat(1, count, at(count)) for count in (1, 2, 3, 4)))
    assert no_lead_named_since.shard_time_ms(SHARD, behind_or_written_late, at(5), at(5)) == at(5)


def test_a_handed_over_shard_continues_at_the_previous_owners_time() -> None:
    """The new owner may have died before it opened it, and the giver's heartbeats do not name the shard any more."""
    clocks = watched(*(beat(log_id, count, at(count)) for count in (1, 2, 3) for log_id in (1, 2)))
    given = Former(2, 1, at(3) - 90_000, at(3))
    assert clocks.shard_time_ms(SHARD, given, at(4), at(4)) - at(4) == -90_000 + 100
    others = watched(*(beat(3, count, at(count)) for count in (1, 2)))
    assert others.shard_time_ms(SHARD, given, at(4), at(4)) - at(4) == -90_000 + 100
    assert Clocks().shard_time_ms(SHARD, given, at(4), at(4)) == at(4), "it may have slept"
    assert Clocks().shard_time_ms(SHARD, Former(2, 1, at(3)), at(4), at(4)) == at(4), "an earlier release did not say"
    opened = watched(*(beat(2, count, at(count), 0, -40_000) for count in (1, 2)))
    assert opened.shard_time_ms(SHARD, given, at(3), at(3)) - at(3) == -40_000 + 100


def test_logs_are_kept_as_long_as_shards_name_them() -> None:
    clocks = watched(*(beat(1, count, at(count), HOUR_MS) for count in (1, 2, 3)))
    former = Former(1, 1, at(3) + HOUR_MS, at(3) + HOUR_MS)
    clocks.record([], at(50), at(50), {1})
    assert clocks.shard_time_ms(SHARD, former, at(50), at(50)) - at(50) == HOUR_MS - 300
    clocks.record([beat(3, 1, at(51))], at(51), at(51))
    assert clocks.shard_time_ms(SHARD, former, at(51), at(51)) == at(3) + HOUR_MS, "not before its last record"


def test_a_start_continues_after_the_last_row_that_its_node_wrote() -> None:
    """It continued from the last heartbeat, although later rows existed, even of later incarnations."""

    def time_of_rows(rows: dict[int, int], last_beat: Heartbeat | None) -> int:
        replay = Replay({})
        for log_id, time_ms in rows.items():
            replay.apply_row(log_id, Row(1, time_ms, 0, 0, 0, 0, []), Chained({}, {}))
        earlier = [LogEntry(log_id, "n", incarnation) for log_id, incarnation in ((9, 3), (1, 1), (5, 2))]
        return time_of_node(replay, earlier, last_beat)

    last = msgspec.structs.replace(beat(5, 7, at(100)), incarnation=2)
    assert time_of_rows({}, last) == at(100)
    assert time_of_rows({5: at(100.7)}, last) == at(100.7)
    assert time_of_rows({5: at(40)}, last) == at(100)
    assert time_of_rows({5: at(100) + HOUR_MS}, last) == at(100), "the node's clock was stepped back after that row"
    assert time_of_rows({1: at(100.7)}, last) == at(100), "that was before"
    assert time_of_rows({5: at(100.7), 9: at(900)}, last) == at(900)
    assert time_of_rows({9: at(50)}, last) == at(50), "the next one started with another clock"
    assert time_of_rows({7: at(300), 5: at(20)}, None) == at(300), "there is no cluster"
    assert time_of_rows({}, None) == 0
