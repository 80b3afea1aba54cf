"""Forms of a message in the body of a request: as it is, or as an object in JSON."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from frontend.request.request import Members
from frontend.rest.models import AttributeValue
from frontend.rest.problems import invalid
from frontend.sqs.protocol import bounds

T = TypeVar("T", bound=BaseModel)

_JSON = "application/json"


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """Description of a request whose body is a message, for the OpenAPI document."""
    return {
        "requestBody": {
            "description": "The message's body, as it is; or, with application/json, the message as an object.",
            "required": True,
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                _JSON: {"schema": model.model_json_schema()},
            },
        }
    }


def read_message(action: str, model: type[T], content_type: str, body: bytes) -> T:
    """Parse the message in the body of a request, for this action.  Raises :class:`Problem` and :class:`SqsError`."""
    if content_type.partition(";")[0].strip().lower() != _JSON:
        if len(body) > bounds.CONTENT_BYTES_MAX:
            raise bounds.too_much_content(action)
        try:
            return model.model_construct(body=body.decode())
        except UnicodeDecodeError:
            raise invalid("The body of a message is text in UTF-8.") from None
    if len(body) > bounds.SMALL_BYTES:
        bounds.check_json(action, body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise invalid(
            f"With Content-Type application/json a message is an object with the member 'body': {place}"
            f"{first['msg']}. With another Content-Type, such as text/plain, the body of the request is the message."
        ) from None


def attribute_members(given: Mapping[str, AttributeValue]) -> Members:
    """Message attributes as members of an action.  Raises :class:`Problem`."""
    return {name: _attribute(name, value) for name, value in given.items()}


def _attribute(name: str, given: AttributeValue) -> Members:
    if not given.type.startswith("Binary"):
        return {"DataType": given.type, "StringValue": given.value}
    try:
        return {"DataType": given.type, "BinaryValue": b64decode(given.value, validate=True)}
    except ValueError:
        raise invalid(f"The value of the attribute {name!r} is not base64.") from None
