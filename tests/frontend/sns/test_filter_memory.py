"""Memory of values that are parsed and indexed for filter policies: the worst known bodies within the bounds."""

import json
from collections.abc import Callable
from functools import partial

import pytest

from frontend.sns.filters.body_paths import PathTree
from frontend.sns.filters.compiler import FilterScope, compile_filter_policy
from frontend.sns.filters.message import FilterMessage
from frontend.sns.protocol.limits import MESSAGE_BYTES_MAX
from frontend.sns.topics.selection import LARGE_CHARACTERS, VALUES_BYTES_MAX
from frontend.sqs.protocol.md5 import Attribute
from tests.fuzz.budget import memory_factor, peak_bytes

INDEXED = [
    {"suffix": "q"},
    {"equals-ignore-case": "zz"},
    {"cidr": "10.0.0.0/8"},
    {"cidr": "::/9"},
    {"numeric": ["<", -5]},
    {"wildcard": "*q*"},
]
"""Expressions that need all indexes, and match no value of the bodies."""
POLICIES = (
    {"a": INDEXED},
    {"a": {"b": [*INDEXED, {"exists": True}], "c": [{"exists": True}]}},
    {"a": {name: [{"exists": True}] for name in "bcdefgh"}},
    {"a": [*INDEXED, {"anything-but": "q"}], "x": [{"exists": False}]},
)


def array(element: Callable[[int], str], length: int) -> str:
    """An array in JSON of about this length in bytes."""
    elements: list[str] = []
    left = length - 10
    while left > 0:
        elements.append(element(len(elements)))
        left -= len(elements[-1].encode()) + 1
    return "[" + ",".join(elements[:-1]) + "]"


def _object(value: str, names: str = "bcdefgh") -> str:
    return "{" + ",".join(f'"{name}":{value}' for name in names) + "}"


ELEMENTS: dict[str, Callable[[int], str]] = {
    "empty objects": lambda _: "{}",
    "empty arrays": lambda _: "[]",
    "numbers": lambda _: "1",
    "different numbers": str,
    "fractions": lambda number: f"{number}.5",
    "texts": lambda number: f'"{number:X}"',
    "other letters": lambda number: f'"é{number:X}"',
    "wide letters": lambda number: f'"\U0001f600{number:X}"',
    "addresses": lambda number: f'"::{number:x}"',
    "arrays of one": lambda _: "[1]",
    "nested arrays": lambda _: "[[1]]",
    "objects of one": lambda _: '{"b":1}',
    "objects in different elements": lambda _: '[{"b":1},{"c":1}]',
    "objects in different arrays": lambda _: '[[{"b":1}],[{"c":1}]]',
    "seven keys": lambda _: _object("1"),
    "arrays of seven keys": lambda _: _object("[1]"),
    "texts of seven keys": lambda number: _object(f'"{number:X}"'),
    "seven keys in different elements": lambda _: "[" + ",".join(_object("1", name) for name in "bcdefgh") + "]",
}


def evaluate(scope: FilterScope, attributes: list[Attribute], body: str) -> None:
    """Evaluate all policies of a scope without a limit of work."""
    given = POLICIES if scope == "MessageBody" else (POLICIES[0], POLICIES[3])
    policies = [one for one in (compile_filter_policy(json.dumps(policy), scope) for policy in given) if one]
    paths = PathTree()
    for policy in policies:
        paths.add(policy.paths)
    message = FilterMessage(attributes, body, paths)
    for policy in policies:
        message.work.allow_policy(10_000_000)
        policy.matches(message)


@pytest.mark.parametrize("elements", ELEMENTS)
def test_memory_of_bodies(elements: str) -> None:
    peaks = []
    for length in (MESSAGE_BYTES_MAX, LARGE_CHARACTERS):
        body = '{"a":' + array(ELEMENTS[elements], length - 6) + "}"
        peaks.append(peak_bytes(partial(evaluate, "MessageBody", [], body)))
    assert peaks[0] <= VALUES_BYTES_MAX
    memory_factor(peaks[1], LARGE_CHARACTERS)


@pytest.mark.parametrize("elements", [name for name in ELEMENTS if "objects" not in name and "keys" not in name])
def test_memory_of_attributes(elements: str) -> None:
    value = array(ELEMENTS[elements], MESSAGE_BYTES_MAX)
    peak = peak_bytes(lambda: evaluate("MessageAttributes", [("a", "String.Array", value)], ""))
    assert peak <= VALUES_BYTES_MAX
