"""A remote metadata store: behind metadata nodes, found by the ring.

Each call goes to the node that the ring names for it.  If that node cannot be reached or does not start the
call, the ring's next is called at once, as a stand-in, and the first is avoided for a time that grows with each
failure.  So the death of a node costs one retry.  A call that may have started is repeated only if that is harmless
(:data:`~metadata_service.nodes.codec.REPEATABLE`); for any other the error is StoreUnavailable: it is not known whether
the call took effect.

If no node has answered in time, a repeatable call gives each node that can be reached a second, longer time: the only
node that is left, while another is replaced, may just be slow.

The ring's view may be older or newer than a node's: the newer one wins, and the other side adopts it.
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import httpx
import msgspec

from auth.encryption.data_keys import DataKeyStore
from auth.encryption.named_keys import NamedKeyStore
from auth.store import CredentialStore
from metadata_service.models import Queue
from metadata_service.nodes.codec import (
    METHODS,
    QUEUE_CALLS,
    REPEATABLE,
    CallBody,
    Method,
    Refusal,
    StoreFailure,
    queue_key,
    unpack_error,
)
from metadata_service.nodes.ring import Ring, RingMember, RingView
from metadata_service.nodes.signing import ANSWER_HEADER, HEADER, UNKNOWN, Signer
from metadata_service.store import (
    AlarmStore,
    ChangeStore,
    ClusterRegistry,
    DocumentStore,
    EntryStore,
    QueueNotFound,
    QueueStore,
    StoreError,
    StoreUnavailable,
    StreamStore,
    TopicStore,
)

CONNECT_SECONDS = 1
ANSWER_SECONDS = 20
"""Timeout of a call; longer than a store retries before it reports that it is unavailable."""
REPEATABLE_ANSWER_SECONDS = (2, 8)
"""Timeouts of a repeatable call: the first after which another node is asked, because the node may hang; the second
if none has answered."""
CONNECTIONS_MAX = 64
"""Maximum number of connections to all nodes together."""
AVOID_SECONDS_MIN = 0.5
AVOID_SECONDS_MAX = 15
"""Time for which a node that does not answer is called last, multiplied by a random factor of 0.5 to 1.5."""
_REFUSALS_MAX = 4
"""Maximum number of refusals of one call by one node: for its time, its view, and a restart in between."""
_FEW = 3
_KEYS_KNOWN = 100_000
"""Number of queues whose names are remembered by id."""

log = logging.getLogger("holdfast.process.metadata")

_decode_refusal = msgspec.json.Decoder(Refusal).decode
_decode_failure = msgspec.json.Decoder(StoreFailure).decode
_decode_view = msgspec.json.Decoder(RingView).decode


class _NotStarted(Exception):
    """This node did not start the call, so another may be called."""


class _Unknown(Exception):
    """This node may have carried out the call."""


class _TimedOut(_Unknown):
    """This node has not answered in time."""


class _Peer:
    """State of a node as known here."""

    def __init__(self) -> None:
        self.failures = 0
        self.avoided_until = 0.0
        self.start = UNKNOWN
        self.ahead_ms = 0
        """Difference from our clock to the node's time since that start."""


class _RemotePart:
    """The methods of one part of the store, which ``call`` calls."""

    def __init__(self, call: Callable[..., Awaitable[Any]], part: str) -> None:
        for method in METHODS.values():
            if method.part == part:
                setattr(self, method.name, partial(call, method))


