"""A webhook on the loopback, which records its calls."""

import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class RecordedCall(NamedTuple):
    """A recorded call."""

    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def is_signed_by(self, secret: str) -> bool:
        """Verify the signature like a tenant's program."""
        fields = dict(part.split("=", 1) for part in self.headers["Holdfast-Signature"].split(","))
        expected = hmac.new(secret.encode(), fields["t"].encode() + b"." + self.body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(fields["v1"], expected)


class Hook:
    """The webhook's server."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str) -> None:
        self.port = server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}/hook?token=hush"
        self.calls: list[RecordedCall] = []
        self.statuses: list[int] = []
        """Statuses of the next answers; then 204."""
        self.gate = threading.Event()
        """While cleared, no call is answered."""
        self.gate.set()


@contextmanager
def hook(tls: ssl.SSLContext | None = None) -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.calls.append(RecordedCall(dict(self.headers.items()), body))
            made.gate.wait(30)
            self.send_response(made.statuses.pop(0) if made.statuses else 204)
            self.send_header("Location", f"http://127.0.0.1:{made.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        made = Hook(server, "http" if tls is None else "https")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            made.gate.set()
            server.shutdown()
            thread.join()
