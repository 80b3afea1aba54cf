"""``holdfast queue watch``: rates and order, its output without a terminal, and the live table on one."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.commands.queues.watch import QueueActivity, QueueSampler, age, in_order
from tests.holdfast.command import TerminalCommand
from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server, free_port

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""Escape sequences of the alternate screen."""


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript) -> None:
    replay(transcript, ServiceShell(server), nowhere=f"http://127.0.0.1:{free_port()}")


def metrics(name: str, sent: int, since: float = 1.0) -> dict[str, Any]:
    values = {
        "ApproximateNumberOfMessagesVisible": 3,
        "ApproximateNumberOfMessagesNotVisible": 2,
        "ApproximateNumberOfMessagesDelayed": 1,
        "ApproximateAgeOfOldestMessage": 61.5,
        "NumberOfMessagesSent": sent,
        "NumberOfMessagesReceived": 0,
        "NumberOfMessagesDeleted": 0,
    }
    listed = [{"name": metric, "value": value} for metric, value in values.items()]
    return {"queue": name, "counted_since": since, "metrics": listed}


def test_rates_are_differences_by_time() -> None:
    reads = iter(
        [
            [metrics("a", 10), metrics("b", 10)],
            [metrics("a", 25), metrics("b", 25, since=2.0), metrics("c", 5)],
            [metrics("a", 20), metrics("b", 26, since=2.0), metrics("c", 5)],
        ]
    )
    times = iter([100.0, 110.0, 112.0])
    sampler = QueueSampler(lambda: next(reads), lambda: next(times), lambda: 7.0)
    first = sampler.sample()
    assert first.queues[0] == QueueActivity("a", 3, 2, 1, None, None, None, 61.5)
    assert (first.time, first.truncated) == (7.0, False)
    rates = [{one.name: one.sent_per_second for one in sampler.sample().queues} for _ in range(2)]
    assert rates[0] == {"a": 1.5, "b": None, "c": None}, "b has been counted anew, c is new"
    assert rates[1] == {"a": None, "b": 0.5, "c": 0.0}, "a count that falls is no rate"


def test_a_table_has_the_first_queues_of_many() -> None:
    read = 0

    def queues() -> Iterator[dict[str, Any]]:
        nonlocal read
        for read in range(1, 5_001):
            yield metrics(f"q{read}", 0)

    sample = QueueSampler(queues).sample()
    assert (len(sample.queues), sample.truncated) == (2_000, True)
    assert read == 2_001, "no more is read than is shown"


def test_order() -> None:
    one = QueueActivity("one", 1, 5, 0, None, 2.0, 0.0, 9.0)
    two = QueueActivity("two", 7, 5, 0, 0.5, 1.0, 0.0, 10.0)
    orders = {"visible": "two", "in-flight": "one", "sent": "two", "received": "one", "age": "two", "name": "one"}
    assert {column: in_order([two, one], column)[0].name for column in orders} == orders


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.9, "0s"), (59.9, "59s"), (61, "1m 01s"), (3_600, "1h 00m"), (90_000, "1d 01h"), (8_640_000, "100d 00h")],
)
def test_ages(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_the_table_on_a_terminal_is_refreshed_until_a_key_ends_it(server: Server) -> None:
    client = server.client()
    url = client.create_queue(QueueName="live-1")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="m")
    with TerminalCommand(server, "queue", "watch", "--prefix", "live-", "--interval", "0.5") as command:
        command.wait_for(r"live-1 +1 +0 +0 +- +- +-")
        assert ENTER in command.printed
        client.send_message(QueueUrl=url, MessageBody="m")
        command.wait_for(r"live-1 +2 +0 +0 +\d")
        command.wait_for("sorted by visible")
        command.type("s")
        command.wait_for("sorted by in-flight")
        command.type("q")
        assert command.end() == 0
        assert LEAVE in command.printed
        assert command.echoes, "the terminal is as it was"


@pytest.mark.parametrize(("how", "code"), [("\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_the_terminal_is_restored(server: Server, how: str | signal.Signals, code: int) -> None:
    with TerminalCommand(server, "queue", "watch", "--prefix", "restored-") as command:
        command.wait_for("no queue with this prefix")
        command.wait_for("q: end")
        if isinstance(how, str):
            command.type(how)
        else:
            command.process.send_signal(how)
        assert command.end() == code
        assert LEAVE in command.printed
        assert command.echoes
