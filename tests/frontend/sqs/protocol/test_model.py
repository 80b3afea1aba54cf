"""The action table agrees with AWS's service model, and has all Query names."""

from typing import Any

import botocore.loaders
import pytest

from frontend.sqs.protocol import errors, model
from tests.frontend.query.service_model import check_shape

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sqs", "service-2")
SHAPES: dict[str, Any] = MODEL["shapes"]


def test_the_actions_are_those_of_the_service_model() -> None:
    assert set(model.ACTIONS) == set(MODEL["operations"])
    assert len(model.ACTIONS) == 23


@pytest.mark.parametrize("name", sorted(model.ACTIONS))
def test_an_action_has_the_members_types_and_errors_of_the_service_model(name: str) -> None:
    ours, amazon = model.ACTIONS[name], MODEL["operations"][name]
    check_shape(ours.input, SHAPES, amazon["input"]["shape"], name)
    if "output" in amazon:
        assert ours.output is not None
        assert ours.output.name == amazon["output"]["shape"]
        check_shape(ours.output, SHAPES, amazon["output"]["shape"], name)
    else:
        assert ours.output is None
    assert set(ours.errors) == {error["shape"] for error in amazon["errors"]}


def test_every_error_of_the_service_model_is_in_the_registry() -> None:
    exceptions = {name for name, shape in SHAPES.items() if shape.get("exception")}
    assert exceptions <= set(errors.REGISTRY)


def test_attribute_names_are_those_of_the_service_model() -> None:
    assert set(model.QUEUE_ATTRIBUTE_NAMES) == set(SHAPES["QueueAttributeName"]["enum"])
    assert set(model.SYSTEM_ATTRIBUTE_NAMES) == set(SHAPES["MessageSystemAttributeName"]["enum"])
