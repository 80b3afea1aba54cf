"""Invoices in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification, as CSV and Parquet.

Each line of an invoice is one row, so the sum of ``BilledCost`` over an ``InvoiceId`` is exactly the invoice's total.
The columns are all mandatory ones and those others that have a meaning here.  A SKU is a meter, and a SKU price is one
of its tiers, identified by the tier's lower edge: both are the same for all accounts, plans and times.  The plan, its
version and the tier's edges, by which a price is found in the price book, are in columns of our own (``x_``).  Lines
that correct an earlier month have the ``ChargeClass`` Correction, the billing period of the invoice they are on, and
the charge period that they correct.

Source: FOCUS specification 1.2, https://focus.finops.org/focus-specification/v1-2/
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import parquet

from billing.pricing.charges import ChargeLine
from billing.pricing.invoice_rows import METER_TITLES
from billing.pricing.invoices import Invoice
from billing.pricing.money import BASIS_POINTS, LINE_PLACES, PRICE_PLACES
from billing.pricing.plans import STREAM_METERS, TOPIC_METERS

VERSION: Final = "1.2"

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_DECIMAL: Final = pa.decimal128(38, LINE_PLACES)
_PRODUCT: Final = pa.decimal128(38, LINE_PLACES + PRICE_PLACES + 4)
"""Product of a quantity and a unit price: exact, including the 4 decimal places that a discount adds to the price."""
SCHEMA: Final = pa.schema(
    [
        ("BilledCost", _DECIMAL),
        ("BillingAccountId", _TEXT),
        ("BillingAccountName", _TEXT),
        ("BillingCurrency", _TEXT),
        ("BillingPeriodEnd", _TIME),
        ("BillingPeriodStart", _TIME),
        ("ChargeCategory", _TEXT),
        ("ChargeClass", _TEXT),
        ("ChargeDescription", _TEXT),
        ("ChargeFrequency", _TEXT),
        ("ChargePeriodEnd", _TIME),
        ("ChargePeriodStart", _TIME),
        ("ConsumedQuantity", _DECIMAL),
        ("ConsumedUnit", _TEXT),
        ("ContractedCost", _PRODUCT),
        ("ContractedUnitPrice", _DECIMAL),
        ("EffectiveCost", _DECIMAL),
        ("InvoiceId", _TEXT),
        ("InvoiceIssuerName", _TEXT),
        ("ListCost", _PRODUCT),
        ("ListUnitPrice", _DECIMAL),
        ("PricingCategory", _TEXT),
        ("PricingQuantity", _DECIMAL),
        ("PricingUnit", _TEXT),
        ("ProviderName", _TEXT),
        ("PublisherName", _TEXT),
        ("ResourceId", _TEXT),
        ("ResourceName", _TEXT),
        ("ResourceType", _TEXT),
        ("ServiceCategory", _TEXT),
        ("ServiceName", _TEXT),
        ("ServiceSubcategory", _TEXT),
        ("SkuId", _TEXT),
        ("SkuMeter", _TEXT),
        ("SkuPriceDetails", _TEXT),
        ("SkuPriceId", _TEXT),
        ("Tags", _TEXT),
        ("x_Plan", _TEXT),
        ("x_PlanVersion", _TEXT),
        ("x_TierEnd", _TEXT),
        ("x_TierStart", _TEXT),
    ]
)

_SERVICE: Final = "Holdfast"
_CATEGORIES: Final = {"usage": "Usage", "rounding": "Adjustment", "minimum": "Adjustment", "tax": "Tax"}
_BYTE_MILLISECONDS_OF_GB_HOUR: Final = 10**9 * 3_600_000
# FOCUS has no unit for deliveries: they are requests to the subscribers.
_CONSUMED: Final[Mapping[str, tuple[str, int]]] = {
    "requests_standard": ("Requests", 1),
    "requests_fair": ("Requests", 1),
    "requests_fifo": ("Requests", 1),
    "storage": ("GB-Hours", _BYTE_MILLISECONDS_OF_GB_HOUR),
    "bytes_out": ("GB", 10**9),
    "requests_stream": ("Requests", 1),
    "stream_storage": ("GB-Hours", _BYTE_MILLISECONDS_OF_GB_HOUR),
    "stream_bytes_in": ("GB", 10**9),
    "stream_bytes_out": ("GB", 10**9),
    "requests_topic": ("Requests", 1),
    "deliveries_sqs": ("Requests", 1),
    "deliveries_http": ("Requests", 1),
}
_PRICED: Final = {
    "requests_standard": "1000000 Requests",
    "requests_fair": "1000000 Requests",
    "requests_fifo": "1000000 Requests",
    "storage": "GB-Months",
    "bytes_out": "GB",
    "requests_stream": "1000000 Requests",
    "stream_storage": "GB-Months",
    "stream_bytes_in": "GB",
    "stream_bytes_out": "GB",
    "requests_topic": "1000000 Requests",
    "deliveries_sqs": "1000000 Requests",
    "deliveries_http": "100000 Requests",
}
_Resource = tuple[str, int]
"""Name and id of a queue, stream or topic of the invoice's account."""
_CONTEXT: Final = Context(prec=76, rounding=ROUND_HALF_UP)
_PLACE: Final = Decimal(1).scaleb(-LINE_PLACES)


