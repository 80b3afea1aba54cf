"""Other codecs of the protocol understand every message as we do: kio and kafka-python, in every version.

The oracle decodes what we encode; its values are compared with ours in order, and what it encodes of them has to be
the same bytes.  So both directions are compared at once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from frontend.kafka.protocol.generator.table import TableMessage
from tests.frontend.kafka.messages import MESSAGES, drawn, encoded_body, flattened, versions
from tests.frontend.kafka.test_round_trips import EXAMPLES

PACKAGES: tuple[ModuleType, ...] = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)
UNCOMPARED = object()
"""A value that the oracle has in a form of its own: a set of operations; the encoded bytes are compared."""
SHORT = settings(EXAMPLES, max_examples=25)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_kio(message: TableMessage) -> None:
    load = load_request_schema if message is message.api.request else load_response_schema

    @SHORT
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(message)))
        body = data.draw(drawn(message, version))
        encoded = encoded_body(message, version, body)
        schema = load(message.api.key, version)
        entity, end = entity_reader(schema)(encoded, 0)
        assert end == len(encoded)
        assert list(_of_kio(entity)) == list(flattened(message, version, body))
        written = io.BytesIO()
        entity_writer(schema)(written, entity)
        assert written.getvalue() == encoded

    check()


def _of_kio(entity: Any) -> Iterator[Any]:
    for one in dataclasses.fields(entity):
        value = getattr(entity, one.name)
        if dataclasses.is_dataclass(value):
            yield from _of_kio(value)
        elif isinstance(value, tuple) and "kafka_type" not in one.metadata:
            yield len(value)
            for element in value:
                yield from _of_kio(element)
        elif value is None and one.metadata.get("kafka_type") == "uuid":
            yield bytes(16)
        elif value is None and one.metadata.get("kafka_type") == "datetime_i64":
            yield -1
        else:
            yield _plain(value)


def _plain(value: Any) -> Any:
    """A value of a library's type as ours."""
    match value:
        case dt.datetime():
            return (value - EPOCH) // MILLISECOND
        case dt.timedelta():
            return value // MILLISECOND
        case uuid.UUID():
            return value.bytes
        case list():
            return tuple(value)
    return value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_kafka_python(message: TableMessage) -> None:
    (kind,) = {getattr(package, message.name) for package in PACKAGES if hasattr(package, message.name)}
    known = [version for version in versions(message) if version <= kind.max_version]
    assert known == list(versions(message))

    @SHORT
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(known))
        body = data.draw(drawn(message, version))
        if message.name == "ApiVersionsResponse":
            body = msgspec.structs.replace(body, error_code=0)  # an error is expected in the form of version 0
        encoded = encoded_body(message, version, body)
        decoded = kind.decode(encoded, version=version)
        decoded._header = None  # encoding needs the attribute
        own = list(flattened(message, version, body))
        others = list(_of_kafka_python(decoded, version))
        assert others == [value if other is not UNCOMPARED else other for value, other in zip(own, others, strict=True)]
        assert bytes(decoded.encode(version=version)) == encoded

    check()


def _of_kafka_python(container: Any, version: int) -> Iterator[Any]:
    for one in container._struct._fields:
        if not one.for_version_q(version):
            continue
        value = getattr(container, one.name)
        if one.is_struct() and value is None:
            yield from (inner.default for inner in one.fields.values())
        elif one.is_struct():
            yield from _of_kafka_python(value, version)
        elif one.is_struct_array():
            yield None if value is None else len(value)
            for element in value or ():
                yield from _of_kafka_python(element, version)
        elif one.name.endswith("authorized_operations"):
            yield UNCOMPARED
        elif value is None and one.name == "topic_id":
            yield bytes(16)
        else:
            yield _plain(value)
