"""Values of messages and policies, in a form that compares as SNS compares them.

Texts stay as they are.  Numbers between -10**9 and 10**9 become whole hundred-thousandths, because five digits after
the decimal point count.  Other numbers are equal only to the same number, and in no range.  ``true``, ``false`` and
``null`` are constants of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import orjson

from frontend.sqs.protocol.md5 import Attribute

NUMBER_MAX = 1_000_000_000
"""Maximum of a number that can be compared, in both directions [guide, "Filter policy constraints"]."""
FRACTION = 100_000
"""Number of distinguished parts of one [guide: five digits after the decimal point]."""


class Literal(Enum):
    """A constant of JSON."""

    TRUE = "true"
    FALSE = "false"
    NULL = "null"


class FarNumber(NamedTuple):
    """A number beyond the range that can be compared."""

    number: float


Value = str | int | Literal | FarNumber
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?\Z")
_LITERALS = {True: Literal.TRUE, False: Literal.FALSE, None: Literal.NULL}


def number_value(number: float) -> int | FarNumber:
    """Comparable form of a number."""
    if -NUMBER_MAX <= number <= NUMBER_MAX:
        return round(number * FRACTION)
    return FarNumber(number)


def scalar_value(scalar: str | float | bool | None) -> Value:
    """Comparable form of a scalar of JSON."""
    kind = type(scalar)
    if kind is str:
        return scalar  # type: ignore[return-value]
    if kind is int or kind is float:
        return number_value(scalar)  # type: ignore[arg-type]
    return _LITERALS[scalar]  # type: ignore[index]


def attribute_values(attributes: Sequence[Attribute]) -> dict[str, tuple[Value, ...]]:
    """Values of message attributes by their names.  Attributes of the type Binary have none."""
    return {name: _values(type_, value) for name, type_, value in attributes if type(value) is str}


def _values(type_: str, text: str) -> tuple[Value, ...]:
    kind, _, suffix = type_.partition(".")
    if suffix == "Array":
        elements = _elements(text)
        if elements is not None:
            return elements
    if kind == "Number" and _NUMBER.match(text):
        return (number_value(float(text)),)
    return (text,)


def _elements(text: str) -> tuple[Value, ...] | None:
    """Scalars of an array in JSON; None for any other text, which is a value as a whole."""
    try:
        elements: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if type(elements) is not list:
        return None
    return tuple(
        scalar_value(element) for element in elements if type(element) is not list and type(element) is not dict
    )
