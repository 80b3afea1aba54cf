"""Fuzz targets of SNS's filter policies: their compilation, and their evaluation against bodies and attributes."""

import json
from typing import Any, NamedTuple

from frontend.sns.filters.body_paths import PathTree
from frontend.sns.filters.compiler import POLICY_BYTES_MAX, FilterScope, compile_filter_policy
from frontend.sns.filters.expressions import FilterPolicyInvalid
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.filters.work import TooMuchWork
from frontend.sns.protocol.limits import MESSAGE_BYTES_MAX
from tests.fuzz.grammar import Draws

STEPS = 120_000
"""Steps of an evaluation, which have to fit into the budget: more than are made at once on the event loop."""
ALLOWANCE_BYTES = 16 * 1024 * 1024
"""Memory of a large body's parsed values and their indexes, with those of policies; one is evaluated at a time."""
_NAMES = ("a", "b", "a.b", "c", "", "$or", "exists", "prefix", "x" * 200)
_TEXTS = ("x", "xy", "yx", "X", "", "*", "10.0.0.1", "::1", "a*b", "\\*", "é", "\U0001f600", "x" * 300, "\ud800")
_NUMBERS = (0, 1, -1, 1.5, 10**9, 10**9 + 1, 1e308, 5e-324, 2.00001)
_PATTERNS = ("*x*", "x*y*", "*", "**", "a\\*", "\\", "*" + "a*" * 50 + "b", "x" * 200 + "*")
_OPERATORS = ("prefix", "suffix", "equals-ignore-case", "wildcard", "cidr", "numeric", "exists", "anything-but", "z")
_UNITS = ("0", "{}", "[]", '"x"', '{"a":1}', '{"b":"x"}', '[{"a":"x"}]', '"::1"', "null", '"\\u00e9"', '{"a.b":[1]}')


class FilterInput(NamedTuple):
    """Texts of policies, and a message."""

    policies: list[str]
    scope: FilterScope
    body: str


def make_filter_policy(draws: Draws) -> str:
    """A policy that may have any flaw."""
    if draws.chance(5):
        return draws.text()
    return json.dumps(_policy(draws, 3))


