"""Mutations: each takes one rule out of the code for the length of a run, and the simulator has to notice.

They are tables of edits (:mod:`tests.simulator.mutations.edits`): ``one_node.yaml`` for one node, ``cluster/*.yaml``
for whole clusters, ``streams.yaml`` for streams and groups, ``publications.yaml`` for publications, and
``ordinary.yaml`` for runs that nothing was chosen for.  Where a rule is kept by Cassandra, or by the statements that it
is sent, the edits are in what stands in for it here (:mod:`tests.simulator.world.quorum`,
:mod:`tests.simulator.checks.ledger`).  What makes a mutation of a cluster show within few runs is its focus
(``focus.yaml``): the same faults with the rule in place must have no effect.  ``docs/simulator.md`` lists all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.simulator.mutations import focus
from tests.simulator.mutations.edits import Edit, edited
from tests.simulator.publications.cluster import PublicationClusterWorld
from tests.simulator.publications.world import PublicationWorld
from tests.simulator.scenarios import Conditions, read_conditions
from tests.simulator.streams.cluster import StreamClusterWorld
from tests.simulator.streams.world import StreamWorld
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.world import SimWorld
from tests.tables import read_yaml

FOLDER = Path(__file__).parent

CLUSTER_SECONDS = 15.0
"""Virtual time of a cluster's run."""
STREAM_STEPS = 1000
"""Length of a run of one node with streams in which mutations are noticed."""
NODE_STEPS = 2000
"""Length of an ordinary run of one node."""
SEEDS_MAX = 120
"""Ordinary seeds in which each rule's absence has to be noticed."""


class Mutation(msgspec.Struct, forbid_unknown_fields=True):
    breaks: str
    """The effect, as in docs/simulator.md."""
    edits: list[Edit] = []
    set: dict[str, Any] = {}
    """Values of ``module:NAME``, or ``world:attribute.name``."""
    rule: str = ""
    """Name of the rule in :data:`RULES`."""
    scenario: str = "usual"
    """The one of :data:`tests.simulator.scenarios.SCENARIOS` in which it shows soonest."""
    focus: str | None = None
    """The one of :data:`FOCUSES` that makes it show sooner."""
    local: bool = False
    """It shows on local files, and not on the quorum journal."""
    bit_flips: bool = False
    """It shows only where bits flip on the disk."""
    runs: str = "one node, cluster"
    """Ordinary runs that can notice it."""

    def taken_out(self, world: ClusterWorld | None = None) -> AbstractContextManager[None]:
        """Take the rule out of the code, for a while."""
        return edited(self.edits, self.set, world)

    @property
    def trouble(self) -> tuple[bool, str, str | None]:
        """Key of what is run; several mutations may have the same."""
        return self.local, self.scenario, self.focus

    def world(self, seed: int) -> ClusterWorld:
        focus = FOCUSES[self.focus].apply if self.focus is not None else None
        return ClusterWorld(seed, local=self.local, scenario=self.scenario, focus=focus)


class Rule(NamedTuple):
    """A rule that preserves acknowledged writes.  It has mutations, or a reason why not (a part of it) here."""

    name: str
    says: str
    why_not: str = ""


class Focus(NamedTuple):
    """Conditions that are likely to make a mutation show, and faults that are aimed at moments of the run."""

    conditions: Conditions
    aim: Callable[[ClusterWorld], None] | None
    """A function of :mod:`tests.simulator.mutations.focus`."""

    def apply(self, world: ClusterWorld) -> None:
        if self.conditions.like is not None:
            FOCUSES[self.conditions.like].apply(world)
        self.conditions.apply(world)
        if self.aim is not None:
            self.aim(world)


def _read(*paths: Path) -> dict[str, Mutation]:
    return {name: msgspec.convert(entry, Mutation) for path in paths for name, entry in read_yaml(path).items()}


FOCUSES = {
    name: Focus(conditions, getattr(focus, name, None))
    for name, conditions in read_conditions(FOLDER / "focus.yaml").items()
}
RULES = tuple(Rule(**entry) for entry in read_yaml(FOLDER / "rules.yaml"))
ONE_NODE = _read(FOLDER / "one_node.yaml")
ORDINARY = _read(FOLDER / "ordinary.yaml")
STREAMS = _read(FOLDER / "streams.yaml")
PUBLICATIONS = _read(FOLDER / "publications.yaml")
CLUSTER = _read(*sorted((FOLDER / "cluster").glob("*.yaml")))


def run_mutated(name: str, seed: int, *, taken_out: bool = True) -> Exception | None:
    """Return the check that noticed, in one seed, that a rule was ``taken_out``; with the rule, none may."""
    mutation = CLUSTER[name]
    world = mutation.world(seed)
    return _noticed(mutation if taken_out else None, lambda: world.run(CLUSTER_SECONDS), world)


def noticed_with_streams(name: str, seed: int) -> Exception | None:
    """Return the error with which a run with streams ends when a rule is taken out; None: it does not notice."""
    mutation = STREAMS[name]
    if mutation.local:
        return _noticed(mutation, lambda: StreamClusterWorld(seed).run(CLUSTER_SECONDS))
    return _noticed(mutation, lambda: StreamWorld(seed).run(STREAM_STEPS))


def noticed_with_publications(name: str, seed: int, *, taken_out: bool = True) -> Exception | None:
    """Return the error with which a run with publications ends when a rule is taken out; None: it does not notice.

    ``taken_out`` False: the same faults with the rule in place, of a mutation with a focus.
    """
    mutation = PUBLICATIONS[name]
    if mutation.focus is not None:
        world = PublicationClusterWorld(
            seed, local=False, scenario=mutation.scenario, focus=FOCUSES[mutation.focus].apply
        )
        return _noticed(mutation if taken_out else None, lambda: world.run(CLUSTER_SECONDS))
    if mutation.local:
        return _noticed(mutation, lambda: PublicationClusterWorld(seed).run(CLUSTER_SECONDS))
    return _noticed(mutation, lambda: PublicationWorld(seed).run(STREAM_STEPS))


def run_ordinary(seed: int, *, cluster: bool) -> Counter[str]:
    """Run one seed as it is; returns its counts.  Raises what it finds."""
    if cluster:
        return ClusterWorld(seed, varied=True).run(CLUSTER_SECONDS).counts
    return SimWorld(seed).run(NODE_STEPS).counts


def noticed_by(name: str, seed: int, *, cluster: bool) -> Exception | None:
    """The error that an ordinary seed ends with when the rule is taken out; None: it does not notice."""
    return _noticed(ORDINARY[name], lambda: run_ordinary(seed, cluster=cluster))


def first_to_notice(name: str, seeds: Collection[int], *, cluster: bool) -> int | None:
    """The first of these ordinary seeds that notices."""
    return next((seed for seed in seeds if noticed_by(name, seed, cluster=cluster) is not None), None)


def _noticed(
    mutation: Mutation | None, run: Callable[[], object], world: ClusterWorld | None = None
) -> Exception | None:
    with mutation.taken_out(world) if mutation is not None else nullcontext():
        try:
            run()
        except Exception as error:
            return error
    return None
