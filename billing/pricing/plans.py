"""Price plans and their assignment to accounts: data, written as YAML and parsed strictly.

A *price book* has plans.  A plan has a currency, the time zone in which its months begin and end, and *versions*: the
prices from a given day on.  A price belongs to a *meter* and rises or falls in *tiers*.  A second file assigns plans to
accounts.  ``docs/billing.md`` describes both; ``billing/pricing/prices.example.yaml`` is an example.

Unknown or ambiguous input is an error that gives the position and the remedy.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from billing.lake.months import Month, midnight
from billing.pricing.money import BASIS_POINTS, PRICE_BELOW, PRICE_PLACES
from billing.pricing.strict_yaml import YamlNode, parse

QueueMeter = Literal["requests_standard", "requests_fair", "requests_fifo", "storage", "bytes_out"]
StreamMeter = Literal["requests_stream", "stream_storage", "stream_bytes_in", "stream_bytes_out"]
TopicMeter = Literal["requests_topic", "deliveries_sqs", "deliveries_http"]
Meter = QueueMeter | StreamMeter | TopicMeter
"""Measured quantities that have a price.  Those of queues do not include streams.  Of topics, ``storage`` and
``bytes_out`` include what they store and send."""
QUEUE_METERS: Final[tuple[QueueMeter, ...]] = get_args(QueueMeter)
"""Meters that each price book has."""
STREAM_METERS: Final[tuple[StreamMeter, ...]] = get_args(StreamMeter)
"""Meters of streams.  A price book may leave them out: then they cost nothing."""
TOPIC_METERS: Final[tuple[TopicMeter, ...]] = get_args(TopicMeter)
"""Meters of topics, which a price book may leave out, too."""
METERS: Final[tuple[Meter, ...]] = (*QUEUE_METERS, *STREAM_METERS, *TOPIC_METERS)
STORAGE_METERS: Final[frozenset[Meter]] = frozenset(("storage", "stream_storage"))
BYTES_METERS: Final[frozenset[Meter]] = frozenset(("bytes_out", "stream_bytes_in", "stream_bytes_out"))

GB_BYTES: Final = 10**9
"""Bytes of a (decimal) gigabyte."""
DUE_DAYS_MAX: Final = 366
_EDGE_PLACES: Final = 9
"""Decimal places of an edge in GB or GB-months, so that it is a whole number of bytes."""
_YEARS: Final = range(2000, 2200)
_REQUESTS_EACH: Final = 10**6
"""Number of requests, or of deliveries to queues, that a price is for."""
_HTTP_DELIVERIES_EACH: Final = 10**5
"""Number of deliveries by HTTP that a price is for.  Source: Amazon SNS pricing."""


def is_counted(meter: str) -> bool:
    """Return whether the meter counts requests or deliveries, so that its quantities are whole numbers."""
    return meter.startswith(("requests", "deliveries"))


class NoPrice(ValueError):
    """The price book has no price for this; the text says what to do."""


class Tier(msgspec.Struct, frozen=True):
    """A price, for the part of a month's usage between two amounts."""

    starts: Decimal
    """Lower edge in requests, deliveries, GB-months or GB; free units count as well."""
    ends: Decimal | None
    """Upper edge, exclusive; None: no limit."""
    price: Decimal
    """Price of a million requests or deliveries to queues, 100,000 deliveries by HTTP, a GB-month or a GB."""


FREE: Final = (Tier(Decimal(0), None, Decimal(0)),)
"""Tiers of a meter without prices."""


class Version(msgspec.Struct, frozen=True):
    """Prices of a plan from a day on."""

    starts: date
    """First day, in the plan's time zone."""
    prices: dict[Meter, tuple[Tier, ...]]
    """Tiers, by meter; those of streams and topics may be missing.  See :meth:`tiers`."""
    discounts: dict[Meter, int]
    """Discounts in basis points, by meter that has prices.  See :meth:`discount`."""
    minimum: Decimal
    """Minimum sum of an invoice's lines before tax."""
    tax_name: str
    tax: int
    """Tax in basis points."""

    def tiers(self, meter: Meter) -> tuple[Tier, ...]:
        """Return the tiers of a meter."""
        return self.prices.get(meter, FREE)

    def discount(self, meter: Meter) -> int:
        """Return the discount of a meter in basis points."""
        return self.discounts.get(meter, 0)


