"""Every message in every version: what one side encodes, the other decodes as it was."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from frontend.kafka.protocol import generated
from frontend.kafka.protocol.encoding.reading import MalformedRequest
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.generator.table import TableMessage
from frontend.kafka.protocol.requests import decode_request
from frontend.kafka.protocol.responses import encode_response
from frontend.kafka.protocol.versions import BY_KEY
from tests.frontend.kafka import messages
from tests.frontend.kafka.messages import (
    APIS,
    CLIENT_ID,
    decode_response,
    drawn,
    encoded_body,
    request_frame,
    versions,
)

EXAMPLES = settings(
    max_examples=40,
    phases=(Phase.generate, Phase.shrink),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.mark.parametrize("message", [api.request for api in APIS], ids=lambda message: message.name)
def test_requests(message: TableMessage) -> None:
    @EXAMPLES
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(message)))
        body = data.draw(drawn(message, version))
        frame = request_frame(message, version, body)
        request = decode_request(frame)
        assert request.body == body
        assert request[1:4] == (version, 7, CLIENT_ID)
        assert request.api.name == message.api.name
        body_start = len(frame) - len(encoded_body(message, version, body))
        for end in {data.draw(st.integers(body_start, len(frame))), len(frame) - 1} - {len(frame)}:
            if end >= body_start:
                with pytest.raises(MalformedRequest):
                    decode_request(frame[:end])
        assert decode_request(frame + b"\0\1").body == body, "Kafka ignores what follows, and librdkafka relies on it"

    check()


@pytest.mark.parametrize("message", [api.response for api in APIS], ids=lambda message: message.name)
def test_responses(message: TableMessage) -> None:
    @EXAMPLES
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(message)))
        body = data.draw(drawn(message, version))
        frame = b"".join(encode_response(BY_KEY[message.api.key], version, 7, body))
        assert decode_response(message, version, frame) == body

    check()


@pytest.mark.parametrize("message", [api.request for api in APIS], ids=lambda message: message.name)
def test_each_request_that_is_cut_off_is_malformed(message: TableMessage) -> None:
    @settings(EXAMPLES, max_examples=25)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(message)))
        frame = request_frame(message, version, data.draw(drawn(message, version)))
        end = data.draw(st.integers(8, len(frame) - 1))
        with pytest.raises(MalformedRequest):
            decode_request(frame[:end])

    check()


@pytest.mark.parametrize("name", ["Produce", "Fetch"])
def test_functions_by_hand_write_what_generated_ones_do(name: str) -> None:
    api = next(api for api in APIS if api.name == name)
    (plain,) = getattr(generated, api.file).APIS
    fast = BY_KEY[api.key]
    assert fast is not plain

    @settings(EXAMPLES, max_examples=80)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(api.response)))
        index = version - plain.version_min
        response = data.draw(drawn(api.response, version))
        written: list[list[Buffer]] = [[], []]
        for parts, served in zip(written, (fast, plain), strict=True):
            served.encoders[index](response, parts.append)
        assert b"".join(written[0]) == b"".join(written[1])
        frame = request_frame(api.request, version, data.draw(drawn(api.request, version)))
        pos = 10 + len(CLIENT_ID) + api.is_flexible(version)
        assert fast.decoders[index](frame, pos) == plain.decoders[index](frame, pos)

    check()


def test_unknown_tagged_fields_are_skipped() -> None:
    api = next(api for api in APIS if api.name == "Heartbeat")
    body = messages.class_of(api.request)("group", 3, "member", None)
    frame = request_frame(api.request, 4, body)
    assert frame.endswith(b"\0")
    tags = b"\x03" + b"\x00\x03abc" + b"\x80\x01\x00" + b"\xff\xff\xff\xff\x0f\x02xy"
    assert decode_request(frame[:-1] + tags).body == body
    for wrong in (b"\x04", b"\x01\x00\x05abc", b"\x01\x00\xff\xff\xff\xff\x1f", b"\xff\xff\xff\xff\x0f\x00\x00"):
        with pytest.raises(MalformedRequest):
            decode_request(frame[:-1] + wrong)
