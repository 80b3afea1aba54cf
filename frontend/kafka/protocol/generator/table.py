"""The table of the served APIs' fields, read from ``messages.table``, whose head describes the format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("messages.table")
PRIMITIVES = frozenset(("bool", "int8", "int16", "int32", "int64", "string", "bytes", "uuid", "records"))
_API = re.compile(r"api (\w+) key (\d+) versions (\d+)-(\d+)(?: flexible (\d+)\+)?")
_FIELD = re.compile(
    r"(?P<name>\w+)\s+(?P<type>\w+)(?P<array>\[\])?(?P<null>\?(?:(?P<null_min>\d+)\+)?)?"
    r"(?:\s+(?P<min>\d+)(?:\+|-(?P<max>\d+)))?(?:\s+tag (?P<tag>\d+))?(?:\s+= (?P<default>\S+))?"
)


class VersionRange(NamedTuple):
    """Versions from the first to the last, both included."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


@dataclass
class TableField:
    """A field of a message or of a structure in it."""

    name: str
    kind: str
    """A primitive, or the class name of a structure."""
    is_array: bool
    versions: VersionRange
    nullable: VersionRange | None
    tag: int | None
    default: str | None
    """The default as it is written in the table."""
    fields: list[TableField] = field(default_factory=list)
    """The fields of a structure."""

    @property
    def is_structure(self) -> bool:
        """Return if the type is a structure, or an array of it."""
        return self.kind not in PRIMITIVES

    def is_nullable(self, version: int) -> bool:
        """Return if null is permitted."""
        return self.nullable is not None and version in self.nullable


@dataclass
class TableMessage:
    """A request or a response."""

    name: str
    api: TableApi
    fields: list[TableField] = field(default_factory=list)

    def structures(self) -> Iterator[tuple[str, str, list[TableField]]]:
        """The classes with their fields, each after those that it uses; with the name of the field that uses it."""
        yield from _structures(self.fields)
        yield self.name, "", self.fields


@dataclass
class TableApi:
    """An API with the versions that are served."""

    name: str
    key: int
    versions: VersionRange
    flexible_min: int | None
    file: str
    """The name of its generated file."""
    request: TableMessage = field(init=False)
    response: TableMessage = field(init=False)

    def __post_init__(self) -> None:
        self.request = TableMessage(f"{self.name}Request", self)
        self.response = TableMessage(f"{self.name}Response", self)

    def is_flexible(self, version: int) -> bool:
        """Return if the version has compact lengths and tagged fields."""
        return self.flexible_min is not None and version >= self.flexible_min


class MalformedTable(Exception):
    """A line of the table that cannot be read."""


def read(text: str | None = None) -> list[TableApi]:
    """Read the table, or this text of one.  Raises :class:`MalformedTable`."""
    apis: list[TableApi] = []
    file = ""
    message: TableMessage | None = None
    stack: list[tuple[int, VersionRange, list[TableField]]] = []
    for number, line in enumerate((TABLE.read_text() if text is None else text).splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        if words.startswith("file "):
            file = words.removeprefix("file ")
        elif match := _API.fullmatch(words):
            name, key, first, last, flexible = match.groups()
            versions = VersionRange(int(first), int(last))
            apis.append(TableApi(name, int(key), versions, None if flexible is None else int(flexible), file))
        elif words in ("request", "response") and apis:
            message = apis[-1].request if words == "request" else apis[-1].response
            stack = [(len(line) - len(line.lstrip()), apis[-1].versions, message.fields)]
        elif message is not None and (match := _FIELD.fullmatch(words)):
            indentation = len(line) - len(line.lstrip())
            while stack and stack[-1][0] >= indentation:
                stack.pop()
            if not stack:
                raise MalformedTable(f"line {number} belongs to nothing: {words}")
            _, outer, siblings = stack[-1]
            made = _field(match, outer, message.name)
            siblings.append(made)
            stack.append((indentation, made.versions, made.fields))
        else:
            raise MalformedTable(f"line {number}: {words}")
    return apis


def _field(match: re.Match[str], outer: VersionRange, message: str) -> TableField:
    kind = match["type"]
    first = outer.first if match["min"] is None else int(match["min"])
    last = outer.last if match["max"] is None else int(match["max"])
    return TableField(
        match["name"],
        kind if kind in PRIMITIVES else message + kind,
        match["array"] is not None,
        VersionRange(first, last),
        None if match["null"] is None else VersionRange(int(match["null_min"] or first), last),
        None if match["tag"] is None else int(match["tag"]),
        match["default"],
    )


def _structures(fields: list[TableField]) -> Iterator[tuple[str, str, list[TableField]]]:
    for one in fields:
        if one.is_structure:
            yield from _structures(one.fields)
            yield one.kind, one.name, one.fields


def layouts(message: TableMessage) -> list[VersionRange]:
    """The message's versions, grouped by equal bytes: versions of one group have the same fields in the same form."""
    groups: list[VersionRange] = []
    before: object = None
    for version in range(message.api.versions.first, message.api.versions.last + 1):
        layout = (message.api.is_flexible(version), _layout(message.fields, version))
        if layout == before:
            groups[-1] = VersionRange(groups[-1].first, version)
        else:
            groups.append(VersionRange(version, version))
        before = layout
    return groups


def _layout(fields: list[TableField], version: int) -> object:
    return tuple(
        (one.name, one.is_nullable(version), _layout(one.fields, version)) for one in fields if version in one.versions
    )
