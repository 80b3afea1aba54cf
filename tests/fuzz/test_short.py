"""A short run of every target by Hypothesis, which shrinks its findings.

Long runs are ``python -m tests.fuzz``.
"""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.behaviour import wire
from tests.behaviour.world import World
from tests.fuzz.__main__ import context, feed_large
from tests.fuzz.budget import MEMORY_ALLOWANCE_BYTES, OverBudget, measured
from tests.fuzz.door import CONCURRENT, Door
from tests.fuzz.grammar import Draws
from tests.fuzz.targets import PARSERS, FuzzTarget

SHORT = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
DOOR_INPUTS = 2_000
LARGE_INPUTS = 60


@pytest.mark.parametrize("target", PARSERS, ids=lambda target: target.name)
def test_parser_with_hypothesis(target: FuzzTarget) -> None:
    @SHORT
    @given(st.randoms(use_true_random=False))
    def feed(random: Random) -> None:
        target.feed(target.make(Draws(random)))

    feed()


@pytest.mark.parametrize("target", PARSERS, ids=lambda target: target.name)
def test_parser_with_many(target: FuzzTarget) -> None:
    draws = Draws(Random(20261121))
    for number in range(target.short_inputs):
        given_input = target.make(draws)
        with context(number, given_input):
            target.feed(given_input)


@pytest.mark.parametrize("target", PARSERS, ids=lambda target: target.name)
def test_parser_with_large_inputs(target: FuzzTarget) -> None:
    assert feed_large(target, LARGE_INPUTS, 20261122).inputs == LARGE_INPUTS


@pytest.mark.parametrize("protocol", [*wire.PROTOCOLS, None])
def test_door_with_large_requests(protocol: wire.Protocol | None) -> None:
    assert Door(protocol, 20261122).run_large(LARGE_INPUTS).inputs > LARGE_INPUTS // 2


def test_the_budget_is_held() -> None:
    with pytest.raises(OverBudget, match="CPU time"):
        measured(lambda: sum(range(30_000_000)), 1)
    with pytest.raises(OverBudget, match="memory"):
        measured(lambda: bytes(3_000_000), 1)
    with pytest.raises(OverBudget, match=r"7\.0 times"):
        measured(lambda: bytes(7 * 10_000_000 + MEMORY_ALLOWANCE_BYTES), 10_000_000)
    assert measured(lambda: bytes(5 * 10_000_000), 10_000_000).memory_factor > 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(queue_name_hold_seconds=0, purge_interval_seconds=0) as made:
        yield made


@pytest.mark.parametrize("protocol", [*wire.PROTOCOLS, None])
def test_door_with_hypothesis(world: World, protocol: wire.Protocol | None) -> None:
    door = Door(protocol, 1)
    world.run(door.fire(world, CONCURRENT))

    @settings(SHORT, max_examples=120)
    @given(st.randoms(use_true_random=False))
    def shoot(random: Random) -> None:
        world.run(door.volley([door.request(Draws(random, door.known))]))

    shoot()


@pytest.mark.parametrize("protocol", [*wire.PROTOCOLS, None])
def test_door_with_many(world: World, protocol: wire.Protocol | None) -> None:
    door = Door(protocol, 20261121)
    world.run(door.fire(world, DOOR_INPUTS))
    assert door.tally.inputs == DOOR_INPUTS
    assert protocol is None or door.tally.taken > DOOR_INPUTS // 10, "hardly anything gets past the first checks"
