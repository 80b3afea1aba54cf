"""Conversion of the parameters of a Query request to a dict of members.

Unknown parameters are ignored, as in SQS and SNS.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, NamedTuple

from frontend.query.parameters import NAME_LENGTH_MAX, Malformed, Parameters
from frontend.query.shapes import BLOB, BOOLEAN, INTEGER, LONG, STRING, ListOf, MapOf, Scalar, Structure, Type

Members = dict[str, Any]

_Node = dict[str, Any]
"""Parameters as a tree: the dot-separated parts of a name lead to a string or a further node."""
PARTS_MAX = 8
"""Maximum number of parts of a parameter's name: as many as the longest in the models has."""
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_INDEX = re.compile(r"[0-9]{1,6}\Z")


class QueryErrors(NamedTuple):
    """Functions that make a protocol's errors for parameters that do not fit its model."""

    malformed: Malformed
    invalid: Callable[[str, str, str], Exception]
    """Makes the error for a value, the name of its parameter, and the reason."""
    not_base64: Callable[[str], Exception]
    """Makes the error for the name of a binary parameter."""
    missing: Callable[[str], Exception]
    """Makes the error for the name of a parameter."""


class QueryReader:
    """Reader of the members of one protocol's requests."""

    def __init__(self, errors: QueryErrors) -> None:
        self._errors = errors
        self._wires: dict[str, dict[str, tuple[str, Type]]] = {}
        """Names on the wire with names and types of members, by structure."""

    def members(self, structure: Structure, parameters: Parameters) -> Members:
        """Parse the members of an input.  Raises the protocol's errors."""
        members: Members = {}
        wires = self._wires.get(structure.name) or self._wires_of(structure)
        tree: _Node = {}
        for wire in parameters:
            if wire in wires and wire not in tree:
                tree[wire] = parameters.get(wire)
                continue
            parts = wire.split(".")
            if parts[0] in wires:
                self._plant(tree, wire, parts, parameters.get(wire))
        for top, node in tree.items():
            member_name, type_ = wires[top]
            is_text = type_ is STRING and type(node) is str  # the most common
            members[member_name] = node if is_text else self._value(type_, node, top)
        return members

    def _plant(self, tree: _Node, name: str, parts: list[str], value: str) -> None:
        if len(name) > NAME_LENGTH_MAX or len(parts) > PARTS_MAX:
            raise self._errors.malformed("The name of a parameter is too long.")
        node = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if type(node) is not dict:
                raise self._two_kinds(name)
        if type(node.setdefault(parts[-1], value)) is dict:
            raise self._two_kinds(name)

    def _value(self, type_: Type, node: Any, where: str) -> Any:
        if type_ is STRING and type(node) is str:
            return node
        match type_:
            case Scalar():
                if type(node) is not str:
                    raise self._errors.malformed(f"The parameter {where} has to be a single value.")
                return self._scalar(type_, node, where)
            case Structure():
                members = {}
                wires = self._wires_of(type_)
                for wire, item in self._branches(node, where).items():
                    if wire in wires:
                        name, member_type = wires[wire]
                        members[name] = self._value(member_type, item, f"{where}.{wire}")
                return members
            case ListOf():
                return self._list(type_, node, where)
            case MapOf():
                return self._map(type_, node, where)

    def _scalar(self, type_: Scalar, text: str, where: str) -> Any:
        if type_ in (INTEGER, LONG):
            if not _INTEGER.match(text):
                raise self._errors.invalid(text, where, "Must be an integer.")
            return int(text)
        if type_ is BOOLEAN:
            if text not in ("true", "false"):
                raise self._errors.invalid(text, where, "Must be true or false.")
            return text == "true"
        if type_ is BLOB:
            try:
                return a2b_base64(text.encode("ascii"), strict_mode=True) if text else b""
            except (Base64Error, UnicodeEncodeError):
                raise self._errors.not_base64(where) from None
        return text

    def _list(self, type_: ListOf, node: Any, where: str) -> list[Any]:
        if type_.element and node != "":
            node, where = self._elements(node, where, type_.element)
        if type(node) is str:
            return [self._value(type_.item, node, where)] if node else []
        return [self._value(type_.item, item, f"{where}.{index}") for index, item in self._numbered(node, where)]

    def _map(self, type_: MapOf, node: Any, where: str) -> Members:
        if node == "":
            return {}
        branches = self._branches(node, where)
        if type_.element:
            node, where = self._elements(node, where, type_.element)
            branches = self._branches(node, where)
        entries = [("", branches)] if type_.key_wire in branches else self._numbered(branches, where)
        result: Members = {}
        for index, entry in entries:
            here = f"{where}.{index}" if index else where
            entry = self._branches(entry, here)
            for wire in (type_.key_wire, type_.value_wire):
                if wire not in entry:
                    raise self._errors.missing(f"{here}.{wire}")
            key = entry[type_.key_wire]
            if type(key) is not str:
                raise self._errors.malformed(f"The parameter {here}.{type_.key_wire} has to be a single value.")
            if key in result:
                raise self._errors.invalid(key, f"{here}.{type_.key_wire}", "The name was given more than once.")
            result[key] = self._value(type_.value, entry[type_.value_wire], f"{here}.{type_.value_wire}")
        return result

    def _elements(self, node: Any, where: str, element: str) -> tuple[Any, str]:
        """The node below a list or map that is not flattened, and its name."""
        branches = self._branches(node, where)
        if list(branches) != [element]:
            raise self._errors.malformed(f"The elements of the parameter {where} have names like {where}.{element}.1.")
        return branches[element], f"{where}.{element}"

    def _branches(self, node: Any, where: str) -> _Node:
        if type(node) is not dict:
            raise self._errors.malformed(f"The parameter {where} is composed of several values.")
        branches: _Node = node
        return branches

    def _numbered(self, node: _Node, where: str) -> list[tuple[str, Any]]:
        for index in node:
            if not _INDEX.match(index):
                raise self._errors.malformed(f"The parameter {where}.{index[:20]} has to be numbered.")
        return sorted(node.items(), key=lambda item: int(item[0]))

    def _two_kinds(self, name: str) -> Exception:
        return self._errors.malformed(f"The parameter {name} is both a value and composed of values.")

    def _wires_of(self, structure: Structure) -> dict[str, tuple[str, Type]]:
        """Map names on the wire to names and types of members."""
        wires = self._wires.get(structure.name)
        if wires is None:
            # a member's own name is accepted as well: old SDKs send an empty list under it
            wires = {name: (name, member.type) for name, member in structure.members.items()}
            wires |= {member.wire: (name, member.type) for name, member in structure.members.items()}
            self._wires[structure.name] = wires
        return wires
