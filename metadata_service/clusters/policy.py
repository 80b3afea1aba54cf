"""Policy of the out-cluster manager: the backend cluster for a new queue, and when to split a hot queue.  Pure
functions of the time, the clusters' reports and a queue's rate.

**New queue.**  Two clusters are drawn by the queue's hash, in proportion to their weights, and the less used one is
chosen.  This needs no query of all clusters and no lock.  Clusters fill evenly although reports are some seconds old;
the least used of all would get every queue of these seconds.  The result is the same on every machine.

**Hot queue.**  A standard queue whose rate stays above its partitions' capacity for a while is split; one that
would stay far below it with half of its partitions, for longer, is drained back to half.  The two thresholds
are so far apart that a queue with a constant rate never oscillates.
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
"""Utilisation above which a cluster gets no new queues."""
SILENT_SECONDS = 15
"""Time without a report after which a cluster gets no new queues."""


class NoCluster(Exception):
    """No cluster can take a new queue: the text gives the reason for each."""


class Cluster(msgspec.Struct, frozen=True):
    """A backend cluster, by its latest report."""

    name: str
    utilisation: float
    """Used part of its scarcest resource (CPU, disk or memory), from 0 to 1."""
    reported_s: float
    weight: float = 1.0
    """Capacity relative to other clusters."""
    state: Literal["serving", "retiring"] = "serving"
    """State; the queues of a ``retiring`` cluster move away."""


def choose(
    clusters: Collection[Cluster],
    key: str,
    *,
    now_s: float,
    full_at: float = FULL_AT,
    silent_seconds: float = SILENT_SECONDS,
) -> str:
    """Choose the cluster for the new queue ``key``, by name.  Raises :class:`NoCluster`."""
    accepting: list[Cluster] = []
    why: list[str] = []
    for cluster in clusters:
        if cluster.state == "retiring":
            why.append(f"{cluster.name} is being retired")
        elif now_s - cluster.reported_s > silent_seconds:
            why.append(f"{cluster.name} has not reported for {now_s - cluster.reported_s:.0f} s")
        elif cluster.utilisation > full_at:
            why.append(f"{cluster.name} is at {cluster.utilisation:.0%} utilisation")
        else:
            accepting.append(cluster)
    if not accepting:
        raise NoCluster("no backend cluster accepts new queues: " + ("; ".join(sorted(why)) or "there is none"))
    accepting.sort(key=lambda cluster: cluster.name)
    digest = blake2b(key.encode(), digest_size=16, person=b"holdfast cluster").digest()
    first = _drawn(accepting, int.from_bytes(digest[:8], "big"))
    others = [cluster for cluster in accepting if cluster is not first]
    if not others:
        return first.name
    second = _drawn(others, int.from_bytes(digest[8:], "big"))
    return (second if second.utilisation < first.utilisation else first).name


def _drawn(clusters: list[Cluster], random64: int) -> Cluster:
    """Draw a cluster, with probabilities proportional to the weights."""
    edges = list(accumulate(cluster.weight for cluster in clusters))
    return clusters[min(bisect_right(edges, random64 / (1 << 64) * edges[-1]), len(clusters) - 1)]


class SplitRule(msgspec.Struct, frozen=True):
    """Thresholds for splitting and draining queues.  Raises ``ValueError`` for thresholds that would let a
    queue oscillate."""

    partition_rate: float = 5000
    """Capacity of a partition in messages per second, sent and received together."""
    split_above: float = 0.8
    """Part of its partitions' capacity above which a queue is hot."""
    aim: float = 0.5
    """Part of the capacity that a split aims at."""
    drain_below: float = 0.4
    """Part of the capacity of *half* of its partitions below which a queue is cold."""
    hot_seconds: float = 30
    cold_seconds: float = 900
    partitions_max: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.drain_below < self.aim < self.split_above <= 1:
            raise ValueError("a split rule needs 0 < drain_below < aim < split_above <= 1")


class Heat(msgspec.Struct, frozen=True):
    """State of a queue between two checks of its rate."""

    hot_since_s: float | None = None
    cold_since_s: float | None = None


def decide(heat: Heat, partitions: int, rate: float, now_s: float, rule: SplitRule) -> tuple[Heat, int]:
    """Decide the number of partitions for a queue that has ``partitions`` and this rate; returns it with the
    new state.

    A number other than ``partitions`` means: split, or drain, now; then start with a new :class:`Heat`.
    """
    bears = partitions * rule.partition_rate
    if rate > rule.split_above * bears and partitions < rule.partitions_max:
        since = now_s if heat.hot_since_s is None else heat.hot_since_s
        if now_s - since < rule.hot_seconds:
            return Heat(hot_since_s=since), partitions
        wanted = max(2 * partitions, 1 << math.ceil(math.log2(rate / (rule.aim * rule.partition_rate))))
        return Heat(), min(wanted, rule.partitions_max)
    if partitions > 1 and rate < rule.drain_below * bears / 2:
        since = now_s if heat.cold_since_s is None else heat.cold_since_s
        if now_s - since < rule.cold_seconds:
            return Heat(cold_since_s=since), partitions
        return Heat(), (partitions + 1) // 2
    return Heat(), partitions
