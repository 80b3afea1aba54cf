"""Comparison of an expected value in a case with the actual one.

Scalars have to be equal; a map constrains the keys that it names and no others; a list constrains each element, and
their number.  A map with one key that starts with ``$`` is an operator: see :data:`OPERATORS`.
"""

import hashlib
import json
import math
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


def _each(operand: Any, actual: Any, where: str) -> list[str]:
    if not isinstance(actual, list) or not actual:
        return _check(False, operand, actual, where, "each element")
    return [text for number, inner in enumerate(actual) for text in differences(operand, inner, f"{where}.{number}")]


def _only(operand: Any, actual: Any, where: str) -> list[str]:
    return OPERATORS["$keys"](list(operand), actual, where) or differences(operand, actual, where)


def _compact_json(operand: Any, actual: Any, where: str) -> list[str]:
    """Expect a string with this JSON, without white space (fact 45)."""
    if not isinstance(actual, str):
        return _check(False, operand, actual, where, "JSON text")
    value = json.loads(actual)
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False) == actual
    return _check(value == operand and compact, operand, actual, where, "compact JSON of")


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


def _number(actual: Any) -> float:
    return float(actual) if isinstance(actual, str | int | float) else math.nan


def _md5(operand: str | bytes) -> str:
    return hashlib.md5(operand.encode() if isinstance(operand, str) else operand).hexdigest()


PREDICATES: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "$re": ("match of", lambda operand, actual: isinstance(actual, str) and bool(re.search(operand, actual, re.S))),
    "$absent": ("absence", lambda operand, actual: (actual is ABSENT) == operand),
    "$none": ("nothing", lambda operand, actual: (actual is ABSENT or actual in ([], {})) == operand),
    "$any": ("any value", lambda _, actual: actual is not ABSENT),
    "$len": ("length", lambda operand, actual: actual is not ABSENT and len(actual) == operand),
    "$between": ("between", lambda operand, actual: float(operand[0]) <= _number(actual) <= float(operand[1])),
    "$near": ("near", lambda operand, actual: abs(_number(actual) - float(operand[0])) <= operand[1]),
    "$not": ("other than", lambda operand, actual: actual is not ABSENT and bool(differences(operand, actual))),
    "$contains": (
        "to contain",
        lambda operand, actual: isinstance(actual, list) and any(not differences(operand, one) for one in actual),
    ),
    "$keys": ("exactly the keys", lambda operand, actual: isinstance(actual, dict) and set(actual) == set(operand)),
    "$md5": ("MD5 of", lambda operand, actual: actual == _md5(operand)),
}
"""Operators that are true or false of an operand and an actual value, with their descriptions."""


def _by_predicate(name: str) -> Callable[[Any, Any, str], list[str]]:
    described, holds = PREDICATES[name]
    return lambda operand, actual, where: _check(holds(operand, actual), operand, actual, where, described)


OPERATORS: dict[str, Callable[[Any, Any, str], list[str]]] = {
    **{name: _by_predicate(name) for name in PREDICATES},
    "$unordered": _unordered,
    "$each": _each,
    "$only": _only,
    "$json_text": _compact_json,
    "$attributes_md5": _attributes_md5,
}
