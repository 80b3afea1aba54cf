"""Frames, headers of requests and responses, the answer about versions, and requests of real clients."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from frontend.kafka.protocol.encoding.reading import MalformedRequest
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.frames import FrameDecoder
from frontend.kafka.protocol.generated.fetch import (
    FetchRequestPartition,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from frontend.kafka.protocol.generated.metadata import ApiVersionsResponse
from frontend.kafka.protocol.generated.producers import InitProducerIdResponse
from frontend.kafka.protocol.requests import UnsupportedVersion, decode_request
from frontend.kafka.protocol.responses import SHARED_BYTES_MIN, encode_response, unsupported_api_versions
from frontend.kafka.protocol.versions import BY_NAME, api_versions_response
from frontend.streams.batches import produced_header
from frontend.streams.records import StreamRecord, build_batch, read_records
from tests.frontend.kafka.messages import APIS, decode_response
from tests.tables import read_yaml

GOLDEN: list[dict[str, Any]] = read_yaml(Path(__file__).with_name("golden.yaml"))
HEARTBEAT = struct.pack(">hhih", 12, 0, 9, 2) + b"id" + struct.pack(">h5sih6s", 5, b"group", 3, 6, b"member")
RESPONSES = {api.name: api.response for api in APIS}


def golden(client: str, api: str) -> Struct:
    """The body of a real client's request."""
    (row,) = [row for row in GOLDEN if (row["client"], row["api"]) == (client, api)]
    return decode_request(bytes.fromhex(row["frame"].replace(" ", ""))).body


