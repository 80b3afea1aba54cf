"""Our table says what Kafka's own definitions say: fields, types, versions, nulls, tags and defaults."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from frontend.kafka.protocol.generator.table import TableApi, TableField, TableMessage, VersionRange
from frontend.kafka.protocol.versions import BY_KEY
from frontend.streams.errors import ErrorCode
from tests.frontend.kafka.messages import APIS, MESSAGES
from tests.servers.java import kafka_client

ZEROS = {"bool": False, "string": "", "bytes": b"", "uuid": bytes(16), "records": None}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_fields(message: TableMessage) -> None:
    definition = kafka_client.definition(message.name)
    common = {one["name"]: one["fields"] for one in definition.get("commonStructs", [])}
    served = message.api.versions
    assert _of_table(message.fields, message.name, served) == _of_kafka(definition["fields"], common, served)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_versions(api: TableApi) -> None:
    for message in (api.request, api.response):
        definition = kafka_client.definition(message.name)
        assert definition["apiKey"] == api.key
        assert _range(definition["validVersions"], VersionRange(0, 99)) == (api.versions.first, _last(definition))
        assert api.versions.last <= _last(definition)
        flexible = _range(definition["flexibleVersions"], VersionRange(0, 99))
        assert api.flexible_min == (None if flexible is None else flexible.first)
    assert api.versions.last == BROKER_API_VERSIONS[3, 9][api.key][1]
    assert BY_KEY[api.key][:5] == (api.name, api.key, *api.versions, api.flexible_min)


def test_error_codes() -> None:
    of_kafka = kafka_client.errors()
    assert {code.value: (code.name, code.retriable) for code in ErrorCode} == {
        code.value: of_kafka[code.value] for code in ErrorCode
    }
    assert all(code.text.endswith(".") for code in ErrorCode if code is not ErrorCode.NONE)


def _last(definition: dict[str, Any]) -> int:
    found = _range(definition["validVersions"], VersionRange(0, 99))
    assert found is not None
    return found.last


def _range(text: str | None, served: VersionRange) -> VersionRange | None:
    """Versions as Kafka writes them, as far as they are served; None if none is."""
    if text is None or text == "none":
        return None
    first, _, last = text.partition("-")
    if text.endswith("+"):
        first, last = text[:-1], str(served.last)
    found = VersionRange(max(int(first), served.first), min(int(last or first), served.last))
    return found if found.first <= found.last else None


def _both(left: VersionRange | None, right: VersionRange) -> VersionRange | None:
    if left is None:
        return None
    found = VersionRange(max(left.first, right.first), min(left.last, right.last))
    return found if found.first <= found.last else None


def _of_kafka(fields: list[dict[str, Any]], common: dict[str, Any], outer: VersionRange) -> list[Any]:
    found = []
    for one in fields:
        own = _range(one["versions"], outer)
        if own is None:
            continue
        kind = one["type"].removeprefix("[]")
        inner = one.get("fields") or common.get(kind)
        tagged = _range(one.get("taggedVersions"), outer)
        assert tagged in (None, own), "a field that is tagged in some of its versions"
        assert "flexibleVersions" not in one, "a field with flexible versions of its own"
        is_array = one["type"].startswith("[]")
        found.append(
            (
                re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", one["name"]).lower(),
                "structure" if inner else kind,
                is_array,
                own,
                _both(_range(one.get("nullableVersions"), outer), own),
                None if tagged is None else one["tag"],
                _kafkas_default(one.get("default"), kind, is_array, inner is not None),
                _of_kafka(inner, common, own) if inner else [],
            )
        )
    return found


def _of_table(fields: list[TableField], message: str, outer: VersionRange) -> list[Any]:
    return [
        (
            one.name,
            "structure" if one.is_structure else one.kind,
            one.is_array,
            _both(one.versions, outer),
            _both(one.nullable, one.versions),
            one.tag,
            _default(one),
            _of_table(one.fields, message, one.versions),
        )
        for one in fields
    ]


def _kafkas_default(given: Any, kind: str, is_array: bool, is_structure: bool) -> Any:
    if is_array or is_structure:
        assert given is None
        return None
    if given is None:
        return ZEROS.get(kind, 0)
    text = str(given)
    if text == "null":
        return None
    if kind == "string":
        return text
    return text == "true" if kind == "bool" else int(text, 0)


def _default(one: TableField) -> Any:
    """A default as the generated class has it; arrays are empty and structures absent."""
    if one.is_array or one.is_structure:
        assert one.default is None
        return None
    text = one.default
    if text is None:
        return ZEROS.get(one.kind, 0)
    return {"null": None, "true": True, "false": False, '""': ""}[text] if not text.lstrip("-").isdigit() else int(text)
