"""Which node has which shard: the in-cluster manager's plan for the next round.  Pure: no clock, no store, no chance.

Given who has what now and which nodes there are, :func:`plan` says what to move.  Three things move a shard, the most
urgent first:

1. its node is gone, or it never had one: all of these are placed in this round, whatever the limit;
2. its node drains;
3. balance: each node has its share, in proportion to its weight, give or take ``slack``.

The second and third keep to ``limit`` together with the first: a round that places the shards of a dead node leaves
balance for later.  Nothing else moves.  So a node that joins takes its share and no other shard moves, and a plan that
is carried out is followed by an empty one.

Where a shard goes is decided by rendezvous hashing: each shard has its own order of the nodes (weighted: a node is
first for a part of the shards in proportion to its weight), and goes to the first that has room.  So the shards of a
dead node spread over all others, a manager that takes over from another in the middle plans the same, and of two shards
that could leave a full node that one does which prefers the emptier node most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

SLACK = 0.05
"""A node may have this part more or less than its share, rounded to whole shards."""

Reason = Literal["dead", "drain", "balance"]


class Node(msgspec.Struct, frozen=True):
    """A live node, as its heartbeats tell."""

    name: str
    weight: float = 1.0
    draining: bool = False
    """It gives its shards up, and gets none."""


class Move(msgspec.Struct, frozen=True):
    """One shard's way."""

    shard: int
    source: str | None
    """Who had it; of a dead node it is to be taken over, of a live one to be handed over.  None: nobody had it."""
    target: str
    reason: Reason


class Plan(msgspec.Struct, frozen=True):
    """The next assignment, and the moves that lead to it, most urgent first."""

    assignment: dict[int, str]
    moves: tuple[Move, ...]
    left: int
    """About how many moves are put off to later rounds; 0 exactly if there are none."""


def plan(
    present: Mapping[int, str | None],
    nodes: Collection[Node],
    *,
    limit: int,
    slack: float = SLACK,
) -> Plan:
    """What to move next.  ``present`` has every shard, with its owner or None; live are ``nodes``, and nobody else.

    If all nodes drain, there is nobody to drain to: they keep what they have and take the shards of the dead.  Without
    any nodes nothing moves, and shards of the dead are left out of the assignment.
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
    homeless = sorted(shard for shard, owner in present.items() if owner is None or owner not in by_name)
    if not staying:
        return Plan({}, (), len(homeless))
    return _Round(present, by_name, staying, limit, slack).run(homeless)


class _Round:
    """One plan in the making."""

    def __init__(
        self,
        present: Mapping[int, str | None],
        nodes: Mapping[str, Node],
        staying: Sequence[Node],
        limit: int,
        slack: float,
    ) -> None:
        self._present = present
        self._staying = {node.name: node for node in sorted(staying, key=lambda node: node.name)}
        self._limit = limit
        total = sum(node.weight for node in staying)
        self._share = {name: len(present) * node.weight / total for name, node in self._staying.items()}
        self._most = {name: math.ceil(share * (1 + slack) - 1e-9) for name, share in self._share.items()}
        self._least = {name: math.floor(share * (1 - slack) + 1e-9) for name, share in self._share.items()}
        self._assignment = {shard: owner for shard, owner in present.items() if owner is not None and owner in nodes}
        self._load = Counter(self._assignment.values())
        self._moves: list[Move] = []
        self._seeds = {name: _seed(name) for name in self._staying}

    def run(self, homeless: Sequence[int]) -> Plan:
        leaving = sorted(shard for shard, owner in self._assignment.items() if owner not in self._staying)
        drained = leaving[: max(0, self._limit - len(homeless))]
        without_choice = len(homeless) + len(leaving)
        for shard in (*homeless, *drained):
            self._move(
                shard, self._refuge(shard, without_choice), "dead" if len(self._moves) < len(homeless) else "drain"
            )
            without_choice -= 1
        left = without_choice + self._balance()
        return Plan(self._assignment, tuple(self._moves), left)

    def _refuge(self, shard: int, without_choice: int) -> str:
        """Where a shard goes that cannot stay.  When those that are left would just fill the nodes that have too
        few, they go there: nothing has to move for balance after them."""
        lacking = sum(max(0, self._least[name] - self._load[name]) for name in self._staying)
        names = self._below() if lacking >= without_choice else self._with_room()
        return max(names, key=lambda name: (self._score(shard, name), name))

    def _balance(self) -> int:
        """Move from those above their bound, or to those below it, until there are none, or no more may move."""
        moved = {move.shard for move in self._moves}
        movable: dict[str, set[int]] = {name: set() for name in self._staying}
        for shard, owner in self._assignment.items():
            if owner in movable and shard not in moved:
                movable[owner].add(shard)
        while True:
            above = [name for name in self._staying if self._load[name] > self._most[name]]
            below = self._below()
            givers = above or [name for name in self._staying if self._load[name] > self._least[name] and movable[name]]
            if not above and not (below and givers):
                return sum(self._least[name] - self._load[name] for name in below)  # for the next round
            if len(self._moves) >= self._limit:
                return max(
                    sum(self._load[name] - self._most[name] for name in above),
                    sum(self._least[name] - self._load[name] for name in below),
                )
            giver = max(givers, key=lambda name: (self._load[name] / self._share[name], name))
            takers = below or self._with_room()
            _, shard, taker = max(
                (self._score(shard, taker), shard, taker) for shard in movable[giver] for taker in takers
            )
            movable[giver].discard(shard)
            self._move(shard, taker, "balance")

    def _with_room(self) -> list[str]:
        """Never empty while a shard has to go somewhere: together the nodes may have more than all shards."""
        return [name for name in self._staying if self._load[name] < self._most[name]]

    def _below(self) -> list[str]:
        return [name for name in self._staying if self._load[name] < self._least[name]]

    def _score(self, shard: int, name: str) -> float:
        """How much the shard prefers the node: the largest of weight / -ln(uniform) is each node's as often as its
        weight says."""
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
    """The finalizer of splitmix64: each bit of the answer depends on all of ``x``."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
