"""Faults on whole clusters under load, one after the other, and the verdict on each.

After each fault, calls have to be answered again, and the queues are emptied.  Then the history of all calls so far is
judged (:mod:`tests.histories`).  Beside the queues' clients those of a stream run, and publishers of topics with
consumers of the subscribed queues, whose histories are judged too; at the end all records of the stream are read once
more.  A fault that breaks a promise, takes too long, or cannot be injected is recorded as that, and the campaign
continues with another cluster.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tests.faults.campaign.forms import Form
from tests.faults.tools.stream_traffic import StreamTraffic
from tests.faults.tools.topic_traffic import TopicTraffic
from tests.faults.tools.traffic import Traffic

SomeForm = TypeVar("SomeForm", bound=Form)

CALLS_BEFORE = 150
CALLS_AFTER = 150
FAULT_SECONDS = 300.0
"""Timeout of a fault, from the calls before it to the empty queues."""
STARTS_MAX = 8
"""Maximum number of clusters of one form; remaining faults are then reported as not run."""
RECORDS_BEFORE = 10
RECORDS_AFTER = 20
"""Records of each partition of the topic that are committed before a fault, and after it."""
PUBLISHED_BEFORE = 10
PUBLISHED_AFTER = 20
"""Publications of each topic that arrive everywhere before a fault, and after it."""
OPEN_MAX = 300
"""Limit of undeleted messages: few, so that the queues are soon empty."""
QUARANTINED = "is quarantined"
"""Log text of a process about a message that is permanently unreadable."""


@dataclass(frozen=True)
class Fault(Generic[SomeForm]):
    """A fault: a function that runs in a thread beside the clients, and returns when the fault is over."""

    name: str
    do: Callable[[SomeForm], object]
    alone: bool = False
    """True if no other fault may be injected during it."""
    damages: bool = False
    """True if it destroys bytes.  Otherwise no message may be taken for damaged."""


@dataclass
class StreamResults:
    """Effects of a fault on the clients of the topic."""

    stored: int
    """Records acknowledged."""
    read: int
    """Records read by the group."""
    stall_seconds: float
    """Longest time in which records waited and none of their partition was acknowledged."""
    gap_seconds: float
    """Longest time in which a partition had unread records and the group read none of it."""
    rebalances: int
    """Assignments that members got."""
    lost: int
    doubled: int
    """Records stored twice."""


@dataclass
class PublicationResults:
    """Effects of a fault on publishers, and on the consumers of the subscribed queues."""

    acknowledged: int
    received: int
    """Receives from the subscribed queues."""
    changes: int
    """Subscriptions that were made."""
    stall_seconds: float
    """Longest time in which no publication to some topic was acknowledged."""
    delivery_seconds: float
    """Longest time from an acknowledgement until the publication was received from all queues."""
    lost: int
    doubled: int
    """Publications that a queue had twice."""


@dataclass
class FaultResults:
    form: str
    fault: str
    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    stall_seconds: float = 0.0
    """Longest time without an acknowledged send to some queue, from the start of the fault."""
    lost: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    """Deliveries of a message after its first one, by reason."""
    streams: StreamResults | None = None
    publications: PublicationResults | None = None
    broken: list[str] = field(default_factory=list)


class CampaignRun(Generic[SomeForm]):
    """A form with its clients and faults; ``amid``: called during each fault."""

    def __init__(
        self,
        form: SomeForm,
        traffic: Traffic,
        streams: StreamTraffic,
        topics: TopicTraffic,
        amid: Callable[[SomeForm], object] | None = None,
    ) -> None:
        self.form = form
        self._traffic = traffic
        self._streams = streams
        self._topics = topics
        self._amid = amid
        self._total = FaultResults(form.name, "all so far")
        self._quarantined = 0
        self._broken_streams = 0
        self._broken_topics = 0

    async def fault(self, fault: Fault[SomeForm], *, is_last: bool = False) -> FaultResults:
        """Inject one fault, and judge."""
        traffic, streams, topics = self._traffic, self._streams, self._topics
        await traffic.answered(CALLS_BEFORE)
        await streams.committed(RECORDS_BEFORE)
        await topics.arrived(PUBLISHED_BEFORE)
        stored, read = streams.counts["acknowledged"], streams.counts["read"]
        published = Counter(topics.counts)
        started_at = time.monotonic()
        acts = [fault.do] if self._amid is None or fault.alone else [fault.do, self._amid]
        doing = [asyncio.create_task(asyncio.to_thread(act, self.form)) for act in acts]
        await traffic.until(lambda: all(each.done() for each in doing), f"{fault.name} is over", FAULT_SECONDS)
        for each in doing:
            await each
        await traffic.answered(CALLS_AFTER)
        await streams.committed(RECORDS_AFTER)
        await topics.arrived(PUBLISHED_AFTER)
        ended = time.monotonic()
        if self._amid is not None:
            traffic.unseen.append((started_at, ended))  # queues have several partitions
        verdict = await traffic.verify()
        of_stream, of_topics = await asyncio.gather(streams.verify(whole=is_last), topics.verify())
        before = self._total
        total = self._total = FaultResults(
            self.form.name,
            fault.name,
            traffic.recorder.calls,
            Counter(traffic.recorder.errors),
            traffic.recorder.longest_stall_seconds(started_at, ended),
            len(verdict.total.lost),
            Counter(verdict.total.duplicates),
            broken=[*verdict.broken, *traffic.failures],
        )
        row = replace(
            total,
            calls=total.calls - before.calls,
            errors=total.errors - before.errors,
            lost=total.lost - before.lost,
            duplicates=total.duplicates - before.duplicates,
            broken=list(total.broken) if len(total.broken) > len(before.broken) else [],
        )
        broken_streams = [*of_stream.broken, *streams.failures]
        if len(broken_streams) > self._broken_streams:
            row.broken += broken_streams
        self._broken_streams = len(broken_streams)
        row.streams = StreamResults(
            streams.counts["acknowledged"] - stored,
            streams.counts["read"] - read,
            streams.history.longest_stall_seconds(started_at, ended),
            streams.history.longest_gap_seconds(started_at, ended),
            streams.history.rebalances(started_at, ended),
            len(of_stream.lost),
            len(of_stream.doubled),
        )
        broken_topics = [*of_topics.broken, *topics.failures]
        if len(broken_topics) > self._broken_topics:
            row.broken += broken_topics
        self._broken_topics = len(broken_topics)
        row.publications = PublicationResults(
            topics.acknowledged(topics.counts) - topics.acknowledged(published),
            topics.counts["received"] - published["received"],
            topics.counts["subscribed"] - published["subscribed"],
            topics.history.longest_stall_seconds(started_at, ended),
            topics.history.longest_delivery_seconds(started_at),
            len(of_topics.lost),
            len(of_topics.doubled),
        )
        before_it, self._quarantined = self._quarantined, self.form.log_text().count(QUARANTINED)
        if self._quarantined > before_it and not fault.damages:
            row.broken.append(f"{self._quarantined - before_it} messages were quarantined, and no byte was lost")
        return row


async def run(
    form: SomeForm,
    faults: Sequence[Fault[SomeForm]],
    seed: int,
    *,
    on_result: Callable[[FaultResults], None] = lambda row: None,
    early_share: float = 0.0,
    amid: Callable[[SomeForm], object] | None = None,
) -> list[FaultResults]:
    """Start the form, inject all these faults under load, and end it; a fault that breaks a promise is the last one."""
    rows: list[FaultResults] = []
    try:
        await asyncio.to_thread(form.start)
        traffic = Traffic(
            form.endpoint, seed, producers=2, groups=6, body_bytes=5_000, early_share=early_share, open_max=OPEN_MAX
        )
        streams = StreamTraffic(form.streams, form.folder / "clients")
        topics = TopicTraffic(form.endpoint, seed)
        async with traffic.running(), streams.running(), topics.running():
            running = CampaignRun(form, traffic, streams, topics, amid)
            for fault in faults:
                try:
                    async with asyncio.timeout(FAULT_SECONDS):
                        row = await running.fault(fault, is_last=fault is faults[-1])
                except Exception as error:
                    row = FaultResults(form.name, fault.name, broken=[f"{error!r}\n{form.log_tail()}"])
                rows.append(row)
                on_result(row)
                if row.broken:
                    break
    finally:
        await asyncio.to_thread(form.close)
    return rows


async def campaign(
    make: Callable[[int], SomeForm],
    plan: Callable[[SomeForm], Sequence[Fault[SomeForm]]],
    seed: int,
    *,
    on_result: Callable[[FaultResults], None],
    early_share: float = 0.0,
    amid: Callable[[SomeForm], object] | None = None,
    only: str = "",
) -> list[FaultResults]:
    """Run all planned faults, whatever the results: after a broken promise, with another cluster.

    ``make`` gets the number of the cluster, from 0; ``plan`` must fit each cluster of the form; ``only``: run faults
    whose names contain this.
    """
    rows: list[FaultResults] = []
    form = make(0)
    name, faults = form.name, [fault for fault in plan(form) if only in fault.name]
    if not faults:
        form.close()
        return rows
    for number in range(STARTS_MAX):
        if number:
            form = make(number)
        left = faults[len(rows) :]
        try:
            rows += await run(form, left, seed + number, on_result=on_result, early_share=early_share, amid=amid)
        except Exception as error:  # the cluster did not start
            rows.append(FaultResults(name, left[0].name, broken=[f"not done: {error!r}"]))
            on_result(rows[-1])
        if len(rows) == len(faults):
            return rows
    return rows + [
        FaultResults(name, fault.name, broken=["not done: too much was broken before"]) for fault in faults[len(rows) :]
    ]


def table(rows: Iterable[FaultResults]) -> str:
    lines = [
        "| form | fault | calls made | errors seen by clients | longest stall | lost | duplicates, explained |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for row in rows:
        errors = ", ".join(f"{count} × {name}" for name, count in row.errors.most_common()) or "none"
        duplicates = ", ".join(f"{count} {reason}" for reason, count in row.duplicates.most_common()) or "none"
        broken = " **BROKEN**" if row.broken else ""
        lines.append(
            f"| {row.form} | {row.fault}{broken} | {row.calls} | {errors} | {row.stall_seconds:.1f} s | {row.lost} | "
            f"{duplicates} |"
        )
    return "\n".join(lines)


def stream_table(rows: Iterable[FaultResults]) -> str:
    """Format the effects on the clients of the topic."""
    lines = [
        "| form | fault | records stored | read | longest stall of a partition | longest gap of the group | rebalances "
        "| lost | stored twice |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.form} | {row.fault} | {found.stored} | {found.read} | {found.stall_seconds:.1f} s | "
        f"{found.gap_seconds:.1f} s | {found.rebalances} | {found.lost} | {found.doubled} |"
        for row in rows
        if (found := row.streams) is not None
    ]
    return "\n".join(lines)


def publication_table(rows: Iterable[FaultResults]) -> str:
    """Format the effects on publishers, and on the consumers of the subscribed queues."""
    lines = [
        "| form | fault | acknowledged | received | subscriptions made | longest stall of a topic "
        "| longest delivery | lost | delivered twice |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.form} | {row.fault} | {found.acknowledged} | {found.received} | {found.changes} | "
        f"{found.stall_seconds:.1f} s | {found.delivery_seconds:.1f} s | {found.lost} | {found.doubled} |"
        for row in rows
        if (found := row.publications) is not None
    ]
    return "\n".join(lines)
