"""Analysis of a month's usage: busy queues, empty receives, deep and uneven queues, noisy tenants, and forecasts.

``python -m spark_analytics analyse`` computes it from the tables of the batch and stores it in the lake as
``analytics/month=2026-11.json``.  Readers need only that file: no Spark and no computation.

Every line names its account, and each list has the first :data:`LINES_MAX` lines of every account.  So
:meth:`Analysis.of` can cut out what one tenant may see, and the first lines over all accounts are always present.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal

import msgspec

LINES_MAX: Final = 20
"""Maximum lines of one account in each list."""
DEPTHS_MAX: Final = 5
"""Maximum queues of an account with a daily depth series."""

EMPTY_RATIO: Final = 0.5
"""Minimum share of empty receives for which the analysis gives advice."""
EMPTY_MIN: Final = 1000
"""Minimum number of empty receives in a month for which the analysis gives advice."""

Measure = Literal["requests", "byte_milliseconds", "bytes_out", "bill"]
"""Forecast measure.

``requests``: billed requests, which are chunks of 64 KiB and at least one a call; ``bill``: money.
"""


class BusyQueue(msgspec.Struct, frozen=True):
    """A queue with its number of calls."""

    account: str
    queue: str
    calls: int
    """Successful calls."""
    messages_sent: int
    messages_received: int
    throttled: int
    bytes_in: int
    bytes_out: int
    share: float
    """Share of its account's calls, 0 to 1."""


class EmptyReceives(msgspec.Struct, frozen=True):
    """A queue with its receives and the empty ones among them."""

    account: str
    queue: str
    receives: int
    """Successful receives."""
    empty: int
    """Receives that returned no message; each is billed as one request.

    Records of versions that did not count them have 0.
    """
    ratio: float
    """Empty receives as a share of all receives, 0 to 1."""
    advice: str
    """Advice in plain words; empty if none is needed."""
    cost: Decimal | None = None
    """Cost of the empty receives; None if prices are not known."""
    currency: str = ""
    """The currency of the cost."""


class Depth(msgspec.Struct, frozen=True):
    """A queue's backlog, day by day."""

    account: str
    queue: str
    messages_max: int
    """Maximum of the month."""
    oldest_age_ms_max: int
    days: list[date]
    messages: list[int]
    """Maximum of each day."""
    oldest_age_ms: list[int]
    """Maximum age of the oldest message on each day."""


class HotPartition(msgspec.Struct, frozen=True):
    """A partition that stores much more than an even share of its queue."""

    account: str
    queue: str
    partition: int
    share: float
    """Share of the bytes that the queue stores, 0 to 1."""
    times_even: float
    """Ratio of its bytes to an even share, which is the queue's bytes divided by its partitions."""
    partitions: int
    """Number of partitions of the queue."""
    messages_max: int
    """Maximum number of messages stored at one time."""


class NoisyTenant(msgspec.Struct, frozen=True):
    """A tenant with its use of shared capacity."""

    account: str
    calls: int
    """Answered calls, throttled ones included."""
    throttled: int
    throttled_share: float
    """Share of its calls that were throttled, 0 to 1."""
    share: float | None
    """Share of the calls of all tenants, 0 to 1.  None in the tenant's own view: it would reveal the others' calls."""
    advice: str
    """Advice in plain words; empty if none is needed."""


class Forecast(msgspec.Struct, frozen=True):
    """Forecast of a month's total (:mod:`billing.pricing.forecast` describes the method)."""

    account: str
    measure: Measure
    so_far: Decimal
    low: Decimal
    likely: Decimal
    high: Decimal
    """Upper bound.

    The total is between ``low`` and ``high`` with probability 0.9, if the remaining days are like the past ones.
    """
    days: int
    """Number of days that the forecast is computed from."""
    currency: str = ""
    """Currency, of a forecast of money."""


class Analysis(msgspec.Struct, frozen=True):
    """Analysis of one month.  Fields are only ever added, with a default."""

    month: str
    """Month in UTC, such as 2026-11."""
    made_at: datetime
    days: list[date]
    """Days with results of the batch; other days are not included."""
    busiest: list[BusyQueue]
    """Busiest queues, most calls first."""
    empty_receives: list[EmptyReceives]
    """Queues with empty receives, most of them first."""
    depths: list[Depth]
    """Deepest queues, the one with the oldest message first."""
    hot_partitions: list[HotPartition]
    """Unevenly loaded partitions, the most uneven first."""
    noisy: list[NoisyTenant]
    """All accounts: by share of throttled calls, then by share of all calls, largest first."""
    forecasts: list[Forecast]
    """Forecasts by account.  Accounts with too few days of data have none."""
    forecast_method: str
    """Description of the method, in plain words."""

    def of(self, account: str) -> Analysis:
        """Return the lines that this account may see: its own."""
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
    text = (
        f"{empty:,} of {receives:,} receives found nothing, and each is billed as a request. Wait for messages instead "
        "of asking again: set WaitTimeSeconds of ReceiveMessage, or ReceiveMessageWaitTimeSeconds of the queue, to 20"
    )
    if empty >= 0.9 * receives:
        text += "; if it is 20 already, fewer consumers are enough"
    return text + "."


class NoAnalysis(Exception):
    """A file is not an analysis; the text names the file and the reason."""


def path_of(month: str) -> str:
    """Return the path of a month's analysis in the lake.  Raises :class:`ValueError`."""
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise ValueError(f"a month is given as 2026-11, not {month!r}")
    return f"analytics/month={month}.json"


def encode(analysis: Analysis) -> bytes:
    """Encode an analysis as it is stored."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=1)


def decode(data: bytes) -> Analysis:
    """Decode a stored analysis.  Raises :class:`NoAnalysis`."""
    try:
        return msgspec.json.decode(data, type=Analysis)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NoAnalysis(f"the lake's analysis of the month cannot be read: {error}; run it again") from error