# --- frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 11, 100])
def test_frames_arrive_in_any_parts(length: int) -> None:
    frames = [b"", b"a", b"some bytes", b"x" * 50, b"", b"end"]
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    decoder = FrameDecoder(50)
    taken = []
    for start in range(0, len(data), length):
        decoder.feed(data[start : start + length])
        while (frame := decoder.next_frame()) is not None:
            taken.append(frame)
    assert taken == frames
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 51, 2**31 - 1])
@pytest.mark.parametrize("parts", [1, 4])
def test_frames_of_a_wrong_length_are_refused_at_once(length: int, parts: int) -> None:
    data = struct.pack(">i", length)
    decoder = FrameDecoder(50)
    for start in range(0, 4, 4 // parts):
        assert decoder.next_frame() is None
        decoder.feed(data[start : start + 4 // parts])
    with pytest.raises(MalformedRequest, match=f"a frame of {length} bytes; at most 50 are accepted"):
        decoder.next_frame()


def test_bytes_that_wait_are_counted() -> None:
    decoder = FrameDecoder(50)
    decoder.feed(struct.pack(">i", 4) + b"abc")
    assert (decoder.next_frame(), decoder.buffered_bytes) == (None, 7)
    decoder.feed(b"d" + struct.pack(">i", 2))
    assert (decoder.next_frame(), decoder.buffered_bytes) == (b"abcd", 4)


# --- headers -----------------------------------------------------------------------------------------------


def test_header_without_tags() -> None:
    request = decode_request(HEARTBEAT)
    assert (request.api.name, request.version, request.correlation_id, request.client_id) == ("Heartbeat", 0, 9, "id")


def test_client_id_may_be_null() -> None:
    assert decode_request(HEARTBEAT[:8] + b"\xff\xff" + HEARTBEAT[12:]).client_id is None


@pytest.mark.parametrize("length", range(8))
def test_header_that_is_cut_off(length: int) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(HEARTBEAT[:length])


@pytest.mark.parametrize("client_id", [b"\x7f\xffid", b"\x00\x02\xff\xfe"])
def test_wrong_client_ids(client_id: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(HEARTBEAT[:8] + client_id + HEARTBEAT[12:])


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 12), (1, 3), (1, 18), (18, 5), (4, 0), (-1, 0), (71, 0)])
def test_versions_that_are_not_served(key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(struct.pack(">hhi", key, version, 77) + b"?")
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (key, version, 77)


def test_header_of_a_response_has_tags_in_flexible_versions() -> None:
    api = BY_NAME["InitProducerId"]
    body = b"\0" * 4 + b"\0\0" + b"\0" * 8 + b"\0\0"
    response = InitProducerIdResponse(producer_id=0)
    assert encode_response(api, 1, 5, response) == [struct.pack(">ii", 20, 5) + body]
    assert encode_response(api, 2, 5, response) == [struct.pack(">ii", 22, 5) + b"\0" + body + b"\0"]


# --- versions ----------------------------------------------------------------------------------------------


def test_the_answer_about_versions_has_no_tags_in_its_header() -> None:
    for version in range(5):
        frame = b"".join(encode_response(BY_NAME["ApiVersions"], version, 7, api_versions_response()))
        assert decode_response(RESPONSES["ApiVersions"], version, frame) == api_versions_response()


def test_an_unknown_version_of_api_versions_is_answered_in_the_form_of_version_0() -> None:
    frame = b"".join(unsupported_api_versions(7))
    answer = decode_response(RESPONSES["ApiVersions"], 0, frame)
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == 35
    advertised = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert len(advertised) == 28
    assert advertised.pop(0) == (0, 11)
    assert advertised == {api.key: api.versions for api in APIS if api.name != "Produce"}


# --- buffers of responses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_records_are_passed_on_without_a_copy(version: int) -> None:
    large, small = memoryview(b"x" * SHARED_BYTES_MIN), b"y" * 10
    records: list[Buffer] = [b"h" * 16, large, small]
    partitions = [FetchResponsePartition(0, records=records), FetchResponsePartition(1, records=large)]
    buffers = encode_response(
        BY_NAME["Fetch"], version, 7, FetchResponse(responses=[FetchResponseTopic("t", bytes(16), partitions)])
    )
    assert [buffer is large for buffer in buffers[:4]] == [False, True, False, True]
    decoded = decode_response(RESPONSES["Fetch"], version, b"".join(buffers))
    assert isinstance(decoded, FetchResponse)
    assert [one.records for one in decoded.responses[0].partitions] == [b"h" * 16 + large + small, large]


# --- requests of real clients ------------------------------------------------------------------------------


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['client']}: {row['api']}")
def test_requests_of_real_clients(row: dict[str, Any]) -> None:
    request = decode_request(bytes.fromhex(row["frame"].replace(" ", "")))
    assert (request.api.name, request.version, request.client_id) == (row["api"], row["version"], "golden")


@pytest.mark.parametrize(
    ("client", "software"), [("librdkafka 2.16", "confluent-kafka-python"), ("kafka-python 3.0", "kafka-python")]
)
def test_fields_of_real_requests(client: str, software: str) -> None:
    versions: Any = golden(client, "ApiVersions")
    assert versions.client_software_name == software
    produce: Any = golden(client, "Produce")
    assert (produce.transactional_id, produce.acks, produce.timeout_ms) == (None, -1, 30_000)
    ((topic,),) = (produce.topic_data,)
    ((partition,),) = (topic.partition_data,)
    assert (topic.name, partition.index) == ("topic", 0)
    header = produced_header(partition.records, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 0, 0)
    record = StreamRecord(b"value", b"key", [("h", b"x")], 1_700_000_000_000)
    assert list(read_records(partition.records, 1000)) == [record]
    built = build_batch([record], leader_epoch=header.leader_epoch, producer_id=4000, producer_epoch=0, base_sequence=0)
    assert built == partition.records
    fetch: Any = golden(client, "Fetch")
    assert (fetch.replica_id, fetch.max_wait_ms, fetch.min_bytes, fetch.session_id) == (-1, 500, 1, 0)
    assert fetch.topics[0].partitions == [FetchRequestPartition(0, 0, 0, -1, -1, 1_048_576)]
