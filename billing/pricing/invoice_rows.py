"""Lines of an invoice as people recompute them: quantity × price ÷ per, less the discount, is the amount.

Used by pages, texts and the command line, so nothing here needs more than decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final, NamedTuple

PLACES_MAX: Final = 9
"""Maximum decimal places shown of a quantity or of a line's amount."""
METER_TITLES: Final = {
    "requests_standard": "Requests to standard queues",
    "requests_fair": "Fair-queue requests",
    "requests_fifo": "Requests to FIFO queues",
    "storage": "Message storage",
    "bytes_out": "Data out",
    "requests_stream": "Requests to streams",
    "stream_storage": "Stream storage",
    "stream_bytes_in": "Data produced to streams",
    "stream_bytes_out": "Data fetched from streams",
    "requests_topic": "Requests to topics",
    "deliveries_sqs": "Deliveries to queues",
    "deliveries_http": "Deliveries by HTTP",
}
_UNITS: Final = {
    "requests_standard": ("requests", "1,000,000"),
    "requests_fair": ("requests", "1,000,000"),
    "requests_fifo": ("requests", "1,000,000"),
    "storage": ("GB-months", "1"),
    "bytes_out": ("GB", "1"),
    "requests_stream": ("requests", "1,000,000"),
    "stream_storage": ("GB-months", "1"),
    "stream_bytes_in": ("GB", "1"),
    "stream_bytes_out": ("GB", "1"),
    "requests_topic": ("requests", "1,000,000"),
    "deliveries_sqs": ("deliveries", "1,000,000"),
    "deliveries_http": ("deliveries", "100,000"),
}
"""The unit of a quantity, and the number of them that a price is for."""
_COUNTED_UNITS: Final = ("requests", "deliveries")
_CONTEXT: Final = Context(prec=76, rounding=ROUND_HALF_UP)


class Charge(NamedTuple):
    """A charge for usage, as numbers."""

    meter: str
    units: Decimal
    """Units of measurement: 64 KiB requests or deliveries, bytes, or byte-milliseconds."""
    per: Decimal
    """Units of measurement for which the price is charged."""
    price: Decimal
    discount: int
    """Basis points."""
    amount: Decimal

    @property
    def quantity(self) -> Decimal:
        """Quantity in the displayed unit: requests, deliveries, GB-months or GB."""
        if self.unit in _COUNTED_UNITS:
            return self.units
        return _CONTEXT.divide(self.units, self.per)

    @property
    def unit(self) -> str:
        """The unit of the quantity."""
        return _UNITS[self.meter][0]

    @property
    def price_for(self) -> str:
        """The number of units that the price is for."""
        return _UNITS[self.meter][1]

    @property
    def percent_off(self) -> str:
        """The discount in percent; empty if there is no discount, or no price that it could reduce."""
        return f"{plain(Decimal(self.discount).scaleb(-2))} %" if self.discount and self.price else ""


def tier_text(meter: str, price: Decimal, starts: Decimal, ends: Decimal | None) -> str:
    """A tier in words; its edges are in requests, deliveries, GB-months or GB."""
    unit = "" if _UNITS[meter][0] in _COUNTED_UNITS else f" {_UNITS[meter][0]}"
    if not price and not starts and ends is not None:
        return f"the first {plain(ends)}{unit} free"
    if ends is None:
        return f"above {plain(starts)}{unit}" if starts else "all"
    return f"{plain(starts)} to {plain(ends)}{unit}"


def plain(number: Decimal) -> str:
    """The number in full, with thousands separators and without trailing zeros: ``1,234,567.5``."""
    text = f"{number or abs(number):,f}"  # a decimal can be -0
    return text.rstrip("0").rstrip(".") if "." in text else text


def written(number: Decimal, places_min: int = 0) -> str:
    """Number with as many decimal places as it needs, from ``places_min`` to :data:`PLACES_MAX`.

    A nonzero number smaller than the last place is not shown as zero.
    """
    shown = number.quantize(Decimal(1).scaleb(-PLACES_MAX), context=_CONTEXT)
    if number and not shown:
        smallest = f"{Decimal(1).scaleb(-PLACES_MAX):f}"
        return f"< {smallest}" if number > 0 else f"> -{smallest}"
    whole, _, places = plain(shown).partition(".")
    places = places.ljust(places_min, "0")
    return f"{whole}.{places}" if places else whole


def aligned(texts: Sequence[str]) -> list[str]:
    """Pad numbers with spaces on both sides, so that their decimal points align; all results have the same length."""
    parts = [text.partition(".") for text in texts]
    before = max((len(whole) for whole, _, _ in parts), default=0)
    after = max((len(point) + len(places) for _, point, places in parts), default=0)
    return [whole.rjust(before) + (point + places).ljust(after) for whole, point, places in parts]
