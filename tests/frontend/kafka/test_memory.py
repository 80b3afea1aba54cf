"""Memory of decoded requests: at most six times their bytes and the allowance, however many elements an array has."""

from __future__ import annotations

from random import Random

import pytest

from frontend.kafka.protocol.encoding.reading import OVERHEAD_BYTES_MAX, MalformedRequest
from frontend.kafka.protocol.generator.decoders import element_charge
from frontend.kafka.protocol.generator.table import TableApi
from frontend.kafka.protocol.requests import decode_request
from tests.frontend.kafka.messages import APIS
from tests.fuzz.budget import memory_factor, peak_bytes
from tests.fuzz.grammar import Draws
from tests.fuzz.kafka_targets import RequestWriter, array_paths

PARTITIONS_MIN = 6_500
"""Elements of any array that are accepted."""


@pytest.mark.parametrize("costly", [False, True])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_arrays_of_as_many_elements_as_are_accepted(api: TableApi, costly: bool) -> None:
    for version in {api.versions.first, api.versions.last} if costly else {api.versions.last}:
        for path in array_paths(api.request.fields, version):
            writer = RequestWriter(Draws(Random(1)), api, version, 0)
            writer.path, writer.costly, writer.count = path, costly, 1
            empty = len(writer.frame())
            charge = element_charge(path[-1], version, writer.flexible)
            writer.count = int(OVERHEAD_BYTES_MAX * 0.99) // max(charge, 16)
            assert writer.count >= PARTITIONS_MIN
            frame = writer.frame()
            assert len(frame) > empty
            memory_factor(peak_bytes(lambda frame=frame: decode_request(frame)), len(frame))  # type: ignore[misc]
            if charge:
                writer.count = OVERHEAD_BYTES_MAX // charge + 1
                with pytest.raises(MalformedRequest, match="an array of"):
                    decode_request(writer.frame())


def test_unknown_tagged_fields_are_bounded() -> None:
    api = next(api for api in APIS if api.name == "Heartbeat")
    writer = RequestWriter(Draws(Random(1)), api, 4, 0)
    writer.path = [api.request.fields[0]]  # nothing is drawn
    frame = writer.frame()[:-1]
    assert decode_request(frame + b"\xa0\x1f" + b"\x05\x00" * 4_000).version == 4
    with pytest.raises(MalformedRequest, match="an array of 50000"):
        decode_request(frame + b"\xd0\x86\x03" + b"\x05\x00" * 50_000)
