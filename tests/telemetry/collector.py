"""A minimal collector of traces and metrics: OTLP over HTTP, in this process."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.servers.started import ServerContext


class ReceivedSpan(NamedTuple):
    """A received span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Id of the parent span; empty: none."""
    role: str
    """Role of the process that made it."""
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Ids of traces and spans."""
    failed: bool
    state: str
    started_ns: int
    ended_ns: int


class Collector(ServerContext):
    """Collector that listens on :attr:`endpoint` while its context is entered."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.raw = bytearray()
        """All received bytes."""
        self.status = 200
        """Status of the answers."""
        self.requests = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/metrics":
                    collector.metrics.append(ExportMetricsServiceRequest.FromString(body))
                else:
                    assert self.path == "/v1/traces"
                    collector.take(body)
                self.send_response(collector.status)
                answer = ExportTraceServiceResponse().SerializeToString()  # empty, as is that to metrics
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        self.requests += 1
        if self.status != 200:
            return
        self.raw += body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            process = _values(resource.resource.attributes)
            assert process["service.name"] == "holdfast"
            for scope in resource.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        process["holdfast.role"],
                        _values(span.attributes),
                        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                        span.status.code == 2,
                        span.trace_state,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                    for span in scope.spans
                ]

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
