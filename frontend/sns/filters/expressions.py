"""Match expressions of filter policies: ``{"prefix": "a"}`` and the others."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

from frontend.sns.filters.conditions import (
    AddressRange,
    AnyOf,
    AnythingBut,
    AnythingButIgnoringCase,
    AnythingButStarting,
    AnythingButWildcards,
    EqualsIgnoreCase,
    Exists,
    KeyCondition,
    NumberRange,
    Prefix,
    Suffix,
    ValueMatcher,
    Wildcard,
)
from frontend.sns.filters.values import FRACTION, NUMBER_MAX, Value, number_value, scalar_value
from telemetry.texts import shown

_BOTTOM, _TOP = -NUMBER_MAX * FRACTION, NUMBER_MAX * FRACTION


class FilterPolicyInvalid(ValueError):
    """A filter policy is refused; the text says why, in SNS's words."""


def refused(text: str) -> FilterPolicyInvalid:
    return FilterPolicyInvalid(f"FilterPolicy: {text}")


def compile_condition(alternatives: list[Any]) -> KeyCondition:
    """Compile the list of values and expressions of one key.  Raises :class:`FilterPolicyInvalid`."""
    if not alternatives:
        raise refused("Empty arrays are not allowed")
    exact: set[Value] = set()
    matchers: list[ValueMatcher] = []
    absent = False
    for alternative in alternatives:
        if isinstance(alternative, list):
            raise refused("Match value must be String, number, true, false, or null")
        if not isinstance(alternative, dict):
            exact.add(scalar_value(alternative))
            continue
        name, operand = _single(alternative, "Match expression name not found")
        if name == "exists":
            if not isinstance(operand, bool):
                raise refused("exists match pattern must be either true or false.")
            if operand:
                matchers.append(Exists())
            else:
                absent = True
        else:
            matchers.append(_matcher(name, operand))
    return KeyCondition(frozenset(exact), tuple(matchers), absent=absent)


def _single(expression: dict[str, Any], missing: str) -> tuple[str, Any]:
    """Name and operand of an expression."""
    if not expression:
        raise refused(missing)
    if len(expression) > 1:
        raise refused("Only one key allowed in match expression")
    return next(iter(expression.items()))


def _matcher(name: str, operand: Any) -> ValueMatcher:
    compile_operand = _OPERATORS.get(name)
    if compile_operand is None:
        raise refused(f"Unrecognized match type {shown(name)}")
    return compile_operand(operand)


# --- texts -------------------------------------------------------------------------------------------------


def _text(name: str, operand: Any) -> str:
    if not isinstance(operand, str):
        raise refused(f"{name} match pattern must be a string")
    return operand


def _wildcard(pattern: str) -> ValueMatcher:
    parts = _wildcard_parts(pattern)
    return Wildcard(parts) if len(parts) > 1 else AnyOf(frozenset(parts))


def _wildcard_parts(pattern: str) -> list[str]:
    """The texts around the wildcards, without escapes.  Positions in errors count the quote before the pattern."""
    if "\\" not in pattern and "**" not in pattern:
        return pattern.split("*")
    parts = [""]
    text: list[str] = []
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "\\":
            position += 1
            letter = pattern[position : position + 1]
            if letter not in ("*", "\\"):
                raise refused(f"Invalid escape character at pos {position}")
            text.append(letter)
        elif letter == "*":
            if pattern.startswith("*", position + 1):
                raise refused(f"Consecutive wildcard characters at pos {position + 1}")
            parts[-1] = "".join(text)
            parts.append("")
            text = []
        else:
            text.append(letter)
        position += 1
    parts[-1] = "".join(text)
    return parts


_TEXT_MATCHERS: dict[str, Callable[[str], ValueMatcher]] = {
    "prefix": Prefix,
    "suffix": Suffix,
    "equals-ignore-case": EqualsIgnoreCase,
    "wildcard": _wildcard,
}


def _text_operator(name: str) -> Callable[[Any], ValueMatcher]:
    return lambda operand: _TEXT_MATCHERS[name](_text(name, operand))


# --- numbers and addresses ---------------------------------------------------------------------------------


def _numeric(operand: Any) -> ValueMatcher:
    if not isinstance(operand, list):
        raise refused("Value of numeric must be an array.")
    if not operand or not isinstance(operand[0], str):
        raise refused(f"Invalid member in numeric match: {shown(_as_json(operand[0])) if operand else ']'}")
    operator, *rest = operand
    if operator not in ("=", "<", "<=", ">", ">="):
        raise refused(f"Unrecognized numeric range operator: {shown(operator)}")
    value = _number("equals" if operator == "=" else operator, rest)
    if operator == "=":
        bottom = top = value
    elif operator in ("<", "<="):
        bottom, top = _BOTTOM, value - (operator == "<")
    else:
        bottom, top = value + (operator == ">"), _TOP
        if len(rest) > 1:
            return NumberRange(bottom, _upper_end(value, rest[1:]))
    if len(rest) > 1:
        raise refused("Too many elements in numeric expression")
    return NumberRange(bottom, top)


