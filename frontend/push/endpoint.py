"""Calls of endpoints, with the rules for webhooks (:mod:`frontend.alarms.webhooks`).

An endpoint is called at a permitted address only, at exactly the address that was checked; redirects are not followed.
Of an answer only the status and Retry-After are used, and at most some KiB of its body are read, and dropped.  A call
ends at its deadline, whatever the endpoint sends.

Each queue has connections of its own, because a kept connection belongs to the name in the certificate that was
checked.  Names are resolved by threads for nothing else, of which a tenant uses few, so that a name server that does
not answer delays only its own tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from frontend.alarms.webhooks import Address, Network, WebhookFailed, host_of, permitted_address

if TYPE_CHECKING:
    import httpcore

ANSWER_BYTES_MAX: Final = 4096
"""Bytes of an answer's body that are read, so that the connection can be kept; one with more is closed."""
ANSWER_SECONDS: Final = 1.0
"""Time limit for reading an answer's body."""
CLOSE_SECONDS: Final = 0.05
"""Time before a call's deadline at which the reading ends."""
ADDRESS_SECONDS: Final = 30.0
"""Time for which an address is used without resolving the name again."""
KEEP_SECONDS: Final = 10.0
"""Time for which an unused connection is kept."""
KEPT_MAX: Final = 20
"""Maximum number of unused connections of an endpoint."""
RESOLVING_THREADS: Final = 32
RESOLVING_OF_TENANT: Final = 2
_TENANTS_KEPT: Final = 1000

Failure = Literal["timeout", "unreachable"]


