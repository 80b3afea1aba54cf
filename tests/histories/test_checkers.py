"""The checkers of the total queue, groups and moves, on constructed histories."""

from dataclasses import replace

import pytest

from tests.histories import conservation, groups, total_queue
from tests.histories.history import History, Outcome, Rules
from tests.histories.making import CASES, made
from tests.histories.total_queue import TotalQueue
from tests.histories.verdict import judge

RULES = Rules(moves=frozenset({("q", "dead"), ("dead", "q")}), receives_max=(("q", 2),))


# --- the total queue --------------------------------------------------------------------------------------


def total_of(operations: str, rules: Rules = RULES) -> TotalQueue:
    return total_queue.check(History(made(operations)), rules)


def test_acknowledged_messages_are_received() -> None:
    total = total_of("0-1 send a; 0 send c; 2-3 receive a; 4 delete a")
    assert total.broken == []
    assert (total.attempted, total.acknowledged, total.received) == (2, 1, 1)


def test_a_message_is_lost() -> None:
    for operations in ("0-1 send a", "0-1 send a; 2-3 receive a"):
        (lost,) = total_of(f"{operations}; 0-1 send b; 2-3 receive b; 4-5 delete b").lost
        assert lost.startswith("a was acknowledged and is lost")


def test_a_refused_send_is_not_lost_and_must_not_be_received() -> None:
    refused = replace(*made("0-1 send a"), outcome=Outcome.REFUSED)
    assert total_queue.check(History([refused]), RULES).broken == []
    assert len(total_queue.check(History([refused, *made("2-3 receive a")]), RULES).unexpected) == 1


def test_a_message_that_was_never_sent_is_unexpected() -> None:
    (unexpected,) = total_of("0-1 receive x").unexpected
    assert unexpected.startswith("x ")


def test_duplicates_have_reasons() -> None:
    received = "2-3 receive a; 13-14 receive a h2; 15-16 change a 0s h2; 16-17 receive a h3"
    total = total_of(f"0-1 send a; {received}; 18 delete a h3")
    assert total.broken == []
    assert total.duplicates == {"redelivered after its visibility timeout": 1, "released": 1}


@pytest.mark.parametrize(("operations", "says"), CASES["duplicates"])
def test_duplicates_without_a_reason(operations: str, says: str) -> None:
    (unexplained,) = total_of(f"0-1 send a; {operations}", Rules()).unexplained
    assert says in unexplained


def test_a_slow_answer_is_explained_in_either_order() -> None:
    total = total_of("0-1 send a; 5-6 receive a h1; 6-7 change a 0s h1; 4-9 receive a h2")
    assert total.duplicates == {"released": 1}
    assert total_of("0-1 send a; 4-30 receive a h1; 15-16 receive a h2; 40 delete a h2").broken == []


def test_a_redrive_gives_a_new_id() -> None:
    assert total_of("0-1 send a; 2-3 receive a; 14-15 receive a h2 id-new; 16 delete a h2").broken == []


@pytest.mark.parametrize(("lost_at", "unexplained"), [(1, 1), (8, 0), (20, 1)])
def test_a_dead_letter_keeps_its_id_except_after_an_unobserved_redrive(lost_at: float, unexplained: int) -> None:
    operations = f"0-1 send a; 2-3 receive a @dead; {lost_at} receive; 14-15 receive a h2 id-new @dead"
    assert len(total_of(operations).unexplained) == unexplained


# --- groups -----------------------------------------------------------------------------------------------


def orders(operations: str) -> list[str]:
    return list(groups.check(History(made(operations)), Rules()))


@pytest.mark.parametrize("name", CASES["groups"]["in order"])
def test_a_group_in_order(name: str) -> None:
    assert orders(CASES["groups"]["in order"][name]) == []


@pytest.mark.parametrize(("operations", "says"), CASES["groups"]["out of order"])
def test_out_of_order(operations: str, says: str) -> None:
    (found,) = orders(operations)
    assert says in found


# --- moves ------------------------------------------------------------------------------------------------

TWICE = "0-1 send a; 2-3 receive a h1 1s; 5-6 receive a h2 1s"
DEAD_LETTER = f"{TWICE}; 8-9 receive a h3 1s @dead"
MOVED_EARLY = "0-1 send a; 2-3 receive a h1 1s; 8-9 receive a h3 @dead"


def moves(operations: str, rules: Rules = RULES) -> list[str]:
    return conservation.check(History(made(operations)), rules)


def test_dead_letters_and_back() -> None:
    assert moves(f"{DEAD_LETTER}; 20-21 receive a h4 id-new") == []


@pytest.mark.parametrize(("operations", "says"), CASES["moves"])
def test_moves_that_may_not_be(operations: str, says: str) -> None:
    (found,) = moves(operations)
    assert says in found


@pytest.mark.parametrize(("begin", "end", "broken"), [(4, 5, 0), (8.5, 20, 0), (-5, -1, 1), (10, 20, 1)])
def test_moved_early_by_an_unobserved_receive(begin: float, end: float, broken: int) -> None:
    assert len(moves(MOVED_EARLY, replace(RULES, unseen=((begin, end),)))) == broken
    assert moves(f"{MOVED_EARLY}; 4 receive") == []


# --- the verdict ------------------------------------------------------------------------------------------


def test_the_verdict_names_what_each_checker_found() -> None:
    good = judge(made("0-1 send a; 2-3 receive a; 4-5 delete a"), RULES)
    good.check()
    assert good.total.acknowledged == 1
    bad = judge(made("0-1 send a; 0-1 send b; 2-3 receive a; 4-5 receive a h2"), RULES)
    with pytest.raises(AssertionError, match=r"b was acknowledged and is lost[\s\S]*not linearizable"):
        bad.check()


def test_a_queue_that_lost_no_answer_is_no_trouble() -> None:
    assert judge(made(f"{DEAD_LETTER}; 9-9.5 delete a h3 @dead"), RULES).broken == []
