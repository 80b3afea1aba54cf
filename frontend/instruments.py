"""What a frontend counts and measures of the calls that it answers.

A call costs two looks at the clock, one into a dictionary, and three additions.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from frontend.sqs.model import ACTIONS
from telemetry.metrics import SECONDS, Counter, Histogram, Registry

UNKNOWN: Final = "unknown"
"""In place of an action: requests that were refused before it was known, or that name none."""
REST: Final = "rest"
"""Administration, whatever is done by it."""

CALLS: Final = Counter(
    "holdfast_calls_total",
    "Calls by action and outcome: ok, refused (the fault lies with the client), throttled (by a limit), failed (the "
    "fault lies with the service), gone (the client has left before the answer).",
    labels=("action", "outcome"),
    most=(len(ACTIONS) + 32) * 5,
)
SECONDS_OF_CALLS: Final = Histogram(
    "holdfast_call_seconds",
    "Time from a call's head to its answer, by action; receives that wait for messages are in "
    "holdfast_long_poll_seconds.",
    labels=("action",),
    most=len(ACTIONS) + 32,
    bounds=SECONDS,
)
SECONDS_OF_POLLS: Final = Histogram(
    "holdfast_long_poll_seconds",
    "Time of receives that were to wait for messages, the waiting included.",
    bounds=(0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0),
)
ERRORS: Final = Counter(
    "holdfast_call_errors_total",
    "Calls that were answered with an error, by its code.",
    labels=("code",),
    most=128,
)
THROTTLED: Final = Counter(
    "holdfast_throttled_total",
    "Calls that a limit has refused, by which one: rate, connections, long_polls, stored_bytes, unsigned.",
    labels=("limit",),
    most=8,
)
OUTCOMES: Final = ("ok", "refused", "throttled", "failed", "gone")
_OK, _REFUSED, _THROTTLED, _FAILED, _GONE = range(len(OUTCOMES))


class _Row:
    """Where the calls of one action are counted."""

    __slots__ = ("outcomes", "seconds")

    def __init__(self, action: str) -> None:
        self.outcomes = [CALLS.place(action, outcome) for outcome in OUTCOMES]
        self.seconds = SECONDS_OF_CALLS.place(action)


_rows: Final = {action: _Row(action) for action in ("SendMessage", "ReceiveMessage", "DeleteMessage", UNKNOWN)}
_calls, _buckets, _sums = CALLS.counts, SECONDS_OF_CALLS.counts, SECONDS_OF_CALLS.sums
_bounds, _width = SECONDS_OF_CALLS.bounds, SECONDS_OF_CALLS.width


def answered(action: str, status: int, throttled: bool, seconds: float, polled: bool = False) -> None:
    """A call of this action, one of ours or "", is about to be answered with this status.

    ``polled``: it was a receive that was to wait.
    """
    row = _rows.get(action) or _row(action)
    if status < 400:
        _calls[row.outcomes[_OK]] += 1
    elif throttled:
        _calls[row.outcomes[_THROTTLED]] += 1
    else:
        _calls[row.outcomes[_REFUSED if status < 500 else _FAILED]] += 1
    if polled:
        SECONDS_OF_POLLS.observe(seconds)
        return
    place = row.seconds
    _buckets[place * _width + bisect_left(_bounds, seconds)] += 1
    _sums[place] += seconds


def gone(action: str) -> None:
    """The client of such a call has left."""
    _calls[_row(action).outcomes[_GONE]] += 1


def _row(action: str) -> _Row:
    row = _rows.get(action or UNKNOWN)
    if row is None:
        row = _rows[action] = _Row(action)
    return row


def tell(registry: Registry) -> None:
    """Show all of it."""
    registry.add(CALLS, SECONDS_OF_CALLS, SECONDS_OF_POLLS, ERRORS, THROTTLED)
