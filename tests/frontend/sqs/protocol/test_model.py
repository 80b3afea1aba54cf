"""The action table agrees with AWS's service model, and has all Query names."""

from __future__ import annotations

from typing import Any

import botocore.loaders
import pytest

from frontend.sqs.protocol import errors
from frontend.sqs.protocol.model import (
    ACTIONS,
    QUEUE_ATTRIBUTE_NAMES,
    SYSTEM_ATTRIBUTE_NAMES,
    ListOf,
    MapOf,
    Scalar,
    Structure,
    Type,
)

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sqs", "service-2")
SHAPES: dict[str, Any] = MODEL["shapes"]


def same(ours: Type, shape_name: str, where: str) -> None:
    theirs = SHAPES[shape_name]
    match ours:
        case Scalar():
            assert theirs["type"] == ours.name, where
        case ListOf():
            assert theirs["type"] == "list", where
            same(ours.item, theirs["member"]["shape"], where + "[]")
        case MapOf():
            assert theirs["type"] == "map", where
            assert SHAPES[theirs["key"]["shape"]]["type"] == "string", where
            same(ours.value, theirs["value"]["shape"], where + "{}")
        case Structure():
            assert theirs["type"] == "structure", where
            assert list(ours.members) == list(theirs["members"]), where
            required = {name for name, member in ours.members.items() if member.required}
            assert required == set(theirs.get("required", [])), where
            for name, member in ours.members.items():
                same(member.type, theirs["members"][name]["shape"], f"{where}.{name}")


def test_the_actions_are_those_of_the_service_model() -> None:
    assert set(ACTIONS) == set(MODEL["operations"])
    assert len(ACTIONS) == 23


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_an_action_has_the_members_types_and_errors_of_the_service_model(name: str) -> None:
    ours, theirs = ACTIONS[name], MODEL["operations"][name]
    same(ours.input, theirs["input"]["shape"], name)
    if "output" in theirs:
        assert ours.output is not None
        assert ours.output.name == theirs["output"]["shape"]
        same(ours.output, theirs["output"]["shape"], name)
    else:
        assert ours.output is None
    assert set(ours.errors) == {error["shape"] for error in theirs["errors"]}


def test_every_error_of_the_service_model_is_in_the_registry() -> None:
    exceptions = {name for name, shape in SHAPES.items() if shape.get("exception")}
    assert exceptions <= set(errors.REGISTRY)


def test_attribute_names_are_those_of_the_service_model() -> None:
    assert set(QUEUE_ATTRIBUTE_NAMES) == set(SHAPES["QueueAttributeName"]["enum"])
    assert set(SYSTEM_ATTRIBUTE_NAMES) == set(SHAPES["MessageSystemAttributeName"]["enum"])
