"""The served APIs and their versions, and the response to a request for them.

The highest versions are those of Kafka 3.9, the lowest those of Kafka 4 (KIP-896).  Produce is advertised from 0:
librdkafka silently stops compressing with gzip if it is not.  Versions 0 to 2 of it are refused when they are used.
"""

from __future__ import annotations

from frontend.kafka.protocol.encoding.api import ServedApi
from frontend.kafka.protocol.fetch import FETCH
from frontend.kafka.protocol.generated import APIS
from frontend.kafka.protocol.generated.metadata import ApiVersionsResponse, ApiVersionsResponseApi
from frontend.kafka.protocol.produce import PRODUCE
from frontend.streams.errors import ErrorCode

API_VERSIONS_KEY = 18

BY_KEY: dict[int, ServedApi] = {api.key: api for api in (*APIS, PRODUCE, FETCH)}
"""Served APIs by their key, with the fast codecs of Produce and Fetch instead of the generated ones."""
BY_NAME: dict[str, ServedApi] = {api.name: api for api in BY_KEY.values()}

ADVERTISED: tuple[ApiVersionsResponseApi, ...] = tuple(
    ApiVersionsResponseApi(key, 0 if api is PRODUCE else api.version_min, api.version_max)
    for key, api in sorted(BY_KEY.items())
)


def api_versions_response(code: ErrorCode = ErrorCode.NONE, throttle_time_ms: int = 0) -> ApiVersionsResponse:
    """Return the response to ApiVersions, also with the error for a version that is not served."""
    return ApiVersionsResponse(code, list(ADVERTISED), throttle_time_ms)
