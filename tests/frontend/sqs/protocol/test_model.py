"""The action table agrees with AWS's service model, and has all Query names."""

from typing import Any

import botocore.loaders
import pytest

from frontend.sqs.protocol import errors, model

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sqs", "service-2")
SHAPES: dict[str, Any] = MODEL["shapes"]


def same(ours: model.Type, shape_name: str, where: str) -> None:
    amazon = SHAPES[shape_name]
    match ours:
        case model.Scalar():
            assert amazon["type"] == ours.name, where
        case model.ListOf():
            assert amazon["type"] == "list", where
            same(ours.item, amazon["member"]["shape"], where + "[]")
        case model.MapOf():
            assert amazon["type"] == "map", where
            assert SHAPES[amazon["key"]["shape"]]["type"] == "string", where
            same(ours.value, amazon["value"]["shape"], where + "{}")
        case model.Structure():
            assert amazon["type"] == "structure", where
            assert list(ours.members) == list(amazon["members"]), where
            required = {name for name, member in ours.members.items() if member.required}
            assert required == set(amazon.get("required", [])), where
            for name, member in ours.members.items():
                same(member.type, amazon["members"][name]["shape"], f"{where}.{name}")


def test_the_actions_are_those_of_the_service_model() -> None:
    assert set(model.ACTIONS) == set(MODEL["operations"])
    assert len(model.ACTIONS) == 23


@pytest.mark.parametrize("name", sorted(model.ACTIONS))
def test_an_action_has_the_members_types_and_errors_of_the_service_model(name: str) -> None:
    ours, amazon = model.ACTIONS[name], MODEL["operations"][name]
    same(ours.input, amazon["input"]["shape"], name)
    if "output" in amazon:
        assert ours.output is not None
        assert ours.output.name == amazon["output"]["shape"]
        same(ours.output, amazon["output"]["shape"], name)
    else:
        assert ours.output is None
    assert set(ours.errors) == {error["shape"] for error in amazon["errors"]}


def test_every_error_of_the_service_model_is_in_the_registry() -> None:
    exceptions = {name for name, shape in SHAPES.items() if shape.get("exception")}
    assert exceptions <= set(errors.REGISTRY)


def test_attribute_names_are_those_of_the_service_model() -> None:
    assert set(model.QUEUE_ATTRIBUTE_NAMES) == set(SHAPES["QueueAttributeName"]["enum"])
    assert set(model.SYSTEM_ATTRIBUTE_NAMES) == set(SHAPES["MessageSystemAttributeName"]["enum"])
