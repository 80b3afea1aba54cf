"""What the out-cluster manager decides: which backend cluster gets a new queue, and when a hot queue is split.  Pure:
the time, what the clusters report and what a queue's rate is are given.

**A new queue.**  Of two clusters, drawn by the queue's own hash in proportion to their weights, the one that is used
less.  So nobody has to ask all clusters or lock anything, clusters fill evenly even though their reports are some
seconds old (with the least used of all, every queue of these seconds would go to the same one), and the same question
has the same answer on every machine.

**A hot queue.**  A standard queue whose rate is above what its partitions bear, and stays there for a while, is split;
one that would be far below it with half of its partitions, and stays there for longer, is drained back to half.  The
two marks are so far apart that a queue whose rate stays the same never goes back and forth.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from hashlib import blake2b
from itertools import accumulate
from typing import Literal

import msgspec

FULL_AT = 0.85
"""A cluster that is used more than this gets no new queues."""
SILENT_SECONDS = 15
"""Nor does one that has not reported for so long."""


class NoCluster(Exception):
    """No cluster can take a new queue: the text says why of each."""


class Cluster(msgspec.Struct, frozen=True):
    """A backend cluster, by its latest report."""

    name: str
    utilisation: float
    """Of what it has least of (CPU, disk, memory), as a part of the whole."""
    reported_s: float
    weight: float = 1.0
    """How much it can bear beside others."""
    state: Literal["serving", "retiring"] = "serving"
    """``retiring``: its queues move away."""


def choose(
    clusters: Collection[Cluster],
    key: str,
    *,
    now_s: float,
    full_at: float = FULL_AT,
    silent_seconds: float = SILENT_SECONDS,
) -> str:
    """The cluster for the new queue ``key``, by name.  Raises :class:`NoCluster`."""
    takers: list[Cluster] = []
    why: list[str] = []
    for cluster in clusters:
        if cluster.state == "retiring":
            why.append(f"{cluster.name} is being retired")
        elif now_s - cluster.reported_s > silent_seconds:
            why.append(f"{cluster.name} has not reported for {now_s - cluster.reported_s:.0f} s")
        elif cluster.utilisation > full_at:
            why.append(f"{cluster.name} is used to {cluster.utilisation:.0%}")
        else:
            takers.append(cluster)
    if not takers:
        raise NoCluster("no backend cluster takes new queues: " + ("; ".join(sorted(why)) or "there is none"))
    takers.sort(key=lambda cluster: cluster.name)
    digest = blake2b(key.encode(), digest_size=16, person=b"holdfast cluster").digest()
    first = _drawn(takers, int.from_bytes(digest[:8], "big"))
    others = [cluster for cluster in takers if cluster is not first]
    if not others:
        return first.name
    second = _drawn(others, int.from_bytes(digest[8:], "big"))
    return (second if second.utilisation < first.utilisation else first).name


def _drawn(clusters: list[Cluster], random64: int) -> Cluster:
    """One of them, each as often as its weight says."""
    edges = list(accumulate(cluster.weight for cluster in clusters))
    return clusters[min(bisect_right(edges, random64 / (1 << 64) * edges[-1]), len(clusters) - 1)]


class SplitRule(msgspec.Struct, frozen=True):
    """When queues are split and drained back.  Raises ``ValueError`` for marks between which a queue would swing."""

    partition_rate: float = 5000
    """Messages a second, sent and received together, that a partition bears."""
    split_above: float = 0.8
    """Part of what its partitions bear above which a queue is hot."""
    aim: float = 0.5
    """Part of it that a split aims at."""
    drain_below: float = 0.4
    """Part of what *half* of its partitions would bear below which it is cold."""
    hot_seconds: float = 30
    cold_seconds: float = 900
    partitions_most: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.drain_below < self.aim < self.split_above <= 1:
            raise ValueError("a split rule needs 0 < drain_below < aim < split_above <= 1")


class Heat(msgspec.Struct, frozen=True):
    """What is remembered of a queue between two looks."""

    hot_since_s: float | None = None
    cold_since_s: float | None = None


def look(heat: Heat, partitions: int, rate: float, now_s: float, rule: SplitRule) -> tuple[Heat, int]:
    """The queue has ``partitions`` and this rate now: what to remember, and how many partitions it should have.

    Another number than ``partitions`` says: split, or drain, now; then begin with a new :class:`Heat`.
    """
    bears = partitions * rule.partition_rate
    if rate > rule.split_above * bears and partitions < rule.partitions_most:
        since = now_s if heat.hot_since_s is None else heat.hot_since_s
        if now_s - since < rule.hot_seconds:
            return Heat(hot_since_s=since), partitions
        wanted = max(2 * partitions, 1 << math.ceil(math.log2(rate / (rule.aim * rule.partition_rate))))
        return Heat(), min(wanted, rule.partitions_most)
    if partitions > 1 and rate < rule.drain_below * bears / 2:
        since = now_s if heat.cold_since_s is None else heat.cold_since_s
        if now_s - since < rule.cold_seconds:
            return Heat(cold_since_s=since), partitions
        return Heat(), (partitions + 1) // 2
    return Heat(), partitions
