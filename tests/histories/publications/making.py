"""Histories of publications, written as text.

::

    queue all =ab 0-1 6-7           for the kinds a and b (=: all); subscribed by a call from 0 to 1, and not any more
                                    by one from 6 to 7; a name that ends in .fifo is a FIFO queue's
    publish p1 a 3-4                of the kind a, acknowledged at 4; 3: without an answer; 3!: refused
    publish p2 b 5-6 g/1            the first one of the group g
    receive all p1 m1 5             at 5, as the message m1

Subscriptions are known everywhere as soon as they are answered, as the times here are long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.histories.publications.history import (
    FanoutHistory,
    FanoutPublication,
    FanoutQueue,
    FanoutReceive,
    SubscribedTime,
)
from tests.tables import read_yaml

CASES: dict[str, Any] = read_yaml(Path(__file__).parent / "cases.yaml")
TOPIC = "t"
TIME_UNIT_SECONDS = 10.0


def made_fanout(text: str) -> FanoutHistory:
    """Make the history; the queues come first."""
    history = FanoutHistory([])
    for line in filter(None, text.splitlines()):
        match line.split():
            case ["queue", name, kinds, *times]:
                made = FanoutQueue(name, TOPIC, name.endswith(".fifo"), frozenset(kinds[1:]) or None)
                for at, time in enumerate(times):
                    asked, _, answered = time.partition("-")
                    if at % 2 == 0:
                        made.times.append(SubscribedTime(_seconds(asked), _seconds(answered)))
                    else:
                        made.times[-1].end_asked, made.times[-1].end_answered = _seconds(asked), _seconds(answered)
                history.queues[name] = made
            case ["publish", name, kind, time, *group]:
                called, _, answered = time.rstrip("!").partition("-")
                key, _, number = group[0].partition("/") if group else ("", "", "0")
                history.publishing(FanoutPublication(name, TOPIC, kind, _seconds(called), key or None, int(number)))
                if answered:
                    history.answered(name, _seconds(answered))
                elif time.endswith("!"):
                    history.refused(name)
            case ["receive", queue, name, message_id, at]:
                history.received(FanoutReceive(queue, name, message_id, _seconds(at)))
            case _:
                raise ValueError(line)
    return history


def _seconds(text: str) -> float:
    return float(text) * TIME_UNIT_SECONDS
