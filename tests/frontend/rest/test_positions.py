"""Positions of reads over all partitions of a stream."""

from __future__ import annotations

from urllib.parse import urlencode

from frontend.rest.endpoint import QUERY_BYTES_MAX
from frontend.rest.stream_access import read_position, write_position
from metadata_service.streams import PARTITIONS_MAX, NewStream


def test_the_position_in_the_longest_stream_fits_into_a_query() -> None:
    stream = NewStream("000000000000", "long", {}, {}, 0, (0,) * PARTITIONS_MAX).made(1, range(PARTITIONS_MAX))
    offsets = {number: 10**17 + number for number in range(PARTITIONS_MAX)}
    text = write_position(offsets)
    assert read_position("after", text, stream) == offsets
    assert len(urlencode({"after": text, "wait": 20, "limit": 1_000, "key": "k" * 249})) < QUERY_BYTES_MAX
