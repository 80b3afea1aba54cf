"""Encoding of store calls between processes: name, arguments, answer and errors.

The table of calls is derived from the interface (:class:`~metadata_service.store.MetadataStore`): every method
with a signature there can be called remotely, and calls with missing, extra or wrongly typed arguments are
refused. Everything is JSON, like the records in the SQLite file.
"""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import msgspec

from auth.store import Conflict
from metadata_service import store as stores
from metadata_service.models import Queue
from metadata_service.store import MetadataStore, StoreError

QUEUE_CALLS = frozenset(("create_queue", "get_queue", "update_queue", "delete_queue", "begin_purge"))
"""Calls that go to the node that owns the queue."""

REPEATABLE = frozenset(
    (
        *("get_queue", "get_queue_by_id", "list_queues", "dead_letter_sources", "queue_changes"),
        *("logs", "shards", "poll_entries", "data_keys"),
        *("get_named_key", "named_keys", "destroy_named_key"),
        *("backend_clusters", "cluster_reports", "register_cluster", "report_cluster", "manager"),
        *("get_tenant", "list_tenants", "get_role", "list_roles", "list_service_keys"),
        *("document_jobs", "delete_document_jobs"),
        *("get_alarm", "list_alarms", "alarm_accounts", "alarm_keeper", "put_alarm"),
        *("get_access_key", "list_access_keys", "access_keys_without", "get_api_key", "list_api_keys", "key_uses"),
        *("put_tenant", "put_role", "put_access_key", "put_api_key", "put_service_key", "record_uses"),
    )
)
"""Calls that may be repeated when it is not known whether they took effect: they read, or store a value
regardless of the state before.  Calls that depend on a condition or a count are not among them."""


class Method(msgspec.Struct, frozen=True):
    """One call of the interface."""

    name: str
    signature: inspect.Signature
    """The method's signature without ``self``."""
    arguments: msgspec.json.Decoder[Any]
    """Decoder of the arguments into a struct, by name.  Raises :class:`msgspec.ValidationError`."""
    answer: msgspec.json.Decoder[Any]

    def encode(self, *arguments: Any, **options: Any) -> bytes:
        """Encode the arguments for :attr:`arguments`.  Raises ``TypeError`` if they do not match the signature."""
        return msgspec.json.encode(self.signature.bind(*arguments, **options).arguments)


def _method(name: str, function: Any) -> Method:
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields = [
        (one.name, hints[one.name]) if one.default is one.empty else (one.name, hints[one.name], one.default)
        for one in parameters
    ]
    kind = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    return Method(
        name, inspect.Signature(parameters), msgspec.json.Decoder(kind), msgspec.json.Decoder(hints["return"])
    )


def _methods() -> dict[str, Method]:
    found = {}
    for name, function in inspect.getmembers(MetadataStore, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "close":
            found[name] = _method(name, function)
    return found


METHODS = _methods()
"""All calls by name.  ``close`` is not among them: it concerns only the caller's own object."""


# --- errors -----------------------------------------------------------------------------------------


class StoreFailure(msgspec.Struct):
    """An encoded error of a store."""

    error: str
    message: str
    fields: dict[str, msgspec.Raw] = {}


_FIELDS: dict[str, dict[str, Any]] = {
    "QueueExists": {"queue": Queue},
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
    """Reason why a node did not start a call, which may therefore be repeated there or elsewhere."""

    reason: str
    """One of ``draining``, ``view``, ``owner`` or ``time``."""
    message: str
    owner: str = ""
    """Node to ask, for the reason ``owner``."""
    view: msgspec.Raw = msgspec.Raw(b"null")
    """View of the ring that the node uses, for the reason ``view``."""
    start: str = ""
    now_ms: int = 0
    """Start id of the node and milliseconds since that start, for the reason ``time``."""


def queue_key(account: str, name: str) -> str:
    """Key by which the ring places a queue."""
    return f"{account}/{name}"
