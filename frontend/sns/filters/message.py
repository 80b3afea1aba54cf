"""A message as filter policies see it: its attributes, and the scalars of its body by their paths."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import orjson

from frontend.sns.filters.body_paths import Leaves, PathTree
from frontend.sns.filters.key_values import KeyValues
from frontend.sns.filters.values import attribute_values
from frontend.sns.filters.work import WorkCounter
from frontend.sqs.protocol.md5 import Attribute

CHARACTERS_PARSED_PER_STEP = 3
"""Characters of a body that are parsed in the time of a step, if they are those of an array of empty objects.  So large
bodies are read in the thread."""


class FilterMessage:
    """One published message.  Its attributes and its body are read when a policy needs them, once for all policies."""

    __slots__ = (
        "_attributes",
        "_body",
        "_body_is_read",
        "_given",
        "_leaves",
        "_paths",
        "_values",
        "array_places",
        "is_object",
        "work",
    )

    def __init__(self, attributes: Sequence[Attribute], body: str, paths: PathTree) -> None:
        """``paths``: those of all policies that are to be evaluated."""
        self._given = attributes
        self._body = body
        self._body_is_read = False
        self._paths = paths
        self._attributes: dict[str, KeyValues] | None = None
        self._leaves: dict[str, Leaves] = {}
        self._values: dict[str, KeyValues] | None = None
        self.array_places = array("q")
        """The place of each array of the body, by its number, once the body was read."""
        self.is_object = False
        """True if the body is an object in JSON, once it was read."""
        self.work = WorkCounter()
        """The work for the message so far."""

    @property
    def characters(self) -> int:
        """Length of the body and of the attributes."""
        return len(self._body) + sum(len(value) for _, _, value in self._given)

    def release(self) -> None:
        """Free the memory of all values.  They are read again when a policy needs them."""
        self._attributes = self._values = None
        self._leaves = {}
        self.array_places = array("q")
        self._body_is_read = False

    def attribute_values(self) -> dict[str, KeyValues] | None:
        """Values of the attributes by their names; None: there are no attributes, of any type.  Raises
        :class:`TooMuchWork`."""
        found = self._attributes
        if found is None and self._given:
            self.work.add_shared(1 + sum(len(value) for _, _, value in self._given) // 4)
            values = attribute_values(self._given)
            found = self._attributes = {name: KeyValues(every) for name, every in values.items() if every}
        return found

    def body_values(self) -> dict[str, KeyValues] | None:
        """The scalars of the body by the texts of paths; None: it is no object in JSON with a member.  Raises
        :class:`TooMuchWork`."""
        if not self._body_is_read:
            self.work.add_shared(1 + len(self._body) // CHARACTERS_PARSED_PER_STEP)
            body = _parsed(self._body)
            self.is_object = body is not None
            if body:
                self._leaves, self.array_places = self._paths.leaves(body, self.work)
                self._values = {text: KeyValues(one.values) for text, one in self._leaves.items()}
            self._body_is_read = True
        return self._values

    def leaves(self, path: str) -> Leaves:
        """The scalars at a path that has some, with their places."""
        return self._leaves[path]


def _parsed(text: str) -> dict[str, Any] | None:
    """An object in JSON; None for any other text."""
    try:
        found = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return found if type(found) is dict else None
