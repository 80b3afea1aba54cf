"""Progress of a drain after it was killed, and its choice of deduplication ids."""

from pathlib import Path
from unittest import mock

import pytest

from holdfast.migrate.messages import MessageContent
from holdfast.migrate.progress_file import Unusable
from holdfast.migrate.resume_log import FORGOTTEN_SECONDS, Header, ResumeLog
from holdfast.migrate.source import Arrived
from tests.auth.clock import Clock

HEADER = Header("https://there", "arn:aws:sqs:us-east-1:000000000000:q.fifo", "https://here")


def message(id_: str, deduplication_id: str | None = None, group: str | None = "g") -> Arrived:
    return Arrived(id_, f"receipt of {id_}", MessageContent("body", {}, group, deduplication_id, None, None))


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.jsonl"


def used(ledger: ResumeLog, *messages: Arrived, by_group: bool = False) -> list[str | None]:
    return [one.message.deduplication_id for one in ledger.sending(messages, by_group=by_group)]


def test_stored_and_deleted_messages_are_known_after_a_kill(path: Path, clock: Clock) -> None:
    a, b, c = message("a"), message("b"), message("c")
    with ResumeLog(path, HEADER, clock) as ledger:
        ledger.sending([a, b, c], by_group=False)
        ledger.sent([a, b])
        ledger.deleted([a])
    with ResumeLog(path, HEADER, clock) as ledger:
        assert [ledger.is_stored(id_) for id_ in "abc"] == [True, True, False]
        assert ledger.in_doubt() == [1000.0]


def test_a_message_received_by_two_workers_is_claimed_by_one(path: Path, clock: Clock) -> None:
    with ResumeLog(path, HEADER, clock) as ledger:
        assert ledger.claim("a")
        assert not ledger.claim("a")
        ledger.sending([message("a")], by_group=False)
        ledger.sent([message("a")])
        assert not ledger.claim("a")
        ledger.deleted([message("a")])
        assert not ledger.claim("a"), "the source returned it once more after its deletion"
        assert ledger.is_stored("a")
        assert ledger.claim("b")


def test_only_the_latest_deleted_messages_are_remembered(path: Path, clock: Clock) -> None:
    with mock.patch("holdfast.migrate.resume_log.DELETED_MAX", 2), ResumeLog(path, HEADER, clock) as ledger:
        for id_ in "abc":
            ledger.sending([message(id_)], by_group=False)
            ledger.sent([message(id_)])
            ledger.deleted([message(id_)])
        assert [ledger.is_stored(id_) for id_ in "abc"] == [False, True, True]


def test_a_torn_line_does_not_count(path: Path, clock: Clock) -> None:
    with ResumeLog(path, HEADER, clock) as ledger:
        ledger.sending([message("a")], by_group=False)
        ledger.sent([message("a")])
    path.write_bytes(path.read_bytes()[:-3])
    for _ in range(2):
        with ResumeLog(path, HEADER, clock) as ledger:
            assert not ledger.is_stored("a")
            assert ledger.in_doubt() == [1000.0]


def test_of_twins_each_has_an_id_of_its_own_which_stays(path: Path, clock: Clock) -> None:
    with ResumeLog(path, HEADER, clock) as ledger:
        first, second = used(ledger, message("a", "d"), message("b", "d"))
        assert first == "d"
        assert second not in ("d", None)
    with ResumeLog(path, HEADER, clock) as ledger:  # they are received again, in the other order
        assert used(ledger, message("b", "d"), message("a", "d")) == [second, "d"]
        ledger.sent([message("a", "d")])
        ledger.deleted([message("a", "d")])
        (third,) = used(ledger, message("c", "d"))
        assert third not in ("d", second)
        clock.now += FORGOTTEN_SECONDS
        assert used(ledger, message("e", "d")) == ["d"]


def test_the_same_id_in_different_groups_is_no_duplicate(path: Path, clock: Clock) -> None:
    twins = (message("a", "d", "one"), message("b", "d", "two"), message("c", "d", "one"))
    with ResumeLog(path, HEADER, clock) as ledger:
        first, second, third = used(ledger, *twins, by_group=True)
    assert (first, second) == ("d", "d")
    assert third != "d"


def test_the_file_is_written_anew_with_what_still_counts(path: Path, clock: Clock) -> None:
    with mock.patch("holdfast.migrate.resume_log._REWRITTEN_BYTES", 4_000), ResumeLog(path, HEADER, clock) as ledger:
        for place in range(100):
            batch = [message(f"{place}", f"d{place}")]
            ledger.sending(batch, by_group=False)
            ledger.sent(batch)
            if place != 50:
                ledger.deleted(batch)
            clock.now += FORGOTTEN_SECONDS / 10
        ledger.sending([message("doubt", "d99")], by_group=False)
        with pytest.raises(Unusable, match="is in use"):
            ResumeLog(path, HEADER, clock)
    assert path.stat().st_size < 6_000
    with ResumeLog(path, HEADER, clock) as ledger:
        assert ledger.is_stored("50")
        assert len(ledger.in_doubt()) == 1
        assert used(ledger, message("new", "d98"))[0] != "d98"
        assert used(ledger, message("old", "d60"))[0] == "d60"


def test_a_file_of_something_else_is_left_alone(path: Path, clock: Clock) -> None:
    ResumeLog(path, HEADER, clock).close()
    other = Header("https://there", HEADER.arn, "https://elsewhere")
    with pytest.raises(Unusable, match="belongs to another file, queue or service"):
        ResumeLog(path, other, clock)
    path.write_text("no JSON\n")
    with pytest.raises(Unusable, match="is damaged"):
        ResumeLog(path, HEADER, clock)
    assert path.read_text() == "no JSON\n"
