"""Targets for Holdfast on a machine of two cores.  Information beside the figures, never a test."""

from __future__ import annotations

from collections.abc import Callable

from bench.plan import BenchPlan
from bench.report import Book, PerformanceTarget

Take = Callable[[Book], float | None]


def _figure(scenario: str, name: str, server: str = "holdfast") -> Take:
    return lambda book: book.figure(scenario, name, server)


def _half_load(name: str) -> Take:
    return _figure("half-load", f"{name}, median of the windows")


def _ratio(above: str, below: str, above_server: str = "holdfast", below_server: str = "holdfast") -> Take:
    def take(book: Book) -> float | None:
        one, other = book.row(above, above_server), book.row(below, below_server)
        return one.cpu_us_per_message / other.cpu_us_per_message if one and other else None

    return take


def _guards(book: Book) -> float | None:
    added, baseline = book.figure("send-guarded", "added to a SendMessage", "holdfast"), book.row("trivial", "uvicorn")
    return added / baseline.cpu_us_per_call if added is not None and baseline else None


def _backlog(kind: str, depths: tuple[int, ...], bytes_a_message: int) -> list[PerformanceTarget]:
    found = []
    for depth in depths[1:]:
        found.append(
            PerformanceTarget(
                f"RSS with {depth:,} messages waiting ({kind})",
                round(200 + bytes_a_message * depth / 2**20, 1),
                False,
                "MiB",
                _figure(f"backlog-{kind}", f"RSS with {depth:,} waiting"),
            )
        )
        found.append(
            PerformanceTarget(
                f"receiving with {depth:,} waiting, against {depths[0]:,} ({kind})",
                1.25,
                False,
                "times",
                _ratio(f"backlog-{kind} {depth:,}", f"backlog-{kind} {depths[0]:,}"),
            )
        )
    return found


def _takeover(scenario: str, server: str, leaving: str, journal: str) -> list[PerformanceTarget]:
    return [
        PerformanceTarget(
            f"kill -9 of a queue's owner with many messages waiting, until it is served ({journal})",
            10,
            False,
            "s",
            _figure(scenario, "served again after kill -9 of the owner", server),
        ),
        PerformanceTarget(
            f"a shard is handed over as planned ({journal})",
            2,
            False,
            "s",
            _figure(scenario, "longest wait at a hand-over", server),
        ),
        PerformanceTarget(f"a whole node is ({journal})", 20, False, "s", _figure(scenario, leaving, server)),
    ]


def _streams() -> list[PerformanceTarget]:
    def cpu(scenario: str) -> Take:
        def take(book: Book) -> float | None:
            row = book.row(scenario, "holdfast-streams")
            return row.cpu_us_per_message if row else None

        return take

    return [
        PerformanceTarget("Produce, batches of 100 × 256 B, CPU a record", 3, False, "µs", cpu("produce 100")),
        PerformanceTarget("Fetch at the head, CPU a record", 1.5, False, "µs", cpu("fetch head")),
        PerformanceTarget(
            "Fetch of all records from the start, against the head",
            1.5,
            False,
            "times",
            _ratio("fetch start", "fetch head", "holdfast-streams", "holdfast-streams"),
        ),
        *(
            PerformanceTarget(
                f"Produce, batches of {records}, Kafka's CPU over Holdfast's (both sync)",
                1,
                True,
                "times",
                _ratio(f"produce {records}", f"produce {records}", "kafka", "holdfast-streams"),
            )
            for records in (1, 100, 1_000)
        ),
    ]