def _upper_end(bottom: int, rest: list[Any]) -> int:
    operator = rest[0]
    if not isinstance(operator, str):
        raise refused(f"Bad value in numeric range: {shown(_as_json(operator))}")
    if operator not in ("<", "<="):
        raise refused(f"Bad numeric range operator: {shown(operator)}")
    top = _number(operator, rest[1:])
    if len(rest) > 2:
        raise refused("Too many terms in numeric range expression")
    if bottom >= top:
        raise refused("Bottom must be less than top")
    return top - (operator == "<")


def _number(operator: str, rest: list[Any]) -> int:
    """The first element, in hundred-thousandths."""
    given: Any = rest[0] if rest else None
    if type(given) not in (int, float):
        raise refused(f"Value of {operator} must be numeric")
    value = number_value(given)
    if not isinstance(value, int):
        raise refused(f"Value must be between {-float(NUMBER_MAX):.1E} and {float(NUMBER_MAX):.1E}, inclusive")
    return value


def _as_json(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value is None or type(value) is bool else str(value)


def _cidr(operand: Any) -> ValueMatcher:
    text = _text("prefix", operand)  # so it says
    address, slash, bits = text.partition("/")
    if not slash or "/" in bits:
        raise refused("Malformed CIDR, one '/' required")
    if not (bits.isascii() and bits.isdigit() and len(bits) < 5):
        raise refused("Malformed CIDR, mask bits must be an integer")
    try:
        network = ip_network(f"{address}/0", strict=False)
        if "%" in address:
            raise ValueError(address)
    except ValueError:
        raise refused(f"Nonstandard IP address: {shown(address)}") from None
    bits_max = network.max_prefixlen
    if int(bits) > bits_max:
        raise refused(f"IPv{network.version} mask bits must be <= {bits_max}")
    return AddressRange(ip_network(f"{address}/{int(bits)}", strict=False))


# --- anything-but ------------------------------------------------------------------------------------------


def _anything_but(operand: Any) -> ValueMatcher:
    if isinstance(operand, dict):
        return _anything_but_matching(operand)
    if isinstance(operand, list):
        return AnythingBut(_excluded(operand))
    if type(operand) not in (str, int, float):
        raise refused("Value of anything-but must be an array or single string/number value.")
    return AnythingBut(frozenset((scalar_value(operand),)))


def _excluded(operands: list[Any]) -> frozenset[Value]:
    if any(type(one) not in (str, int, float) for one in operands):
        raise refused("Inside anything but list, start|null|boolean is not supported.")
    if len({type(one) is str for one in operands}) != 1:
        raise refused("Inside anything but list, either all values are number or string, mixed type is not supported")
    return frozenset(map(scalar_value, operands))


def _anything_but_matching(operand: dict[str, Any]) -> ValueMatcher:
    name, inner = _single(operand, "Anything-But expression name not found")
    if name not in _TEXT_MATCHERS:
        raise refused(f"Unsupported anything-but pattern: {shown(name)}")
    texts = [_text(name, one) for one in (inner if isinstance(inner, list) and inner else [inner])]
    match name:
        case "equals-ignore-case":
            return AnythingButIgnoringCase(frozenset(text.lower() for text in texts))
        case "wildcard":
            every = [_wildcard_parts(text) for text in texts]
            exact = frozenset(parts[0] for parts in every if len(parts) == 1)
            return AnythingButWildcards(exact, tuple(Wildcard(parts) for parts in every if len(parts) > 1))
    if "" in texts:
        raise refused("Null prefix/suffix not allowed")
    return AnythingButStarting(texts, backwards=name == "suffix")


_OPERATORS: dict[str, Callable[[Any], ValueMatcher]] = {
    **{name: _text_operator(name) for name in _TEXT_MATCHERS},
    "numeric": _numeric,
    "cidr": _cidr,
    "anything-but": _anything_but,
}
RESERVED_NAMES = frozenset(
    (
        *_OPERATORS,
        "exists",
        "exactly",
        *("=", "<", "<=", ">", ">="),
        # names reserved for the future [guide: the reserved keywords]
        *("regex", "not-wildcard", "not-equals-ignore-case"),
        *("date-after", "date-on-or-after", "date-before", "date-on-or-before", "in-date-range"),
        *("ip-address-in-range", "ip-address-not-in-range"),
    )
)
"""Names that show that a list below ``$or`` is one of match expressions."""
