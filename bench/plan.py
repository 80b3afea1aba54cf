"""Sizes and durations of a run."""

from __future__ import annotations

import msgspec


class BenchPlan(msgspec.Struct, frozen=True):
    """Sizes and durations.  Seconds unless the name says otherwise."""

    name: str
    warm_up_s: float
    measure_s: float
    java_warm_up_s: float
    """Load before ElasticMQ's first measurement, so that compiled code is measured."""
    receive_round: int
    """Messages received in one round; each round begins with the queue filled up again."""
    receive_rounds: int
    depths: tuple[int, ...]
    """Messages waiting; the first depth is the reference for the others."""
    rival_depths: tuple[int, ...]
    depth_rounds: int
    restart_depth: int
    """The depth at which the server is killed and restarted, and checkpoints are observed."""
    restart_max_s: float
    """Target for the time of a restart, with these messages or with the empty queues."""
    checkpoint_s: float
    long_polls: int
    rival_long_polls: int
    """ElasticMQ's server closes connections above 1,024."""
    long_poll_start_s: float
    """Time from the first poll until all of them wait."""
    long_poll_waiting_s: float
    long_poll_cycles: int
    idle_connections: int
    """Keep-alive connections without a call; fewer if the limit of open files is lower."""
    idle_s: float
    empty_queues: int
    rival_empty_queues: int
    console_pages: int
    """Open pages of the web console; at most the number of empty queues."""
    peer_measure_s: float
    cluster_queues: int
    """Queues that are used in turn, over all shards."""
    takeover_depth: int
    """Messages that wait while a node is killed or leaves."""
    takeover_fill_s: float
    """Time limit for sending them; with fewer messages the scenario continues and reports their number."""
    rows_measure_s: float
    limit_s: float
    """Duration of calls against one rate."""
    peer_backlog: int
    """Messages that wait for the consumers of the other brokers; more than they take in a window."""
    publications: int
    """Messages published to a topic in one round."""
    stream_records: int
    """Records of 256 bytes in the stream that is read."""


FULL = BenchPlan(
    name="full",
    warm_up_s=3,
    measure_s=12,
    java_warm_up_s=40,
    receive_round=40_000,
    receive_rounds=6,
    depths=(10_000, 1_000_000, 5_000_000),
    rival_depths=(10_000, 1_000_000),
    depth_rounds=20,
    restart_depth=1_000_000,
    restart_max_s=15,
    checkpoint_s=180,
    long_polls=5_000,
    rival_long_polls=1_000,
    long_poll_start_s=4,
    long_poll_waiting_s=12,
    long_poll_cycles=2,
    idle_connections=5_000,
    idle_s=10,
    empty_queues=100_000,
    rival_empty_queues=10_000,
    console_pages=1_000,
    peer_measure_s=8,
    cluster_queues=1_000,
    takeover_depth=1_000_000,
    takeover_fill_s=300,
    rows_measure_s=5,
    limit_s=10,
    peer_backlog=200_000,
    publications=6_000,
    stream_records=10_000_000,
)

QUICK = BenchPlan(
    name="quick",
    warm_up_s=1,
    measure_s=4,
    java_warm_up_s=15,
    receive_round=20_000,
    receive_rounds=3,
    depths=(10_000, 100_000),
    rival_depths=(10_000,),
    depth_rounds=8,
    restart_depth=100_000,
    restart_max_s=15,
    checkpoint_s=15,
    long_polls=1_000,
    rival_long_polls=1_000,
    long_poll_start_s=4,
    long_poll_waiting_s=8,
    long_poll_cycles=1,
    idle_connections=1_000,
    idle_s=5,
    empty_queues=3_000,
    rival_empty_queues=500,
    console_pages=200,
    peer_measure_s=3,
    cluster_queues=100,
    takeover_depth=20_000,
    takeover_fill_s=20,
    rows_measure_s=2,
    limit_s=5,
    peer_backlog=60_000,
    publications=1_500,
    stream_records=400_000,
)

SCALE = msgspec.structs.replace(
    FULL,
    name="scale",
    depths=(10_000, 10_000_000),
    restart_depth=10_000_000,
    restart_max_s=60,
    long_polls=20_000,
    long_poll_start_s=9,
    long_poll_waiting_s=8,
    idle_connections=50_000,
    idle_s=30,
    empty_queues=1_000_000,
)
"""Sizes that one process should still serve.  Only for Holdfast, and for some scenarios."""