def _calls(is_compiled: bool) -> list[PerformanceTarget]:
    """Return the targets for single calls, over a raw ASGI call: what a call to any Python server costs at least."""
    send, batch, receive, everything = (2.3, 0.6, 0.8, 2.8) if is_compiled else (2.9, 0.8, 1.1, 3.5)
    return [
        *(
            PerformanceTarget(
                f"{name} over a raw ASGI call under uvicorn",
                bound,
                False,
                "times",
                _ratio(scenario, "trivial", below_server="uvicorn"),
            )
            for name, scenario, bound in (
                ("SendMessage,", "send", send),
                ("SendMessageBatch of 10, a message", "send-batch", batch),
                ("ReceiveMessage of 10 with DeleteMessageBatch, a message", "receive", receive),
            )
        ),
        PerformanceTarget(
            "SendMessage with everything switched on, over a raw ASGI call in turn",
            everything,
            False,
            "times",
            _figure("send-everything", "over a raw ASGI call"),
        ),
        *(
            PerformanceTarget(
                f"{name}, ElasticMQ's CPU over Holdfast's",
                bound,
                True,
                "times",
                _ratio(scenario, scenario, "elasticmq"),
            )
            for name, scenario, bound in (
                ("SendMessage", "send", 6),
                ("SendMessageBatch of 10", "send-batch", 4),
                ("ReceiveMessage of 10 with DeleteMessageBatch", "receive", 4),
            )
        ),
        *(
            PerformanceTarget(
                f"a message of a batch, CPU of {name}'s single publish over it",
                1,
                True,
                "times",
                _ratio("peer-publish", "send-batch", server),
            )
            for name, server in (("RabbitMQ", "rabbitmq"), ("JetStream", "nats"))
        ),
    ]


