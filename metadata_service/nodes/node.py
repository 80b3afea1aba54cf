"""A metadata node: serves a store to other processes over HTTP, and caches the queues that it owns.

Each queue has one owner, by the ring (:mod:`metadata_service.nodes.ring`), and all calls for it go there.  The
owner's cache therefore matches the store: every change passes through it.  Calls for another node's queue are
refused with the owner's name, unless the caller says that the owner does not answer: then they go straight to
the store, and nothing is cached.  If that owner is alive after all, it gets such changes by polling the store
(:mod:`metadata_service.nodes.change_feed`).  In the mode ``full_copy`` every node caches all queues, and answers for
each.

Everything else (streams, tenants, keys, roles, logs, shards) is read from and written to the store by any node.

::

    POST /v1/call/METHOD   a call of the store (:mod:`metadata_service.nodes.codec`)
    PUT  /v1/view          adopt this view of the ring, if it is newer
    GET  /v1/view          the view
    GET  /health           200, or 503 while draining; the only route without a signature

A refusal (421, and 401 for the time) means that the call was not started.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from metadata_service.models import Queue
from metadata_service.nodes import instruments
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.nodes.codec import CARRIED, METHODS, QUEUE_CALLS, CallBody, Method, Refusal, pack_error
from metadata_service.nodes.ring import Ring, RingView
from metadata_service.nodes.signing import ANSWER_HEADER, HEADER, Checker, OutOfTime, SignatureRefused
from metadata_service.store import MetadataStore, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from metadata_service.nodes.invalidation import InvalidationChannel

BODY_BYTES_MAX = 16 << 20
"""Maximum size of a request: all shards of a node with their checkpoints are some hundred KB."""
_LIST_PAGE = 1000

log = logging.getLogger("holdfast.process.metadata")

_decode_call = msgspec.json.Decoder(CallBody).decode
_decode_view = msgspec.json.Decoder(RingView).decode


class NotInRing(ValueError):
    """The view does not contain this node."""


class MetadataNode:
    """The member ``name`` of ``view``, in front of ``store``.  :attr:`app` is the ASGI application."""

    def __init__(
        self,
        store: MetadataStore,
        view: RingView,
        name: str,
        secret: bytes,
        *,
        full_copy: bool = False,
        invalidation: str | None = None,
        cached_max: int = 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the node, which serves nothing yet.

        ``invalidation``: URL of a Redis through which the node publishes changes to other processes, and receives
        changes made by stand-ins (:mod:`metadata_service.nodes.invalidation`).

        Raises :class:`NotInRing`, and ``ValueError`` if the secret is too short.
        """
        self._store = store
        self._name = name
        self._full_copy = full_copy
        self._cached_max = cached_max
        self._checker = Checker(secret, name, clock)
        self._ring = self._ring_of(view)
        self._draining = False
        self._queues = MetadataClient(store.queues, limit=cached_max)
        self._watch = ChangeWatch(store.changes, self._queues)
        self._invalidation: InvalidationChannel | None = None
        if invalidation is not None:
            from metadata_service.nodes.invalidation import InvalidationChannel  # loads the Redis client

            self._invalidation = InvalidationChannel(invalidation, self._queues)
        self.app = Starlette(
            routes=[
                Route("/v1/call/{method}", self._signed(self._call), methods=["POST"]),
                Route("/v1/view", self._signed(self._put_view), methods=["PUT"]),
                Route("/v1/view", self._signed(self._get_view), methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
            ]
        )

    @property
    def view(self) -> RingView:
        """The node's current view of the ring."""
        return self._ring.view

    async def start(self) -> None:
        """Start polling the store, and in the mode ``full_copy`` read all queues.  Raises StoreError."""
        await self._watch.start()
        if self._invalidation is not None:
            self._invalidation.start()
        if self._full_copy:
            log.info("queues in memory: %d", await self._read_all())

    def drain(self) -> None:
        """Refuse new calls; calls already started are answered."""
        self._draining = True

    async def close(self) -> None:
        """Stop what :meth:`start` has started.  The store stays open."""
        if self._invalidation is not None:
            await self._invalidation.close()
        await self._watch.close()

    # --- requests ---

    def _signed(self, handle: Callable[[Request, bytes], Awaitable[tuple[int, bytes]]]) -> Any:
        """Accept only requests signed with the secret, and sign the answers."""

        async def checked(request: Request) -> Response:
            try:
                body = await _body(request)
            except ClientDisconnect:
                return Response(status_code=400)
            if body is None:
                return _plain(413, f"a request has at most {BODY_BYTES_MAX} bytes")
            signature = request.headers.get(HEADER, "")
            try:
                self._checker.check(signature, request.method, request.url.path, body)
            except OutOfTime as error:
                refusal = Refusal("time", str(error), start=self._checker.start, now_ms=self._checker.now_ms)
                status, answer = 401, msgspec.json.encode(refusal)
            except SignatureRefused as error:
                return _plain(401, str(error))
            else:
                status, answer = await handle(request, body)
            signed = {ANSWER_HEADER: self._checker.answer(signature, status, answer)}
            return Response(answer, status, signed, "application/json")

        return checked

    async def _call(self, request: Request, body: bytes) -> tuple[int, bytes]:
        method = METHODS.get(request.path_params["method"])
        if method is None:
            return 404, _invalid(f"no call {request.path_params['method']!r} in this version")
        try:
            call = _decode_call(body)
            arguments = method.arguments.decode(call.arguments)
        except msgspec.MsgspecError as error:
            return 400, _invalid(f"{method.name}: {error}")
        refusal = self._refusal(method, call)
        if refusal is not None:
            return 421, msgspec.json.encode(refusal)
        started_at = time.perf_counter()
        try:
            answer = await self._answer(method, call, arguments)
        except CARRIED as error:
            instruments.CALLS.add(method.name, "failed" if isinstance(error, StoreUnavailable) else "refused")
            return 409, msgspec.json.encode(pack_error(error))
        except Exception as error:
            instruments.CALLS.add(method.name, "failed")
            log.exception("%s failed", method.name)
            return 500, _invalid(f"{method.name} failed: {type(error).__name__}; see the node's log")
        instruments.CALLS.add(method.name, "ok")
        instruments.SECONDS_OF_CALLS.observe(time.perf_counter() - started_at)
        return 200, msgspec.json.encode(answer)

    def _refusal(self, method: Method, call: CallBody) -> Refusal | None:
        """Reason to refuse the call before it starts; None: accept it."""
        if self._draining:
            return Refusal("draining", f"node {self._name!r} is about to end")
        view = self._ring.view
        if call.view != view.mark:
            return Refusal("view", f"node {self._name!r} has another view", view=msgspec.Raw(msgspec.json.encode(view)))
        if method.name not in QUEUE_CALLS or call.stand_in or self._is_own(call.key):
            return None
        owner = self._ring.owner(call.key).name
        return Refusal("owner", f"the queue belongs to node {owner!r}", owner=owner)

    def _is_own(self, key: str) -> bool:
        return self._full_copy or self._ring.owner(key).name == self._name

    async def _answer(self, method: Method, call: CallBody, arguments: Any) -> Any:
        if method.name not in QUEUE_CALLS:
            return await method.call(self._store, arguments)
        queue = await (
            self._own(method, call.key, arguments) if self._is_own(call.key) else method.call(self._store, arguments)
        )
        if self._invalidation is not None and method.name not in ("get_queue", "create_queue"):
            self._invalidation.publish(queue, deleted=method.name == "delete_queue")
        return queue

    async def _own(self, method: Method, key: str, arguments: Any) -> Queue:
        """Run a call for a queue that the node caches."""
        queues = self._queues
        if method.name == "get_queue":
            cached = queues.cached(arguments.account, arguments.name)
            return cached or await queues.get(arguments.account, arguments.name)
        if method.name == "create_queue":
            return await queues.create(arguments)
        account, _, name = key.partition("/")
        try:
            changed: Queue = await method.call(self._store, arguments)
        except StoreError:
            queues.invalidate(account, name)  # the call may have taken effect, or the cached queue is stale
            raise
        if method.name == "delete_queue":
            queues.invalidate(changed.account, changed.name)
        else:
            queues.remember(changed)
        return changed

    async def _put_view(self, request: Request, body: bytes) -> tuple[int, bytes]:
        try:
            sent = _decode_view(body)
            view = RingView.of(sent.version, sent.members)
            if view.version > self._ring.view.version:
                self._ring = self._ring_of(view)
                self._queues.forget(None)
                log.info("view %s of the ring, with %d members", view.mark, len(view.members))
        except (msgspec.MsgspecError, ValueError) as error:
            return 400, _invalid(str(error))
        return await self._get_view(request, body)

    async def _get_view(self, request: Request, body: bytes) -> tuple[int, bytes]:
        return 200, msgspec.json.encode(self._ring.view)

    async def _health(self, request: Request) -> Response:
        return _plain(503, "draining") if self._draining else _plain(200, "ok")

    # --- parts ---

    def _ring_of(self, view: RingView) -> Ring:
        if all(member.name != self._name for member in view.members):
            raise NotInRing(f"view {view.version} of the ring has no member {self._name!r}")
        return Ring(view)

    async def _read_all(self) -> int:
        count, account = 0, ""
        while tenants := await self._store.credentials.list_tenants(after=account, limit=_LIST_PAGE):
            for tenant in tenants:
                account, name = tenant.account, ""
                while names := await self._store.queues.list_queues(account, after=name, limit=_LIST_PAGE):
                    for name in names:
                        await self._queues.get(account, name)
                        count += 1
        return count


async def _body(request: Request) -> bytes | None:
    """Read the body; None if it is too long."""
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > BODY_BYTES_MAX:
            return None
        parts.append(part)
    return b"".join(parts)


def _invalid(message: str) -> bytes:
    return msgspec.json.encode({"message": message})


def _plain(status: int, text: str) -> Response:
    return Response(text + "\n", status, media_type="text/plain")
