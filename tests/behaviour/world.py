"""The service in process, with its clock controlled by the test: real HTTP application, journal and metadata."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote

from auth.credentials import AccessKey, Tenant, new_access_key
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.guessing import Guesses
from auth.lookup import Credentials
from backend.clocks.node_clock import SteadyClock
from backend.journal.local.disk import RealDisk
from backend.journal.local.log import LogSettings
from backend.node import Node, NodeSettings
from backend.resolver import StoreResolver
from frontend.app import FrontendApp, create_app
from frontend.request.unsigned_calls import UnauthenticatedCallers
from frontend.services import Services
from frontend.settings import FrontendSettings
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore
from tests.behaviour.clockwork import Clockwork
from tests.behaviour.runner import CaseCaller
from tests.behaviour.signing import SignatureScope
from tests.behaviour.wire import WireAnswer, WireRequest

_T = TypeVar("_T")
_ACCOUNTS = itertools.count(100_000_000_000)
_RAM = Path("/dev/shm")


class World:
    """Subject of behaviour cases, a context manager.  ``settings``: those of the frontend."""

    host = "localhost:9324"
    region = "us-east-1"

    def __init__(self, **settings: Any) -> None:
        self._settings = FrontendSettings(region=self.region, **settings)
        self._clockwork = Clockwork()
        # No case tests a power loss, so the folder is in memory where a memory file system exists.
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=_RAM if _RAM.is_dir() else None))
        self.app: FrontendApp
        self.credentials: Credentials

    def __enter__(self) -> World:
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self._stop())
        finally:
            self._clockwork.loop.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the world's loop."""
        return self._clockwork.loop.run_until_complete(coroutine)

    async def _start(self) -> None:
        clockwork = self._clockwork
        self._store = SQLiteStore(self._folder / "metadata.db")
        metadata = MetadataClient(self._store.queues)
        resolver = StoreResolver(self._store.queues, self._settings)
        self._node = await Node.start(
            RealDisk(),
            str(self._folder / "journal"),
            self._store.entries,
            resolver,
            clock=SteadyClock(clockwork.wall, clockwork.monotonic, clockwork.monotonic),
            settings=NodeSettings(log=LogSettings(segment_bytes=4 << 20, low_water_bytes=8 << 20)),
        )
        keyring = Keyring(self._store, LocalMasterKeys([new_master_key()]), clock=clockwork.wall)
        self.credentials = Credentials(encrypted(self._store.credentials, keyring), clock=clockwork.monotonic)
        services = Services(self._settings, self.credentials, metadata, self._node, clockwork.wall, keyring=keyring)
        self.app = create_app(services)
        # A minute between any two failures: many cases are about errors, and the limits on guessing have tests of their
        # own.
        self.app.pipeline.guesses = Guesses(clock=itertools.count(step=60).__next__)
        self.app.pipeline.unauthenticated_callers = UnauthenticatedCallers(clock=itertools.count(step=60).__next__)

    async def _stop(self) -> None:
        await self._node.close()
        await self._store.close()

    # --- runner.Subject ---

    async def new_caller(self) -> CaseCaller:
        account = str(next(_ACCOUNTS))
        await self._store.credentials.put_tenant(Tenant(account, f"tenant {account}"))
        key: AccessKey = new_access_key(account)
        await self.credentials.put(key)
        return CaseCaller(account, SignatureScope(key.access_key_id, key.secret, self.region), key.principal_id)

    async def exchange(self, request: WireRequest) -> WireAnswer:
        return await exchange(self.app, request)

    async def advance(self, seconds: float) -> None:
        await self._clockwork.advance(seconds)

    async def run_until_idle(self) -> None:
        await self._clockwork.run_until_idle()

    def now_ms(self) -> int:
        return self._clockwork.now_ms()


def asgi_scope(request: WireRequest, scheme: str = "http", client: str = "127.0.0.1") -> dict[str, Any]:
    """Make the ASGI scope of a request."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
    if request.body and not any(name in (b"content-length", b"transfer-encoding") for name, _ in headers):
        headers.append((b"content-length", b"%d" % len(request.body)))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": scheme,
        "path": unquote(request.path),
        "raw_path": request.path.encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "headers": headers,
        "client": (client, 1),
        "server": ("127.0.0.1", 9324),
    }


async def exchange(app: Any, request: WireRequest, *, scheme: str = "http", client: str = "127.0.0.1") -> WireAnswer:
    """Pass a request to an ASGI application; AssertionError if its output is not an HTTP answer."""
    never = asyncio.get_running_loop().create_future()
    parts = [{"type": "http.request", "body": request.body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return parts.pop() if parts else await never

    async def send(message: Any) -> None:
        sent.append(message)

    await app(asgi_scope(request, scheme, client), receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"], sent
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
    body: bytes = sent[1].get("body", b"")
    assert found.get("content-length", str(len(body))) == str(len(body)), sent
    return WireAnswer(sent[0]["status"], found, body)
