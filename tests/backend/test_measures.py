"""What several nodes tell of an account's queues becomes one list, with all partitions of each queue that is in it."""

from __future__ import annotations

from backend.api import Measures
from backend.measures import merged


def test_lists_of_several_nodes_become_one() -> None:
    here = [Measures(1, "a"), Measures(5, "c"), Measures(7, "d")]
    there = [Measures(2, "b"), Measures(4, "c"), Measures(6, "d")]
    together = merged([here, there], 3)
    assert [(one.queue, one.partition) for one in together] == [("a", 1), ("b", 2), ("c", 4), ("c", 5)]
    assert merged([here, there], 4) == merged([there, here], 100)
    assert merged([], 1) == merged([[]], 1) == []