class RemoteStore:
    """The :class:`~metadata_service.store.MetadataStore` behind the nodes of ``view``."""

    def __init__(
        self,
        view: RingView,
        secret: bytes,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``tls``: trusted authorities, for nodes with https addresses.

        Raises ``ValueError`` if the secret is too short.
        """
        self._signer = Signer(secret)
        self._ring = Ring(view)
        self._mark = view.mark
        self._clock = clock
        self._chance = chance
        self._peers: dict[str, _Peer] = {}
        self._keys: OrderedDict[int, str] = OrderedDict()
        self._closed = False
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
            verify=tls if tls is not None else True,
            trust_env=False,
            transport=transport,
        )
        self.queues = cast(QueueStore, _RemotePart(self._call, "queues"))
        self.streams = cast(StreamStore, _RemotePart(self._call, "streams"))
        self.topics = cast(TopicStore, _RemotePart(self._call, "topics"))
        self.changes = cast(ChangeStore, _RemotePart(self._call, "changes"))
        self.entries = cast(EntryStore, _RemotePart(self._call, "entries"))
        self.clusters = cast(ClusterRegistry, _RemotePart(self._call, "clusters"))
        self.alarms = cast(AlarmStore, _RemotePart(self._call, "alarms"))
        self.documents = cast(DocumentStore, _RemotePart(self._call, "documents"))
        self.credentials = cast(CredentialStore, _RemotePart(self._call, "credentials"))
        self.data_keys = cast(DataKeyStore, _RemotePart(self._call, "data_keys"))
        self.named_keys = cast(NamedKeyStore, _RemotePart(self._call, "named_keys"))

    @property
    def view(self) -> RingView:
        """Current view of the ring."""
        return self._ring.view

    async def close(self) -> None:
        """Close the connections.  May be called more than once."""
        self._closed = True
        await self._http.aclose()

    # --- calls ---

    async def _call(self, method: Method, *arguments: Any, **options: Any) -> Any:
        if self._closed:
            raise StoreUnavailable("the metadata store is closed")
        body = method.encode(*arguments, **options)
        key = await self._key(method, arguments, options)
        answer = await self._anywhere(method, key or method.name + str(arguments[:1]), key, body)
        if type(answer) is Queue:
            self._keys[answer.queue_id] = queue_key(answer.account, answer.name)
            if len(self._keys) > _KEYS_KNOWN:
                self._keys.popitem(last=False)
        return answer

    async def _key(self, method: Method, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
        """Key of the queue, for calls that go to its owner; empty for others."""
        if method.name not in QUEUE_CALLS:
            return ""
        named = method.bind(*arguments, **options)
        if "name" in named:
            return queue_key(named["account"], named["name"])
        known = self._keys.get(named["queue_id"])
        if known is not None:
            return known
        queue = await self._call(METHODS["get_queue_by_id"], named["queue_id"])
        if queue is None:
            raise QueueNotFound(str(named["queue_id"]))
        return queue_key(queue.account, queue.name)

    async def _anywhere(self, method: Method, place: str, key: str, arguments: bytes) -> Any:
        """Call the nodes in the ring's order until one answers."""
        failed: list[str] = []
        asked: set[str] = set()
        slow: set[str] = set()
        timeouts = iter(REPEATABLE_ANSWER_SECONDS if method.name in REPEATABLE else (ANSWER_SECONDS,))
        seconds = next(timeouts)
        while True:
            member = self._next(place, asked)
            if member is None:
                longer = next(timeouts, None) if slow else None
                if longer is not None:
                    seconds, asked, slow = longer, asked - slow, set()
                    continue
                raise StoreUnavailable("no metadata node answers: " + ("; ".join(failed) or "there is none"))
            asked.add(member.name)
            peer = self._peers.setdefault(member.name, _Peer())
            stand_in = bool(key) and self._ring.owner(key).name != member.name
            try:
                answer = await self._at(member, peer, method, key, arguments, stand_in, seconds)
            except _NotStarted as error:
                failed.append(f"{member.name}: {error}")
            except _Unknown as error:
                failed.append(f"{member.name}: {error}")
                if isinstance(error, _TimedOut):
                    slow.add(member.name)
                if method.name not in REPEATABLE:
                    self._avoid(member, peer, error)
                    raise StoreUnavailable(
                        f"metadata node {failed[-1]}; whether {method.name} took effect is not known"
                    ) from None
            else:
                peer.failures = 0
                peer.avoided_until = 0.0
                return answer
            self._avoid(member, peer, failed[-1])

    def _next(self, place: str, asked: set[str]) -> RingMember | None:
        """Return the first node in the ring's order that was not called yet; avoided nodes are last."""
        now = self._clock()
        last: RingMember | None = None
        for count in (_FEW, len(self._ring)):  # the first few suffice almost always
            for member in self._ring.successors(place, count):
                if member.name not in asked:
                    peer = self._peers.get(member.name)
                    if peer is None or peer.avoided_until <= now:
                        return member
                    last = last or member
        return last

    def _avoid(self, member: RingMember, peer: _Peer, why: object) -> None:
        seconds = min(AVOID_SECONDS_MIN * 2**peer.failures, AVOID_SECONDS_MAX) * (0.5 + self._chance())
        if not peer.failures:
            log.warning("metadata node %s does not answer, and is avoided: %s", member.name, why)
        peer.failures = min(peer.failures + 1, 16)
        peer.avoided_until = self._clock() + seconds

    async def _at(
        self,
        member: RingMember,
        peer: _Peer,
        method: Method,
        key: str,
        arguments: bytes,
        stand_in: bool,
        seconds: float,
    ) -> Any:
        """Make a call to this node.  Raises the call's own errors, :class:`_NotStarted` and :class:`_Unknown`."""
        for _ in range(_REFUSALS_MAX):
            body = msgspec.json.encode(CallBody(msgspec.Raw(arguments), self._mark, key, stand_in))
            status, answer = await self._ask(member, peer, "POST", f"/v1/call/{method.name}", body, seconds)
            if status == 200:
                return method.answer.decode(answer)
            if status == 409:
                raise unpack_error(_decode_failure(answer))
            if status == 400 or status == 404:
                raise StoreError(f"metadata node {member.name} does not know this call: {answer.decode()}")
            if status not in (401, 421):
                raise _Unknown(f"answered {status}")
            refusal = _decode_refusal(answer)
            if refusal.reason == "time":
                peer.start, peer.ahead_ms = refusal.start, refusal.now_ms - self._now_ms()
            elif refusal.reason == "view":
                await self._agree(member, peer, _decode_view(refusal.view))
                stand_in = bool(key) and self._ring.owner(key).name != member.name
            else:
                raise _NotStarted(refusal.message)
        raise _NotStarted(refusal.message)

    async def _agree(self, member: RingMember, peer: _Peer, received: RingView) -> None:
        """Adopt the node's view if it is newer, otherwise send it ours."""
        ours = self._ring.view
        if received.version < ours.version:
            await self._ask(member, peer, "PUT", "/v1/view", msgspec.json.encode(ours))
        elif received.version > ours.version:
            self._ring = Ring(received)
            self._mark = received.mark
            log.info("view %s of the ring of metadata nodes, with %d members", self._mark, len(received.members))
        elif received.mark != self._mark:
            raise _NotStarted(
                f"there are two different lists of metadata nodes with version {ours.version}: give all processes the "
                "same, with a higher version"
            )

    async def _ask(
        self,
        member: RingMember,
        peer: _Peer,
        verb: str,
        path: str,
        body: bytes,
        seconds: float = REPEATABLE_ANSWER_SECONDS[0],
    ) -> tuple[int, bytes]:
        """Send one request, and verify that the answer is from a node of this cluster."""
        signature = self._signer.sign(member.name, peer.start, self._now_ms() + peer.ahead_ms, verb, path, body)
        headers = {HEADER: signature, "content-type": "application/json"}
        try:
            timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
            response = await self._http.request(
                verb, member.address + path, content=body, headers=headers, timeout=timeout
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise _NotStarted(str(error) or type(error).__name__) from None
        except httpx.TimeoutException:
            raise _TimedOut(f"not answered within {seconds:g} s") from None
        except (
            httpx.HTTPError,
            AttributeError,
        ) as error:  # anyio raises it if a new connection is lost at once under uvloop
            raise _Unknown(str(error) or type(error).__name__) from None
        answer = response.content
        if not self._signer.believes(signature, response.status_code, answer, response.headers.get(ANSWER_HEADER, "")):
            if response.status_code == 401:
                raise _NotStarted(f"refused the signature: {response.text.strip()}")
            raise _Unknown("the answer is not signed with the cluster's secret")
        return response.status_code, answer

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
