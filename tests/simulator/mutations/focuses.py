"""Several kinds of aimed trouble in one run: what a focus hooks into is shared among all that are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.simulator.mutations.tables import FOCUSES
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.world.cluster import ClusterWorld

ALONE = frozenset({"wrong_clocks", "clocks_set_back", "outages", "forgetful", "stopped_owners", "power_after_seals"})
"""Focuses whose runs are promised less, or that are for one journal or scenario alone."""


def together(chosen: Sequence[str]) -> Callable[[ClusterWorld], None]:
    """One focus that combines the faults of all of these; each hook is called for every event."""

    def focus_on_all(world: ClusterWorld) -> None:
        places = (
            *((world.ledger, name) for name in ("when_sealed", "when_sealing", "when_changing")),
            *((world.machines, name) for name in ("when_stuck", "when_listed", "far")),
            *((world, name) for name in ("when_answering", "when_mapped")),
            (world.callers, "choose"),
        )
        hooks: dict[int, list[Callable[..., Any]]] = {number: [] for number in range(len(places))}
        faults: dict[str, float] = {}
        pauses = []
        for one in chosen:
            for place, name in places:
                setattr(place, name, None)
            FOCUSES[one].apply(world)
            for number, (place, name) in enumerate(places):
                if (hook := getattr(place, name)) is not None:
                    hooks[number].append(hook)
            for fault, weight in world.troubles.faults.items():
                faults[fault] = max(weight, faults.get(fault, 0))
            if world.troubles.pause:
                pauses.append(world.troubles.pause)
        for number, (place, name) in enumerate(places):
            setattr(place, name, _shared(hooks[number]))
        world.troubles.faults = faults
        world.troubles.pause = min(pauses, default=0.0)

    return focus_on_all


def _shared(hooks: Sequence[Callable[..., Any]]) -> Callable[..., Any] | None:
    """Call all, until one has taken the matter over."""
    if len(hooks) < 2:
        return next(iter(hooks), None)

    def call_all(*arguments: Any) -> Any:
        answer = None
        for hook in hooks:
            answer = hook(*arguments)
            if answer is True:
                break
        return answer

    return call_all


def focused(seed: int, count: int) -> tuple[ClusterWorld, str]:
    """A run with so many focuses and a scenario, all drawn from the seed; and their names."""
    random = Random(f"focuses of {seed}")
    names = random.sample(sorted(FOCUSES.keys() - ALONE), count)
    scenario = random.choice(sorted(SCENARIOS.keys() - {"outages"}))
    world = ClusterWorld(seed, local=False, scenario=scenario, focus=together(names))
    return world, f"{scenario}, {' and '.join(names)}"
