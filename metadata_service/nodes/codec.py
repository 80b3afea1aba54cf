"""Encoding of store calls between processes: name, arguments, answer and errors.

The table of calls is derived from the interface (:class:`~metadata_service.store.MetadataStore`): every method
of its parts can be called remotely, and calls with missing, extra or wrongly typed arguments are refused.  The
names of methods are unique, so a call does not name the part. Everything is JSON, like the records in the SQLite file.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from auth.store import Conflict
from metadata_service import store as stores
from metadata_service.models import NewQueue, Queue
from metadata_service.store import MetadataStore, StoreError
from metadata_service.streams import NewStream, Stream
from metadata_service.topics import NewSubscription, NewTopic, Subscription, Topic

QUEUE_CALLS = frozenset(("create_queue", "get_queue", "update_queue", "delete_queue", "begin_purge"))
"""Calls that go to the node that owns the queue."""

REPEATABLE = frozenset(
    (
        *("get_queue", "get_queue_by_id", "list_queues", "list_queue_tags", "dead_letter_sources"),
        *("push_queues", "queue_changes"),
        *("get_stream", "get_stream_by_id", "list_streams", "group_cluster", "allocate_producer_ids"),
        *("get_topic", "list_topics", "get_subscription", "topic_subscriptions", "owner_subscriptions"),
        *("logs", "shards", "poll_entries", "data_keys"),
        *("get_named_key", "named_keys", "destroy_named_key"),
        *("backend_clusters", "cluster_reports", "register_cluster", "report_cluster", "manager", "pushers"),
        *("get_tenant", "list_tenants", "get_role", "list_roles", "list_service_keys"),
        *("document_jobs", "delete_document_jobs"),
        *("get_alarm", "list_alarms", "alarm_accounts", "alarm_keeper", "put_alarm"),
        *("get_access_key", "list_access_keys", "get_api_key", "list_api_keys", "key_uses"),
        *("put_tenant", "put_role", "put_access_key", "put_api_key", "put_service_key", "record_uses"),
    )
)
"""Calls that may be repeated when it is not known whether they took effect: reads, unconditional writes of a value,
and allocations whose numbers may be lost.  Calls that depend on a condition or a count are not among them."""


_SPREAD = (NewQueue, NewStream, NewTopic, NewSubscription)
"""Structs whose fields are sent as the arguments of a call that has no other argument."""


class Method(msgspec.Struct, frozen=True):
    """One call of the interface."""

    part: str
    """Part of the store that has the method."""
    name: str
    signature: inspect.Signature
    """The method's signature without ``self``."""
    arguments: msgspec.json.Decoder[Any]
    """Decoder of the arguments into a struct, by name.  Raises :class:`msgspec.ValidationError`."""
    answer: msgspec.json.Decoder[Any]
    has_one_struct: bool
    """True if the only argument is one of :data:`_SPREAD`, whose fields are sent as if they were the arguments."""

    def bind(self, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        """Arguments as they are sent, by name.  Raises ``TypeError`` if they do not match the signature."""
        bound = self.signature.bind(*arguments, **options).arguments
        if self.has_one_struct:
            (one,) = bound.values()
            return dict(msgspec.to_builtins(one))
        return bound

    def call(self, store: MetadataStore, arguments: msgspec.Struct) -> Awaitable[Any]:
        """Call the method with decoded arguments."""
        method: Callable[..., Awaitable[Any]] = getattr(getattr(store, self.part), self.name)
        if self.has_one_struct:
            return method(arguments)
        named = OrderedDict((name, getattr(arguments, name)) for name in self.signature.parameters)
        bound = inspect.BoundArguments(self.signature, named)
        return method(*bound.args, **bound.kwargs)

    def encode(self, *arguments: Any, **options: Any) -> bytes:
        """Encode the arguments for :attr:`arguments`.  Raises ``TypeError`` if they do not match the signature."""
        return msgspec.json.encode(self.bind(*arguments, **options))


def _method(part: str, name: str, function: Any) -> Method:
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields = [
        (one.name, hints[one.name]) if one.default is one.empty else (one.name, hints[one.name], one.default)
        for one in parameters
    ]
    has_one_struct = len(fields) == 1 and fields[0][1] in _SPREAD
    kind = fields[0][1] if has_one_struct else msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    return Method(
        part,
        name,
        inspect.Signature(parameters),
        msgspec.json.Decoder(kind),
        msgspec.json.Decoder(hints["return"]),
        has_one_struct,
    )


def _methods() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for part, declared in inspect.getmembers(MetadataStore, lambda member: isinstance(member, property)):
        interface = get_type_hints(declared.fget)["return"]
        for name, function in inspect.getmembers(interface, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                assert name not in found
                found[name] = _method(part, name, function)
    return found


METHODS = _methods()
"""All calls by name."""


# --- errors -----------------------------------------------------------------------------------------


class StoreFailure(msgspec.Struct):
    """An encoded error of a store."""

    error: str
    message: str
    fields: dict[str, msgspec.Raw] = {}


_FIELDS: dict[str, dict[str, Any]] = {
    "QueueExists": {"queue": Queue},
    "StreamExists": {"stream": Stream},
    "TopicExists": {"topic": Topic},
    "SubscriptionExists": {"subscription": Subscription},
    "QueueDeletedRecently": {"seconds_left": float},
    "PurgeInProgress": {"seconds_left": float},
}
"""Fields that errors carry besides their text."""

_ERRORS: dict[str, type[Exception]] = {
    "Conflict": Conflict,
    "ValueError": ValueError,
    **{name: kind for name, kind in vars(stores).items() if isinstance(kind, type) and issubclass(kind, StoreError)},
}

CARRIED = tuple(_ERRORS.values())
"""Errors that can be sent, including their subclasses."""


def pack_error(error: Exception) -> StoreFailure:
    """Encode ``error``, one of :data:`CARRIED`, under the nearest base class that other nodes know."""
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    fields = {field: msgspec.Raw(msgspec.json.encode(getattr(error, field))) for field in _FIELDS.get(name, ())}
    return StoreFailure(name, str(error), fields)


def unpack_error(failure: StoreFailure) -> Exception:
    """Rebuild the error: class, text and fields.  A class unknown here becomes a :class:`StoreError`."""
    kind = _ERRORS.get(failure.error)
    if kind is None:
        return StoreError(f"{failure.error}: {failure.message}")
    error = kind.__new__(kind)
    Exception.__init__(error, failure.message)
    for field, type_ in _FIELDS.get(failure.error, {}).items():
        setattr(error, field, msgspec.json.decode(failure.fields[field], type=type_))
    return error


# --- envelopes --------------------------------------------------------------------------------------


class CallBody(msgspec.Struct):
    """Body of a request."""

    arguments: msgspec.Raw
    view: str
    """Mark of the ring view that the caller uses (:attr:`metadata_service.nodes.ring.RingView.mark`)."""
    key: str = ""
    """:func:`queue_key` of the queue, for :data:`QUEUE_CALLS`."""
    stand_in: bool = False
    """True if the owner of the key does not answer the caller."""


class Refusal(msgspec.Struct):
    """Reason for which a node did not start a call, which may therefore be repeated at any node."""

    reason: str
    """One of ``draining``, ``view``, ``owner`` or ``time``."""
    message: str
    owner: str = ""
    """Node to call, for the reason ``owner``."""
    view: msgspec.Raw = msgspec.Raw(b"null")
    """View of the ring that the node uses, for the reason ``view``."""
    start: str = ""
    now_ms: int = 0
    """Start id of the node and milliseconds since that start, for the reason ``time``."""


def queue_key(account: str, name: str) -> str:
    """Key by which the ring places a queue."""
    return f"{account}/{name}"
