"""Every member of every action: missing, empty, too long, out of range, of the wrong type, unknown; both protocols.

The expectations are in members.yaml.  The members come from botocore's current service model, so a new member of SQS
fails here until the table has an expectation.  A 500 is never right.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.model import Shape

from tests.behaviour import wire
from tests.behaviour.cases import resolve
from tests.behaviour.runner import CaseCaller
from tests.behaviour.world import World
from tests.tables import beside

PREFIX = "AWS.SimpleQueueService."


@cache
def table() -> dict[str, Any]:
    loaded: dict[str, Any] = beside(__file__, "members.yaml")
    return loaded


@cache
def model_members() -> dict[str, dict[str, Shape]]:
    """Return each action's members, those of batch entries and of message attributes as dotted paths."""
    service = botocore.session.get_session().get_service_model("sqs")
    return {action: dict(_members(service.operation_model(action).input_shape)) for action in service.operation_names}


def _members(shape: Shape, prefix: str = "") -> Iterator[tuple[str, Shape]]:
    for name, member in shape.members.items():
        yield prefix + name, member
        inner = {"list": "member", "map": "value"}.get(member.type_name)
        inner_shape = getattr(member, inner) if inner else member
        if inner_shape.type_name == "structure":
            yield from _members(inner_shape, f"{prefix}{name}.")


def test_no_member_is_left_out() -> None:
    expected = {action: set(members) for action, members in model_members().items()}
    assert {action: set(rows["members"]) for action, rows in table()["actions"].items()} == expected
    for action, members in model_members().items():
        for name, shape in members.items():
            wanted = {"missing"} | ({"low", "high"} if shape.type_name == "integer" else {"empty"})
            assert wanted <= set(table()["actions"][action]["members"][name]), f"{action}.{name}"