def _policy(draws: Draws, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(1 + draws.below(3)):
        name = draws.one(_NAMES)
        if depth and draws.chance(25):
            found[name] = _policy(draws, depth - 1)
        elif depth and draws.chance(15):
            found["$or"] = [_policy(draws, depth - 1) for _ in range(1 + draws.below(3))]
        else:
            found[name] = [_alternative(draws) for _ in range(1 + draws.below(4))]
    if draws.chance(3):
        found[draws.text()] = draws.anything()
    return found


def _alternative(draws: Draws) -> Any:
    if draws.chance(40):
        return draws.one((*_TEXTS, *_NUMBERS, True, False, None))
    operator = draws.one(_OPERATORS)
    operand: Any = draws.one((*_TEXTS, *_PATTERNS))
    if operator == "cidr":
        operand = draws.one(("10.0.0.0/8", "::/0", "1.2.3.4/33", "x/1", "::1/128"))
    elif operator == "numeric":
        operand = [draws.one(("=", "<", "<=", ">", ">=", "!")), draws.one(_NUMBERS)]
        if draws.chance(30):
            operand += [draws.one(("<", "<=")), draws.one(_NUMBERS)]
    elif operator == "exists":
        operand = draws.one((True, False, 1))
    elif operator == "anything-but":
        operand = draws.one((operand, [draws.one(_TEXTS) for _ in range(draws.below(3))], [1, 2], ["x", 1]))
        if draws.chance(50):
            operand = {draws.one(_OPERATORS): operand}
    return {operator: operand if draws.chance(97) else draws.anything()}


def _compiled(text: str, scope: FilterScope) -> FilterPolicy | None:
    try:
        return compile_filter_policy(text, scope)
    except FilterPolicyInvalid as error:
        reason = str(error)
    assert reason.startswith(("FilterPolicy: ", "Filter policy scope")), reason
    assert len(reason) < 1_000
    return None


def feed_filter_policy(text: str) -> bool:
    """Check that a policy is compiled or refused."""
    return _compiled(text, "MessageBody") is not None


def large_filter_policy(draws: Draws, length: int) -> str:
    """A policy of about this length, which is most often longer than one may be."""
    length = draws.one((length, POLICY_BYTES_MAX - 100))
    unit = draws.one((*_UNITS, '{"anything-but":"x"}', '{"wildcard":"*a*"}', '{"anything-but":["x","y"]}'))
    match draws.below(5):
        case 0:
            return '{"a":[' + ",".join([unit] * (length // (len(unit) + 1))) + "]}"
        case 1:
            return '{"a":[{"wildcard":"' + draws.one(("*a", "\\\\\\\\", "a", "*")) * (length // 4) + '"}]}'
        case 2:
            return '{"a":[{"anything-but":[' + ",".join(f'"{number}"' for number in range(length // 9)) + "]}]}"
        case 3:
            return "{" + ",".join(f'"{number}":[1]' for number in range(length // 12)) + "}"
    nested = draws.one(('{"a":', '{"$or":[{"b":[1]},', "["))
    return nested * (length // len(nested))


def make_filter_input(draws: Draws) -> FilterInput:
    """Policies with a message."""
    policies = [make_filter_policy(draws) for _ in range(1 + draws.below(3))]
    return FilterInput(policies, draws.one(("MessageAttributes", "MessageBody", "MessageBody")), _body(draws))


def _body(draws: Draws) -> str:
    if draws.chance(5):
        return draws.text()
    text = json.dumps({draws.one(_NAMES): _value(draws, 4) for _ in range(draws.below(4))})
    return text if draws.chance(95) else text[: draws.below(len(text))]


def _value(draws: Draws, depth: int) -> Any:
    if not depth or draws.chance(40):
        return draws.one((*_TEXTS, *_NUMBERS, True, None))
    if draws.chance(50):
        return [_value(draws, depth - 1) for _ in range(draws.below(12))]
    return {draws.one(_NAMES): _value(draws, depth - 1) for _ in range(draws.below(4))}


def feed_filter_input(given: FilterInput) -> bool:
    """Check that a message matches in the same way whether its values are indexed or not."""
    compiled = [policy for text in given.policies if (policy := _compiled(text, given.scope)) is not None]
    plain, indexed = (_results(compiled, given.body, indexed=choice) for choice in (False, True))
    assert plain == indexed or None in (*plain, *indexed), f"{plain} without indexes, {indexed} with them"
    return any(one is not None for one in plain)


def _results(policies: list[FilterPolicy], body: str, *, indexed: bool) -> list[bool | None]:
    """Result of each policy; None: it takes more than :data:`STEPS`."""
    paths = PathTree()
    for policy in policies:
        paths.add(policy.paths)
    message = FilterMessage([("a", "String", body[:200] or "x"), ("b", "String.Array", body)], body, paths)
    message.work.allow(STEPS // 2)
    found: list[bool | None] = []
    for policy in policies:
        try:
            if indexed:
                for values in (
                    (message.body_values() if policy.on_body else message.attribute_values()) or {}
                ).values():
                    values.small = False
            found.append(policy.matches(message))
        except TooMuchWork:
            found.append(None)
    return found


def large_filter_input(draws: Draws, length: int) -> FilterInput:
    """Policies with a large message."""
    length = min(length, MESSAGE_BYTES_MAX // 2)
    unit = draws.one(_UNITS)
    count = length // (len(unit) + 1)
    match draws.below(4):
        case 0:
            body = '{"a":[' + ",".join([unit] * count) + "]}"
        case 1:
            body = '{"a":[' + ",".join(f'"{number:x}"' for number in range(length // 8)) + "]}"
        case 2:
            body = '{"a":[' + ",".join(f'{{"{draws.one("abc")}":{number % 9}}}' for number in range(length // 9)) + "]}"
        case _:
            body = '{"a":"' + "ab"[draws.below(2)] * length + '"}'
    return FilterInput([make_filter_policy(draws) for _ in range(5)], "MessageBody", body)


def filter_input_size(given: FilterInput) -> int:
    """Length of policies and message in bytes."""
    return sum(map(len, given.policies)) + len(given.body.encode("utf-8", "surrogatepass"))
