"""Selection of subscriptions: on the event loop, in the thread, and beyond the work that a publication may take."""

import json
import threading
from typing import Any

import pytest

from frontend.sns.filters import work
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.messages.publication import PublishedMessage
from frontend.sns.topics import selection
from frontend.sns.topics.audiences import AudienceCache, TopicAudience
from frontend.sns.topics.outcomes import DecidedOutcomes
from frontend.sns.topics.selection import SubscriptionSelector
from frontend.sqs.protocol.errors import SqsError
from metadata_service.topics import Subscription


def subscription(number: int, policy: Any = None, *, token: str = "", version: int = 1) -> Subscription:
    attributes = {} if policy is None else {"FilterPolicy": json.dumps(policy), "FilterPolicyScope": "MessageBody"}
    return Subscription(
        subscription_id=number.to_bytes(16, "big"),
        topic_id=1,
        topic_account="000000000001",
        topic_name="t",
        owner="000000000001",
        protocol="sqs",
        endpoint=f"arn:aws:sqs:us-east-1:000000000001:q{number}",
        version=version,
        attributes=attributes,
        created_s=0,
        token=token,
    )


async def audience(*policies: Any) -> TopicAudience:
    records = [subscription(number, policy) for number, policy in enumerate(policies)]
    return await AudienceCache().get(1, records)


def message(body: Any) -> PublishedMessage:
    text = json.dumps(body)
    return PublishedMessage(text, None, (), None, None, len(text))


async def selected(body: Any, *policies: Any) -> list[str]:
    found = await SubscriptionSelector().select(await audience(*policies), message(body), DecidedOutcomes())
    return sorted(one.queue.name for one in found)


def names(found: TopicAudience) -> list[str]:
    assert not found.exact
    filtered = [one for _, subscriptions in found.filtered for one in subscriptions]
    return sorted(one.queue.name for one in (*found.unfiltered, *filtered))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which policies were evaluated."""
    found = []
    evaluate = FilterPolicy.matches

    def matches(policy: FilterPolicy, filtered: FilterMessage) -> bool:
        found.append(threading.current_thread())
        return evaluate(policy, filtered)

    monkeypatch.setattr(FilterPolicy, "matches", matches)
    return found


async def test_policies_with_the_same_text_are_evaluated_once(threads: list[threading.Thread]) -> None:
    assert await selected({"a": 1}, {"a": [1]}, None, {"a": [2]}, {"a": [1]}) == ["q0", "q1", "q3"]
    assert threads == [threading.main_thread()] * 2


async def test_policies_with_exact_values_are_found_by_them(threads: list[threading.Thread]) -> None:
    policies = [{"a": ["x", "y"]}, {"a": ["z"]}, {"a": [1]}, {"a": [{"exists": False}, "z"]}, {"b": ["x"], "a": ["y"]}]
    records = [subscription(number, policy) for number, policy in enumerate(policies)]
    for record in records:
        del record.attributes["FilterPolicyScope"]
    found = await AudienceCache().get(1, records)
    for attributes, expected, evaluated in (
        ((("a", "String.Array", '["x", "y", "x"]'),), ["q0"], 2),
        ((("a", "String", "y"), ("b", "String", "x")), ["q0", "q4"], 3),
        ((("a", "Number", "1.0"),), ["q2"], 2),
        ((("c", "String", "x"),), ["q3"], 1),
        ((), [], 1),
    ):
        threads.clear()
        outcomes = DecidedOutcomes()
        given = message({})._replace(attributes=attributes)
        selected_ones = await SubscriptionSelector().select(found, given, outcomes)
        assert outcomes.filtered_by_attributes == len(policies) - len(expected)
        assert outcomes.filtered_without_attributes == (0 if attributes else len(policies))
        assert sorted(one.queue.name for one in selected_ones) == expected
        assert len(threads) == evaluated


async def test_large_bodies_are_read_in_a_thread(threads: list[threading.Thread]) -> None:
    assert await selected({"a": list(range(30_000))}, {"a": [29_999]}, {"a": [30_000]}, {"b": [1]}) == ["q0"]
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
    assert threads[2:] == [threading.main_thread()] * 2


async def test_many_matchers_go_on_in_a_thread(
    threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "STEPS_AT_ONCE", 50)
    wildcards = [{"wildcard": f"*x{number}y*"} for number in range(100)]
    assert await selected({"a": "x99y"}, {"a": wildcards}, {"a": wildcards[:50]}, {"a": wildcards[99:]}) == ["q0", "q2"]
    assert threads.count(threading.main_thread()) == 3


async def test_more_work_than_a_publication_may_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [f"x{number}" for number in range(200)]
    body, policies = {"a": values}, [{"a": [{"wildcard": f"*x*{number}y*"}]} for number in range(100)]
    assert await selected(body, *policies) == []
    monkeypatch.setattr(work, "STEPS_MAX", 10_000)
    with pytest.raises(SqsError, match="take too much work"):
        await selected(body, *policies)
    assert await selected({"a": values[:1]}, *policies) == []


async def test_audiences_are_kept_within_their_memory() -> None:
    long = {"a": ["x" * 10_000]}
    records = [[subscription(1, long)], [subscription(2, long)], [subscription(3)]]
    one = await AudienceCache().get(1, records[0])
    assert one.memory_bytes > 20_000
    cache = AudienceCache(bytes_max=one.memory_bytes + 5_000)
    first = await cache.get(1, records[0])
    assert await cache.get(1, records[0]) is first
    third = await cache.get(3, records[2])
    assert await cache.get(1, records[0]) is first
    await cache.get(2, records[1])  # both others have to go
    assert cache.memory_bytes <= one.memory_bytes + 5_000
    assert await cache.get(1, records[0]) is not first
    assert await cache.get(3, records[2]) is not third


async def test_an_audience_of_any_size_is_kept_alone() -> None:
    cache, records = AudienceCache(bytes_max=1), [subscription(1, {"a": [1]})]
    assert await cache.get(1, records) is await cache.get(1, records)


async def test_a_changed_audience_keeps_the_policies_that_are_left() -> None:
    cache = AudienceCache()
    before = await cache.get(1, [subscription(1, {"a": [1]}), subscription(2, token="t")])
    assert names(before) == ["q1"]
    after = await cache.get(1, [subscription(1, {"a": [1]}, version=2), subscription(2), subscription(3, {"a": [1]})])
    assert names(after) == ["q1", "q2", "q3"]
    ((policy, subscriptions),) = after.filtered
    assert policy is before.filtered[0][0]
    assert [one.queue.name for one in subscriptions] == ["q1", "q3"]


async def test_a_policy_that_cannot_be_read_ends_the_messages_of_its_subscription_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert names(await audience({"a": 5}, {"a": [{"prefix": "x"}]}, {"a": 6}, None)) == ["q1", "q3"]
    (line,) = caplog.messages
    assert line.startswith("2 subscriptions of topic 't' of account 000000000001 get no messages")
