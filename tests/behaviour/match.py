"""Comparison of an expected value in a case with the actual one.

Scalars have to be equal; a map constrains the keys that it names and no others; a list constrains each element, and
their number.  A map with one key that starts with ``$`` is an operator: see :data:`OPERATORS`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

ABSENT: Any = object()
"""Value for a missing key."""


def differences(expected: Any, actual: Any, where: str = "") -> list[str]:
    """Describe the differences, one sentence each; empty if there are none."""
    operator = _operator(expected)
    if operator is not None:
        return OPERATORS[operator](expected[operator], actual, where)
    if actual is ABSENT:
        return [f"{where}: missing, expected {expected!r}"]
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [f"{where}: {actual!r} is no map"]
        found = []
        for key, inner in expected.items():
            found += differences(inner, actual.get(key, ABSENT), f"{where}.{key}")
        return found
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return [f"{where}: {actual!r} is no list"]
        if len(actual) != len(expected):
            return [f"{where}: {len(actual)} elements, expected {len(expected)}: {actual!r}"]
        found = []
        for number, inner in enumerate(expected):
            found += differences(inner, actual[number], f"{where}.{number}")
        return found
    if expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        return [f"{where}: {_short(actual)}, expected {_short(expected)}"]
    return []


def _operator(expected: Any) -> str | None:
    if isinstance(expected, dict) and len(expected) == 1:
        key = next(iter(expected))
        if isinstance(key, str) and key.startswith("$"):
            if key not in OPERATORS:
                raise ValueError(f"unknown operator {key}")
            return key
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}… ({len(text)})"


def _check(holds: bool, operand: Any, actual: Any, where: str, name: str) -> list[str]:
    if holds:
        return []
    return [f"{where}: {'missing' if actual is ABSENT else _short(actual)}, expected {name} {_short(operand)}"]


def _regex(operand: Any, actual: Any, where: str) -> list[str]:
    return _check(
        isinstance(actual, str) and bool(re.search(operand, actual, re.S)), operand, actual, where, "match of"
    )


def _absent(operand: Any, actual: Any, where: str) -> list[str]:
    return _check((actual is ABSENT) == operand, operand, actual, where, "absence")


def _none(operand: Any, actual: Any, where: str) -> list[str]:
    return _check((actual is ABSENT or actual == [] or actual == {}) == operand, operand, actual, where, "nothing")


def _any(operand: Any, actual: Any, where: str) -> list[str]:
    return _check(actual is not ABSENT, operand, actual, where, "any value")


def _length(operand: Any, actual: Any, where: str) -> list[str]:
    return _check(actual is not ABSENT and len(actual) == operand, operand, actual, where, "length")


def _between(operand: Any, actual: Any, where: str) -> list[str]:
    low, high = operand
    number = float(actual) if isinstance(actual, str | int | float) else None
    return _check(number is not None and float(low) <= number <= float(high), operand, actual, where, "between")


def _differs(operand: Any, actual: Any, where: str) -> list[str]:
    return _check(
        actual is not ABSENT and bool(differences(operand, actual, where)), operand, actual, where, "other than"
    )


def _unordered(operand: Any, actual: Any, where: str) -> list[str]:
    if not isinstance(actual, list) or len(actual) != len(operand):
        return _check(False, operand, actual, where, "in any order")
    left = list(actual)
    for wanted in operand:
        for candidate in left:
            if not differences(wanted, candidate, where):
                left.remove(candidate)
                break
        else:
            return _check(False, wanted, actual, where, "to contain")
    return []


def _contains(operand: Any, actual: Any, where: str) -> list[str]:
    holds = isinstance(actual, list) and any(not differences(operand, candidate, where) for candidate in actual)
    return _check(holds, operand, actual, where, "to contain")


def _each(operand: Any, actual: Any, where: str) -> list[str]:
    if not isinstance(actual, list) or not actual:
        return _check(False, operand, actual, where, "each element")
    return [text for number, inner in enumerate(actual) for text in differences(operand, inner, f"{where}.{number}")]


def _keys(operand: Any, actual: Any, where: str) -> list[str]:
    return _check(isinstance(actual, dict) and set(actual) == set(operand), operand, actual, where, "exactly the keys")


def _only(operand: Any, actual: Any, where: str) -> list[str]:
    return _keys(list(operand), actual, where) or differences(operand, actual, where)


def _compact_json(operand: Any, actual: Any, where: str) -> list[str]:
    """Expect a string with this JSON, without white space (fact 45)."""
    if not isinstance(actual, str):
        return _check(False, operand, actual, where, "JSON text")
    value = json.loads(actual)
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False) == actual
    return _check(value == operand and compact, operand, actual, where, "compact JSON of")


def _md5(operand: Any, actual: Any, where: str) -> list[str]:
    digest = hashlib.md5(operand.encode() if isinstance(operand, str) else operand).hexdigest()
    return _check(actual == digest, digest, actual, where, "MD5")


def _near(operand: Any, actual: Any, where: str) -> list[str]:
    target, tolerance = operand
    number = float(actual) if isinstance(actual, str | int | float) else None
    return _check(number is not None and abs(number - float(target)) <= tolerance, operand, actual, where, "near")


def _attributes_md5(operand: Any, actual: Any, where: str) -> list[str]:
    """Expect the MD5 of message attributes (fact 13)."""
    digest = hashlib.md5()
    for name in sorted(operand):
        attribute = operand[name]
        parts = [name.encode(), attribute["DataType"].encode()]
        for part in parts:
            digest.update(len(part).to_bytes(4, "big") + part)
        value = attribute.get("StringValue")
        raw = value.encode() if value is not None else attribute["BinaryValue"]
        digest.update((b"\x01" if value is not None else b"\x02") + len(raw).to_bytes(4, "big") + raw)
    return _check(actual == digest.hexdigest(), digest.hexdigest(), actual, where, "MD5 of attributes")


OPERATORS: dict[str, Callable[[Any, Any, str], list[str]]] = {
    "$re": _regex,
    "$absent": _absent,
    "$none": _none,
    "$any": _any,
    "$len": _length,
    "$between": _between,
    "$not": _differs,
    "$unordered": _unordered,
    "$contains": _contains,
    "$each": _each,
    "$keys": _keys,
    "$only": _only,
    "$json_text": _compact_json,
    "$md5": _md5,
    "$near": _near,
    "$attributes_md5": _attributes_md5,
}
