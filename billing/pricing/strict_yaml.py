"""Strict YAML: each value has a position, and unexpected input is an error at that position.

Numbers with a point are decimals, not floats.  Whole numbers are decimal: ``010``, which YAML reads as 8, and ``1:30``,
which it reads as 90, are errors.  Duplicate and unknown keys are errors too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

import yaml

_DIGITS: Final = 18
"""Maximum digits before the decimal point."""
_BREAKS: Final = frozenset(("Cc", "Zl", "Zp"))
"""Unicode categories of line breaks and control characters."""
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9_]*)", re.ASCII)


class YamlError(ValueError):
    """The file cannot be used; the text gives the position, the problem and the remedy."""


class YamlNode(NamedTuple):
    """A value with its position."""

    source: str
    """Name of the file."""
    path: str
    """Position in the file, such as ``plans.standard.versions[0]``; empty: the whole file."""
    value: Any

    def fail(self, what: str) -> NoReturn:
        raise YamlError(f"{self.source}: {self.path or 'the file'}: {what}")

    def _under(self, name: str, value: object) -> YamlNode:
        return YamlNode(self.source, f"{self.path}.{name}" if self.path else name, value)

    def entries(self) -> dict[str, YamlNode]:
        """Entries of a mapping whose keys are names."""
        if not isinstance(self.value, dict):
            self.fail(f"is {_described(self.value)}; it has to be a mapping (name: value)")
        for name in self.value:
            if not isinstance(name, str):
                self.fail(f"the key {name} is {_described(name)}; write it in quotes")
        return {name: self._under(name, value) for name, value in self.value.items()}

    def fields(self, *needed: str, **others: object) -> dict[str, YamlNode]:
        """Fields of a mapping: the required ones, and the optional ones with their defaults."""
        given = self.entries()
        for name, node in given.items():
            if name not in needed and name not in others:
                node.fail(f"there is no such field; the fields are {', '.join((*needed, *others))}")
        for name in needed:
            if name not in given:
                self.fail(f"{name} is missing")
        return {**{name: self._under(name, value) for name, value in others.items()}, **given}

    def items(self) -> list[YamlNode]:
        """Items of a list."""
        if not isinstance(self.value, list):
            self.fail(f"is {_described(self.value)}; it has to be a list (- one - another)")
        return [YamlNode(self.source, f"{self.path}[{number}]", value) for number, value in enumerate(self.value)]

    def text(self, *, empty: bool = False) -> str:
        if not isinstance(self.value, str):
            self.fail(f"is {_described(self.value)}; it has to be text: write it in quotes")
        if not self.value and not empty:
            self.fail("is empty; it has to be a text")
        if any(unicodedata.category(one) in _BREAKS for one in self.value):
            self.fail(f"is {self.value!r}; it has to be one line")
        return self.value

    def whole(self, minimum: int, maximum: int) -> int:
        """Whole number in this range."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not minimum <= self.value <= maximum:
            self.fail(f"is {_described(self.value)}; it has to be a whole number from {minimum} to {maximum}")
        return self.value

    def decimal(self, places: int) -> Decimal:
        """Nonnegative number with at most this many decimal places; also as text."""
        value = self.value
        if isinstance(value, str):
            try:
                value = Decimal(value)
            except ArithmeticError:
                self.fail(f"is {_described(value)}; it has to be a number")
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            self.fail(f"is {_described(value)}; it has to be a number")
        number = Decimal(value)
        if not number.is_finite() or number < 0:
            self.fail(f"is {value}; it has to be 0 or more")
        if number.adjusted() >= _DIGITS:
            self.fail(f"is too large: it may have {_DIGITS} digits before the point")
        if number != number.quantize(Decimal(1).scaleb(-places)):
            self.fail(f"is {value}; it may have {places} decimal places")
        return number

    def basis_points(self) -> int:
        """Percentage from 0 to 100 with at most two decimal places, in basis points."""
        percent = self.decimal(2)
        if percent > 100:
            self.fail(f"is {percent}; it has to be a percentage from 0 to 100")
        return int(percent.scaleb(2))

    def day(self) -> date:
        if not isinstance(self.value, date) or isinstance(self.value, datetime):
            self.fail(f"is {_described(self.value)}; it has to be a day, such as 2026-11-01")
        return self.value


def parse(text: str, source: str) -> YamlNode:
    """Parse the content of a file.  Raises :class:`YamlError`."""
    try:
        return YamlNode(source, "", yaml.load(text, _Loader))  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise YamlError(f"{source}: {place}this is not YAML: {error.problem or error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(f"{source}: this is not YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """Loader that reads decimals, and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key must be a name, not a list or mapping", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} occurs twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> Decimal:
    text = loader.construct_scalar(node)
    try:
        return Decimal(text)
    except ArithmeticError:  # such as .inf, or 1:30.5
        raise yaml.MarkedYAMLError(problem=f"{text} is no number", problem_mark=node.start_mark) from None


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if not _WHOLE.fullmatch(text):
        problem = f"{text} is ambiguous: write a decimal number without leading zeros, or text in quotes"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return int(text.replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def _described(value: object) -> str:
    match value:
        case None:
            return "empty"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool() | int() | Decimal():
            return f"the number {value}" if not isinstance(value, bool) else ("yes" if value else "no")
        case _:
            return repr(value)
