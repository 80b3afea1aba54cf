"""Comparison of a table of actions with AWS's service model."""

from typing import Any

from frontend.query.shapes import ListOf, MapOf, Scalar, Structure, Type


def check_shape(ours: Type, shapes: dict[str, Any], name: str, where: str, *, wires: bool = False) -> None:
    """Assert that a type is the model's shape of this name.  ``wires``: the model has the names on the wire too."""
    amazon = shapes[name]
    match ours:
        case Scalar():
            assert amazon["type"] == ours.name, where
        case ListOf():
            assert amazon["type"] == "list", where
            check_shape(ours.item, shapes, amazon["member"]["shape"], where + "[]", wires=wires)
            if wires:
                flattened = amazon.get("flattened", False)
                assert ours.element == ("" if flattened else amazon["member"].get("locationName", "member")), where
        case MapOf():
            assert amazon["type"] == "map", where
            assert shapes[amazon["key"]["shape"]]["type"] == "string", where
            check_shape(ours.value, shapes, amazon["value"]["shape"], where + "{}", wires=wires)
            if wires:
                assert ours.element == ("" if amazon.get("flattened", False) else "entry"), where
                assert ours.key_wire == amazon["key"].get("locationName", "key"), where
                assert ours.value_wire == amazon["value"].get("locationName", "value"), where
        case Structure():
            assert amazon["type"] == "structure", where
            assert list(ours.members) == list(amazon["members"]), where
            required = {member for member, about in ours.members.items() if about.required}
            assert required == set(amazon.get("required", [])), where
            for member, about in ours.members.items():
                inner = amazon["members"][member]
                check_shape(about.type, shapes, inner["shape"], f"{where}.{member}", wires=wires)
                if wires:
                    assert about.wire == inner.get("locationName", member), where
