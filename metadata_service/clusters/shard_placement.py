"""Placement of shards on nodes: the in-cluster manager's plan for the next round.  Pure: no clock, no store, no
randomness.

Given the current owners and the live nodes, :func:`plan` computes the moves.  A shard moves for one of three
reasons, the most urgent first:

1. its owner is dead, or it has none: all of these are placed in this round, whatever the limit; 2. its owner
drains; 3. balance: each node has its share, in proportion to its weight, give or take ``slack``.

Moves of the second and third kind are limited to ``limit`` together with the first: a round that places the
shards of a dead node leaves balance for later.  Nothing else moves.  So a node that joins takes its share and
no other shard moves, and after a plan is carried out the next one is empty.

Rendezvous hashing chooses a shard's target: each shard has its own order of the nodes (weighted: the part of
the shards for which a node is first is proportional to its weight), and goes to the first that has room.  So
the shards of a dead node spread over all others, a manager that replaces another midway computes the same plan,
and of several shards that could leave a full node, the one that prefers the emptier node most is moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

SLACK = 0.05
"""Tolerance: a node may have this part more or less than its share, rounded to whole shards."""

Reason = Literal["dead", "drain", "balance"]


class LiveNode(msgspec.Struct, frozen=True):
    """A live node, according to its heartbeats."""

    name: str
    weight: float = 1.0
    draining: bool = False
    """True if the node is to give up its shards and gets none."""


class Move(msgspec.Struct, frozen=True):
    """The move of one shard."""

    shard: int
    source: str | None
    """Previous owner; a dead one's shard is taken over, a live one's is handed over.  None: the shard had no owner."""
    target: str
    reason: Reason


class PlacementPlan(msgspec.Struct, frozen=True):
    """The next assignment, and the moves that lead to it, most urgent first."""

    assignment: dict[int, str]
    moves: tuple[Move, ...]
    left: int
    """Approximate number of moves postponed to later rounds; 0 exactly if there are none."""


def plan(
    present: Mapping[int, str | None],
    nodes: Collection[LiveNode],
    *,
    limit: int,
    slack: float = SLACK,
) -> PlacementPlan:
    """Compute the next moves.  ``present`` maps every shard to its owner or None; ``nodes`` are all live nodes.

    If all nodes drain, they keep their shards and take those of dead nodes.  Without any nodes nothing moves,
    and the shards of dead nodes are left out of the assignment.
    """
    if limit < 0:
        raise ValueError(f"a limit on movement cannot be {limit}")
    by_name = {node.name: node for node in nodes}
    if len(by_name) != len(nodes):
        raise ValueError("two nodes have the same name")
    for node in nodes:
        if not node.weight > 0:
            raise ValueError(f"the weight of node {node.name!r} has to be above 0, not {node.weight}")
    staying = [node for node in nodes if not node.draining] or list(nodes)
    unassigned = sorted(shard for shard, owner in present.items() if owner is None or owner not in by_name)
    if not staying:
        return PlacementPlan({}, (), len(unassigned))
    return _Round(present, by_name, staying, limit, slack).run(unassigned)


class _Round:
    """Computation of one plan."""

    def __init__(
        self,
        present: Mapping[int, str | None],
        nodes: Mapping[str, LiveNode],
        staying: Sequence[LiveNode],
        limit: int,
        slack: float,
    ) -> None:
        self._present = present
        self._staying = {node.name: node for node in sorted(staying, key=lambda node: node.name)}
        self._limit = limit
        total = sum(node.weight for node in staying)
        self._share = {name: len(present) * node.weight / total for name, node in self._staying.items()}
        self._max = {name: math.ceil(share * (1 + slack) - 1e-9) for name, share in self._share.items()}
        self._min = {name: math.floor(share * (1 - slack) + 1e-9) for name, share in self._share.items()}
        self._assignment = {shard: owner for shard, owner in present.items() if owner is not None and owner in nodes}
        self._load = Counter(self._assignment.values())
        self._moves: list[Move] = []
        self._seeds = {name: _seed(name) for name in self._staying}

    def run(self, unassigned: Sequence[int]) -> PlacementPlan:
        leaving = sorted(shard for shard, owner in self._assignment.items() if owner not in self._staying)
        drained = leaving[: max(0, self._limit - len(unassigned))]
        without_choice = len(unassigned) + len(leaving)
        for shard in (*unassigned, *drained):
            self._move(
                shard,
                self._target_for(shard, without_choice),
                "dead" if len(self._moves) < len(unassigned) else "drain",
            )
            without_choice -= 1
        left = without_choice + self._balance()
        return PlacementPlan(self._assignment, tuple(self._moves), left)

    def _target_for(self, shard: int, without_choice: int) -> str:
        """Return the target of a shard that cannot stay.  If these shards suffice only to fill the nodes below their
        share, they go there, so that balance needs no further moves."""
        lacking = sum(max(0, self._min[name] - self._load[name]) for name in self._staying)
        names = self._below_min() if lacking >= without_choice else self._below_max()
        return max(names, key=lambda name: (self._score(shard, name), name))

    def _balance(self) -> int:
        """Move shards from nodes above their bound, or to nodes below it, until none is left or the limit is
        reached."""
        moved = {move.shard for move in self._moves}
        movable: dict[str, set[int]] = {name: set() for name in self._staying}
        for shard, owner in self._assignment.items():
            if owner in movable and shard not in moved:
                movable[owner].add(shard)
        while True:
            above = [name for name in self._staying if self._load[name] > self._max[name]]
            below = self._below_min()
            sources = above or [name for name in self._staying if self._load[name] > self._min[name] and movable[name]]
            if not above and not (below and sources):
                return sum(self._min[name] - self._load[name] for name in below)  # for the next round
            if len(self._moves) >= self._limit:
                return max(
                    sum(self._load[name] - self._max[name] for name in above),
                    sum(self._min[name] - self._load[name] for name in below),
                )
            source = max(sources, key=lambda name: (self._load[name] / self._share[name], name))
            targets = below or self._below_max()
            _, shard, target = max(
                (self._score(shard, target), shard, target) for shard in movable[source] for target in targets
            )
            movable[source].discard(shard)
            self._move(shard, target, "balance")

    def _below_max(self) -> list[str]:
        """Return the nodes below their upper bound.  Never empty while a shard must be placed, because the bounds add
        up to at least all shards."""
        return [name for name in self._staying if self._load[name] < self._max[name]]

    def _below_min(self) -> list[str]:
        return [name for name in self._staying if self._load[name] < self._min[name]]

    def _score(self, shard: int, name: str) -> float:
        """The shard's preference for the node.  The node with the largest weight / -ln(uniform) is preferred,
        so each node wins in proportion to its weight."""
        uniform = ((_mix(self._seeds[name] ^ _mix(shard + 1)) >> 12) + 0.5) / (1 << 52)
        return -self._staying[name].weight / math.log(uniform)

    def _move(self, shard: int, target: str, reason: Reason) -> None:
        source = self._assignment.get(shard)
        if source is not None:
            self._load[source] -= 1
        self._assignment[shard] = target
        self._load[target] += 1
        self._moves.append(Move(shard, self._present[shard], target, reason))


def _seed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"holdfast node").digest(), "big")


_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """The finalizer of splitmix64: each bit of the result depends on all of ``x``."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