class PricingPeriod(NamedTuple):
    """A part of a month in which one version applies."""

    starts: datetime
    ends: datetime
    """End, exclusive.  Start and end are full hours of UTC."""
    version: Version


class Plan(msgspec.Struct, frozen=True):
    """A plan: its prices, its currency, and the time zone of its months."""

    name: str
    title: str
    """Display name."""
    currency: str
    """Currency, ISO 4217."""
    minor_places: int
    """Decimal places of the currency's minor unit."""
    time_zone: str
    versions: tuple[Version, ...]
    """Versions, in the order of their days."""

    def segments(self, month: Month) -> list[PricingPeriod]:
        """Return the month's parts in their order.  Raises :class:`NoPrice` if the plan has no prices for all of it."""
        starts, ends = self.edges(month)
        started = [midnight(version.starts, self.time_zone) for version in self.versions]
        for begins in (starts, ends, *started):
            if begins.minute or begins.second:
                raise NoPrice(
                    f"plan {self.name}: in {self.time_zone} days do not begin with an hour of UTC, but usage is "
                    "summed by such hours: use a time zone that is a whole number of hours from UTC"
                )
        if started[0] > starts:
            raise NoPrice(
                f"plan {self.name} has no prices for all of {month}: its first version is from "
                f"{self.versions[0].starts}; add a version from {month.first} or earlier"
            )
        return [
            PricingPeriod(max(begins, starts), min(until, ends), version)
            for begins, until, version in zip(started, [*started[1:], ends], self.versions, strict=True)
            if begins < ends and until > starts
        ]

    def edges(self, month: Month) -> tuple[datetime, datetime]:
        """Return the start of the month and of the next one."""
        return midnight(month.first, self.time_zone), midnight(month.next.first, self.time_zone)

    def units_per(self, meter: Meter, month: Month) -> int:
        """Return the number of units of measurement that a price of this meter is for.

        Requests and deliveries are measured in chunks of 64 KiB, transfer in bytes, and storage in byte-milliseconds.
        A GB-month is 10⁹ bytes stored for the whole month, so it depends on the length of this month in this time zone.
        """
        if meter in BYTES_METERS:
            return GB_BYTES
        if meter in STORAGE_METERS:
            starts, ends = self.edges(month)
            return GB_BYTES * int((ends - starts).total_seconds()) * 1000
        return _HTTP_DELIVERIES_EACH if meter == "deliveries_http" else _REQUESTS_EACH

    def edge_units(self, meter: Meter, month: Month, edge: Decimal) -> int:
        """Convert a tier's edge to units of measurement: a whole number."""
        if is_counted(meter):
            return int(edge)
        return int(edge.scaleb(_EDGE_PLACES)) * self.units_per(meter, month) // 10**_EDGE_PLACES


class Issuer(msgspec.Struct, frozen=True):
    """Issuer of the invoices."""

    name: str
    address: tuple[str, ...]
    tax_id: str
    email: str
    prefix: str
    """Prefix of invoice numbers."""
    due_days: int = 30
    """Days from issue to payment."""


class PriceBook(msgspec.Struct, frozen=True):
    """A price book: the plans and the issuer."""

    issuer: Issuer
    plans: dict[str, Plan]

    def plan(self, name: str) -> Plan:
        """Return the plan of this name.  Raises :class:`NoPrice`."""
        try:
            return self.plans[name]
        except KeyError:
            raise NoPrice(f"there is no plan {name}; there are {', '.join(sorted(self.plans))}") from None


class Customer(msgspec.Struct, frozen=True):
    """An account's billing data."""

    plan: str
    name: str = ""
    address: tuple[str, ...] = ()
    email: str = ""
    tax_id: str = ""
    discount: int = 0
    """Discount on everything in basis points, in addition to the plan's."""
    tax_name: str | None = None
    tax: int | None = None
    """Tax in basis points, instead of the plan's."""
    deleted: date | None = None
    """Day on which the tenant was deleted: that month's invoice is the final one."""
    created: date | None = None
    """Day on which the account was created; None: before all billed months."""
    due_days: int | None = None
    """Days from issue to payment, instead of the issuer's."""

    def owes_minimum(self, month: Month) -> bool:
        """Return whether a plan's minimum is owed for this month.

        It is owed in full, from the month in which the account was created to the one in which it was deleted.
        """
        made = self.created is None or self.created < month.next.first
        return made and (self.deleted is None or self.deleted >= month.first)


