"""Metrics of the calls that a frontend answers.

A call costs two reads of the clock, one dictionary lookup, and three additions.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from frontend.sqs.protocol.model import ACTIONS
from telemetry.metrics import SECONDS, Counter, Histogram, Registry

UNKNOWN: Final = "unknown"
"""Action label of requests that were refused before their action was known, or that name none."""
REST: Final = "rest"
"""Action label of all administration."""

CALLS: Final = Counter(
    "holdfast_calls_total",
    "Calls by action and outcome: ok, refused (client error), throttled (by a limit), "
    "failed (server error), gone (the client disconnected before the answer).",
    labels=("action", "outcome"),
    series_max=(len(ACTIONS) + 32) * 5,
)
SECONDS_OF_CALLS: Final = Histogram(
    "holdfast_call_seconds",
    "Time from a call's head to its answer, by action; receives with a wait time are in holdfast_long_poll_seconds.",
    labels=("action",),
    series_max=len(ACTIONS) + 32,
    bounds=SECONDS,
)
SECONDS_OF_POLLS: Final = Histogram(
    "holdfast_long_poll_seconds",
    "Time of receives with a wait time, including the wait.",
    bounds=(0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0),
)
ERRORS: Final = Counter(
    "holdfast_call_errors_total",
    "Calls answered with an error, by its code.",
    labels=("code",),
    series_max=128,
)
THROTTLED: Final = Counter(
    "holdfast_throttled_total",
    "Calls refused by a limit, by limit: rate, connections, long_polls, stored_bytes, unsigned, filters, sign_ins.",
    labels=("limit",),
    series_max=8,
)
OUTCOMES: Final = ("ok", "refused", "throttled", "failed", "gone")
_OK, _REFUSED, _THROTTLED, _FAILED, _GONE = range(len(OUTCOMES))


class _Row:
    """Indexes of one action's series."""

    __slots__ = ("outcomes", "seconds")

    def __init__(self, action: str) -> None:
        self.outcomes = [CALLS.index(action, outcome) for outcome in OUTCOMES]
        self.seconds = SECONDS_OF_CALLS.index(action)


_rows: Final = {action: _Row(action) for action in ("SendMessage", "ReceiveMessage", "DeleteMessage", UNKNOWN)}
_calls, _buckets, _sums = CALLS.counts, SECONDS_OF_CALLS.counts, SECONDS_OF_CALLS.sums
_bounds, _width = SECONDS_OF_CALLS.bounds, SECONDS_OF_CALLS.width


def answered(action: str, status: int, throttled: bool, seconds: float, polled: bool = False) -> None:
    """Count a call that is about to be answered with this status; ``action`` is one of ours or "".

    ``polled``: it was a receive with a wait time.
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
    """Count a call whose client has disconnected."""
    _calls[_row(action).outcomes[_GONE]] += 1


def _row(action: str) -> _Row:
    row = _rows.get(action or UNKNOWN)
    if row is None:
        row = _rows[action] = _Row(action)
    return row


def register(registry: Registry) -> None:
    """Register all metrics of calls."""
    registry.add(CALLS, SECONDS_OF_CALLS, SECONDS_OF_POLLS, ERRORS, THROTTLED)
