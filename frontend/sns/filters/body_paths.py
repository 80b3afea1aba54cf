"""Paths of policies' keys in bodies, as a tree: all policies' values are read in one walk over a body.

A path is the names of nested members, joined by dots.  Whether a dot belongs to a name does not matter: the path
``a.b`` leads to the member ``b`` of ``a`` and to a member ``a.b``.  Arrays are not part of a path: their elements stand
in their array's place.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from frontend.sns.filters.values import Value, scalar_value
from frontend.sns.filters.work import LOOKUPS_PER_STEP, WorkCounter

INDEX_BITS = 32
NOWHERE = -1
"""The place of a scalar that is in no array.

Other places are those of array elements: the number of the array above :data:`INDEX_BITS` bits of the index.  A scalar
has the place of the innermost one that it is in.  Arrays are numbered from 0, those within an array after it.
"""


class BodyPath(NamedTuple):
    text: str
    segments: tuple[str, ...]
    """The parts of the text between dots."""


class Leaves:
    """The scalars at one path."""

    __slots__ = ("places", "values")

    def __init__(self, *, joint: bool) -> None:
        """``joint``: places are needed."""
        self.values: set[Value] | list[Value] = [] if joint else set()
        """The values; distinct ones if no places are needed, as that takes less memory."""
        self.places = array("q")
        """The place of each value, if places are needed."""

    def add(self, value: Value, place: int) -> None:
        """Add a value."""
        if type(self.values) is set:
            self.values.add(value)
        else:
            self.values.append(value)  # type: ignore[union-attr]
            self.places.append(place)

    @property
    def in_array(self) -> bool:
        """True if any place is one of an array's element."""
        return self.places.count(NOWHERE) < len(self.places)

    def places_of(self, matching: Container[Value]) -> array[int]:
        """The places of values that match."""
        every = zip(self.values, self.places, strict=True)
        return array("q", (place for value, place in every if value in matching))


class BodyLeaves(NamedTuple):
    """The scalars of a body."""

    by_path: dict[str, Leaves]
    array_places: array[int]
    """The place of each array, by its number."""


class _Node:
    __slots__ = ("children", "deep", "joint", "text")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.deep = False
        """True if there are paths with two more segments, to which one name with a dot may lead."""
        self.joint = False
        """True if a policy has a condition on this path together with others."""
        self.text: str | None = None
        """The path, if one ends here."""


class PathTree:
    """The paths of some policies."""

    __slots__ = ("_root", "size")

    def __init__(self) -> None:
        self._root = _Node()
        self.size = 0
        """Number of nodes."""

    def add(self, paths: Iterable[tuple[BodyPath, bool]]) -> None:
        """Add paths, each with True if a policy has a condition on it together with others."""
        for (text, segments), joint in paths:
            node, before = self._root, None
            for segment in segments:
                following = node.children.get(segment)
                if following is None:
                    following = node.children[segment] = _Node()
                    self.size += 1
                if before is not None:
                    before.deep = True
                node, before = following, node
            node.text = text
            node.joint = node.joint or joint

    def leaves(self, body: dict[str, Any], work: WorkCounter) -> BodyLeaves:
        """The scalars of a body by the texts of paths.  Raises :class:`TooMuchWork`."""
        walk = _Walk(work)
        walk.visit(body, self._root, NOWHERE)
        open_arrays = walk.open_arrays
        while open_arrays:
            elements, node = open_arrays[-1]
            depth = len(open_arrays)
            for place, element in elements:
                walk.visit(element, node, place)
                if len(open_arrays) > depth:  # the arrays of the element first, so that few are open at once
                    break
            else:
                open_arrays.pop()
        return BodyLeaves(walk.found, walk.array_places)


class _Walk:
    """A walk over a body along paths."""

    __slots__ = ("_work", "array_places", "found", "open_arrays")

    def __init__(self, work: WorkCounter) -> None:
        self._work = work
        self.found: dict[str, Leaves] = {}
        self.array_places = array("q")
        self.open_arrays: list[tuple[Iterator[tuple[int, Any]], _Node]] = []
        """Elements that are to be visited, with their places."""

    def visit(self, value: Any, node: _Node, place: int) -> None:
        """Visit a value, and what is in it outside of arrays."""
        kind = type(value)
        if kind is list:
            self._work.add_shared(1 + len(value))
            number = len(self.array_places)
            self.array_places.append(place)
            self.open_arrays.append((enumerate(value, number << INDEX_BITS), node))
        elif kind is dict:
            self._work.add_shared(1 + len(value) // LOOKUPS_PER_STEP)
            for name, following in _members(value, node):
                self.visit(value[name], following, place)
        elif node.text is not None:
            leaves = self.found.get(node.text)
            if leaves is None:
                leaves = self.found[node.text] = Leaves(joint=node.joint)
            leaves.add(scalar_value(value), place)


def _members(value: dict[str, Any], node: _Node) -> Iterable[tuple[str, _Node]]:
    """The members of an object that lead on to a path."""
    children = node.children
    if len(value) < len(children):
        found = [(name, children[name]) for name in value if name in children]
    else:
        found = [(name, following) for name, following in children.items() if name in value]
    if node.deep:
        for name in value:
            if "." in name:
                following = _after(node, name)
                if following is not None:
                    found.append((name, following))
    return found


def _after(node: _Node, name: str) -> _Node | None:
    """The node to which a name with dots leads."""
    start = 0
    found: _Node | None = node
    while found is not None and start <= len(name):
        end = name.find(".", start)
        if end < 0:
            end = len(name)
        found = found.children.get(name[start:end])
        start = end + 1
    return found