class PushFailed(Exception):
    """An endpoint gave no answer; the text says why, without the secret parts of its URL."""

    def __init__(self, kind: Failure, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class PushAnswer(NamedTuple):
    """The used parts of an answer."""

    status: int
    retry_after: str | None


class NameResolver:
    """Resolves names in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVING_THREADS, thread_name_prefix="push names")
        self._turns: OrderedDict[str, asyncio.Semaphore] = OrderedDict()
        """Free turns of tenants, by account."""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, account: str, host: str, port: int) -> list[Address]:
        """Addresses of the host.  Raises :class:`PushFailed`."""
        turns = self._turns.setdefault(account, asyncio.Semaphore(RESOLVING_OF_TENANT))
        self._turns.move_to_end(account)
        if len(self._turns) > _TENANTS_KEPT:
            self._turns.popitem(last=False)
        await turns.acquire()
        try:
            resolving = asyncio.get_running_loop().run_in_executor(self._threads, _addresses, host, port)
        except BaseException:
            turns.release()
            raise
        # The thread works on when the caller gives up, and so its turn ends with it.
        resolving.add_done_callback(lambda done: _end_turn(turns, done))
        try:
            return await asyncio.shield(resolving)
        except (OSError, UnicodeError):
            raise PushFailed("unreachable", f"the host {host} is not known") from None


def _end_turn(turns: asyncio.Semaphore, done: asyncio.Future[list[Address]]) -> None:
    turns.release()
    if not done.cancelled():
        done.exception()  # read, because its caller may have given up


def _addresses(host: str, port: int) -> list[Address]:
    known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in known]


class Endpoints:
    """Endpoints of a process, which share the resolver and the settings of TLS."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        """``networks``: non-public networks where endpoints are allowed, also without TLS."""
        self.networks = tuple(networks)
        self.resolver = NameResolver()
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        self.resolver.close()

    @property
    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def endpoint(self, account: str, url: str) -> HttpEndpoint:
        """Make the endpoint at this URL for a tenant.  Raises ``ValueError`` for a URL that cannot be called."""
        return HttpEndpoint(self, account, url)


class HttpEndpoint:
    """One endpoint, with its connections."""

    def __init__(self, shared: Endpoints, account: str, url: str) -> None:
        import httpx

        self.url = url
        self.host = host_of(url)
        self._target = httpx.URL(url)
        self._shared = shared
        self._account = account
        self._connections: httpcore.AsyncConnectionPool | None = None
        self._address: Address | None = None
        self._address_until = 0.0

    async def close(self) -> None:
        """Close all connections.  The endpoint can still be called."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.aclose()

    async def post(self, headers: Mapping[str, str], body: bytes, seconds: float) -> PushAnswer:
        """POST the body.  Raises :class:`PushFailed`, after ``seconds`` at the latest."""
        try:
            async with asyncio.timeout(seconds):
                return await self._post(headers, body, asyncio.get_running_loop().time() + seconds)
        except TimeoutError:
            self._address = None
            raise PushFailed("timeout", f"the endpoint at {self.host} has not answered in time") from None
        except PushFailed:
            self._address = None
            raise

    async def _post(self, headers: Mapping[str, str], body: bytes, ends_at: float) -> PushAnswer:
        import httpcore

        loop = asyncio.get_running_loop()
        target = self._target
        secure = target.scheme == "https"
        port = target.port or (443 if secure else 80)
        address = await self._resolve(port, secure=secure)
        every = {
            "Host": target.netloc.decode("ascii"),
            "User-Agent": "Holdfast",
            "Content-Length": str(len(body)),
            **headers,
        }
        request = httpcore.Request(
            "POST",
            httpcore.URL(scheme=target.raw_scheme, host=str(address).encode(), port=port, target=target.raw_path),
            headers=[(name.encode(), value.encode()) for name, value in every.items()],
            content=body,
            extensions={"sni_hostname": self.host},  # the certificate must match it, too
        )
        failures = _failures()
        try:
            answer = await self._pool().handle_async_request(request)
        except failures as error:
            raise PushFailed(
                "unreachable", f"the endpoint at {self.host} cannot be reached: {type(error).__name__}"
            ) from None
        try:
            with contextlib.suppress(TimeoutError, *failures):
                # the call has its answer: what is late now is no failure
                async with asyncio.timeout_at(min(ends_at - CLOSE_SECONDS, loop.time() + ANSWER_SECONDS)):
                    await _drop_body(answer)
        finally:
            await answer.aclose()
        return PushAnswer(answer.status, _retry_after(answer.headers))

    async def _resolve(self, port: int, *, secure: bool) -> Address:
        now = asyncio.get_running_loop().time()
        if self._address is not None and now < self._address_until:
            return self._address
        try:
            found: list[Address] = [ip_address(self.host.strip("[]"))]
        except ValueError:
            found = await self._shared.resolver.resolve(self._account, self.host, port)
        try:
            self._address = permitted_address(self.host, found, self._shared.networks, secure=secure)
        except WebhookFailed as error:
            raise PushFailed("unreachable", str(error)) from None
        self._address_until = now + ADDRESS_SECONDS
        return self._address

    def _pool(self) -> httpcore.AsyncConnectionPool:
        if self._connections is None:
            import httpcore

            from frontend.push.bounded_streams import BoundedBackend

            self._connections = httpcore.AsyncConnectionPool(
                ssl_context=self._shared.tls if self.url.startswith("https:") else None,
                max_connections=None,
                max_keepalive_connections=KEPT_MAX,
                keepalive_expiry=KEEP_SECONDS,
                network_backend=BoundedBackend(),
            )
        return self._connections


def _failures() -> tuple[type[Exception], ...]:
    """Errors of connections, and of what is no HTTP.

    anyio raises AttributeError for a connection that is cut at once.
    """
    import httpcore

    return httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, ssl.SSLError, AttributeError


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == b"retry-after"), None)


async def _drop_body(answer: httpcore.Response) -> None:
    """Read a short body, as it was sent, so that the connection can be used again."""
    read = 0
    async for chunk in answer.aiter_stream():
        read += len(chunk)
        if read > ANSWER_BYTES_MAX:
            return