class Customers(msgspec.Struct, frozen=True):
    """Assignment of plans to accounts."""

    default: str
    """Plan of accounts that are not named."""
    named: dict[str, Customer] = {}

    def of(self, account: str) -> Customer:
        return self.named.get(account) or Customer(self.default)

    def plans(self) -> list[str]:
        """Return the names of the plans in use."""
        return sorted({self.default, *(customer.plan for customer in self.named.values())})


def load_book(path: Path) -> PriceBook:
    """Read the price book of a file.  Raises :class:`YamlError` and :class:`OSError`."""
    return book_of(path.read_text("utf-8"), str(path))


def load_customers(path: Path | None, book: PriceBook) -> Customers:
    """Read the plans of accounts; without a file, every account has the book's only plan.

    Raises :class:`YamlError`, :class:`NoPrice` and :class:`OSError`.
    """
    if path is not None:
        return customers_of(path.read_text("utf-8"), str(path), book)
    if len(book.plans) > 1:
        plans = ", ".join(sorted(book.plans))
        raise NoPrice(f"the price book has the plans {plans}: assign them in a file (--accounts)")
    return Customers(next(iter(book.plans)))


def book_of(text: str, source: str) -> PriceBook:
    """Parse a price book.  ``source``: name of the file, for errors.  Raises :class:`YamlError`."""
    top = parse(text, source).fields("issuer", "plans")
    plans = {name: _plan(name, node) for name, node in top["plans"].entries().items()}
    if not plans:
        top["plans"].fail("needs a plan")
    return PriceBook(_issuer(top["issuer"]), plans)


def customers_of(text: str, source: str, book: PriceBook) -> Customers:
    """Parse the plans of accounts.  ``source``: name of the file, for errors.  Raises :class:`YamlError`."""
    top = parse(text, source).fields("default", accounts={})
    named = {}
    for account, node in top["accounts"].entries().items():
        if not re.fullmatch(r"\d{12}", account, re.ASCII):
            node.fail(f"{account!r} is not an account: 12 digits, in quotes")
        named[account] = _customer(node, book)
    return Customers(_plan_of(top["default"], book), named)


def _plan(name: str, node: YamlNode) -> Plan:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name, re.ASCII):
        node.fail("the name of a plan has lower-case letters, digits and hyphens")
    fields = node.fields("currency", "minor_places", "versions", title=name, time_zone="UTC")
    currency = fields["currency"].text()
    if not re.fullmatch(r"[A-Z]{3}", currency, re.ASCII):
        fields["currency"].fail(f"{currency!r} is not a currency: three capital letters of ISO 4217, such as EUR")
    minor_places = fields["minor_places"].whole(0, 4)
    versions = fields["versions"].items()
    if not versions:
        fields["versions"].fail("needs a version")
    plan = Plan(
        name,
        fields["title"].text(),
        currency,
        minor_places,
        _zone(fields["time_zone"]),
        tuple(_version(one, minor_places) for one in versions),
    )
    for before, after, one in zip(plan.versions, plan.versions[1:], versions[1:], strict=False):
        if after.starts <= before.starts:
            one.fail(f"is from {after.starts}, which is not after {before.starts}: put versions in the order of time")
    month = Month(plan.versions[0].starts.year, plan.versions[0].starts.month)
    for _ in range(12):  # daylight saving time and standard time
        month = month.next
        try:
            plan.segments(month)
        except NoPrice as error:
            fields["time_zone"].fail(str(error))
    return plan


def _version(node: YamlNode, minor_places: int) -> Version:
    fields = node.fields("from", "prices", discount=Decimal(0), discounts={}, minimum=Decimal(0), tax=None)
    given = fields["prices"].entries()
    prices = fields["prices"].fields(*QUEUE_METERS, **dict.fromkeys((*STREAM_METERS, *TOPIC_METERS)))
    meters = [meter for meter in METERS if meter in given]
    discount = fields["discount"].basis_points()
    discounts: dict[Meter, int] = dict.fromkeys(meters, discount)
    for name, one in fields["discounts"].entries().items():
        if name not in METERS:
            one.fail(f"there is no such meter; there are {', '.join(METERS)}")
        if name not in discounts:
            one.fail("the meter has no prices in this version")
        discounts[name] = discount + one.basis_points()
        if discounts[name] > BASIS_POINTS:
            one.fail("all discounts together are more than 100 percent")
    tax_name, tax = _tax(fields["tax"])
    starts = fields["from"].day()
    if starts.year not in _YEARS:
        fields["from"].fail(f"is {starts}; it has to be in the years {_YEARS[0]} to {_YEARS[-1]}")
    return Version(
        starts,
        {meter: _tiers(prices[meter], meter) for meter in meters},
        discounts,
        fields["minimum"].decimal(minor_places),
        tax_name or "",
        tax or 0,
    )


