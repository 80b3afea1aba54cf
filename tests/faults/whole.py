"""Faults on whole clusters, one after the other while clients are at work, and the verdict on each.

Each fault is done to a cluster under load; when it is over, calls have to be answered again, and the queues are
emptied.  Then the history of all calls so far is judged (:mod:`tests.histories`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.faults.forms import Form
from tests.faults.traffic import Traffic

SomeForm = TypeVar("SomeForm", bound=Form)

CALLS_BEFORE = 150
CALLS_AFTER = 150
OPEN_MOST = 300
"""Messages under way at once: few, so that the queues are soon empty."""


@dataclass(frozen=True)
class Fault(Generic[SomeForm]):
    """What is done: in a thread beside the clients, and when it returns, all is well again."""

    name: str
    do: Callable[[SomeForm], object]


@dataclass
class Row:
    """What came of one fault."""

    form: str
    fault: str
    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """By what clients saw."""
    stall_seconds: float = 0.0
    """The longest time in which no send to some queue was acknowledged, from the fault's beginning on."""
    lost: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    """Deliveries of a message after its first one, by their reason."""
    broken: list[str] = field(default_factory=list)


class Run(Generic[SomeForm]):
    """A form, its clients and what is done to it."""

    def __init__(self, form: SomeForm, traffic: Traffic) -> None:
        self.form = form
        self._traffic = traffic
        self._before = _Counts(0, Counter(), 0, Counter(), 0)

    async def fault(self, fault: Fault[SomeForm]) -> Row:
        """Do one, and judge."""
        traffic, row = self._traffic, Row(self.form.name, fault.name)
        await traffic.answered(CALLS_BEFORE)
        began = time.monotonic()
        doing = asyncio.create_task(asyncio.to_thread(fault.do, self.form))
        await traffic.until(doing.done, f"{fault.name} is over", 300)
        await doing
        await traffic.answered(CALLS_AFTER)
        row.stall_seconds = traffic.recorder.longest_stall_seconds(began, time.monotonic())
        verdict = await traffic.settle()
        before, self._before = (
            self._before,
            _Counts(
                traffic.recorder.calls,
                Counter(traffic.recorder.errors),
                len(verdict.total.lost),
                Counter(verdict.total.duplicates),
                len(verdict.broken) + len(traffic.failures),
            ),
        )
        row.calls = self._before.calls - before.calls
        row.errors = self._before.errors - before.errors
        row.lost = self._before.lost - before.lost
        row.duplicates = self._before.duplicates - before.duplicates
        if self._before.broken > before.broken:
            row.broken = [*verdict.broken, *traffic.failures]
        return row


@dataclass(frozen=True)
class _Counts:
    calls: int
    errors: Counter[str]
    lost: int
    duplicates: Counter[str]
    broken: int


async def run(
    form: SomeForm,
    faults: Sequence[Fault[SomeForm]],
    seed: int,
    *,
    told: Callable[[Row], None] = lambda row: None,
    early_share: float = 0.0,
) -> list[Row]:
    """Start the form, do all these faults to it under load, and end it.

    A fault after which clients are not served any more, or that cannot be done, is a broken promise, and the last one.
    """
    rows: list[Row] = []
    try:
        await asyncio.to_thread(form.start)
        traffic = Traffic(
            form.endpoint, seed, producers=2, groups=6, body_bytes=5_000, early_share=early_share, open_most=OPEN_MOST
        )
        async with traffic.running():
            running = Run(form, traffic)
            for fault in faults:
                try:
                    row = await running.fault(fault)
                except Exception as error:
                    row = Row(form.name, fault.name, broken=[f"{error!r}\n{form.log_text()[-8000:]}"])
                rows.append(row)
                told(row)
                if row.broken:
                    break
    finally:
        await asyncio.to_thread(form.close)
    return rows


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
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
