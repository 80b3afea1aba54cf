"""A message as filter policies see it: its attributes, and the scalars of its body by their paths.

A path is the names of nested members, joined by dots.  Whether a dot belongs to a name does not matter: the path
``a.b`` leads to the member ``b`` of ``a`` and to a member ``a.b``.  Arrays are not part of a path: their elements stand
in their array's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from frontend.sns.filters.values import Value, attribute_values, scalar_value
from frontend.sqs.protocol.md5 import Attribute

Place = tuple[Any, int, int]
"""The innermost array element that a scalar is in: that of its array, or None; the array's id; the element's index."""


class BodyPath(NamedTuple):
    text: str
    segments: tuple[str, ...]
    """The parts of the text between dots."""


class FilterMessage:
    """One published message.  Its attributes and its body are read when a policy needs them, once for all policies."""

    __slots__ = ("_attributes", "_body", "_body_text", "_given", "_places", "known_values")

    def __init__(self, attributes: Sequence[Attribute], body: str) -> None:
        self._given = attributes
        self._body_text: str | None = body
        self._attributes: dict[str, tuple[Value, ...]] | None = None
        self._body: dict[str, Any] = {}
        self.known_values: dict[str, tuple[Value, ...]] = {}
        """Scalars of the body by the texts of paths, as far as they were needed."""
        self._places: dict[str, tuple[Place | None, ...]] = {}

    @property
    def has_attributes(self) -> bool:
        """True if the message has an attribute, of any type."""
        return len(self._given) > 0

    def attributes(self) -> dict[str, tuple[Value, ...]]:
        """Values of the attributes by their names."""
        found = self._attributes
        if found is None:
            found = self._attributes = attribute_values(self._given)
        return found

    def body(self) -> dict[str, Any]:
        """The body, if it is an object in JSON, otherwise an empty one."""
        text = self._body_text
        if text is not None:
            self._body_text = None
            body = _parsed(text)
            if type(body) is dict:
                self._body = body
        return self._body

    def body_values(self, path: BodyPath) -> tuple[Value, ...]:
        """The scalars of the body at a path."""
        found = self.known_values.get(path.text)
        if found is None:
            found, places = _leaves(self.body(), path)
            self.known_values[path.text] = found
            if any(place is not None for place in places):
                self._places[path.text] = places
        return found

    def places(self, path: BodyPath) -> tuple[Place | None, ...] | None:
        """The places of the scalars at a path, after their values; None: none of them is in an array."""
        return self._places.get(path.text)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None


def _leaves(body: dict[str, Any], path: BodyPath) -> tuple[tuple[Value, ...], tuple[Place | None, ...]]:
    """The scalars at a path, and the place of each."""
    text, segments = path
    ends = len(segments)
    values: list[Value] = []
    places: list[Place | None] = []
    stack: list[tuple[Any, int, int, Place | None]] = [(body, 0, 0, None)]
    while stack:
        node, depth, offset, place = stack.pop()
        kind = type(node)
        if kind is dict:
            if depth == ends:
                continue
            segment = segments[depth]
            if segment in node:
                stack.append((node[segment], depth + 1, offset + len(segment) + 1, place))
            if ends - depth > 1:
                for name in node:
                    if "." in name and text.startswith(name, offset) and text[offset + len(name) :][:1] in ("", "."):
                        deeper = depth + name.count(".") + 1
                        stack.append((node[name], deeper, offset + len(name) + 1, place))
        elif kind is list:
            array = id(node)
            stack.extend((element, depth, offset, (place, array, index)) for index, element in enumerate(node))
        elif depth == ends:
            values.append(scalar_value(node))
            places.append(place)
    return tuple(values), tuple(places)
