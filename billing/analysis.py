"""What a month's usage tells: busy and hungry queues, short polling, noisy tenants, and what the month will come to.

``python -m spark_analytics analyse`` makes it, from the tables of the batch, and keeps it in the lake as
``analytics/month=2026-11.json``.  Whoever shows it reads that file: no Spark, and nothing to work out.

Every line names its account, and each list has the first :data:`LINES_MOST` lines of every account, so what one tenant
may see is :meth:`Analysis.of`, and the first lines of all are the first of all accounts together.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal

import msgspec

LINES_MOST: Final = 20
"""Of an account, in each list."""
DEPTHS_MOST: Final = 5
"""Queues of an account whose depth is told day by day."""

EMPTY_RATIO: Final = 0.5
"""From this on it is worth to do something about empty receives."""
EMPTY_MIN: Final = 1000
"""Fewer in a month are nobody's worry."""

Measure = Literal["requests", "byte_milliseconds", "bytes_out", "bill"]
"""What is forecast.  ``requests``: what is billed as one, chunks of 64 KiB and at least one a call; ``bill``: money."""


class BusyQueue(msgspec.Struct, frozen=True):
    """A queue by its calls."""

    account: str
    queue: str
    calls: int
    """Answered with success."""
    messages_sent: int
    messages_received: int
    throttled: int
    bytes_in: int
    bytes_out: int
    share: float
    """Of the calls of its account, 0 to 1."""


class EmptyReceives(msgspec.Struct, frozen=True):
    """A queue by what its receives find."""

    account: str
    queue: str
    receives: int
    """Answered with success."""
    empty: int
    """Of them, those that found nothing; each is billed as one request.  Versions that did not count them have none."""
    ratio: float
    """Empty ones, 0 to 1."""
    advice: str
    """In plain words; empty if all is well."""
    cost: Decimal | None = None
    """Of the empty ones, where prices are known."""
    currency: str = ""
    """The currency of the cost."""


class Depth(msgspec.Struct, frozen=True):
    """How a queue's backlog went, day by day."""

    account: str
    queue: str
    messages_most: int
    """In the month."""
    oldest_age_ms_most: int
    days: list[date]
    messages: list[int]
    """Most of each day."""
    oldest_age_ms: list[int]
    """Most of each day."""


class HotPartition(msgspec.Struct, frozen=True):
    """A partition that has much more than its part of a queue."""

    account: str
    queue: str
    partition: int
    share: float
    """Of what the queue stores, 0 to 1."""
    times_even: float
    """So many times what it had if all partitions of the queue had the same."""
    partitions: int
    """Of the queue."""
    messages_most: int
    """At once."""


class NoisyTenant(msgspec.Struct, frozen=True):
    """A tenant by what it takes of what all share."""

    account: str
    calls: int
    """All that were answered, throttled ones too."""
    throttled: int
    throttled_share: float
    """Of its calls, 0 to 1."""
    share: float | None
    """Its calls, of those of all, 0 to 1.  None for the tenant itself: from it the others' calls could be told."""
    advice: str
    """In plain words; empty if all is well."""


class Forecast(msgspec.Struct, frozen=True):
    """What a month will come to (:mod:`billing.forecast` says how)."""

    account: str
    measure: Measure
    so_far: Decimal
    low: Decimal
    likely: Decimal
    high: Decimal
    """It ends between ``low`` and ``high`` nine times of ten, if the days to come are like those behind."""
    days: int
    """That it rests on."""
    currency: str = ""
    """Of money."""


class Analysis(msgspec.Struct, frozen=True):
    """One month.  Fields are only ever added, with a default."""

    month: str
    """As 2026-11, UTC."""
    made_at: datetime
    days: list[date]
    """Of which the batch has results; the rest is not in here."""
    busiest: list[BusyQueue]
    """Most calls first."""
    empty_receives: list[EmptyReceives]
    """Most empty ones first."""
    depths: list[Depth]
    """The oldest message first."""
    hot_partitions: list[HotPartition]
    """The most uneven first."""
    noisy: list[NoisyTenant]
    """The largest share of throttled calls first, then the largest share of the whole.  Every account."""
    forecasts: list[Forecast]
    """By account.  Without those of which nothing can be said yet."""
    forecast_method: str
    """In plain words."""

    def of(self, account: str) -> Analysis:
        """What this account may see: its own lines."""
        return msgspec.structs.replace(
            self,
            busiest=[line for line in self.busiest if line.account == account],
            empty_receives=[line for line in self.empty_receives if line.account == account],
            depths=[line for line in self.depths if line.account == account],
            hot_partitions=[line for line in self.hot_partitions if line.account == account],
            noisy=[msgspec.structs.replace(line, share=None) for line in self.noisy if line.account == account],
            forecasts=[line for line in self.forecasts if line.account == account],
        )


def advice_on_receives(receives: int, empty: int) -> str:
    """Advice about empty receives, in plain words; empty if there is none."""
    if empty < EMPTY_MIN or empty < EMPTY_RATIO * receives:
        return ""
    said = (
        f"{empty:,} of {receives:,} receives found nothing, and each is billed as a request. Wait for messages instead "
        "of asking again: set WaitTimeSeconds of ReceiveMessage, or ReceiveMessageWaitTimeSeconds of the queue, to 20"
    )
    if empty >= 0.9 * receives:
        said += "; if it is 20 already, fewer consumers are enough"
    return said + "."


class NoAnalysis(Exception):
    """A file is not an analysis; the text says which and why."""


def path_of(month: str) -> str:
    """Where in the lake a month's is.  Raises :class:`ValueError`."""
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise ValueError(f"a month is given as 2026-11, not {month!r}")
    return f"analytics/month={month}.json"


def encode(analysis: Analysis) -> bytes:
    """As it is kept."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=1)


def decode(data: bytes) -> Analysis:
    """What was kept.  Raises :class:`NoAnalysis`."""
    try:
        return msgspec.json.decode(data, type=Analysis)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NoAnalysis(f"what the lake has as a month's analysis is none: {error}; make it anew") from error
