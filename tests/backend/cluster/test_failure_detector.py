"""Failure detection: time to detect a dead node, and no false detection, on idle and busy machines."""

import heapq
import random
from collections.abc import Callable

import pytest

from backend.cluster.failure_detector import BEAT_SECONDS, GAP_SECONDS, OWN_BEATS_MIN, FailureDetector
from metadata_service.models import Heartbeat

POLL_SECONDS = 0.5
Takes = Callable[[random.Random], float]


def idle(chance: random.Random) -> float:
    return chance.uniform(0.005, 0.02)


def busy(chance: random.Random) -> float:
    """Return a duration of about a second for metadata operations, as on a machine with many times its load."""
    return chance.uniform(0.3, 1.2)


def stalling(chance: random.Random) -> float:
    """Return three seconds now and then: the pause of a garbage collector, or of a disk."""
    return chance.uniform(1.0, 3.0) if chance.random() < 0.1 else chance.uniform(0.01, 0.3)


class Watching:
    """A watching node and another one, each with random durations of its metadata operations."""

    def __init__(self, takes: Takes, seed: int, dies_at: float | None) -> None:
        self._chance = random.Random(seed)
        self._takes = takes
        self._dies_at = float("inf") if dies_at is None else dies_at
        self._watch = FailureDetector()
        self._events: list[tuple[float, int, str]] = []
        self._number = 0
        self._stored = {"own": 0, "other": 0}
        self._beaten_at: float | None = None
        self._read_began = 0.0
        self._seen = 0

    def _at(self, when: float, what: str) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what))

    def run(self, seconds: float) -> float | None:
        """Return the time at which the other was taken for dead; None: it was not."""
        for what in ("own", "other", "read"):
            self._at(self._chance.random(), what)
        while self._events and self._events[0][0] < seconds:
            now, _, what = heapq.heappop(self._events)
            if what in ("own", "other"):
                if what == "own" or now < self._dies_at:
                    self._at(now + self._takes(self._chance), f"{what} stored")
            elif what.endswith("stored"):
                name = what.partition(" ")[0]
                if name == "own":
                    self._beaten_at = now
                elif now >= self._dies_at:
                    continue
                self._stored[name] += 1
                self._at(now + BEAT_SECONDS, name)
            elif what == "read":
                self._read_began, took = now, self._takes(self._chance)
                self._at(now + self._chance.uniform(0, took), "seen")  # at some moment of the read
                self._at(now + took, "done")
            elif what == "seen":
                self._seen = self._stored["other"]
            else:
                self._at(now + POLL_SECONDS, "read")
                started_at = self._read_began
                if self._beaten_at is not None and started_at - self._beaten_at <= BEAT_SECONDS + GAP_SECONDS:
                    self._watch.record([Heartbeat("b", 2, 1, self._seen, 0)], [2], started_at, self._stored["own"])
                    if self._watch.dead(2):
                        return now
        return None


@pytest.mark.parametrize(
    ("takes", "median", "most_of_all"),
    [(idle, 4.75, 5.0), (busy, 6.3, 8.0), (stalling, 6.5, 10.3)],
    ids=["idle", "busy", "stalling"],
)
def test_a_node_that_died_is_taken_for_dead_soon(takes: Takes, median: float, most_of_all: float) -> None:
    """An earlier detector took 6.4 s and 10.1 s on the busy machine, and 6.5 s and 11.4 s on the stalling one.

    It counted time only between checks at most 1.5 s apart, and not while a heartbeat of the watcher was under way.
    """
    took = []
    for seed in range(200):
        noticed = Watching(takes, seed, dies_at=30.0).run(120.0)
        assert noticed is not None, seed
        assert noticed > 30.0, seed
        took.append(noticed - 30.0)
    took.sort()
    assert took[len(took) // 2] < median
    assert took[len(took) * 95 // 100] < most_of_all


@pytest.mark.parametrize("takes", [idle, busy, stalling])
def test_a_node_that_lives_is_not_taken_for_dead(takes: Takes) -> None:
    """Runs forty hours for each.  With four seconds in place of DEAD_SECONDS, some stalls cause false detections."""
    for seed in range(1000, 1120):
        assert Watching(takes, seed, dies_at=None).run(1200.0) is None, seed


def test_a_failure_detector_without_own_heartbeats_declares_no_node_dead() -> None:
    """Not even if it reads at its usual pace; nor for a long time that passed between two checks."""
    watch = FailureDetector()
    for tick in range(40):
        watch.record([Heartbeat("b", 2, 1, 1, 0)], [2], tick / 2, min(tick, OWN_BEATS_MIN - 1))
    assert not watch.dead(2)
    watch = FailureDetector()
    watch.record([Heartbeat("b", 2, 1, 1, 0)], [2], 0.0, 0)
    watch.record([Heartbeat("b", 2, 1, 1, 0)], [2], 600.0, 1)
    assert not watch.dead(2)
    assert watch.still(2) == 1.0
