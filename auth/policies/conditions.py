"""Conditions of policy statements: operators over facts of a request.

The rules are those of IAM ("IAM JSON policy elements: Condition operators"):

* all operators of a statement, and all keys of an operator, must hold; of several values one must match, and
  with a negated operator (``StringNotEquals``) none may;
* a key that the request does not have makes an operator false and a negated one true.  ``...IfExists`` is then
  true, ``ForAllValues:`` too, ``ForAnyValue:`` is false, and ``Null`` tests just this;
* names of keys are case-insensitive, names of operators case-sensitive;
* in ``Like`` and ``Arn`` operators ``*`` stands for any text and ``?`` for any character; an ARN is matched
  part by part, so that no wildcard extends over one of its first five colons.

A condition is compiled once, and refused if it cannot be compiled.  Patterns, and the values they are matched
against, have a bounded length, and matching takes a bounded number of steps for each letter of a pattern, so no
pattern can keep a server busy.  A request whose value is longer matches no statement that allows, and every one
that denies (:meth:`auth.policies.policies.Policy.decide`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Facts = Callable[[str], str | None]
"""Lookup of a condition key's value by its lower-case name; None: the request has none, or the key is not known."""
Condition = Callable[[Facts], bool]
Matcher = Callable[[str], bool]
"""Predicate: a key's value matches one of a condition's."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*:[A-Za-z0-9/_.@:-]+\Z")
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?\Z", re.ASCII)


VALUE_LENGTH_MAX = 2_048
"""Maximum length of a pattern, and of a value matched against it; no header that ordinary clients send is longer."""


class ValueTooLong(Exception):
    """A value of the request is too long for a condition to be evaluated."""


class PolicyError(ValueError):
    """The document is not a valid policy; the text says why."""


class Glob:
    """A pattern of ``*`` and ``?``, matched against a whole text.

    Theory
    ------
    The parts between the stars are searched for in order: the leftmost match of each leaves the most room for
    what follows, so there is no backtracking.  A part without ``?`` is found by the interpreter's own search.
    For a part with ``?`` the positions of each letter in the text are the bits of an integer; shifted by the
    letters' positions in the part, and "and"ed, they are the positions of the part.  That is one operation on
    machine words for each letter of the pattern, whatever the text is.  User input is never turned into a
    regular expression.
    """

    __slots__ = ("_first", "_ignore_case", "_last", "_length_min", "_middle")

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        """Raises PolicyError when the pattern is too long."""
        if len(pattern) > VALUE_LENGTH_MAX:
            raise PolicyError(f"{shown(pattern)} is longer than {VALUE_LENGTH_MAX} characters.")
        self._ignore_case = ignore_case
        first, *rest = (pattern.lower() if ignore_case else pattern).split("*")
        self._first = first
        self._last = rest.pop() if rest else None
        self._middle = [part for part in rest if part]
        self._length_min = sum(map(len, (first, *self._middle, self._last or "")))

    def __call__(self, text: str) -> bool:
        if self._ignore_case:
            text = text.lower()
        first, last = self._first, self._last
        if last is None:
            return len(text) == len(first) and _is_at(text, first, 0)
        if len(text) < self._length_min or not _is_at(text, first, 0):
            return False
        place = len(first)
        for part in self._middle:
            place = text.find(part, place) if "?" not in part else _place_of(text, part, place)
            if place < 0:
                return False
            place += len(part)
        end = len(text) - len(last)
        return place <= end and _is_at(text, last, end)


def _is_at(text: str, part: str, place: int) -> bool:
    """Test if the part of a pattern matches the text at this position; the caller has checked the length."""
    if "?" not in part:
        return text.startswith(part, place)
    return all(wanted in ("?", letter) for wanted, letter in zip(part, text[place:], strict=False))


def _place_of(text: str, part: str, start: int) -> int:
    """First position from ``start`` on where the part of a pattern matches the text; -1: none."""
    positions = _positions_of_letters(text)
    found = (1 << max(0, len(text) - len(part) + 1)) - 1 >> start << start
    for number, letter in enumerate(part):
        if letter != "?":
            found &= positions.get(letter, 0) >> number
            if not found:
                return -1
    return (found & -found).bit_length() - 1


@lru_cache(maxsize=16)
def _positions_of_letters(text: str) -> dict[str, int]:
    """Positions of each letter in the text, as the bits of an integer."""
    positions: dict[str, int] = {}
    for number, letter in enumerate(text):
        positions[letter] = positions.get(letter, 0) | 1 << number
    return positions


def arn_glob(pattern: str) -> Matcher:
    """Build a matcher of ARNs, part by part.  Raises PolicyError when the pattern does not have the form of an ARN."""
    parts = pattern.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn":
        raise PolicyError(f"{shown(pattern)} is not an ARN.")
    if "*" not in pattern and "?" not in pattern and len(pattern) <= VALUE_LENGTH_MAX:
        return pattern.__eq__
    globs = [Glob(part) for part in parts]

    def match(text: str) -> bool:
        given = text.split(":", 5)
        return len(given) == 6 and all(glob(part) for glob, part in zip(globs, given, strict=True))

    return match


def compile_condition(operator: str, key: str, given: object) -> Condition:
    """Compile one operator over one key.  Raises PolicyError; the condition raises :class:`ValueTooLong`."""
    if not _KEY.match(key):
        raise PolicyError(f"{shown(key)} is not the name of a condition key.")
    values = _texts(operator, key, given)
    quantifier, colon, base = operator.rpartition(":")
    if colon and quantifier not in ("ForAnyValue", "ForAllValues"):
        raise _unknown(operator)
    name = key.lower()
    if base == "Null":
        if colon or len(values) != 1 or values[0] not in ("true", "false"):
            raise PolicyError('Null takes one value, "true" or "false".')
        absent = values[0] == "true"
        return lambda facts: (facts(name) is None) is absent
    if_exists = base.endswith("IfExists")
    kind = base.removesuffix("IfExists")
    negated = kind in _NEGATED
    make = _OPERATORS.get(_NEGATED.get(kind, kind))
    if make is None:
        raise _unknown(operator)
    match = make(values)
    without = if_exists or quantifier == "ForAllValues" or (negated and quantifier != "ForAnyValue")

    def condition(facts: Facts) -> bool:
        value = facts(name)
        if value is None:
            return without
        if len(value) > VALUE_LENGTH_MAX:
            raise ValueTooLong
        return match(value) is not negated

    return condition


def shown(value: object) -> str:
    """Quote a part of a policy for an error's text, shortened."""
    text = str(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _unknown(operator: str) -> PolicyError:
    known = [*_OPERATORS, *_NEGATED, "Null"]
    same = [name for name in known if name.lower() == operator.lower()]
    hint = f" It is written {same[0]}." if same else ""
    return PolicyError(f"{shown(operator)} is not a condition operator of this service.{hint}")


def _texts(operator: str, key: str, given: object) -> list[str]:
    values = given if isinstance(given, list) else [given]
    if not values:
        raise PolicyError(f"{operator} of {key} has no value.")
    texts = []
    for value in values:
        if isinstance(value, bool):
            texts.append("true" if value else "false")
        elif isinstance(value, int | float):
            texts.append(str(value))
        elif isinstance(value, str):
            texts.append(value)
        else:
            raise PolicyError(f"{operator} of {key} has a value that is not a text, a number or a boolean.")
    return texts


# --- operators ---------------------------------------------------------------------------------------------


def _equals(values: Sequence[str]) -> Matcher:
    return frozenset(values).__contains__


def _equals_ignoring_case(values: Sequence[str]) -> Matcher:
    folded = frozenset(value.casefold() for value in values)
    return lambda text: text.casefold() in folded


def _like(values: Sequence[str]) -> Matcher:
    globs = [Glob(value) for value in values]
    return lambda text: any(glob(text) for glob in globs)


def _arn(values: Sequence[str]) -> Matcher:
    globs = [arn_glob(value) for value in values]
    return lambda text: any(glob(text) for glob in globs)


def _bool(values: Sequence[str]) -> Matcher:
    lowered = {value.lower() for value in values}
    if not lowered <= {"true", "false"}:
        raise PolicyError('Bool takes "true" or "false".')
    return lambda text: text.lower() in lowered


def _ip_address(values: Sequence[str]) -> Matcher:
    networks: list[IPv4Network | IPv6Network] = []
    for value in values:
        try:
            networks.append(ip_network(value, strict=False))
        except ValueError:
            raise PolicyError(f"{shown(value)} is not an IP address or range.") from None

    def match(text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in networks)

    return match


Compare = Callable[[Decimal, Decimal], bool]
Make = Callable[[Sequence[str]], Matcher]


def _compared(
    parse: Callable[[str], Decimal | None], what: str, compare: Compare
) -> Callable[[Sequence[str]], Matcher]:
    def make(values: Sequence[str]) -> Matcher:
        bounds: list[Decimal] = []
        for value in values:
            bound = parse(value)
            if bound is None:
                raise PolicyError(f"{shown(value)} is not {what}.")
            bounds.append(bound)

        def match(text: str) -> bool:
            number = parse(text)
            return number is not None and any(compare(number, bound) for bound in bounds)

        return match

    return make


def _number(text: str) -> Decimal | None:
    if not _NUMBER.match(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _date(text: str) -> Decimal | None:
    """Parse ISO 8601, or seconds since the epoch, to seconds since the epoch."""
    number = _number(text)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return Decimal(str((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))


_COMPARISONS: dict[str, Compare] = {
    "Equals": lambda a, b: a == b,
    "LessThan": lambda a, b: a < b,
    "LessThanEquals": lambda a, b: a <= b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanEquals": lambda a, b: a >= b,
}
_OPERATORS: dict[str, Make] = {
    "StringEquals": _equals,
    "StringEqualsIgnoreCase": _equals_ignoring_case,
    "StringLike": _like,
    "ArnEquals": _arn,
    "ArnLike": _arn,
    "Bool": _bool,
    "IpAddress": _ip_address,
    **{f"Numeric{name}": _compared(_number, "a number", compare) for name, compare in _COMPARISONS.items()},
    **{f"Date{name}": _compared(_date, "a date", compare) for name, compare in _COMPARISONS.items()},
}
_NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NotIpAddress": "IpAddress",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
}
"""Operators that negate another one."""
