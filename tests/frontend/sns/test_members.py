"""Every member of every action: missing, empty, too long, as long as it may be, of the wrong type, and unknown members.

members.yaml has the expectations.  The members are those of botocore's service model, so a new one fails here until
the table has it.
"""

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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


class ModelMember(NamedTuple):
    """A member of an input, or of the first element of one."""

    wire: str
    """Name in a form, of its first element."""
    shape: Shape


def members_of(shape: Shape, path: str = "", wire: str = "") -> Iterator[tuple[str, ModelMember]]:
    """Members of an input, those of list elements and of message attributes as dotted paths."""
    for name, member in shape.members.items():
        yield path + name, ModelMember(wire + name, member)
        inner: Shape = member
        way = ""
        if member.type_name == "list":
            inner, way = member.member, ".member.1"
        elif member.type_name == "map":
            inner, way = member.value, f".entry.1.{member.value.serialization.get('name', 'value')}"
        if inner.type_name == "structure":
            yield from members_of(inner, f"{path}{name}.", f"{wire}{name}{way}.")


@cache
def model_members() -> dict[str, dict[str, ModelMember]]:
    return {name: dict(members_of(SERVICE.operation_model(name).input_shape)) for name in SNS_ACTIONS}


def test_no_member_is_left_out() -> None:
    expected = {name: set(members) for name, members in model_members().items()}
    assert {name: set(row["members"]) for name, row in table().items()} == expected
    for name, row in table().items():
        for path, about in row["members"].items():
            wanted = {"missing", "empty"}
            if model_members()[name][path].shape.type_name == "string":
                wanted |= {"too_long"}
            assert wanted <= about.keys(), f"{name}.{path}"


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


class MemberVariant(NamedTuple):
    """A variant of a call."""

    what: str
    params: dict[str, Any]
    expected: str
    replaced: tuple[str, dict[str, str]] | None = None
    """See :meth:`SnsCaseRun.outcome`."""


def wrong_types(member: ModelMember) -> Iterator[tuple[dict[str, str], str]]:
    """Forms of a member that are not of its type, and the code of the error."""
    wire, kind = member
    match kind.type_name:
        case "list" | "map":
            yield {wire: "x"}, "MalformedInput"
            yield {f"{wire}.x": "x"}, "MalformedInput"
            yield {f"{wire}.{'member' if kind.type_name == 'list' else 'entry'}.x": "x"}, "MalformedInput"
        case "boolean":
            yield {wire: "maybe"}, "InvalidParameter"
            yield {f"{wire}.x": "true"}, "MalformedInput"
        case "blob":
            yield {wire: "="}, "InvalidParameter"
            yield {f"{wire}.x": "QQ=="}, "MalformedInput"
        case _:
            yield {f"{wire}.x": "x"}, "MalformedInput"
            yield {f"{wire}.1": "x", wire: "x"}, "MalformedInput"


def variants(action: str, row: dict[str, Any]) -> Iterator[MemberVariant]:
    """Variants of a call."""
    good = row.get("refused", "ok")
    yield MemberVariant("nothing", row["params"], good)
    yield MemberVariant("an unknown member", row["params"], good, ("Unknown", {"Unknown": "x", "Nonsense.1.x": "y"}))
    for path, about in row["members"].items():
        member = model_members()[action][path]
        for form, code in wrong_types(member):
            yield MemberVariant(f"{path} is of the wrong type: {form}", row["params"], code, (member.wire, form))
        yield from _member_variants(row, path, about)


def _member_variants(row: dict[str, Any], path: str, about: dict[str, Any]) -> Iterator[MemberVariant]:
    yield MemberVariant(f"{path} is missing", changed(row["params"], path, None), about["missing"])
    sample: Any = row["params"]
    for name in path.split("."):
        sample = sample.get(name) if isinstance(sample, dict) else None
    empty: Any = type(sample)() if isinstance(sample, list | dict) else ""
    yield MemberVariant(f"{path} is empty", changed(row["params"], path, empty), about["empty"])
    for length_of in ("longest", "too_long"):
        if length_of in about:
            length, expected = about[length_of]
            yield MemberVariant(f"{path} is {length_of}", changed(row["params"], path, "x" * length), expected)


@pytest.mark.parametrize("action", sorted(SNS_ACTIONS))
async def test_members(action: str, tmp_path: Path) -> None:
    sender = RecordingSender()
    row = table()[action]
    async with running(tmp_path, sender_of=lambda context: sender) as service:
        for number, (what, params, expected, replaced) in enumerate(variants(action, row)):
            run = SnsCaseRun(service, sender, SnsCase(f"{action}-{number}", []))
            code = await run.outcome(action, params, f"t{number}", f"q{number}", replaced)
            assert code == expected, what