def targets(plan: BenchPlan, is_compiled: bool) -> list[PerformanceTarget]:
    """Return all targets, for a run of these sizes and of this build."""
    return [
        *_calls(is_compiled),
        PerformanceTarget("SendMessage at half load, p99", 10, False, "ms", _half_load("p99")),
        PerformanceTarget("SendMessage at half load, p99 over p50", 3, False, "times", _half_load("p99 over p50")),
        PerformanceTarget(
            "FIFO SendMessage, 1,000 groups, against standard", 1.15, False, "times", _ratio("fifo-send", "send")
        ),
        PerformanceTarget(
            "FIFO receive, 1,000 groups, against standard", 1.5, False, "times", _ratio("fifo-receive", "receive")
        ),
        PerformanceTarget(
            "SendMessage, 1,000 queues in turn against one", 1.2, False, "times", _ratio("send-1000-queues", "send")
        ),
        PerformanceTarget(
            "SendMessage: encryption, rate limits and safe retries together, added to a call",
            15,
            False,
            "µs",
            _figure("send-guarded", "added to a SendMessage"),
        ),
        PerformanceTarget(
            "the same, over a raw ASGI call under uvicorn (15 µs where that costs 17)", 0.88, False, "times", _guards
        ),
        PerformanceTarget(
            "SendMessage: metrics that are read and traces at their usual ratio, added to a call",
            5,
            False,
            "%",
            _figure("send-observed", "added to a SendMessage"),
        ),
        PerformanceTarget(
            "Publish to one queue, until it is there, against SendMessage",
            1.6,
            False,
            "times",
            _ratio("publish 1 queue", "publish send"),
        ),
        PerformanceTarget(
            "Publish to 10 queues, until it is there, against SendMessage",
            5,
            False,
            "times",
            _ratio("publish 10 queues", "publish send"),
        ),
        PerformanceTarget(
            "100 filter policies, added to a Publish, against SendMessage",
            1,
            False,
            "times",
            _figure("publish 100 policies", "added, against SendMessage"),
        ),
        PerformanceTarget(
            "a rate that three processes share through Redis, off over 10 s",
            5,
            False,
            "%",
            lambda book: book.figure("shared-limit", "three processes on one Redis, off the rate", "nothing"),
        ),
        *(
            PerformanceTarget(
                f"a hop from frontend to backend, {side}",
                20,
                False,
                "µs of CPU a call",
                lambda book, side=side: book.figure("hop", f"wire, 32 at a time: the {side}", "nothing"),  # type: ignore[misc]
            )
            for side in ("frontend's side", "backend's side")
        ),
        *_backlog("standard", plan.depths, 40),
        *_backlog("fifo", plan.depths, 80),
        *(
            PerformanceTarget(
                f"p99 while a checkpoint is written, against the usual ({kind})",
                1.5,
                False,
                "times",
                _figure(f"backlog-{kind}", "p99 in checkpoints over p99 outside"),
            )
            for kind in ("standard", "fifo")
        ),
        PerformanceTarget(
            f"kill -9 with {plan.restart_depth:,} waiting, until a message is received",
            plan.restart_max_s,
            False,
            "s",
            _figure("backlog-standard", "restart after kill -9"),
        ),
        PerformanceTarget(
            f"{plan.idle_connections:,} idle connections, RSS of each",
            16,
            False,
            "KiB",
            _figure("idle-connections", "RSS a connection"),
        ),
        PerformanceTarget(
            f"{plan.idle_connections:,} idle connections",
            3,
            False,
            "% of a core",
            _figure("idle-connections", "CPU while all are idle"),
        ),
        PerformanceTarget(
            f"SendMessage beside {plan.idle_connections:,} idle connections, against without them",
            1.25,
            False,
            "times",
            _ratio("idle-connections send", "idle-connections send, without them"),
        ),
        PerformanceTarget(
            f"{plan.long_polls:,} idle long polls while all wait",
            3,
            False,
            "% of a core",
            _figure("long-polls", "CPU while all wait"),
        ),
        PerformanceTarget(
            f"{plan.long_polls:,} idle long polls, each renewed every 20 s",
            max(3, 3 * plan.long_polls / 5_000),  # a call for each renewal
            False,
            "% of a core",
            _figure("long-polls", "CPU with renewals"),
        ),
        PerformanceTarget(
            f"{plan.empty_queues:,} empty queues, RSS", 1024, False, "MiB", _figure("empty-queues", "RSS")
        ),
        PerformanceTarget(
            f"kill -9 with {plan.empty_queues:,} empty queues, until a call is answered",
            plan.restart_max_s,
            False,
            "s",
            _figure("empty-queues", "restart after kill -9"),
        ),
        PerformanceTarget(
            "ListQueues, the slowest of first, middle and last page against the fastest",
            1.5,
            False,
            "times",
            _figure("empty-queues", "slowest page over fastest"),
        ),
        PerformanceTarget("console, first view", 500, False, "ms", _figure("console", "first view")),
        PerformanceTarget("console, first view", 300, False, "KB", _figure("console", "first view, received")),
        PerformanceTarget(
            f"console, {plan.console_pages:,} pages that follow one list",
            5,
            False,
            "% of a core",
            _figure("console", f"{plan.console_pages:,} pages, one list"),
        ),
        PerformanceTarget(
            f"console, {plan.console_pages:,} pages that follow a queue each",
            5,
            False,
            "% of a core",
            _figure("console", f"{plan.console_pages:,} pages, a queue each"),
        ),
        PerformanceTarget(
            f"console, a list of {plan.empty_queues:,} queues against one of 100",
            1.5,
            False,
            "times",
            _figure("console", "list by name, many queues over 100"),
        ),
        PerformanceTarget(
            "SendMessage to `serve --backends`, 1,000 queues in turn against one",
            1.5,
            False,
            "times",
            _ratio("backends send, many queues", "backends send"),
        ),
        PerformanceTarget(
            "SendMessage to a cluster on Cassandra, 1,000 queues in turn against one",
            1.5,
            False,
            "times",
            _ratio("cluster send, many queues", "cluster send", "cluster", "cluster"),
        ),
        PerformanceTarget(
            "a node on Cassandra, CPU a message with 1,000 queues against one",
            1.5,
            False,
            "times",
            _figure("rows", "CPU a message, many queues over one", "cluster"),
        ),
        PerformanceTarget(
            "a rate that three frontends share through Redis, off over 10 s",
            5,
            False,
            "%",
            _figure("limit-frontends", "three frontends on one Redis, off the rate"),
        ),
        *_takeover("takeover-backends", "holdfast", "a node leaves, and is back", "local journals"),
        *_takeover("takeover-cluster", "cluster", "a node leaves", "Cassandra"),
        *_streams(),
    ]