def table_of(invoices: Iterable[Invoice]) -> pa.Table:
    """Return all lines of these invoices as a table."""
    return pa.Table.from_pylist([row for one in invoices for row in _rows(one)], schema=SCHEMA)


def csv_of(invoices: Iterable[Invoice]) -> bytes:
    """Encode as CSV (UTF-8, with a header row); null is empty, numbers are written in full."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(SCHEMA.names)
    for row in table_of(invoices).to_pylist():
        writer.writerow([_written(value) for value in row.values()])
    return file.getvalue().encode()


def parquet_of(invoices: Iterable[Invoice]) -> bytes:
    """Encode as Parquet; costs and quantities are decimals, times are in UTC."""
    file = io.BytesIO()
    parquet.write_table(table_of(invoices), file, compression="zstd")
    return file.getvalue()


def _rows(invoice: Invoice) -> list[dict[str, Any]]:
    topics = {(line.queue, line.queue_id) for line in invoice.lines if line.meter in TOPIC_METERS}
    return [_row(invoice, line, topics) for line in invoice.lines]


def _row(invoice: Invoice, line: ChargeLine, topics: Collection[_Resource]) -> dict[str, Any]:
    row = {
        "BilledCost": line.amount,
        "BillingAccountId": invoice.account,
        "BillingAccountName": invoice.customer.name or None,
        "BillingCurrency": invoice.currency,
        "BillingPeriodEnd": invoice.ends,
        "BillingPeriodStart": invoice.starts,
        "ChargeCategory": _CATEGORIES[line.category],
        "ChargeClass": "Correction" if line.month != invoice.period else None,
        "ChargeDescription": line.name
        or f"{METER_TITLES[line.meter]}, tier {line.tier}, of {line.queue or 'no queue'}",
        "ChargeFrequency": "Usage-Based" if line.category == "usage" else "Recurring",
        "ChargePeriodEnd": line.ends,
        "ChargePeriodStart": line.starts,
        "ContractedCost": line.amount,
        "EffectiveCost": line.amount,
        "InvoiceId": invoice.number or None,
        "InvoiceIssuerName": invoice.issuer.name,
        "ListCost": line.list,
        "ProviderName": invoice.issuer.name,
        "PublisherName": invoice.issuer.name,
        "ServiceCategory": "Integration",
        "ServiceName": _SERVICE,
        "ServiceSubcategory": "Messaging",
    }
    return {**row, **_usage(invoice, line, topics)} if line.category == "usage" else row


def _usage(invoice: Invoice, line: ChargeLine, topics: Collection[_Resource]) -> dict[str, Any]:
    """Return the columns that only lines of usage have."""
    unit, of = _CONSUMED[line.meter]
    price = line.price.quantize(_PLACE, context=_CONTEXT)
    contracted = _quotient(price * (BASIS_POINTS - line.discount), BASIS_POINTS)
    quantity = _quotient(line.units, int(line.per))
    starts = f"{line.tier_starts.normalize():f}"
    return {
        "ContractedCost": _CONTEXT.multiply(contracted, quantity),
        "ConsumedQuantity": _quotient(line.units, of),
        "ConsumedUnit": unit,
        "ContractedUnitPrice": contracted,
        "ListCost": _CONTEXT.multiply(price, quantity),
        "ListUnitPrice": price,
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": _PRICED[line.meter],
        "ResourceId": f"{invoice.account}/{line.queue}/{line.queue_id}" if line.queue else None,
        "ResourceName": line.queue or None,
        "ResourceType": _resource_type(line, topics),
        "SkuId": line.meter,
        "SkuMeter": METER_TITLES[line.meter],
        "SkuPriceDetails": _json({"x_TierStart": starts}),
        "SkuPriceId": f"{line.meter}/from-{starts}",
        "Tags": _json(line.tags),
        "x_Plan": line.plan,
        "x_PlanVersion": line.version,
        "x_TierEnd": None if line.tier_ends is None else f"{line.tier_ends.normalize():f}",
        "x_TierStart": starts,
    }


def _resource_type(line: ChargeLine, topics: Collection[_Resource]) -> str | None:
    """Return the type of the line's resource; None: the line has no resource.

    Topics share the meters ``storage`` and ``bytes_out`` with queues, and lines have no kind.  Ids of queues and topics
    are in one number space, so whatever has a line of a topic's meter is a topic in its other lines, too.
    """
    if not line.queue:
        return None
    if (line.queue, line.queue_id) in topics:
        return "Topic"
    return "Stream" if line.meter in STREAM_METERS else "Queue"


def _quotient(number: Decimal, of: int) -> Decimal:
    return _CONTEXT.divide(number, Decimal(of)).quantize(_PLACE, context=_CONTEXT)


def _json(values: dict[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(values.items()))).decode()


def _written(value: object) -> str:
    match value:
        case None:
            return ""
        case Decimal():
            text = f"{value:f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        case _:
            return str(value)
