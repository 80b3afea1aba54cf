"""Compiled filter policies."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.sns.filters.body_paths import BodyPath
from frontend.sns.filters.conditions import KeyCondition
from frontend.sns.filters.consistency import match_together
from frontend.sns.filters.key_values import KeyValues
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.values import Value

Branch = tuple[tuple[BodyPath, KeyCondition], ...]
"""Conditions that hold together."""
_BYTES, _BRANCH_BYTES, _STEP_BYTES = 600, 120, 80
"""Memory of a policy, of each branch, and of each step of one."""


class FilterPolicy:
    """A policy: alternatives, each with conditions on keys.  A message without any key matches none."""

    __slots__ = ("__weakref__", "_steps", "exact", "memory_bytes", "on_body", "paths")

    def __init__(self, branches: Sequence[Branch], *, on_body: bool, text_bytes: int) -> None:
        """``text_bytes``: memory of its text."""
        self.on_body = on_body
        """True if its scope is the body."""
        self._steps = tuple(
            tuple((path.text, condition.holds, condition) for path, condition in _cheapest_first(branch))
            for branch in branches
        )
        self.exact = None if on_body or len(branches) > 1 else _exact(branches[0])
        """An attribute and its values, of which a message has to have one; None: the policy has no such condition."""
        self.paths = frozenset((path, on_body and len(branch) > 1) for branch in branches for path, _ in branch)
        """The paths of all keys, each with True if there is a condition on it together with others."""
        conditions = {id(condition): condition for branch in branches for _, condition in branch}
        self.memory_bytes = (
            _BYTES
            + text_bytes  # parts of it, kept by matchers
            + sum(_BRANCH_BYTES + _STEP_BYTES * len(branch) for branch in branches)
            + sum(condition.memory_bytes() for condition in conditions.values())
        )
        """Estimated memory."""

    def matches(self, message: FilterMessage) -> bool:
        """True if the subscription gets the message.  Raises :class:`TooMuchWork`, after which it can be called
        again."""
        work, on_body = message.work, self.on_body
        values = message.body_values() if on_body else message.attribute_values()
        work.steps += 1
        if values is None:
            return False
        for steps in self._steps:
            for name, holds, _ in steps:
                if not holds(values.get(name), work):
                    break
            else:
                if len(steps) == 1 or not on_body or _hold_together(steps, values, message):
                    return True
        return False


def _exact(branch: Branch) -> tuple[str, frozenset[Value]] | None:
    for path, condition in branch:
        if condition.exact and not condition.matchers and not condition.absent:
            return path.text, condition.exact
    return None


def _cheapest_first(branch: Branch) -> Branch:
    """Conditions on exact values before those that call matchers."""
    return tuple(sorted(branch, key=lambda one: len(one[1].matchers)))


def _hold_together(
    steps: Sequence[tuple[str, object, KeyCondition]], values: dict[str, KeyValues], message: FilterMessage
) -> bool:
    """True if conditions that hold one by one hold without two different elements of one array."""
    work = message.work
    in_arrays = [(name, condition) for name, _, condition in steps if name in values and message.leaves(name).in_array]
    if len(in_arrays) < 2:
        return True
    matches = []
    for name, condition in in_arrays:
        leaves = message.leaves(name)
        matching = condition.matching(values[name], work)
        work.add(1 + len(leaves.values) // 4)
        matches.append(leaves.places_of(matching))
    return match_together(matches, message.array_places, work)
