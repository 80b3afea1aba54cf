"""Compiled filter policies."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.sns.filters.conditions import KeyCondition
from frontend.sns.filters.consistency import match_together
from frontend.sns.filters.message import BodyPath, FilterMessage, Place

Branch = tuple[tuple[BodyPath, KeyCondition], ...]
"""Conditions that hold together."""


class FilterPolicy:
    """A policy: alternatives, each with conditions on keys.  A message without any key matches none."""

    __slots__ = ("_branches", "_steps", "on_body")

    def __init__(self, branches: Sequence[Branch], *, on_body: bool) -> None:
        self.on_body = on_body
        """True if the conditions are on the message's body, false if on its attributes."""
        self._branches = tuple(map(_cheapest_first, branches))
        self._steps = tuple(tuple((path.text, path, one.holds) for path, one in branch) for branch in self._branches)
        """Path and function of each condition, laid out for :meth:`matches`."""

    def matches(self, message: FilterMessage) -> bool:
        """True if the subscription gets the message."""
        if self.on_body:
            return self._matches_body(message)
        if not message.has_attributes:
            return False
        values = message.attributes()
        for steps in self._steps:
            for name, _, holds in steps:
                if not holds(values.get(name)):
                    break
            else:
                return True
        return False

    def _matches_body(self, message: FilterMessage) -> bool:
        if not message.body():
            return False
        known = message.known_values
        for branch, steps in zip(self._branches, self._steps, strict=True):
            for text, path, holds in steps:
                values = known.get(text)
                if not holds(message.body_values(path) if values is None else values):
                    break
            else:
                if len(branch) == 1 or _hold_together(branch, message):
                    return True
        return False


def _cheapest_first(branch: Branch) -> Branch:
    """Conditions on exact values before those that call matchers."""
    return tuple(sorted(branch, key=lambda one: len(one[1].matchers)))


def _hold_together(branch: Branch, message: FilterMessage) -> bool:
    """True if conditions that hold one by one hold without two different elements of one array."""
    in_arrays = [(path, condition) for path, condition in branch if message.places(path) is not None]
    if len(in_arrays) < 2:
        return True
    matches: list[list[Place | None]] = []
    for path, condition in in_arrays:
        pairs = zip(message.body_values(path), message.places(path) or (), strict=True)
        matches.append([place for value, place in pairs if condition.matches(value)])
    return match_together(matches)
