"""The table of SNS's actions agrees with AWS's service model."""

from typing import Any

import botocore.loaders
import pytest

from frontend.sns.protocol import errors, model
from tests.frontend.query.service_model import check_shape

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sns", "service-2")
SHAPES: dict[str, Any] = MODEL["shapes"]


def test_every_action_of_the_service_model_is_served_or_refused() -> None:
    assert set(model.SNS_ACTIONS) | set(model.NOT_SERVED) == set(MODEL["operations"])
    assert not set(model.SNS_ACTIONS) & set(model.NOT_SERVED)
    assert len(model.SNS_ACTIONS) == 19


@pytest.mark.parametrize("name", sorted(model.SNS_ACTIONS))
def test_an_action_has_the_members_types_names_and_errors_of_the_service_model(name: str) -> None:
    ours, amazon = model.SNS_ACTIONS[name], MODEL["operations"][name]
    assert ours.input.name == amazon["input"]["shape"]
    check_shape(ours.input, SHAPES, amazon["input"]["shape"], name, wires=True)
    if "output" in amazon:
        assert ours.output is not None
        assert ours.output.name == amazon["output"]["shape"]
        assert amazon["output"]["resultWrapper"] == f"{name}Result"
        check_shape(ours.output, SHAPES, amazon["output"]["shape"], name, wires=True)
    else:
        assert ours.output is None
    assert set(ours.errors) == {error["shape"] for error in amazon["errors"]}


def test_every_error_of_the_service_model_is_in_the_registry_with_its_code_and_status() -> None:
    for name, shape in SHAPES.items():
        if shape.get("exception"):
            kind = errors.SNS_REGISTRY[name]
            about = shape.get("error", {"code": name, "httpStatusCode": 400})
            assert (kind.query_code, kind.status) == (about["code"], about["httpStatusCode"])
            assert kind.text
