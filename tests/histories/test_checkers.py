"""The checkers of the total queue, groups and moves, on constructed histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.histories import conservation, groups, total_queue
from tests.histories.history import History, Operation, Outcome, Rules
from tests.histories.making import at, lost_receive
from tests.histories.verdict import judge

RULES = Rules(moves=frozenset({("q", "dead"), ("dead", "q")}), receives_most=(("q", 2),))
G = "g"


# --- the total queue --------------------------------------------------------------------------------------


def test_all_that_was_acknowledged_came_or_is_there() -> None:
    history = History([at(0, 1).send("a"), at(0, 1).send("b"), at(0).send("c"), at(2, 3).receive("a")])
    total = total_queue.check(history, RULES, frozenset({"b"}))
    assert total.broken == []
    assert (total.attempted, total.acknowledged, total.received, total.left) == (3, 2, 1, 1)


def test_a_message_is_lost() -> None:
    total = total_queue.check(History([at(0, 1).send("a"), at(0, 1).send("b"), at(2, 3).receive("b")]), RULES)
    assert len(total.lost) == 1
    assert total.lost[0].startswith("a was acknowledged and is lost")


def test_a_refused_send_is_not_lost_and_must_not_come() -> None:
    refused = replace(at(0, 1).send("a"), outcome=Outcome.REFUSED)
    assert total_queue.check(History([refused]), RULES).broken == []
    assert len(total_queue.check(History([refused, at(2, 3).receive("a")]), RULES).unexpected) == 1


@pytest.mark.parametrize("left", [frozenset(), frozenset({"x"})])
def test_what_was_never_sent(left: frozenset[str]) -> None:
    history = History([] if left else [at(0, 1).receive("x")])
    total = total_queue.check(history, RULES, left)
    assert len(total.unexpected) == 1
    assert total.unexpected[0].startswith("x ")


def test_duplicates_have_reasons() -> None:
    history = History(
        [
            at(0, 1).send("a"),
            at(2, 3).receive("a", "h1"),
            at(13, 14).receive("a", "h2"),
            at(15, 16).change("a", 0, "h2"),
            at(16, 17).receive("a", "h3"),
        ]
    )
    total = total_queue.check(history, RULES)
    assert total.broken == []
    assert total.duplicates == {"redelivered after its visibility timeout": 1, "released": 1}


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([at(2, 3).receive("a"), at(4, 5).receive("a", "h2")], "came again while it was hidden"),
        ([at(2, 3).receive("a"), at(4, 5).delete("a"), at(20, 21).receive("a", "h2")], "after its delete"),
        ([at(2, 3).receive("a", message_id="id-other")], "came as id-other, and was sent as id-a"),
    ],
)
def test_duplicates_without_a_reason(operations: list[Operation], says: str) -> None:
    total = total_queue.check(History([at(0, 1).send("a"), *operations]), Rules())
    assert len(total.unexplained) == 1
    assert says in total.unexplained[0]


def test_a_slow_answer_is_explained_in_either_order() -> None:
    fast = [at(5, 6).receive("a", "h1"), at(6, 7).change("a", 0, "h1")]
    slow = at(4, 9).receive("a", "h2")
    assert total_queue.check(History([at(0, 1).send("a"), *fast, slow]), RULES).duplicates == {"released": 1}
    late = [at(4, 30).receive("a", "h1"), at(15, 16).receive("a", "h2")]
    assert total_queue.check(History([at(0, 1).send("a"), *late]), RULES).broken == []


def test_a_redrive_gives_a_new_id() -> None:
    history = History([at(0, 1).send("a"), at(2, 3).receive("a"), at(14, 15).receive("a", "h2", message_id="id-new")])
    assert total_queue.check(history, RULES).broken == []


# --- groups -----------------------------------------------------------------------------------------------


def orders(*operations: Operation | list[Operation]) -> list[str]:
    flat = [one for each in operations for one in (each if isinstance(each, list) else [each])]
    return list(groups.check(History(flat), Rules()))


def test_a_group_in_order() -> None:
    assert (
        orders(
            at(0, 1).of(G).send("a"),
            at(2, 3).of(G).sends("b", "c"),
            at(0, 1).of("other").send("x"),
            at(4, 5).of(G).batch("a", "b"),
            at(4, 5).of("other").receive("x"),
            at(6).delete("a"),
            at(6, 7).delete("b"),
            at(8, 9).of(G).receive("c"),
        )
        == []
    )


def test_sends_at_one_time_have_no_order() -> None:
    assert orders(at(0, 2).of(G).send("a"), at(1, 3).of(G).send("b"), at(4, 5).of(G).batch("b", "a")) == []


def test_what_was_not_acknowledged_need_not_come_first() -> None:
    assert orders(at(0).of(G).send("a"), at(2, 3).of(G).send("b"), at(4, 5).of(G).receive("b")) == []


@pytest.mark.parametrize(
    "operations",
    [
        [at(0, 1).of(G).send("a"), at(2, 3).of(G).send("b"), at(4, 5).of(G).receive("b")],
        [at(0, 1).of(G).send("a"), at(2, 3).of(G).send("b"), *at(4, 5).of(G).batch("b", "a")],
        [*at(0, 1).of(G).sends("a", "b"), *at(4, 5).of(G).batch("b", "a")],
        [
            at(0, 1).of(G).send("a"),
            at(2, 3).of(G).send("b"),
            at(4, 5).of(G).receive("a"),
            at(30, 31).of(G).receive("b"),
            at(32, 33).delete("a"),
        ],
    ],
)
def test_out_of_order(operations: list[Operation]) -> None:
    found = orders(*operations)
    assert len(found) == 1
    assert "b came before a, which was sent before it" in found[0]


def test_a_group_is_out_with_one_at_a_time() -> None:
    found = orders(
        at(0, 2).of(G).send("a"),
        at(0, 2).of(G).send("b"),
        at(4, 5).of(G).receive("a"),
        at(6, 7).of(G).receive("b"),
    )
    assert len(found) == 1
    assert "b came while a was out" in found[0]


def test_given_back_or_deleted_is_not_out() -> None:
    both = [at(0, 2).of(G).send("a"), at(0, 2).of(G).send("b"), at(4, 5).of(G).receive("a")]
    assert orders(*both, at(6, 7).change("a", 0), at(6.5, 7).of(G).receive("b")) == []
    assert orders(*both, at(6).delete("a"), at(7, 8).of(G).receive("b")) == []


def test_a_slow_answer_is_no_second_one_out() -> None:
    sent = [at(0, 1).of(G).send("a"), at(2, 3).of(G).send("b")]
    slow = at(4, 40).of(G).receive("a", "h1")
    redelivered = [at(15, 16).of(G).receive("a", "h2"), at(17, 18).delete("a", "h2")]
    assert orders(*sent, slow, *redelivered, at(38, 39).of(G).receive("b")) == []


# --- moves ------------------------------------------------------------------------------------------------


def moves(*operations: Operation) -> list[str]:
    return conservation.check(History(operations), RULES)


SENT = at(0, 1).send("a")
TWICE = [at(2, 3).receive("a", "h1", seconds=1), at(5, 6).receive("a", "h2", seconds=1)]


def test_dead_letters_and_back() -> None:
    redriven = at(20, 21).receive("a", "h4", message_id="id-new")
    assert moves(SENT, *TWICE, at(8, 9).on("dead").receive("a", "h3", seconds=1), redriven) == []


def test_moved_too_early() -> None:
    found = moves(SENT, TWICE[0], at(8, 9).on("dead").receive("a", "h3"))
    assert len(found) == 1
    assert "moved from q after 1 receives, and may after 2" in found[0]


@pytest.mark.parametrize(("begin", "end", "broken"), [(4, 5, 0), (8.5, 20, 0), (-5, -1, 1), (10, 20, 1)])
def test_moved_early_by_a_receive_that_nobody_saw(begin: float, end: float, broken: int) -> None:
    history = History([SENT, TWICE[0], at(8, 9).on("dead").receive("a", "h3")])
    assert len(conservation.check(history, replace(RULES, unseen=((begin, end),)))) == broken
    assert moves(SENT, TWICE[0], lost_receive(4), at(8, 9).on("dead").receive("a", "h3")) == []


def test_in_two_queues() -> None:
    found = moves(SENT, TWICE[0], at(8, 9).receive("a", "h2"), at(10, 11).on("dead").receive("a", "h3"))
    assert len(found) == 1
    assert "a was in two queues" in found[0]


def test_where_nothing_moves() -> None:
    found = moves(SENT, at(8, 9).on("elsewhere").receive("a"), at(30, 31).receive("a"))
    assert len(found) == 1
    assert "nothing moves there" in found[0]


def test_a_former_id_does_not_come_back() -> None:
    found = moves(
        SENT,
        *TWICE,
        at(20, 21).receive("a", "h3", message_id="id-new"),
        at(40, 41).receive("a", "h4", message_id="id-a"),
    )
    assert len(found) == 1
    assert "its former id id-a came back" in found[0]


def test_what_is_left_is_in_one_place_and_counted() -> None:
    history = History([SENT])
    assert conservation.check(history, RULES, {"q": ["a"]}, {"q": 1, "dead": 0}) == []
    assert conservation.check(history, RULES, {"q": ["a"], "dead": ["a"]}) == ["a is in q and in dead"]
    assert conservation.check(history, RULES, {"q": ["a"]}, {"q": 2}) == ["q: 2 messages are counted, and 1 are there"]


# --- the verdict ------------------------------------------------------------------------------------------


def test_the_verdict_names_what_each_checker_found() -> None:
    good = judge([SENT, at(2, 3).receive("a"), at(4, 5).delete("a")], RULES)
    good.check()
    assert good.total.acknowledged == 1
    bad = judge([SENT, at(0, 1).send("b"), at(2, 3).receive("a"), at(4, 5).receive("a", "h2")], RULES)
    with pytest.raises(AssertionError, match=r"b was acknowledged and is lost[\s\S]*not linearizable"):
        bad.check()


def test_a_queue_that_lost_no_answer_is_no_trouble() -> None:
    operations = [
        SENT,
        *TWICE,
        at(8, 9).on("dead").receive("a", "h3", seconds=1),
        at(9, 9.5).on("dead").delete("a", "h3"),
    ]
    assert judge(operations, RULES).broken == []
