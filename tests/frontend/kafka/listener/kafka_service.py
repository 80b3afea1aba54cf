"""A listener on loopback over topics in memory, and a client that is the codec itself."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct

from auth.audit import AuditFile, AuditLog
from auth.credentials import AccessKey, Tenant
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import LocalMasterKeys, new_master_key
from auth.guessing import Guesses
from auth.lookup import Credentials
from backend.stream_api import GroupSettings
from frontend.kafka.listener import KafkaListener
from frontend.kafka.protocol.generator.table import TableApi
from frontend.kafka.request.context import KafkaContext, KafkaSettings
from frontend.services import Services
from frontend.settings import FrontendSettings
from holdfast.http.answers import UnreadAnswers
from holdfast.http.connection_limits import ConnectionSlots
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.sqlite.store import SQLiteStore
from ratelimit.limiter import Limiter
from tests.backend.memory_backend import MemoryBackend
from tests.frontend.kafka.listener.memory_streams import MemoryCatalog, MemoryStreams
from tests.frontend.kafka.listener.sign_ins import scram
from tests.frontend.kafka.messages import APIS, decode_response, request_frame
from tests.frontend.service import KEY, NAMING

GROUPS = GroupSettings(0, 0, 0, "", "", initial_rebalance_delay_ms=100, session_timeout_min_ms=100)
ANSWER_SECONDS = 30
_BY_NAME = {api.name: api for api in APIS}


class KafkaService:
    """The listener and its dependencies."""

    def __init__(
        self, listener: KafkaListener, catalog: MemoryCatalog, streams: MemoryStreams, store: SQLiteStore, audit: Path
    ) -> None:
        self.listener = listener
        self.context = listener.context
        self.catalog = catalog
        self.streams = streams
        self.store = store
        self.audit_file = audit
        self.clients: list[CodecClient] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.context.settings.port}"

    async def topic(self, name: str, partitions: int = 1, account: str = KEY.account, **settings: str) -> None:
        """Create a topic; underscores in names of settings are periods."""
        entries = {key.replace("_", "."): value for key, value in settings.items()}
        await self.catalog.create(account, name, entries, partitions)

    async def add_key(self, key: AccessKey) -> AccessKey:
        await self.store.credentials.put_access_key(key)
        return key

    async def connect(self, *, tls: ssl.SSLContext | None = None) -> CodecClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.context.settings.port, ssl=tls)
        client = CodecClient(reader, writer)
        self.clients.append(client)
        return client

    async def signed_in(self, key: AccessKey = KEY) -> CodecClient:
        """Connect, and sign in by SCRAM."""
        client = await self.connect()
        await client.sign_in(key)
        return client


class CodecClient:
    """A client that writes requests and reads answers, one by one or many at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent: deque[tuple[TableApi, int, int]] = deque()
        """API, version and correlation id of each request without an answer."""
        self._ids = count(1)

    def send(self, name: str, version: int, body: Struct, *, answered: bool = True) -> None:
        api = _BY_NAME[name]
        correlation_id = next(self._ids)
        self.send_frame(request_frame(api.request, version, body, correlation_id))
        if answered:
            self._sent.append((api, version, correlation_id))

    def send_frame(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        """Read a frame with its length.  Raises :class:`asyncio.IncompleteReadError` if the connection ends."""
        async with asyncio.timeout(ANSWER_SECONDS):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(int.from_bytes(head, "big"))

    async def answer(self) -> Any:
        """Read the answer to the oldest request without one."""
        frame = await self.frame()
        api, version, correlation_id = self._sent.popleft()
        return decode_response(api.response, version, frame, correlation_id)

    async def call(self, name: str, version: int, body: Struct) -> Any:
        self.send(name, version, body)
        return await self.answer()

    async def ended(self) -> bool:
        """Wait until the service has closed the connection; False if it sends something first."""
        async with asyncio.timeout(ANSWER_SECONDS):
            try:
                return not await self.reader.read(1)
            except ConnectionError:
                return True

    async def sign_in(self, key: AccessKey, mechanism: str = "SCRAM-SHA-256") -> None:
        answer = await scram(self, mechanism, key.access_key_id, key.secret)
        assert answer.error_code == 0, answer

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[CodecClient]:
    """A client without TLS that has not signed in."""
    client = CodecClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def running_kafka(
    folder: Path,
    *,
    connections: int = 100,
    client_connections: int | None = None,
    certificate: Callable[[], ssl.SSLContext] | None = None,
    frontend: FrontendSettings | None = None,
    services: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[KafkaService]:
    """A listener with one tenant, which has one key."""
    store = SQLiteStore(folder / "metadata.sqlite")
    catalog, streams = MemoryCatalog(), MemoryStreams()
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    audit = AuditLog(AuditFile(folder / "audit.jsonl"))
    try:
        await store.credentials.put_tenant(Tenant(KEY.account, "tests"))
        await store.credentials.put_access_key(KEY)
        made = Services(
            frontend or FrontendSettings(),
            Credentials(store.credentials),
            MetadataClient(store.queues),
            MemoryBackend(None),  # type: ignore[arg-type]  # queues are not used
            audit=audit,
            keyring=Keyring(store, LocalMasterKeys([new_master_key()])),
            naming=NAMING,
            limiter=Limiter(),
            **(services or {}),
        )
        chosen = replace(KafkaSettings(port=bound.getsockname()[1], groups=GROUPS), **settings)
        context = KafkaContext(made, catalog, streams, chosen, guesses=Guesses())
        slots = ConnectionSlots(connections, client_connections)
        listener = KafkaListener(context, slots, UnreadAnswers(), certificate=certificate)
        listener.start([bound])
        service = KafkaService(listener, catalog, streams, store, folder / "audit.jsonl")
        try:
            yield service
        finally:
            await listener.stop(0.1)
            for client in service.clients:
                await client.close()
            streams.close()
            await made.limiter.close()
            await made.credentials.close()
    finally:
        audit.close()
        bound.close()
        await store.close()
