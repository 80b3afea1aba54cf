"""Consistency of matches within arrays: values in different elements of one array do not match together.

A policy ``{"a": {"x": [1], "y": [2]}}`` matches ``{"a": [{"x": 1, "y": 2}]}``, but not ``{"a": [{"x": 1}, {"y": 2}]}``.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend.sns.filters.message import Place


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

    def key_sets(self) -> set[int]:
        """The largest sets of keys that match together in the element."""
        found = {self.keys}
        for sets in self.arrays.values():
            found = _largest({one | other for one in found for other in sets})
        return found


def match_together(keys: Sequence[Sequence[Place | None]]) -> bool:
    """True if one match of each key can be chosen, no two of them in different elements of one array.

    ``keys``: the places of the matches of each key.
    """
    constrained = [places for places in keys if None not in places]
    if len(constrained) < 2:
        return all(constrained)
    message = _Element(None, 0)
    elements: dict[tuple[int, int], _Element] = {}
    for number, places in enumerate(constrained):
        for place in places:
            if place is not None:
                _element(elements, message, place).keys |= 1 << number
    for element in reversed(elements.values()):  # each after those within it
        if element.parent is not None:
            sets = element.parent.arrays.setdefault(element.array, {0})
            element.parent.arrays[element.array] = _largest(sets | element.key_sets())
    return (1 << len(constrained)) - 1 in message.key_sets()


def _element(elements: dict[tuple[int, int], _Element], message: _Element, place: Place) -> _Element:
    """The element of a place, made with those around it where it is new."""
    missing: list[Place] = []
    around: Place | None = place
    parent = message
    while around is not None:
        known = elements.get(around[1:])
        if known is not None:
            parent = known
            break
        missing.append(around)
        around = around[0]
    for one in reversed(missing):
        parent = elements[one[1:]] = _Element(parent, one[1])
    return parent


def _largest(sets: set[int]) -> set[int]:
    """Sets that are not part of another."""
    if len(sets) == 1:
        return sets
    return {one for one in sets if not any(one != other and one & other == one for other in sets)}
