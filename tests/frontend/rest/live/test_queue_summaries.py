"""Summaries of queues: their order, filters and pages, and how often the backend is read for them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from backend.api import AccountMeasures, Command, Measures, Unavailable
from frontend.rest.live import queue_summaries as module
from frontend.rest.live.queue_summaries import QueueSummaries, SummaryTooLarge, SummaryView

ACCOUNT = "123456789012"
NOW_MS = 1_000_000


class MeasuredBackend:
    """A backend that only answers measures, and the metadata that know these names and those of ``unused``."""

    def __init__(self, measures: Sequence[Measures]) -> None:
        self.measures = list(measures)
        self.unused = {"f"}
        self.reads = 0
        self.lists = 0
        self.failing = False

    async def call(self, command: Command[Any]) -> Any:
        assert isinstance(command, AccountMeasures)
        self.reads += 1
        await asyncio.sleep(0)
        if self.failing:
            raise Unavailable("it is away")
        names = sorted({one.queue for one in self.measures if one.queue > command.after})[: command.max_queues]
        chosen = {*names}
        return [one for one in self.measures if one.queue in chosen]

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        self.lists += 1
        names = {one.queue for one in self.measures if one.queue != "deleted"} | self.unused
        return sorted(one for one in names if one > after)[:limit]


def measured(name: str, visible: int = 0, partition: int = 1, **more: Any) -> Measures:
    return Measures(partition, name, visible=visible, since_ms=5, **more)


def summaries(backend: Any) -> QueueSummaries:
    return QueueSummaries(backend, backend, lambda: NOW_MS)


async def listed(made: QueueSummaries, limit: int = 10, **view: Any) -> list[str]:
    """Names of all pages."""
    wanted = SummaryView(**{"sort": "depth", "state": None, "prefixes": (), **view})
    names, after = [], ""
    while True:
        page = await (await made.of(ACCOUNT)).page(wanted, after, limit)
        names += [one.name for one in page.queues]
        if page.next is None:
            return names
        after = page.next


QUEUES = [
    measured("a", visible=5, oldest_ms=900_000, stored_bytes=10),
    measured("b", delayed=7, oldest_ms=500_000, stored_bytes=70),
    measured("c"),
    measured("d", visible=3, partition=1, in_flight=1, oldest_ms=800_000, stored_bytes=20),
    measured("d", visible=4, partition=2, oldest_ms=100_000, stored_bytes=30),
    measured("deleted", visible=9, oldest_ms=1),
    measured("e", visible=5, oldest_ms=999_000, stored_bytes=10),
]


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize(
    ("view", "names"),
    [
        ({"sort": "depth"}, "dbaecf"),
        ({"sort": "age"}, "dbaecf"),
        ({"sort": "stored"}, "bdaecf"),
        ({"sort": "rate"}, "abcdef"),
        ({"state": "waiting"}, "dae"),
        ({"state": "in_flight"}, "d"),
        ({"state": "delayed"}, "b"),
        ({"state": "empty"}, "cf"),
        ({"prefixes": ("a", "d")}, "da"),
        ({"prefixes": ("x",)}, ""),
    ],
)
async def test_order_filters_and_pages(limit: int, view: dict[str, Any], names: str) -> None:
    assert await listed(summaries(MeasuredBackend(QUEUES)), limit, **view) == [*names]


async def test_rates_are_between_two_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", -100)
    backend = MeasuredBackend([measured("a", sent=5), measured("b", sent=5), measured("c", sent=5)])
    made = summaries(backend)
    await made.of(ACCOUNT)
    restarted = Measures(1, "c", since_ms=6, sent=500)
    backend.measures = [measured("aa", sent=9), measured("b", sent=45), restarted]
    while not (rates := {one: (await made.of(ACCOUNT)).numbers(at).rate for at, one in enumerate(["aa", "b", "c"])})[
        "b"
    ]:
        backend.measures[1] = measured("b", sent=backend.measures[1].sent + 40)
    assert (rates["aa"], rates["c"]) == (None, None), "counters of a new queue and of a new owner say nothing"


async def test_rates_of_an_old_summary_are_not_known_and_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", -100)
    monkeypatch.setattr(module, "SHARE", -1)
    backend = MeasuredBackend([measured("b", sent=5), measured("c", sent=5)])
    made = summaries(backend)
    await made.of(ACCOUNT)
    backend.measures.insert(0, measured("a", sent=9))
    second = await made.of(ACCOUNT)
    found = await second.page(SummaryView("rate", None, ()), "", 9)
    assert [(one.name, one.rate) for one in found.queues] == [("b", 0), ("c", 0), ("a", None), ("f", None)]
    after = (await second.page(SummaryView("rate", None, ()), "", 3)).next
    assert [one.name for one in (await second.page(SummaryView("rate", None, ()), after or "", 3)).queues] == ["f"]
    monkeypatch.setattr(module, "RATE_SECONDS_MAX", 0.0)
    assert (await made.of(ACCOUNT)).numbers(1).rate is None


async def test_long_lists_are_sorted_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SORTED_AT_ONCE", 2)
    assert await listed(summaries(MeasuredBackend(QUEUES))) == [*"dbaecf"]


async def test_views_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_QUEUES_MAX", 12)
    backend = MeasuredBackend(QUEUES)
    made = summaries(backend)
    first = await made.of("a")
    for sort in ("depth", "age"):
        await first.page(SummaryView(sort, None, ()), "", 1)
    await made.of("b")
    await made.of("a")
    assert backend.reads == 3, "the first was dropped"


async def test_pages_of_many_queues_read_the_backend_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 100)
    monkeypatch.setattr(module, "NAMES_AT_ONCE", 50)
    backend = MeasuredBackend([measured(f"q{number:05}", visible=number % 7) for number in range(1_000)])
    made = summaries(backend)
    first = [one.name for one in (await (await made.of(ACCOUNT)).page(SummaryView("depth", None, ()), "", 3)).queues]
    assert first == ["q00006", "q00013", "q00020"]
    assert (backend.reads, backend.lists) == (10, 21)
    assert len(await listed(made, 100)) == 1_001
    assert (backend.reads, backend.lists) == (10, 21), "further pages, orders and filters read nothing"
    assert len(await listed(made, 100, state="empty")) == 144
    assert (backend.reads, backend.lists) == (10, 21)


async def test_a_summary_is_read_once_for_concurrent_callers() -> None:
    backend = MeasuredBackend(QUEUES)
    made = summaries(backend)
    found = await asyncio.gather(*(made.of(ACCOUNT) for _ in range(10)))
    assert backend.reads == 1
    assert len({id(one) for one in found}) == 1


async def test_a_failure_is_reported_and_not_kept() -> None:
    backend = MeasuredBackend(QUEUES)
    backend.failing = True
    made = summaries(backend)
    with pytest.raises(Unavailable):
        await made.of(ACCOUNT)
    backend.failing = False
    assert len(await made.of(ACCOUNT)) == 6


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_QUEUES_MAX", 14)
    backend = MeasuredBackend(QUEUES)
    made = summaries(backend)
    for account in ("a", "b", "c", "b", "c", "a"):
        await made.of(account)
    assert backend.reads == 4, "two summaries of six queues are kept: those that were used last"
    monkeypatch.setattr(module, "QUEUES_MAX", 4)
    with pytest.raises(SummaryTooLarge):
        await made.of("d")


@pytest.mark.parametrize("after", ["x", "1", "1.", "-2.a", ".a", "9" * 19 + ".a"])
async def test_other_texts_are_no_positions(after: str) -> None:
    summary = await summaries(MeasuredBackend(QUEUES)).of(ACCOUNT)
    with pytest.raises(ValueError, match=r"."):
        await summary.page(SummaryView("depth", None, ()), after, 1)
