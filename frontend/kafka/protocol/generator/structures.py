"""Classes of messages as source: one for each structure, with the fields of all versions."""

from __future__ import annotations

from collections.abc import Iterator

from frontend.kafka.protocol.generator.table import TableField, TableMessage

_TYPES = {
    "bool": "bool",
    "string": "str",
    "bytes": "Buffer",
    "uuid": "bytes",
    "records": "Records",
}
_ZEROS = {"bool": "False", "string": '""', "bytes": 'b""', "uuid": "bytes(16)", "records": "None"}
_WORDS = {"null": "None", "true": "True", "false": "False"}


def annotation(one: TableField) -> str:
    """Return the Python type of a field."""
    name = one.kind if one.is_structure else _TYPES.get(one.kind, "int")
    if one.is_array:
        name = f"list[{name}]"
    elif one.kind == "records":
        return name
    if one.nullable or (one.tag is not None and one.is_structure and not one.is_array):
        return f"{name} | None"
    return name


def default_of(one: TableField) -> str:
    """Return a field's default as an expression."""
    if one.default is not None:
        return _WORDS.get(one.default, one.default)
    if one.is_array:
        return "[]"
    if one.is_structure:
        return "None" if one.tag is not None else f"{one.kind}()"
    return _ZEROS.get(one.kind, "0")


def classes(message: TableMessage) -> Iterator[str]:
    """The lines of a message's classes."""
    for name, used_by, fields in message.structures():
        yield ""
        yield ""
        yield f"class {name}(msgspec.Struct, gc=False):"
        if used_by:
            yield f'    """A structure of {message.name}, in its field {used_by}."""'
        else:
            direction = "request" if name.endswith("Request") else "response"
            yield f'    """The {direction} of {message.api.name}."""'
        yield ""
        for one in fields:
            default = default_of(one)
            if default == "[]":
                default = "msgspec.field(default_factory=list)"
            yield f"    {one.name}: {annotation(one)} = {default}"
