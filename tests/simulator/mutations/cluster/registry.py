"""Mutations, and runs with one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from tests.simulator.world.cluster import ClusterWorld

Make = Callable[[ClusterWorld], AbstractContextManager[Any]]
Focus = Callable[[ClusterWorld], None]


class Mutation(NamedTuple):
    name: str
    rule: str
    """As in docs/simulator.md."""
    breaks: str
    make: Make
    """Takes the rule out."""
    local: bool
    """On which journal it shows."""
    scenario: str
    """In which of :data:`tests.simulator.scenarios.SCENARIOS` it shows soonest."""
    focus: Focus | None
    """Conditions that make it show sooner (:mod:`tests.simulator.mutations.cluster.focus`)."""


SECONDS = 15.0
"""Virtual time of each run."""

MUTATIONS: dict[str, Mutation] = {}


def mutation(
    rule: str, *, local: bool = False, scenario: str = "usual", focus: Focus | None = None
) -> Callable[[Make], object]:
    """Register a mutation: the function makes a patch that takes this rule out, and its docstring says the effect."""

    def register(make: Make) -> object:
        name = make.__name__
        breaks = " ".join((make.__doc__ or "").split())
        MUTATIONS[name] = Mutation(name, rule, breaks, make, local, scenario, focus)
        return make

    return register


def run_mutated(name: str, seed: int, *, taken_out: bool = True) -> BaseException | None:
    """Run one seed with a rule taken out; what it was noticed by, or None.

    Without it being ``taken_out`` it is the same trouble, which the code has to stand.
    """
    one = MUTATIONS[name]
    world = ClusterWorld(seed, local=one.local, scenario=one.scenario, focus=one.focus)
    with one.make(world) if taken_out else nullcontext():
        try:
            world.run(SECONDS)
        except Exception as error:
            return error
    return None