def _tiers(node: YamlNode, meter: Meter) -> tuple[Tier, ...]:
    places = 0 if is_counted(meter) else _EDGE_PLACES
    fields = node.fields("tiers", free=Decimal(0))
    free = fields["free"].decimal(places)
    tiers = [Tier(Decimal(0), free, Decimal(0))] if free else []
    starts = free
    found = fields["tiers"].items()
    if not found:
        fields["tiers"].fail("has no tier; the last one has no up_to")
    for one in found[:-1]:
        tier = one.fields("up_to", "price")
        ends = tier["up_to"].decimal(places)
        if ends <= starts:
            tier["up_to"].fail(f"is {ends}, which is not more than {starts}, where the tier begins")
        tiers.append(Tier(starts, ends, _price(tier["price"])))
        starts = ends
    last = found[-1].fields("price", up_to=None)
    if last["up_to"].value is not None:
        last["up_to"].fail("the last tier has no end: leave this out, or add a tier after it")
    return (*tiers, Tier(starts, None, _price(last["price"])))


def _price(node: YamlNode) -> Decimal:
    price = node.decimal(PRICE_PLACES)
    if price >= PRICE_BELOW:
        node.fail(f"is {price}; a price is less than {PRICE_BELOW}")
    return price


def _tax(node: YamlNode) -> tuple[str | None, int | None]:
    if node.value is None:
        return None, None
    fields = node.fields("name", "percent")
    return fields["name"].text(), fields["percent"].basis_points()


def _zone(node: YamlNode) -> str:
    name = node.text()
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        node.fail(f"there is no time zone {name!r}: write it like Europe/Berlin, or UTC")
    return name


def _issuer(node: YamlNode) -> Issuer:
    fields = node.fields("name", address=[], tax_id="", email="", prefix="HF-", due_days=30)
    prefix = fields["prefix"].text()
    if not re.fullmatch(r"[A-Za-z0-9-]{1,20}", prefix, re.ASCII):
        fields["prefix"].fail(f"{prefix!r} is not a valid prefix of numbers: up to 20 letters, digits and hyphens")
    return Issuer(
        fields["name"].text(),
        tuple(line.text() for line in fields["address"].items()),
        fields["tax_id"].text(empty=True),
        fields["email"].text(empty=True),
        prefix,
        fields["due_days"].whole(0, DUE_DAYS_MAX),
    )


def _customer(node: YamlNode, book: PriceBook) -> Customer:
    fields = node.fields(
        "plan",
        name="",
        address=[],
        email="",
        tax_id="",
        discount=Decimal(0),
        tax=None,
        created=None,
        deleted=None,
        due_days=None,
    )
    tax_name, tax = _tax(fields["tax"])
    plan = _plan_of(fields["plan"], book)
    discount = fields["discount"].basis_points()
    if any(discount + off > BASIS_POINTS for version in book.plan(plan).versions for off in version.discounts.values()):
        fields["discount"].fail("with the plan's discounts it is more than 100 percent")
    created, deleted = (None if fields[name].value is None else fields[name].day() for name in ("created", "deleted"))
    if created is not None and deleted is not None and deleted < created:
        fields["deleted"].fail(f"is {deleted}, before {created}, on which the account was created")
    return Customer(
        plan,
        fields["name"].text(empty=True),
        tuple(line.text() for line in fields["address"].items()),
        fields["email"].text(empty=True),
        fields["tax_id"].text(empty=True),
        discount,
        tax_name,
        tax,
        deleted,
        created,
        None if fields["due_days"].value is None else fields["due_days"].whole(0, DUE_DAYS_MAX),
    )


def _plan_of(node: YamlNode, book: PriceBook) -> str:
    name = node.text()
    if name not in book.plans:
        node.fail(f"there is no plan {name!r} in the price book; there are {', '.join(sorted(book.plans))}")
    return name
