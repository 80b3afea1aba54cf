"""A slow matcher of filter policies, which follows their definition: it tries each element of each array.

It reads policies that are valid, and shares nothing with the service.
"""

import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Any

RESERVED = ("prefix", "suffix", "anything-but", "exists", "numeric", "cidr", "wildcard", "equals-ignore-case")
LIMIT = Decimal(10) ** 9


def matches_body(policy: dict[str, Any], body: str) -> bool:
    """True if the policy matches a body."""
    try:
        document = json.loads(body, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_constant)
    except ValueError:
        return False
    if not isinstance(document, dict) or not document:
        return False
    everything = {path for _, leaves in _choices(document) for path, _ in leaves}
    return any(_holds(policy, "", list(leaves), everything) for _, leaves in _choices(document))


def matches_attributes(policy: dict[str, Any], attributes: dict[str, tuple[str, str]]) -> bool:
    """True if the policy matches attributes: their types and values by names."""
    leaves = [(name, value) for name, (type_, text) in attributes.items() for value in _attribute(type_, text)]
    if not attributes:
        return False
    return _holds(policy, "", leaves, {name for name, _ in leaves})


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _attribute(type_: str, text: str) -> list[Any]:
    if type_ == "Number":
        return [Decimal(text)]
    if type_ == "String.Array":
        values = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        return [value for value in values if not isinstance(value, list | dict)]
    return [text] if type_ == "String" else []


def _choices(node: Any, path: str = "") -> Iterator[tuple[None, list[tuple[str, Any]]]]:
    """Iterate over the leaves that remain, with their paths, when one element of each array is chosen."""
    if isinstance(node, dict):
        inner = [list(_choices(value, f"{path}.{name}" if path else f"\0{name}")) for name, value in node.items()]
        for combination in itertools.product(*inner):
            yield None, [leaf for _, leaves in combination for leaf in leaves]
    elif isinstance(node, list):
        if not node:
            yield None, []
        for element in node:
            yield from _choices(element, path)
    else:
        yield None, [(path.removeprefix("\0"), node)]


def _holds(policy: dict[str, Any], prefix: str, leaves: list[tuple[str, Any]], everything: set[str]) -> bool:
    for name, value in policy.items():
        if name == "$or" and _is_or(value):
            if not any(_holds(one, prefix, leaves, everything) for one in value):
                return False
            continue
        path = f"{prefix}.{name}" if prefix else f"\0{name}"
        if isinstance(value, dict):
            if not _holds(value, path, leaves, everything):
                return False
            continue
        key = path.removeprefix("\0")
        found = [leaf for at, leaf in leaves if at == key]
        if not any(_matches(one, found, key in everything) for one in value):
            return False
    return True


def _is_or(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(one, dict) and not set(one) & set(RESERVED) for one in value)
    )


def _matches(expression: Any, found: list[Any], present: bool) -> bool:
    if expression == {"exists": False}:
        return not present
    return any(_is_match(expression, value) for value in found)


def _is_match(expression: Any, value: Any) -> bool:
    if not isinstance(expression, dict):
        return _equal(expression, value)
    ((name, operand),) = expression.items()
    if name == "exists":
        return value is not None and value != ""
    if name == "anything-but":
        if isinstance(operand, dict):
            ((inner, texts),) = operand.items()
            listed = texts if isinstance(texts, list) else [texts]
            return not any(_is_match({inner: one}, value) for one in listed)
        listed = operand if isinstance(operand, list) else [operand]
        return not any(_equal(one, value) for one in listed)
    if name == "numeric":
        return _is_number(value) and abs(value) <= LIMIT and _in_range(_rounded(value), operand)
    if not isinstance(value, str):
        return False
    if name == "cidr":
        try:
            return ip_address(value) in ip_network(operand, strict=False)
        except ValueError:
            return False
    if name == "wildcard":
        units = re.findall(r"\\.|[^\\]", operand, re.DOTALL)
        pattern = "".join(".*" if unit == "*" else re.escape(unit[-1]) for unit in units)
        return re.fullmatch(pattern, value, re.DOTALL) is not None
    found: bool = {
        "prefix": value[: len(operand)] == operand,
        "suffix": operand == "" or value[-len(operand) :] == operand,
        "equals-ignore-case": value.lower() == operand.lower(),
    }[name]
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Decimal | int | float) and not isinstance(value, bool)


def _equal(wanted: Any, value: Any) -> bool:
    if _is_number(wanted) and _is_number(value):
        one, other = Decimal(str(wanted)), Decimal(str(value))
        if max(abs(one), abs(other)) > LIMIT:
            return one == other
        return _rounded(one) == _rounded(other)
    return type(wanted) is type(value) and bool(wanted == value)


def _rounded(value: Any) -> Decimal:
    return Decimal(round(Decimal(str(value)) * 100_000))


def _in_range(value: Decimal, operand: list[Any]) -> bool:
    for operator, given in zip(operand[::2], operand[1::2], strict=True):
        limit = _rounded(given)
        holds = {
            "=": value == limit,
            "<": value < limit,
            "<=": value <= limit,
            ">": value > limit,
            ">=": value >= limit,
        }
        if not holds[operator]:
            return False
    return True
