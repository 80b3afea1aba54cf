"""Encoding of calls between metadata nodes and their callers."""

import inspect

import msgspec
import pytest

from auth.store import Conflict
from metadata_service import store
from metadata_service.models import NewQueue, Partition, Queue
from metadata_service.nodes import codec
from metadata_service.streams import NewStream
from metadata_service.topics import NewSubscription, NewTopic

QUEUE = Queue(7, "000000000000", "orders", 3, {"DelaySeconds": "5"}, {"a": "b"}, 1, 2, (Partition(9),), b"\x00\xff" * 8)
STREAM = NewStream("000000000000", "logs", {"retention.ms": "5"}, {"a": "b"}, now_ms=7, clusters=(0, 3)).made(9, [4, 5])
TOPIC = NewTopic("000000000000", "news", {"DisplayName": "n"}, {"a": "b"}, 7, {}).made(QUEUE)
SUBSCRIPTION = NewSubscription(7, "000000000000", "sqs", "arn", {"FilterPolicy": "{}"}, 7, token="t").made(TOPIC)

ERRORS: list[Exception] = [
    store.StoreError("plain"),
    store.QueueNotFound("orders"),
    store.QueueExists(QUEUE),
    store.QueueDeletedRecently("orders", 12.5),
    store.TooManyQueues("too many"),
    store.PurgeInProgress("orders", 0.25),
    store.StreamNotFound("logs"),
    store.StreamExists(STREAM),
    store.TooManyStreams("too many"),
    store.TopicNotFound("news"),
    store.TopicExists(TOPIC),
    store.TooManyTopics("too many"),
    store.SubscriptionNotFound("00"),
    store.SubscriptionExists(SUBSCRIPTION),
    store.TooManySubscriptions("too many"),
    store.TooManyPushedSubscriptions("too many"),
    store.TooManyFilterPolicies("too many"),
    store.ConditionFailed("has version 4, not 3"),
    store.StoreUnavailable("disk full"),
    Conflict("changed"),
    ValueError("no tenant"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_arrives_as_it_was(error: Exception) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(codec.pack_error(error)), type=codec.StoreFailure)
    arrived = codec.unpack_error(sent)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_no_error_of_the_store_is_forgotten_here() -> None:
    kinds = {kind for _, kind in inspect.getmembers(store, inspect.isclass) if issubclass(kind, store.StoreError)}
    assert kinds == {type(error) for error in ERRORS if isinstance(error, store.StoreError)}
    assert kinds < set(codec.CARRIED)


def test_an_error_of_a_class_of_its_own_arrives_as_the_nearest_that_is_known() -> None:
    class Special(store.ConditionFailed):
        pass

    assert type(codec.unpack_error(codec.pack_error(Special("x")))) is store.ConditionFailed
    stranger = codec.unpack_error(codec.StoreFailure("FromTheFuture", "what it said"))
    assert type(stranger) is store.StoreError
    assert str(stranger) == "FromTheFuture: what it said"


def test_the_lists_of_calls_name_calls() -> None:
    assert codec.METHODS.keys() > codec.QUEUE_CALLS
    assert codec.METHODS.keys() > codec.REPEATABLE
    assert {
        "new_incarnation",
        "update_shards",
        "reserve_seals",
        "delete_queue",
    } < codec.METHODS.keys() - codec.REPEATABLE
    assert "close" not in codec.METHODS


def test_a_new_queue_is_sent_as_arguments() -> None:
    method = codec.METHODS["create_queue"]
    new = NewQueue("000000000000", "orders", {"DelaySeconds": "5"}, {"a": "b"}, now_ms=7, hold_seconds=60, queues_max=3)
    sent = (
        b'{"account":"000000000000","name":"orders","attributes":{"DelaySeconds":"5"},"tags":{"a":"b"},'
        b'"now_ms":7,"hold_seconds":60,"queues_most":3,"clusters":[0]}'
    )
    assert method.encode(new) == sent
    assert method.arguments.decode(sent) == new
    for bad in (sent.replace(b'"now_ms":7,', b""), sent.replace(b'"now_ms"', b'"more":1,"now_ms"')):
        with pytest.raises(msgspec.ValidationError):
            method.arguments.decode(bad)


def test_a_new_stream_is_sent_as_arguments() -> None:
    method = codec.METHODS["create_stream"]
    new = NewStream("000000000000", "logs", {"retention.ms": "5"}, {}, now_ms=7, clusters=(0, 3), partitions_max=9)
    sent = (
        b'{"account":"000000000000","name":"logs","settings":{"retention.ms":"5"},"tags":{},"now_ms":7,'
        b'"clusters":[0,3],"streams_max":null,"partitions_max":9}'
    )
    assert method.encode(new) == sent
    assert method.arguments.decode(sent) == new
    with pytest.raises(msgspec.ValidationError):
        method.arguments.decode(sent.replace(b'"now_ms"', b'"more":1,"now_ms"'))


def test_arguments_fit_or_are_refused() -> None:
    method = codec.METHODS["list_queues"]
    read = method.arguments.decode(method.encode("000000000000", limit=5, prefix="a"))
    assert (read.account, read.prefix, read.after, read.limit) == ("000000000000", "a", "", 5)
    with pytest.raises(TypeError):
        method.encode("000000000000", most=5)
    for bad in (b'{"account":"0"}', b'{"account":"0","limit":"5"}', b'{"account":"0","limit":5,"more":1}', b"[]"):
        with pytest.raises(msgspec.ValidationError):
            method.arguments.decode(bad)
