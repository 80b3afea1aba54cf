"""Reading of filter policies: SNS's rules and limits.

Sources: [guide] is the Amazon SNS Developer Guide, "Filter policy constraints"; [seen] recorded answers of the service;
[own] is a limit of this service.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple

import orjson

from frontend.sns.filters.body_paths import BodyPath
from frontend.sns.filters.conditions import KeyCondition
from frontend.sns.filters.expressions import RESERVED_NAMES, FilterPolicyInvalid, compile_condition, refused
from frontend.sns.filters.policy import Branch, FilterPolicy
from telemetry.texts import shown

POLICY_BYTES_MAX = 256 * 1024
"""Length of a filter policy [guide]."""
KEYS_MAX = 5
"""Keys of a filter policy; of nested ones the outermost count [guide, seen], of alternatives those of one [own]."""
COMBINATIONS_MAX = 150
"""Product of the numbers of values of all keys, each times the depth of its key; the sum of the products for $or
[guide, seen]."""
OPERANDS_MAX = 1_000
"""Values of anything-but and wildcard characters of a policy [own]: no combinations, but they take memory and work."""
DEPTH_MAX = 150
"""Levels of nesting, and parts of a key's path between dots [own]: more levels have too many combinations anyway."""

FilterScope = Literal["MessageAttributes", "MessageBody"]


class _Key(NamedTuple):
    names: tuple[str, ...]
    """The names that lead to the key, and its own."""
    condition: KeyCondition
    combinations: int


class _Or(NamedTuple):
    alternatives: list[list[_Key | _Or]]


_Nodes = list[_Key | _Or]


def compile_filter_policy(text: str, scope: FilterScope) -> FilterPolicy | None:
    """Compile a policy; None: it is empty, which is no policy.  Raises :class:`FilterPolicyInvalid`."""
    given = _document(text)
    if not given:
        return None
    if _keys(given, 1) > KEYS_MAX:
        raise refused(f"Filter policy can not have more than {KEYS_MAX} keys")
    nodes = _nodes(given, (), 1)
    if scope == "MessageAttributes" and _is_nested(nodes):
        raise FilterPolicyInvalid("Filter policy scope MessageAttributes does not support nested filter policy")
    if _combinations(nodes) > COMBINATIONS_MAX:
        raise _too_complex()
    if _operands(nodes) > OPERANDS_MAX:
        raise refused(f"There can not be more than {OPERANDS_MAX} values of anything-but and wildcard characters")
    branches = list(map(_with_paths, _branches(nodes)))
    return FilterPolicy(branches, on_body=scope == "MessageBody", text_bytes=sys.getsizeof(text))


def _document(text: str) -> dict[str, Any]:
    if len(text) > POLICY_BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > POLICY_BYTES_MAX:
        raise refused(f"Filter policy can not be longer than {POLICY_BYTES_MAX} bytes")
    if not text.strip():
        return {}
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise refused("failed to parse JSON.") from None
    if not isinstance(given, dict):
        raise refused("Filter is not an object")
    return given


def _is_or(name: str, value: Any) -> bool:
    """True for a list of alternatives; otherwise ``$or`` is a key like any other."""
    return (
        name == "$or"
        and isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(one, dict) and RESERVED_NAMES.isdisjoint(one) for one in value)
    )


def _keys(given: dict[str, Any], depth: int) -> int:
    """Number of outermost keys; of alternatives the one with most of them counts."""
    if depth > DEPTH_MAX:
        raise _too_complex()
    return sum(
        max(_keys(one, depth + 1) for one in value) if _is_or(name, value) else 1 for name, value in given.items()
    )


def _nodes(given: dict[str, Any], names: tuple[str, ...], depth: int) -> _Nodes:
    if depth > DEPTH_MAX:
        raise _too_complex()
    if not given:
        raise refused("Empty objects are not allowed")
    nodes: _Nodes = []
    for name, value in given.items():
        path = (*names, name)
        if _is_or(name, value):
            if len(value) > COMBINATIONS_MAX:
                raise _too_complex()
            nodes.append(_Or([_nodes(one, names, depth + 1) for one in value]))
        elif isinstance(value, dict):
            nodes += _nodes(value, path, depth + 1)
        elif isinstance(value, list):
            if len(value) > COMBINATIONS_MAX:
                raise _too_complex()
            nodes.append(_Key(path, compile_condition(value), len(value) * len(path)))
        else:
            raise refused(f'"{shown(name)}" must be an object or an array')
        if len(nodes) > COMBINATIONS_MAX:
            raise _too_complex()
    return nodes


def _is_nested(nodes: _Nodes) -> bool:
    return any(
        len(node.names) > 1 if isinstance(node, _Key) else any(map(_is_nested, node.alternatives)) for node in nodes
    )


def _combinations(nodes: _Nodes) -> int:
    """Number of combinations; any number above the maximum if there are more."""
    product = 1
    for node in nodes:
        product *= node.combinations if isinstance(node, _Key) else sum(map(_combinations, node.alternatives))
        if product > COMBINATIONS_MAX:
            break
    return product


def _operands(nodes: _Nodes) -> int:
    return sum(
        node.condition.operands if isinstance(node, _Key) else sum(map(_operands, node.alternatives)) for node in nodes
    )


def _branches(nodes: _Nodes) -> list[tuple[_Key, ...]]:
    """The sets of keys whose conditions hold together: one for each choice of alternatives."""
    branches: list[tuple[_Key, ...]] = [()]
    for node in nodes:
        added = [(node,)] if isinstance(node, _Key) else [one for each in node.alternatives for one in _branches(each)]
        branches = [(*branch, *more) for branch in branches for more in added]
    return branches


def _with_paths(branch: tuple[_Key, ...]) -> Branch:
    return tuple((_path(key.names), key.condition) for key in branch)


def _path(names: tuple[str, ...]) -> BodyPath:
    text = ".".join(names)
    segments = tuple(text.split(".", DEPTH_MAX))
    if len(segments) > DEPTH_MAX:
        raise _too_complex()
    return BodyPath(text, segments)


def _too_complex() -> FilterPolicyInvalid:
    return refused("Filter policy is too complex")
