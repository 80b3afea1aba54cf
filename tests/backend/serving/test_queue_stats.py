"""Merging of several nodes' statistics on an account's queues: one list, with all partitions of each queue in it."""

import pytest

from backend.api import AccountMeasures, Measures, PartitionSettings
from backend.engine.fold import Fold
from backend.engine.records import Configured
from backend.serving import queue_stats
from backend.serving.partition import OpenPartition
from backend.serving.queue_stats import measured_of


def merged(queues_max: int, *lists: list[Measures]) -> list[Measures]:
    return AccountMeasures("0" * 12, [], "", queues_max).merge(lists)


def test_lists_of_several_nodes_become_one() -> None:
    here = [Measures(1, "a"), Measures(5, "c"), Measures(7, "d")]
    there = [Measures(2, "b"), Measures(4, "c"), Measures(6, "d")]
    together = merged(3, here, there)
    assert [(one.queue, one.partition) for one in together] == [("a", 1), ("b", 2), ("c", 4), ("c", 5)]
    assert merged(4, here, there) == merged(100, there, here)
    assert merged(1) == merged(1, []) == []


def partition(number: int, name: str, account: str = "0" * 12) -> OpenPartition:
    fold = Fold(number)
    arn = f"arn:aws:sqs:us-east-1:{account}:{name}"
    fold.apply(Configured(PartitionSettings(number, number, 1, arn, b"k" * 16)), 1)
    return OpenPartition(fold, 0, 1, lambda: 5)


async def test_the_first_of_many_are_found_without_all_being_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_stats, "AT_ONCE", 7)
    names = [f"q{place * 7919 % 1000:03}" for place in range(1000)]
    partitions = {number: partition(number, name) for number, name in enumerate(names, 1)}
    partitions |= {2000: partition(2000, "q002"), 2001: partition(2001, "q001", "1" * 12)}

    async def first(queues_max: int, after: str = "", *prefixes: str) -> list[str]:
        return [
            one.queue for one in await measured_of(partitions, AccountMeasures("0" * 12, prefixes, after, queues_max))
        ]

    every = sorted([*names, "q002"])
    partitions |= {3000: partition(3000, "~q001"), 3001: partition(3001, "~r")}
    assert await first(10, "", "~", "q99") == [*(f"q{n}" for n in range(990, 1000))]
    assert await first(10, "", "~") == ["~q001", "~r"]
    assert await first(10, "", "~q") == ["~q001"]
    assert await first(5) == ["q000", "q001", "q002", "q002", "q003", "q004"], "all partitions of each"
    assert await first(3) == ["q000", "q001", "q002", "q002"]
    assert await first(2) == ["q000", "q001"]
    assert await first(1000) == await first(5000) == every
    assert await first(3, "q500") == ["q501", "q502", "q503"]
    assert await first(100, "", "q99", "q12") == [name for name in every if name.startswith(("q99", "q12"))]
