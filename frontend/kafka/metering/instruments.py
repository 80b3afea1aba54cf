"""Metrics of Kafka's protocol in a frontend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from frontend.kafka.protocol.versions import BY_NAME
from frontend.streams.errors import ErrorCode
from telemetry.metrics import Counter, Gauge, Registry

REQUESTS: Final = Counter(
    "holdfast_kafka_requests_total",
    "Requests of Kafka's protocol that were answered, by API.",
    labels=("api",),
    series_max=len(BY_NAME),
)
ERRORS: Final = Counter(
    "holdfast_kafka_errors_total",
    "Errors in answers of Kafka's protocol, by API and error: of Produce and Fetch those of partitions, of other APIs "
    "those of whole answers.",
    labels=("api", "error"),
    series_max=256,
)
PRODUCED_RECORDS: Final = Counter("holdfast_produced_records_total", "Records produced to topics.")
PRODUCED_BYTES: Final = Counter("holdfast_produced_bytes_total", "Bytes of the batches produced to topics.")
FETCHED_RECORDS: Final = Counter("holdfast_fetched_records_total", "Records fetched from topics.")
FETCHED_BYTES: Final = Counter("holdfast_fetched_bytes_total", "Bytes of the batches fetched from topics.")
CONNECTIONS: Final = Gauge("holdfast_kafka_connections", "Connections of Kafka's clients.")

_requests: Final = {name: REQUESTS.index(name) for name in BY_NAME}
for _api in ("Produce", "Fetch"):  # errors of the service, which are seen to be none before the first one
    for _error in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR):
        ERRORS.index(_api, _error.name)


def answered(api: str, error: int) -> None:
    """Count a request; ``error``: error code of the whole answer."""
    REQUESTS.counts[_requests[api]] += 1
    if error:
        ERRORS.add(api, ErrorCode.of_number(error).name)


def produced(errors: Sequence[int], records: int, size: int) -> None:
    """Count the batches of one topic that were stored, and the errors of its partitions."""
    PRODUCED_RECORDS.counts[0] += records
    PRODUCED_BYTES.counts[0] += size
    _count_errors("Produce", errors)


def fetched(errors: Sequence[int], records: int, size: int) -> None:
    """Count the batches of one topic in an answer, and the errors of its partitions."""
    FETCHED_RECORDS.counts[0] += records
    FETCHED_BYTES.counts[0] += size
    _count_errors("Fetch", errors)


def register(registry: Registry, connections: Callable[[], int]) -> None:
    """Register all metrics of Kafka's protocol.  ``connections``: number of connections."""
    CONNECTIONS.read_by(connections)
    registry.add(REQUESTS, ERRORS, PRODUCED_RECORDS, PRODUCED_BYTES, FETCHED_RECORDS, FETCHED_BYTES, CONNECTIONS)


def _count_errors(api: str, errors: Sequence[int]) -> None:
    if any(errors):
        for error in errors:
            if error:
                ERRORS.add(api, ErrorCode.of_number(error).name)
