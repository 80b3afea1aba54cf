"""Every row of ``who_may.yaml``: all 23 actions in both protocols, through the real endpoint over the real journal."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.request.access import SCOPES_OF
from frontend.sqs.protocol.model import ACTIONS
from tests.behaviour import wire
from tests.behaviour.world import World
from tests.frontend.access import parties
from tests.tables import beside

TABLE = beside(__file__, "who_may.yaml")
ALLOWED = "allowed"
STATEMENT = {"Sid": "table", "Effect": "Allow", "Principal": {"AWS": "999999999999"}, "Action": "sqs:GetQueueUrl"}
"""Part of every policy in the table; it matches no caller, and gives RemovePermission a statement to remove."""
ANSWERS: dict[str, tuple[str, int, str]] = TABLE["answers"]
"""Code, status and text of each refusal in the table."""


def expected(row: dict[str, Any]) -> dict[str, str]:
    """Expected result of each action."""
    groups = TABLE["groups"]
    allowed = {action for name in row["allowed"] for action in groups.get(name, [name])}
    but = row.get("but", {})
    assert allowed | set(but) <= set(ACTIONS), row["name"]
    return {
        action: ALLOWED if action in allowed else but[action] if action in but else row["refused"] for action in ACTIONS
    }


def _parameters() -> Iterator[Any]:
    for row in TABLE["rows"]:
        for protocol in wire.PROTOCOLS:
            yield pytest.param(row, protocol, id=f"{row['name']}-{protocol}")


@pytest.mark.parametrize(("row", "protocol"), list(_parameters()))
def test_permitted_callers(world: World, row: dict[str, Any], protocol: wire.Protocol) -> None:
    world.run(_try_all(world, row, protocol))


async def _try_all(world: World, row: dict[str, Any], protocol: wire.Protocol) -> None:
    scene, other_root = await parties.set_scene(world)
    await _set_policy(world, scene, row)
    caller = await _caller(world, scene, row["caller"], other_root)
    caller.scheme = row.get("from", {}).get("scheme", caller.scheme)
    caller.client = row.get("from", {}).get("client", caller.client)
    for who, state in row.get("state", {}).items():
        await parties.set_state(world, scene.names[who], state)
    wanted = expected(row)
    problems = []
    if row.get("hides", True):
        problems += await _tells_nothing(world, scene, caller, protocol, wanted)
    for action in parties.calls_on(world, scene, parties.MAIN):
        if action == "CancelMessageMoveTask" and "task" not in scene.handles:
            scene.handles["task"] = _task_handle(parties.arn(scene.own, parties.MAIN))
        answer = await parties.call(
            world, caller, protocol, action, parties.calls_on(world, scene, parties.MAIN)[action]
        )
        if action == "StartMessageMoveTask" and isinstance(answer, dict):
            scene.handles["task"] = answer["TaskHandle"]
        if action in ("DeleteMessageBatch", "ChangeMessageVisibilityBatch", "SendMessageBatch"):
            assert isinstance(answer, wire.WireRefusal) or not answer.get("Failed"), answer
        problem = _judge(wanted[action], answer)
        if problem:
            problems.append(f"{action}: expected {wanted[action]}: {problem}")
    assert not problems, "\n".join(problems)


async def _set_policy(world: World, scene: parties.Scene, row: dict[str, Any]) -> None:
    statements = [STATEMENT, *parties.filled_in(row.get("policy", []), scene.names)]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    queue = parties.url(world, scene.own, parties.MAIN)
    await parties.done(world, scene.root, "SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"Policy": policy}})
    if "permit" in row:
        params = {"QueueUrl": queue, "Label": "row", "AWSAccountIds": [scene.other], "Actions": row["permit"]}
        await parties.done(world, scene.root, "AddPermission", params)


async def _caller(
    world: World, scene: parties.Scene, given: dict[str, Any], other_root: parties.Party
) -> parties.Party:
    given = dict(given)
    which = given.pop("account")
    if which == "none":
        return parties.Party("", None)
    changes: dict[str, Any] = {}
    if "user" in given:
        changes["name"] = given.pop("user")
    if given.pop("expired", False):
        changes["expires_s"] = world.now_ms() // 1000 - 1
    for name in ("scopes", "prefixes"):
        if name in given:
            changes[name] = tuple(given.pop(name))
    account, by = scene.names[which], given.pop("by", "access key")
    if by == "access key":
        return await parties.new_key(world, account, **changes, **given)
    changes = {"name": "root"} | changes
    if by == "session":
        return await parties.new_session(world, account, **changes, **given)
    return await parties.new_bearer(world, account, token=by == "token", **changes, **given)


async def _tells_nothing(
    world: World, scene: parties.Scene, caller: parties.Party, protocol: wire.Protocol, wanted: dict[str, str]
) -> list[str]:
    """Refusals that differ between an existing queue and one that does not exist."""
    there, gone = parties.calls_on(world, scene, parties.MAIN), parties.calls_on(world, scene, parties.GONE)
    there["CancelMessageMoveTask"] = {"TaskHandle": _task_handle(parties.arn(scene.own, parties.MAIN))}
    gone["CancelMessageMoveTask"] = {"TaskHandle": _task_handle(parties.arn(scene.own, parties.GONE))}
    problems = []
    for action, outcome in wanted.items():
        if outcome != ALLOWED:
            one = await parties.call(world, caller, protocol, action, there[action])
            other = await parties.call(world, caller, protocol, action, gone[action])
            if one != other:
                problems.append(f"{action} tells that the queue is there: {one}, not {other}")
    return problems


def _judge(wanted: str, answer: dict[str, Any] | wire.WireRefusal) -> str:
    """Description of a deviation; empty: none."""
    if wanted == ALLOWED:
        return "" if isinstance(answer, dict) else str(answer)
    if not isinstance(answer, wire.WireRefusal):
        return f"carried out: {answer}"
    code, status, text = ANSWERS[wanted]
    fits = (answer.code, answer.status) == (code, status) and re.search(text, answer.message)
    return "" if fits else str(answer)


def _task_handle(source_arn: str) -> str:
    """A handle in the right format, made by an attacker who knows it."""
    return base64.urlsafe_b64encode(json.dumps({"taskId": "task", "sourceArn": source_arn}).encode()).decode()


def test_the_table_is_about_every_action() -> None:
    assert set(SCOPES_OF) == set(ACTIONS)
    groups = TABLE["groups"]
    assert {*groups["send"], *groups["receive"], *groups["look"], *groups["manage"]} == set(ACTIONS)
    for row in TABLE["rows"]:
        assert set(expected(row)) == set(ACTIONS), row["name"]
