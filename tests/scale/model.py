"""The ring, the choice of clusters and the placement of shards, for any number of nodes and queues.

*On paper* means computed exactly from the nodes' parts of the circle; *simulated* means counted, queue by queue.  Every
figure has a bound, so that the table is a test as well.
"""

import gc
import math
import random
import time
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from backend.api import shard_of
from metadata_service.clusters.policy import Cluster, Heat, SplitRule, choose, decide
from metadata_service.clusters.shard_placement import LiveNode, plan
from metadata_service.models import Partition, Queue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.ring import POINTS, Ring, RingMember, RingView, movement

ACCOUNT = "000000000000"
SHARDS = 256
CLUSTER_NODES = 12
ROUND_SECONDS = 1
"""Time between two rounds of an in-cluster manager."""
REPORT_SECONDS = 5
"""Time between two reports of a cluster."""
LIMIT = 8
"""Maximum shards that a round moves for drains and balance."""


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the simulation."""

    nodes: int
    queues: int
    cached: int
    """Queues in the cache whose memory is measured."""
    large_shards: int
    """Shards of the one large cluster of all nodes."""


WHOLE = Sizes(nodes=1000, queues=10_000_000, cached=200_000, large_shards=16_384)
SHORT = Sizes(nodes=200, queues=100_000, cached=20_000, large_shards=2048)


class BoundedFigure(msgspec.Struct, frozen=True):
    """A figure with its bound."""

    what: str
    value: float
    unit: str
    limit: float

    @property
    def kept(self) -> bool:
        return self.value <= self.limit


def rows(sizes: Sizes) -> Iterator[BoundedFigure]:
    """Compute every figure."""
    yield from _ring(sizes)
    yield from _cache(sizes)
    yield from _clusters(sizes)
    yield from _placement(sizes)
    yield from _managers(sizes)


def _of_normal(values: int) -> float:
    """Bound that the largest of this many normal values exceeds once in 1,000 runs, in deviations above the mean."""
    return math.sqrt(2 * math.log(1000 * values))


def _members(count: int) -> tuple[RingMember, ...]:
    return tuple(RingMember(f"metadata-{number}", zone=f"z{number % 3}") for number in range(count))


def _ring(sizes: Sizes) -> Iterator[BoundedFigure]:
    nodes = sizes.nodes
    view = RingView.of(1, _members(nodes))
    started_at = time.process_time()
    ring = Ring(view)
    yield BoundedFigure(
        f"ring of {nodes} nodes: to build", (time.process_time() - started_at) * 1000, "ms of CPU", 5000
    )
    yield BoundedFigure("ring: memory", ring.size_bytes / 1024, "KiB", nodes * POINTS * 8 / 1024)
    stray = _of_normal(nodes) / math.sqrt(POINTS)
    yield BoundedFigure("ring: fullest node, on paper", max(ring.shares().values()) * nodes, "of the mean", 1 + stray)

    owned = Counter[str]()
    started_at = time.process_time()
    for number in range(sizes.queues):
        owned[ring.owner(f"{ACCOUNT}/queue-{number}").name] += 1
    spent = time.process_time() - started_at
    chance = _of_normal(nodes) / math.sqrt(sizes.queues / nodes)
    limit = (1 + stray) * (1 + chance)
    yield BoundedFigure(
        f"ring: fullest node, {sizes.queues:,} queues simulated",
        max(owned.values()) * nodes / sizes.queues,
        "of the mean",
        limit,
    )
    yield BoundedFigure("ring: a look-up", spent / sizes.queues * 1e6, "µs of CPU", 100)
    joined = [Ring(view.joined(RingMember(f"newcomer-{number}"))) for number in range(3)]
    shares = [larger.shares()[f"newcomer-{number}"] for number, larger in enumerate(joined)]
    moved = [movement(ring, larger) for larger in joined]
    assert all(math.isclose(*pair, abs_tol=1e-9) for pair in zip(shares, moved, strict=True))
    yield BoundedFigure(
        "ring: keys that move when a node joins", max(moved) * (nodes + 1), "of 1/nodes", 1 + 5 / math.sqrt(POINTS)
    )
    left = Ring(view.left("metadata-7"))
    before, after = ring.shares(), left.shares()
    limit = before["metadata-7"]
    assert math.isclose(movement(ring, left), limit, abs_tol=1e-9)
    successors = [after[name] - share for name, share in before.items() if name != "metadata-7"]
    yield BoundedFigure(
        "ring: of a node that leaves, the most that one other gets", max(successors) / limit, "of its keys", 0.1
    )


def _queue(number: int) -> Queue:
    """Make a queue with typical attributes and tags."""
    return Queue(
        queue_id=number,
        account=ACCOUNT,
        name=f"orders-of-customer-{number}",
        version=2,
        attributes={
            "VisibilityTimeout": "60",
            "MessageRetentionPeriod": "1209600",
            "RedrivePolicy": f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead","maxReceiveCount":5}}',
        },
        tags={"team": f"team-{number % 50}"},
        created_s=1_800_000_000,
        modified_s=1_800_000_000,
        partitions=(Partition(number),),
        handle_key=number.to_bytes(16, "big"),
    )


def _cache(sizes: Sizes) -> Iterator[BoundedFigure]:
    """Fill a cache as a node does: each queue has its own copy of every text."""
    records = [msgspec.json.encode(_queue(number)) for number in range(sizes.cached)]
    decode = msgspec.json.Decoder(Queue).decode
    gc.collect()
    tracemalloc.start()
    try:
        client = MetadataClient(None, limit=sizes.cached)  # type: ignore[arg-type]
        for record in records:
            client.remember(decode(record))
        each = tracemalloc.get_traced_memory()[0] / sizes.cached
    finally:
        tracemalloc.stop()
    assert client.cached(ACCOUNT, "orders-of-customer-0") == _queue(0)
    yield BoundedFigure("cache: memory of a queue with 3 attributes and a tag", each, "bytes", 3000)
    of_node = each * sizes.queues / sizes.nodes / 2**20
    yield BoundedFigure("cache: of the queues of an average node", of_node, "MiB", 64)
    yield BoundedFigure("cache: of all queues (full copy)", each * sizes.queues / 2**30, "GiB", 32)


def _clusters(sizes: Sizes) -> Iterator[BoundedFigure]:
    """Put all nodes in clusters of twelve, filled queue by queue with reports that are some seconds old."""
    count = sizes.nodes // CLUSTER_NODES
    reports = 200
    queues = min(sizes.queues, 200_000)
    held = dict.fromkeys((f"cluster-{number}" for number in range(count)), 0)
    number = 0
    spent = 0.0
    for report in range(reports):
        clusters = [
            Cluster(name, 0.8 * has / (1.5 * queues / count), report * float(REPORT_SECONDS))
            for name, has in held.items()
        ]
        started_at = time.process_time()
        for _ in range(queues // reports):
            held[choose(clusters, f"queue-{number}", now_s=report * float(REPORT_SECONDS))] += 1
            number += 1
        spent += time.process_time() - started_at
    fullest = max(held.values()) * count / number
    yield BoundedFigure(
        f"clusters: fullest of {count}, {number:,} queues assigned by reports {REPORT_SECONDS} s old",
        fullest,
        "of the mean",
        1.25,
    )
    yield BoundedFigure("clusters: to choose one for a queue", spent / number * 1e6, "µs of CPU", 2000)

    assignment = plan(dict.fromkeys(range(SHARDS)), _nodes(CLUSTER_NODES), limit=0).assignment
    of_cluster = sizes.queues // count
    load = Counter(assignment[shard_of(partition)] for partition in range(1, of_cluster + 1))
    chance = 1 + _of_normal(SHARDS) / math.sqrt(of_cluster / SHARDS)
    yield BoundedFigure(
        f"clusters: fullest of {CLUSTER_NODES} nodes, {of_cluster:,} queues in one cluster",
        max(load.values()) * CLUSTER_NODES / of_cluster,
        "of the mean",
        23 / (SHARDS / CLUSTER_NODES) * chance,
    )


def _nodes(count: int) -> list[LiveNode]:
    return [LiveNode(f"backend-{number}") for number in range(count)]


def _fullest(assignment: dict[int, str], nodes: int) -> float:
    return max(Counter(assignment.values()).values()) * nodes / len(assignment)


def _placement(sizes: Sizes) -> Iterator[BoundedFigure]:
    for nodes, shards in ((CLUSTER_NODES, SHARDS), (sizes.nodes, sizes.large_shards)):
        what = f"placement of {shards:,} shards on {nodes:,} nodes"
        started_at = time.process_time()
        settled = plan(dict.fromkeys(range(shards)), _nodes(nodes), limit=0).assignment
        yield BoundedFigure(f"{what}: the first plan", time.process_time() - started_at, "s of CPU", 120)
        ideal = shards / nodes
        bound = math.ceil(ideal * 1.05) / ideal
        yield BoundedFigure(f"{what}: fullest node", _fullest(settled, nodes), "of the mean", bound)

        started_at = time.process_time()
        joined = plan(settled, _nodes(nodes + 1), limit=shards)
        spent = time.process_time() - started_at
        assert all(move.target == f"backend-{nodes}" for move in joined.moves)
        share = shards / (nodes + 1)
        yield BoundedFigure(f"{what}: moves when a node joins", len(joined.moves), "shards", math.ceil(share * 1.05))
        yield BoundedFigure(f"{what}: to plan them", spent * 1000, "ms of CPU", 10_000)

        dead = _nodes(nodes)[1:]
        started_at = time.process_time()
        taken = plan(settled, dead, limit=0)
        spent = time.process_time() - started_at
        lost = sum(owner == "backend-0" for owner in settled.values())
        assert len(taken.moves) == lost
        limit = max(Counter(move.target for move in taken.moves).values())
        yield BoundedFigure(
            f"{what}: of a dead node, the most that one other takes over", limit / lost, "of its shards", 0.4
        )
        yield BoundedFigure(f"{what}: to plan a takeover", spent * 1000, "ms of CPU", 10_000)

    small = plan(dict.fromkeys(range(SHARDS)), _nodes(3), limit=0).assignment
    grown, rounds = plan(small, _nodes(CLUSTER_NODES), limit=LIMIT), 1
    moves = len(grown.moves)
    while grown.left:
        grown = plan(grown.assignment, _nodes(CLUSTER_NODES), limit=LIMIT)
        moves, rounds = moves + len(grown.moves), rounds + 1
    ideal_moves = SHARDS * (CLUSTER_NODES - 3) / CLUSTER_NODES
    yield BoundedFigure(
        f"placement, from 3 nodes to {CLUSTER_NODES}: moves", moves / ideal_moves, "of those to exact balance", 1.05
    )
    yield BoundedFigure(
        f"placement, from 3 nodes to {CLUSTER_NODES}, {LIMIT} shards a round: rounds", rounds, "rounds", 26
    )


def _managers(sizes: Sizes) -> Iterator[BoundedFigure]:
    """Measure the managers' CPU in a minute with few events."""
    count = sizes.nodes // CLUSTER_NODES
    nodes = _nodes(CLUSTER_NODES)
    settled = plan(dict.fromkeys(range(SHARDS)), nodes, limit=0).assignment
    started_at, tries = time.process_time(), 50
    for _ in range(tries):
        assert not plan(settled, nodes, limit=LIMIT).moves
    each = (time.process_time() - started_at) / tries
    yield BoundedFigure(
        f"in-cluster manager: a minute of rounds, one each {ROUND_SECONDS} s", each * 60 / ROUND_SECONDS, "s of CPU", 3
    )

    chance = random.Random(1)
    clusters = [Cluster(f"cluster-{number}", chance.random() * 0.8, 0.0) for number in range(count)]
    started_at = time.process_time()
    for number in range(500):
        choose(clusters, f"new-{number}", now_s=1.0)
    choosing = (time.process_time() - started_at) / 500
    rule, heats, rates = SplitRule(), [Heat()] * 1000, array("d", (chance.expovariate(1 / 50) for _ in range(1000)))
    started_at = time.process_time()
    for _ in range(20):
        heats = [decide(heat, 1, rate, 0.0, rule)[0] for heat, rate in zip(heats, rates, strict=True)]
    looking = (time.process_time() - started_at) / 20_000
    created_each_minute = sizes.queues / (24 * 60)
    busy = sizes.queues / 100
    yield BoundedFigure(
        f"out-cluster manager: a minute's new queues, if all {sizes.queues:,} are made within a day",
        choosing * created_each_minute,
        "s of CPU",
        20,
    )
    yield BoundedFigure(
        f"out-cluster manager: to look at the rates of the busiest 1 % of the queues, each {REPORT_SECONDS} s",
        looking * busy * 60 / REPORT_SECONDS,
        "s of CPU",
        20,
    )


def table(done: Sequence[BoundedFigure]) -> str:
    """Format as Markdown."""
    lines = ["| what | figure | | bound |", "|---|---:|---|---:|"]
    for row in done:
        mark = "" if row.kept else " **missed**"
        lines.append(f"| {row.what} | {_shown(row.value)} | {row.unit} | {_shown(row.limit)}{mark} |")
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
