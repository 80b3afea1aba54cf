"""Consistency of matches within arrays: values in different elements of one array do not match together.

A policy ``{"a": {"x": [1], "y": [2]}}`` matches ``{"a": [{"x": 1, "y": 2}]}``, but not ``{"a": [{"x": 1}, {"y": 2}]}``.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend.sns.filters.body_paths import Place
from frontend.sns.filters.work import WorkCounter


class _Element:
    """An array's element, or the whole message."""

    __slots__ = ("array", "arrays", "keys", "parent")

    def __init__(self, parent: _Element | None, array: int) -> None:
        self.parent = parent
        self.array = array
        self.keys = 0
        """The keys with a match in the element that is in none of its own arrays, as bits."""
        self.arrays: dict[int, set[int]] = {}
        """The sets of keys that each array of the element can match together."""

    def key_sets(self, work: WorkCounter) -> set[int]:
        """The largest sets of keys that match together in the element."""
        found = {self.keys}
        for sets in self.arrays.values():
            work.add(1 + len(found) * len(sets) // 4)
            found = _largest({one | other for one in found for other in sets}, work)
        return found


def match_together(keys: Sequence[Sequence[Place | None]], work: WorkCounter) -> bool:
    """True if one match of each key can be chosen, no two of them in different elements of one array.

    ``keys``: the places of the matches of each key.  Raises :class:`TooMuchWork`.
    """
    constrained = [places for places in keys if None not in places]
    if len(constrained) < 2:
        return all(constrained)
    count = sum(map(len, constrained))
    work.add(1 + count)
    first, *others = [{_name(place) for place in places if place is not None} for places in constrained]
    if first.intersection(*others):
        return True  # all of them in one element
    if len({array for elements in (first, *others) for array, _ in elements}) == 1:
        return False  # all of them in one array
    work.add(4 * count)
    message = _Element(None, 0)
    elements: dict[tuple[int, int], _Element] = {}
    for number, places in enumerate(constrained):
        for place in places:
            if place is not None:
                _element(elements, message, place).keys |= 1 << number
    for element in reversed(elements.values()):  # each after those within it
        if element.parent is not None:
            sets = element.parent.arrays.setdefault(element.array, {0})
            element.parent.arrays[element.array] = _largest(sets | element.key_sets(work), work)
    return (1 << len(constrained)) - 1 in message.key_sets(work)


def _name(place: Place) -> tuple[int, int]:
    """Id of the array, and the index: tuples as deep as the nesting would take long to hash."""
    return place[0][1], place[1]


def _element(elements: dict[tuple[int, int], _Element], message: _Element, place: Place) -> _Element:
    """The element of a place, made with those around it where it is new."""
    missing: list[tuple[int, int]] = []
    around: Place | None = place
    parent = message
    while around is not None:
        name = _name(around)
        known = elements.get(name)
        if known is not None:
            parent = known
            break
        missing.append(name)
        around = around[0][0]
    for name in reversed(missing):
        parent = elements[name] = _Element(parent, name[0])
    return parent


def _largest(sets: set[int], work: WorkCounter) -> set[int]:
    """Sets that are not part of another."""
    if len(sets) == 1:
        return sets
    work.add(len(sets) * len(sets) // 4)
    return {one for one in sets if not any(one != other and one & other == one for other in sets)}
