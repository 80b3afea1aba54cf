"""Every member of every action: missing, empty, and too long, with what members.yaml expects.

The members are those of botocore's service model, so a new one fails here until the table has it.
"""

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.model import Shape

from frontend.sns.protocol.model import SNS_ACTIONS
from tests.frontend.service import running
from tests.frontend.sns.cases import SERVICE, RecordingSender, SnsCase, SnsCaseRun
from tests.tables import beside


@cache
def table() -> dict[str, Any]:
    loaded: dict[str, Any] = beside(__file__, "members.yaml")["actions"]
    return loaded


def members_of(shape: Shape, prefix: str = "") -> Iterator[str]:
    """Members of an input, those of list elements and of message attributes as dotted paths."""
    for name, member in shape.members.items():
        yield prefix + name
        inner = {"list": "member", "map": "value"}.get(member.type_name)
        inner_shape = getattr(member, inner) if inner else member
        if inner_shape.type_name == "structure":
            yield from members_of(inner_shape, f"{prefix}{name}.")


def test_no_member_is_left_out() -> None:
    expected = {name: set(members_of(SERVICE.operation_model(name).input_shape)) for name in SNS_ACTIONS}
    assert {name: set(row["members"]) for name, row in table().items()} == expected
    assert all({"missing", "empty"} <= about.keys() for row in table().values() for about in row["members"].values())


def changed(params: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The params with the member at the path replaced (None: removed), in the first element and attribute."""
    params = copy.deepcopy(params)
    place: Any = params
    *outer, last = path.split(".")
    for name in outer:
        place = place[name]
        place = place[0] if isinstance(place, list) else next(iter(place.values()), place)
    place.pop(last, None)
    if value is not None:
        place[last] = value
    return params


def variants(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Variants of a call: a description, the params, and the expectation."""
    yield "nothing", row["params"], row.get("refused", "ok")
    for path, about in row["members"].items():
        yield f"{path} is missing", changed(row["params"], path, None), about["missing"]
        sample: Any = row["params"]
        for name in path.split("."):
            sample = sample.get(name) if isinstance(sample, dict) else None
        empty: Any = type(sample)() if isinstance(sample, list | dict) else ""
        yield f"{path} is empty", changed(row["params"], path, empty), about["empty"]
        if "too_long" in about:
            length, expected = about["too_long"]
            yield f"{path} is too long", changed(row["params"], path, "x" * length), expected


@pytest.mark.parametrize("action", sorted(SNS_ACTIONS))
async def test_members(action: str, tmp_path: Path) -> None:
    sender = RecordingSender()
    row = table()[action]
    async with running(tmp_path, sender_of=lambda context: sender) as service:
        for number, (what, params, expected) in enumerate(variants(row)):
            run = SnsCaseRun(service, sender, SnsCase(f"{action}-{number}", []))
            code = await run.outcome(action, params, f"t{number}", f"q{number}")
            assert code == expected, what
