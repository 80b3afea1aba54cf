"""Encoding of calls between metadata nodes and their callers."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from auth.store import Conflict
from metadata_service import store as stores
from metadata_service.models import Partition, Queue
from metadata_service.nodes.codec import (
    CARRIED,
    METHODS,
    QUEUE_CALLS,
    REPEATABLE,
    StoreFailure,
    pack_error,
    unpack_error,
)
from metadata_service.store import (
    ConditionFailed,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    TooManyQueues,
)

QUEUE = Queue(7, "000000000000", "orders", 3, {"DelaySeconds": "5"}, {"a": "b"}, 1, 2, (Partition(9),), b"\x00\xff" * 8)

ERRORS: list[Exception] = [
    StoreError("plain"),
    QueueNotFound("orders"),
    QueueExists(QUEUE),
    QueueDeletedRecently("orders", 12.5),
    TooManyQueues("too many"),
    PurgeInProgress("orders", 0.25),
    ConditionFailed("has version 4, not 3"),
    StoreUnavailable("disk full"),
    Conflict("changed"),
    ValueError("no tenant"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_arrives_as_it_was(error: Exception) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(pack_error(error)), type=StoreFailure)
    arrived = unpack_error(sent)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_no_error_of_the_store_is_forgotten_here() -> None:
    kinds = {kind for _, kind in inspect.getmembers(stores, inspect.isclass) if issubclass(kind, StoreError)}
    assert kinds == {type(error) for error in ERRORS if isinstance(error, StoreError)}
    assert kinds < set(CARRIED)


def test_an_error_of_a_class_of_its_own_arrives_as_the_nearest_that_is_known() -> None:
    class Special(ConditionFailed):
        pass

    assert type(unpack_error(pack_error(Special("x")))) is ConditionFailed
    stranger = unpack_error(StoreFailure("FromTheFuture", "what it said"))
    assert type(stranger) is StoreError
    assert str(stranger) == "FromTheFuture: what it said"


def test_the_lists_of_calls_name_calls() -> None:
    assert METHODS.keys() > QUEUE_CALLS
    assert METHODS.keys() > REPEATABLE
    assert {"new_incarnation", "update_shards", "reserve_seals", "delete_queue"} < METHODS.keys() - REPEATABLE
    assert "close" not in METHODS


def test_arguments_fit_or_are_refused() -> None:
    method = METHODS["list_queues"]
    read = method.arguments.decode(method.encode("000000000000", limit=5, prefix="a"))
    assert (read.account, read.prefix, read.after, read.limit) == ("000000000000", "a", "", 5)
    with pytest.raises(TypeError):
        method.encode("000000000000", most=5)
    for bad in (b'{"account":"0"}', b'{"account":"0","limit":"5"}', b'{"account":"0","limit":5,"more":1}', b"[]"):
        with pytest.raises(msgspec.ValidationError):
            method.arguments.decode(bad)
