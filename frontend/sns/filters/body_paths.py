"""Paths of policies' keys in bodies, as a tree: all policies' values are read in one walk over a body.

A path is the names of nested members, joined by dots.  Whether a dot belongs to a name does not matter: the path
``a.b`` leads to the member ``b`` of ``a`` and to a member ``a.b``.  Arrays are not part of a path: their elements stand
in their array's place.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from frontend.sns.filters.values import Value, scalar_value
from frontend.sns.filters.work import LOOKUPS_PER_STEP, WorkCounter

ArrayPlace = tuple[Any, int]
"""An array: the element that it is in, as a :data:`Place`, or None; and the array's id."""
Place = tuple[ArrayPlace, int]
"""The innermost array element that a scalar is in: its array, and its index there."""


class BodyPath(NamedTuple):
    text: str
    segments: tuple[str, ...]
    """The parts of the text between dots."""


class Leaves:
    """The scalars at one path."""

    __slots__ = ("arrays", "in_array", "indexes", "values")

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.arrays: list[ArrayPlace | None] = []
        """The innermost array that each value is in, if the path is joint."""
        self.indexes = array("q")
        """The index of the element of it."""
        self.in_array = False

    def add(self, value: Value, within: ArrayPlace | None, index: int, *, joint: bool) -> None:
        """Add a value with its place.  ``joint``: places are needed."""
        self.values.append(value)
        if joint:
            self.arrays.append(within)
            self.indexes.append(index)
            if within is not None:
                self.in_array = True

    def places(self, matching: Container[Value]) -> list[Place | None]:
        """The places of values that match."""
        every = zip(self.values, self.arrays, self.indexes, strict=True)
        return [within and (within, index) for value, within, index in every if value in matching]


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

    def leaves(self, body: dict[str, Any], work: WorkCounter) -> dict[str, Leaves]:
        """The scalars of a body by the texts of paths.  Raises :class:`TooMuchWork`."""
        walk = _Walk(work)
        walk.visit(body, self._root, None, 0)
        while walk.arrays:
            elements, node, within, index = walk.arrays.pop()
            work.add_shared(1 + len(elements))
            inner = (within and (within, index), id(elements))
            for place, element in enumerate(elements):
                walk.visit(element, node, inner, place)
        return walk.found


class _Walk:
    """A walk over a body along paths."""

    __slots__ = ("_work", "arrays", "found")

    def __init__(self, work: WorkCounter) -> None:
        self._work = work
        self.found: dict[str, Leaves] = {}
        self.arrays: list[tuple[list[Any], _Node, ArrayPlace | None, int]] = []
        """Arrays that are to be visited, with their places."""

    def visit(self, value: Any, node: _Node, within: ArrayPlace | None, index: int) -> None:
        """Visit a value, and what is in it outside of arrays."""
        kind = type(value)
        if kind is list:
            self.arrays.append((value, node, within, index))
        elif kind is dict:
            self._work.add_shared(1 + len(value) // LOOKUPS_PER_STEP)
            for name, following in _members(value, node):
                self.visit(value[name], following, within, index)
        elif node.text is not None:
            leaves = self.found.get(node.text)
            if leaves is None:
                leaves = self.found[node.text] = Leaves()
            leaves.add(scalar_value(value), within, index, joint=node.joint)


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
