"""Consistency of matches within arrays: values in different elements of one array do not match together.

A policy ``{"a": {"x": [1], "y": [2]}}`` matches ``{"a": [{"x": 1, "y": 2}]}``, but not ``{"a": [{"x": 1}, {"y": 2}]}``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby

from frontend.sns.filters.body_paths import INDEX_BITS, NOWHERE
from frontend.sns.filters.work import WorkCounter

KeySets = frozenset[int]
"""The largest sets of keys that match together, each as bits."""
_NO_KEYS: KeySets = frozenset((0,))


def match_together(keys: Sequence[array[int]], array_places: array[int], work: WorkCounter) -> bool:
    """True if one match of each key can be chosen, no two of them in different elements of one array.

    ``keys``: the places of the matches of each key.  ``array_places``: the place of each array.  Raises
    :class:`TooMuchWork`.
    """
    constrained = [places for places in keys if NOWHERE not in places]
    if len(constrained) < 2:
        return all(constrained)
    count = sum(map(len, constrained))
    work.add(1 + count)
    first, *others = map(set, constrained)
    if first.intersection(*others):
        return True  # all of them in one element
    if len({place >> INDEX_BITS for places in (first, *others) for place in places}) == 1:
        return False  # all of them in one array
    del first, others
    work.add(4 * count)
    keys_at: dict[int, int] = {}
    for number, places in enumerate(constrained):
        for place in places:
            keys_at[place] = keys_at.get(place, 0) | 1 << number
    return (1 << len(constrained)) - 1 in _key_sets(keys_at, array_places, work)


def _key_sets(keys_at: dict[int, int], array_places: array[int], work: WorkCounter) -> KeySets:
    """The sets of keys that match together in the message.

    ``keys_at``: the keys that match in an element, and in none of its own arrays, by its place.
    """
    within: dict[int, KeySets] = {}
    """The sets of keys of an element's arrays together, by its place."""
    known: dict[KeySets, KeySets] = {}
    """Sets that are shared by elements, because there are few different ones."""
    for number, elements in groupby(_with_outer(keys_at, array_places), lambda place: place >> INDEX_BITS):
        sets = _NO_KEYS
        for place in elements:
            keys = keys_at.get(place, 0)
            inner = within.pop(place, _NO_KEYS)
            added = frozenset(one | keys for one in inner)
            if not added <= sets:
                sets = _largest(sets | added, work)
        outer = array_places[number]
        before = within.get(outer)
        if before is not None:
            work.add(1 + len(before) * len(sets) // 4)
            sets = _largest(frozenset(one | other for one in before for other in sets), work)
        within[outer] = known.setdefault(sets, sets)
    return within[NOWHERE]


def _with_outer(places: Iterable[int], array_places: array[int]) -> list[int]:
    """Places with those of the elements around them, in descending order: each after those within it."""
    found = set(places)
    for place in places:
        outer = array_places[place >> INDEX_BITS]
        while outer != NOWHERE and outer not in found:
            found.add(outer)
            outer = array_places[outer >> INDEX_BITS]
    return sorted(found, reverse=True)


def _largest(sets: KeySets, work: WorkCounter) -> KeySets:
    """Sets that are not part of another."""
    if len(sets) == 1:
        return sets
    work.add(len(sets) * len(sets) // 4)
    return frozenset(one for one in sets if not any(one != other and one & other == one for other in sets))
