"""How a call of a store travels between processes: its name, its arguments, its answer, its errors.

The table of calls is made from the interface itself (:class:`~metadata_service.store.MetadataStore`): what has a
signature there can be called from afar, and with arguments of other types, or with more or fewer, cannot.  Everything
is JSON, as the records are in the SQLite file.
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
"""They belong to the node that has the queue."""

REPEATABLE = frozenset(
    (
        *("get_queue", "get_queue_by_id", "list_queues", "dead_letter_sources", "queue_changes"),
        *("logs", "shards", "look", "data_keys"),
        *("get_named_key", "named_keys", "destroy_named_key"),
        *("backend_clusters", "cluster_reports", "register_cluster", "report_cluster", "manager"),
        *("get_tenant", "list_tenants", "get_role", "list_roles", "list_service_keys"),
        *("get_alarm", "list_alarms", "alarm_accounts", "alarm_keeper", "put_alarm"),
        *("get_access_key", "list_access_keys", "access_keys_without", "get_api_key", "list_api_keys", "key_uses"),
        *("put_tenant", "put_role", "put_access_key", "put_api_key", "put_service_key", "record_uses"),
    )
)
"""May be made again when it is not known whether they took effect: they read, or store what they say whatever is
there.  What a condition or a count decides is not among them."""


class Method(msgspec.Struct, frozen=True):
    """One call."""

    name: str
    signature: inspect.Signature
    """Without ``self``."""
    arguments: msgspec.json.Decoder[Any]
    """Makes a struct of the arguments, by name.  Raises :class:`msgspec.ValidationError`."""
    answer: msgspec.json.Decoder[Any]

    def encode(self, *arguments: Any, **options: Any) -> bytes:
        """The arguments, as :attr:`arguments` reads them.  Raises ``TypeError`` if they do not fit."""
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
"""Every call by its name.  ``close`` is the caller's own affair."""


# --- errors -----------------------------------------------------------------------------------------


class Failure(msgspec.Struct):
    """An error of a store, as it is sent."""

    error: str
    message: str
    fields: dict[str, msgspec.Raw] = {}


_FIELDS: dict[str, dict[str, Any]] = {
    "QueueExists": {"queue": Queue},
    "QueueDeletedRecently": {"seconds_left": float},
    "PurgeInProgress": {"seconds_left": float},
}
"""What errors carry beside their text."""

_ERRORS: dict[str, type[Exception]] = {
    "Conflict": Conflict,
    "ValueError": ValueError,
    **{name: kind for name, kind in vars(stores).items() if isinstance(kind, type) and issubclass(kind, StoreError)},
}

CARRIED = tuple(_ERRORS.values())
"""The errors that can be sent, with their subclasses."""


def pack_error(error: Exception) -> Failure:
    """``error``, one of :data:`CARRIED`, as it is sent; of a class that is not known to others the nearest that is."""
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    fields = {field: msgspec.Raw(msgspec.json.encode(getattr(error, field))) for field in _FIELDS.get(name, ())}
    return Failure(name, str(error), fields)


def unpack_error(failure: Failure) -> Exception:
    """The same error again: class, text and fields.  One that is not known here is a :class:`StoreError`."""
    kind = _ERRORS.get(failure.error)
    if kind is None:
        return StoreError(f"{failure.error}: {failure.message}")
    error = kind.__new__(kind)
    Exception.__init__(error, failure.message)
    for field, type_ in _FIELDS.get(failure.error, {}).items():
        setattr(error, field, msgspec.json.decode(failure.fields[field], type=type_))
    return error


# --- envelopes --------------------------------------------------------------------------------------


class Call(msgspec.Struct):
    """The body of a request."""

    arguments: msgspec.Raw
    view: str
    """Mark of the view of the ring that the caller goes by (:attr:`metadata_service.ring.View.mark`)."""
    key: str = ""
    """For :data:`QUEUE_CALLS`: :func:`queue_key` of the queue."""
    stand_in: bool = False
    """The node that the key belongs to does not answer the caller."""


class Refusal(msgspec.Struct):
    """Why a node has not begun a call: it may be made again, there or elsewhere."""

    reason: str
    """``draining``, ``view``, ``owner`` or ``time``."""
    message: str
    owner: str = ""
    """``owner``: the node to ask."""
    view: msgspec.Raw = msgspec.Raw(b"null")
    """``view``: the one that the node goes by."""
    start: str = ""
    now_ms: int = 0
    """``time``: which start of the node this is, and how long ago it was."""


def queue_key(account: str, name: str) -> str:
    """What the ring places a queue by."""
    return f"{account}/{name}"
