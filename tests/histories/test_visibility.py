"""Linearizability of single messages, on constructed histories."""

from __future__ import annotations

import pytest

from tests.histories import visibility
from tests.histories.history import History, Operation, Rules
from tests.histories.making import at, lost_receive

PLAIN = Rules()
MOVING = Rules(moves=frozenset({("q", "dead"), ("dead", "q")}))

GOOD: dict[str, tuple[Rules, list[Operation]]] = {
    "a message's life": (PLAIN, [at(0, 1).send("a"), at(2, 3).receive("a"), at(4, 5).delete("a")]),
    "received before its send was answered": (PLAIN, [at(0, 9).send("a"), at(1, 2).receive("a")]),
    "sent with an unknown outcome, and it came": (PLAIN, [at(0).send("a"), at(1, 2).receive("a")]),
    "sent with an unknown outcome, and it never came": (PLAIN, [at(0).send("a")]),
    "received again after its visibility timeout": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a", "h1"), at(11, 12.5).receive("a", "h2")],
    ),
    "received again after it was given back": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a", "h1"), at(4, 5).change("a", 0), at(4.5, 6).receive("a", "h2")],
    ),
    "given back with an unknown outcome": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a", "h1"), at(4).change("a", 0), at(5, 6).receive("a", "h2")],
    ),
    "a slow answer, overtaken": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 30).receive("a", "h1"), at(13, 14).receive("a", "h2"), at(15, 16).delete("a", "h2")],
    ),
    "deleted with an unknown outcome, and it came": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a", "h1"), at(4).delete("a"), at(12, 13).receive("a", "h2")],
    ),
    "an old handle gave back what another had claimed": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(12.5, 13).receive("a", "h2"),
            at(14, 15).change("a", 0, "h1"),
            at(16, 17).receive("a", "h3"),
        ],
    ),
    "deleted late, by an old handle, and claimed by somebody unseen in between": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            lost_receive(12),
            at(14, 15).delete("a", "h1"),
            at(16, 17).delete("a", "h1"),
        ],
    ),
    "moved away and back, and deleted by a handle from before": (
        MOVING,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(14, 15).on("dead").receive("a", "h2"),
            at(26, 27).receive("a", "h3"),
            at(28, 29).delete("a", "h1"),
            at(40, 41).receive("a", "h4"),
        ],
    ),
    "moved, and deleted too late": (
        MOVING,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(12, 13).delete("a", "h1"),
            at(14, 15).on("dead").receive("a", "h2"),
        ],
    ),
    "a delayed message": (PLAIN, [at(0, 1).send("a", delay=5), at(2, 6).receive("a")]),
    "sent twice with one token": (PLAIN, [at(0).send("a"), at(1, 2).receive("a"), at(3, 4).send("a")]),
}

BAD: dict[str, tuple[Rules, list[Operation]]] = {
    "received and never sent": (PLAIN, [at(1, 2).receive("a")]),
    "received before it was sent": (PLAIN, [at(1, 2).receive("a"), at(3, 4).send("a")]),
    "claimed by two": (PLAIN, [at(0, 1).send("a"), at(2, 3).receive("a", "h1"), at(4, 5).receive("a", "h2")]),
    "claimed by two, answers out of order": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 8).receive("a", "h1"), at(4, 5).receive("a", "h2")],
    ),
    "back after its delete": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a"), at(4, 5).delete("a"), at(20, 21).receive("a", "h2")],
    ),
    "back after a late delete, and nobody else had it": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a"), at(14, 15).delete("a"), at(20, 21).receive("a", "h2")],
    ),
    "somebody unseen asked too late to explain it": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a"),
            at(14, 15).delete("a"),
            lost_receive(16),
            at(40, 41).receive("a", "h2"),
        ],
    ),
    "moved after its delete": (
        MOVING,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a"),
            at(4, 5).delete("a"),
            at(20, 21).on("dead").receive("a", "h2"),
        ],
    ),
    "in the other queue while it was claimed": (
        MOVING,
        [at(0, 1).send("a"), at(2, 3).receive("a"), at(4, 5).on("dead").receive("a", "h2")],
    ),
    "in a queue that nothing moves to": (
        PLAIN,
        [at(0, 1).send("a"), at(2, 3).receive("a"), at(14, 15).on("dead").receive("a", "h2")],
    ),
    "before its delay was over": (PLAIN, [at(0, 1).send("a", delay=5), at(2, 4).receive("a")]),
    "back after an old handle's delete": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(12.5, 13).receive("a", "h2"),
            at(14, 15).delete("a", "h1"),
            at(23, 24).receive("a", "h3"),
        ],
    ),
    "claimed by two after an old handle's change": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(12.5, 13).receive("a", "h2"),
            at(14, 15).change("a", 20, "h1"),
            at(26, 27).receive("a", "h3"),
        ],
    ),
    "back after a late delete, and somebody unseen had it in between": (
        PLAIN,
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            lost_receive(12),
            at(14, 15).delete("a", "h1"),
            at(23, 24).receive("a", "h2"),
        ],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be(name: str) -> None:
    rules, operations = GOOD[name]
    assert visibility.check(History(operations), rules) == []


@pytest.mark.parametrize("name", BAD)
def test_what_may_not_be(name: str) -> None:
    rules, operations = BAD[name]
    broken = visibility.check(History(operations), rules)
    assert len(broken) == 1
    assert broken[0].startswith("a: its visibility is not linearizable")


def test_each_message_is_looked_at_by_itself() -> None:
    good = [at(0, 1).send("a"), at(2, 3).receive("a")]
    bad = [at(0, 1).send("b"), at(2, 3).receive("b"), at(4, 5).receive("b", "h2")]
    broken = visibility.check(History([*good, *bad]), PLAIN)
    assert [text.split(":")[0] for text in broken] == ["b"]


def test_a_clock_that_is_followed_slowly_may_end_a_timeout_a_little_early() -> None:
    history = History([at(0, 1).send("a"), at(2, 2.1).receive("a", "h1"), at(11, 11.2).receive("a", "h2")])
    assert visibility.check(history, PLAIN)
    assert visibility.check(history, Rules(early_share=0.1)) == []
