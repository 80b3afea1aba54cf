"""Types of members, as data: the tables of actions of SQS and SNS are made of them.

``StructureMember.wire`` is a member's name in a Query request, and its element in an answer.  Lists and maps are
flattened (the name is followed by ``.1``, ``.2`` …, and its element is repeated), unless they name the level between
the member and its elements: ``Tags.member.1``, ``Attributes.entry.1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Scalar(NamedTuple):
    """An elementary value."""

    name: str


class Structure(NamedTuple):
    """Named members, in the order of the service model."""

    name: str
    members: dict[str, StructureMember]


class ListOf(NamedTuple):
    item: Type
    element: str = ""
    """Name of an element; empty for a flattened list."""


class MapOf(NamedTuple):
    value: Type
    key_wire: str
    value_wire: str
    element: str = ""
    """Name of an entry; empty for a flattened map."""


Type = Scalar | Structure | ListOf | MapOf


class StructureMember(NamedTuple):
    type: Type
    required: bool
    wire: str


STRING = Scalar("string")
INTEGER = Scalar("integer")
LONG = Scalar("long")
BOOLEAN = Scalar("boolean")
BLOB = Scalar("blob")

Member = tuple[str, Type] | tuple[str, Type, str]
"""Name and type of a member, and its name on the wire where that differs."""


def structure(name: str, *members: Member, required: str = "") -> Structure:
    """Make a structure; ``required`` are the names of its required members, separated by spaces."""
    needed = required.split()
    table = {}
    for member in members:
        table[member[0]] = StructureMember(member[1], member[0] in needed, member[2] if len(member) == 3 else member[0])
    return Structure(name, table)


def wire_names(member: StructureMember) -> Iterator[str]:
    """Iterate over the names of a member's parameters in a Query request, with ``N`` for numbers."""
    match member.type:
        case Scalar():
            yield member.wire
        case Structure(_, members):
            for about in members.values():
                yield from (f"{member.wire}.{wire}" for wire in wire_names(about))
        case ListOf(item, element):
            yield from wire_names(StructureMember(item, False, f"{_below(member.wire, element)}.N"))
        case MapOf(value, key_wire, value_wire, element):
            entry = f"{_below(member.wire, element)}.N"
            yield f"{entry}.{key_wire}"
            yield from wire_names(StructureMember(value, False, f"{entry}.{value_wire}"))


def _below(wire: str, element: str) -> str:
    return f"{wire}.{element}" if element else wire