def _change(params: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the params with the member at the path replaced (None: removed), in the first entry and attribute."""
    changed = copy.deepcopy(params)
    node: Any = changed
    *way, last = path.split(".")
    for name in way:
        node = node[name]
        node = node[0] if isinstance(node, list) else next(iter(node.values()))
    node.pop(last, None)
    if value is not MISSING:
        node[last] = value
    return changed


MISSING: Any = object()


def _wrong(protocol: wire.Protocol, kind: str) -> list[Any]:
    """Return values that are not of this type; those below ``$raw`` are sent as they are."""
    return [_raw(value) for value in table()["wrong_values"][protocol][kind]]


def _raw(value: Any) -> Any:
    if isinstance(value, dict) and "$raw" in value:
        return wire.Raw({name: _raw(inner) for name, inner in value["$raw"].items()})
    return value


def _calls(protocol: wire.Protocol) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Generate label, action, params and expectation of every call."""
    for action, row in table()["actions"].items():
        params, good = row["params"], row.get("refused", "ok")
        yield f"{action}-as-it-is", action, params, good
        yield f"{action}-unknown-member", action, {**params, "Nonsense": "x"}, good
        yield f"{action}-unknown-structure", action, {**params, "Nonsense": {"x": [1, {"y": None}]}}, good
        for member, shape in model_members()[action].items():
            yield from _member_calls(protocol, action, params, member, shape, row["members"][member], good)
    for number, row in enumerate(table()["keys"], 1):
        yield f"key-{number}-{row['action']}", row["action"], row["params"], row["expect"]


def _member_calls(
    protocol: wire.Protocol,
    action: str,
    params: dict[str, Any],
    member: str,
    shape: Shape,
    rules: dict[str, Any],
    good: str,
) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    def expected(rule: str) -> str:
        return good if rule == "ok" else rule

    label = f"{action}-{member}"
    kind: str = shape.type_name
    yield f"{label}-missing", action, _change(params, member, MISSING), expected(rules["missing"])
    if protocol == "json":
        yield f"{label}-null", action, _change(params, member, None), expected(rules["missing"])
    if "empty" in rules:
        empty: Any = {"list": [], "map": {}, "structure": {}}.get(kind, "")
        yield f"{label}-empty", action, _change(params, member, empty), expected(rules["empty"])
    if "too_long" in rules:
        length, rule = rules["too_long"]
        yield f"{label}-too-long", action, _change(params, member, "x" * length), expected(rule)
    for edge in ("low", "high"):
        if edge in rules:
            value, rule = rules[edge]
            yield f"{label}-{edge}", action, _change(params, member, value), expected(rule)
            yield f"{label}-{edge}-far", action, _change(params, member, value * 1000 or -1000), expected(rule)
    for number, value in enumerate(_wrong(protocol, kind), 1):
        yield f"{label}-wrong-type-{number}", action, _change(params, member, value), table()["wrong_type"][protocol]


# --- the calls --------------------------------------------------------------------------------------------


def _parameters() -> list[Any]:
    chosen = [(protocol, action) for protocol in wire.PROTOCOLS for action in table()["actions"]]
    return [pytest.param(protocol, action, id=f"{protocol}-{action}") for protocol, action in chosen]


@pytest.mark.parametrize(("protocol", "action"), _parameters())
def test_members(world: World, protocol: wire.Protocol, action: str) -> None:
    problems = world.run(_try_all(world, protocol, action))
    assert not problems, "\n".join(problems)


async def _try_all(world: World, protocol: wire.Protocol, action: str) -> list[str]:
    problems = []
    scene = None
    for label, called, params, expected in _calls(protocol):
        if called == action:
            scene = scene or await _Scene.make(world, protocol)
            seen = await scene.call(action, params)
            if not any(_fits(one, seen) for one in expected.split("|")):
                problems.append(f"{protocol} {label}: {seen}, expected {expected}")
            if seen == "ok" or seen.startswith("entry "):
                scene = None  # a refused call has changed nothing
    return problems


def _fits(expected: str, seen: str) -> bool:
    return seen.split(":")[0].replace(PREFIX, "") == expected


class _Scene:
    """A new account with a queue ``q`` that has a message in flight, and a dead-letter queue ``d`` of another."""

    def __init__(self, world: World, protocol: wire.Protocol, caller: CaseCaller) -> None:
        self._world = world
        self._protocol = protocol
        self._caller = caller
        self.variables: dict[str, Any] = {
            "account": caller.account,
            "none": None,
            "key129": "k" * 129,
            "text257": "v" * 257,
        }

    @classmethod
    async def make(cls, world: World, protocol: wire.Protocol) -> _Scene:
        scene = cls(world, protocol, await world.new_caller())
        for name in ("q", "d"):
            scene.variables[name] = (await scene.answer("CreateQueue", {"QueueName": name}))["QueueUrl"]
            scene.variables[f"{name}.arn"] = f"arn:aws:sqs:{world.region}:{scene._caller.account}:{name}"
        policy = {"deadLetterTargetArn": scene.variables["d.arn"], "maxReceiveCount": 5}
        await scene.answer("CreateQueue", {"QueueName": "s", "Attributes": {"RedrivePolicy": json.dumps(policy)}})
        await scene.answer("SendMessage", {"QueueUrl": scene.variables["q"], "MessageBody": "m"})
        received = await scene.answer("ReceiveMessage", {"QueueUrl": scene.variables["q"]})
        scene.variables["handle"] = received["Messages"][0]["ReceiptHandle"]
        return scene

    async def answer(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        answer = await self._exchange(action, params)
        assert isinstance(answer, dict), (action, params, answer)
        return answer

    async def call(self, action: str, params: dict[str, Any]) -> str:
        """Return ``ok``, an error code with its text, or ``entry`` and the code of a failed batch entry."""
        answer = await self._exchange(action, params)
        if isinstance(answer, wire.WireRefusal):
            assert answer.status < 500, answer
            return f"{answer.code}: {answer.message[:200]}"
        if answer.get("Failed"):
            return f"entry {answer['Failed'][0]['Code']}: {answer['Failed'][0].get('Message', '')[:200]}"
        return "ok"

    async def _exchange(self, action: str, params: dict[str, Any]) -> dict[str, Any] | wire.WireRefusal:
        request = wire.encode(self._protocol, action, resolve(params, self.variables))
        signed = self._caller.signer.sign(request, self._world.host, self._world.now_ms())
        return wire.decode(self._protocol, action, await self._world.exchange(signed))
