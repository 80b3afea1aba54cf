"""Selection of subscriptions: on the event loop, in the thread, and beyond the work that a policy may take."""

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontend.sns.filters import message as body_reader
from frontend.sns.filters import work
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.messages.publication import PublishedMessage
from frontend.sns.topics import selection
from frontend.sns.topics.audiences import AudienceCache, TopicAudience
from frontend.sns.topics.outcomes import DecidedOutcomes
from frontend.sns.topics.selection import Selection, SubscriptionSelector
from metadata_service.topics import Subscription
from tests.frontend.sns import oracle

ACCOUNT, OTHER = "000000000001", "000000000002"


def subscription(number: int, policy: Any = None, *, token: str = "", version: int = 1) -> Subscription:
    attributes = {} if policy is None else {"FilterPolicy": json.dumps(policy), "FilterPolicyScope": "MessageBody"}
    return Subscription(
        subscription_id=number.to_bytes(16, "big"),
        topic_id=1,
        topic_account=ACCOUNT,
        topic_name="t",
        owner=ACCOUNT,
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
    found = await SubscriptionSelector().select(ACCOUNT, await audience(*policies), message(body), DecidedOutcomes())
    assert not found.undecided
    return sorted(one.queue.name for one in found.matching)


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
        published = msgspec.structs.replace(message({}), attributes=attributes)
        selected_ones = await SubscriptionSelector().select(ACCOUNT, found, published, outcomes)
        assert outcomes.filtered_by_attributes == len(policies) - len(expected)
        assert outcomes.filtered_without_attributes == (0 if attributes else len(policies))
        assert sorted(one.queue.name for one in selected_ones.matching) == expected
        assert len(threads) == evaluated


async def test_large_bodies_are_read_in_a_thread(
    threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[threading.Thread] = []
    parse = body_reader._parsed

    def parsed(text: str) -> dict[str, Any] | None:
        read.append(threading.current_thread())
        return parse(text)

    monkeypatch.setattr(body_reader, "_parsed", parsed)
    assert await selected({"a": list(range(30_000))}, {"a": [29_999]}, {"a": [30_000]}, {"b": [1]}) == ["q0"]
    assert len(read) == 1
    assert read[0] is not threading.main_thread()
    assert threads == [threading.main_thread()] * 3


async def test_many_matchers_go_on_in_a_thread(
    threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "TRIAL_STEPS", 50)
    wildcards = [{"wildcard": f"*x{number}y*"} for number in range(100)]
    assert await selected({"a": "x99y"}, {"a": wildcards}, {"a": wildcards[:50]}, {"a": wildcards[99:]}) == ["q0", "q2"]
    assert threads.count(threading.main_thread()) == 3


def hostile(number: int) -> dict[str, Any]:
    """A policy that takes about 100 steps for a text of 400 letters x."""
    return {"a": [{"wildcard": "*" + "x*" * 190 + f"z{number}*"}]}


HOSTILE_BODY = {"a": ["x" * 400 + f"{number:03}" for number in range(300)], "b": 1}


async def test_a_hostile_policy_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "STEPS_MAX", 20_000)
    policies = [hostile(0), None, {"b": [1]}, {"a": [{"suffix": "299"}]}, {"b": [2]}]
    outcomes = DecidedOutcomes()
    found = await SubscriptionSelector().select(ACCOUNT, await audience(*policies), message(HOSTILE_BODY), outcomes)
    assert sorted(one.queue.name for one in found.matching) == ["q1", "q2", "q3"]
    assert [one.queue.name for one in found.undecided] == ["q0"]
    assert outcomes == DecidedOutcomes(filtered_by_body=1)


async def test_expensive_policies_get_what_cheap_ones_leave() -> None:
    policies = [hostile(0), *({"b": [number]} for number in range(150))]
    found = await SubscriptionSelector().select(
        ACCOUNT, await audience(*policies), message(HOSTILE_BODY), DecidedOutcomes()
    )
    assert [one.queue.name for one in found.matching] == ["q2"]
    assert not found.undecided


async def test_the_work_of_hostile_policies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = []

    class Counted(FilterMessage):
        __slots__ = ()

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            counters.append(self.work)

    monkeypatch.setattr(selection, "FilterMessage", Counted)
    monkeypatch.setattr(work, "STEPS_MAX", 1_500_000)
    policies = [*map(hostile, range(200)), {"a": [{"suffix": "299"}]}]
    found = await SubscriptionSelector().select(
        ACCOUNT, await audience(*policies), message(HOSTILE_BODY), DecidedOutcomes()
    )
    assert [one.queue.name for one in found.matching] == ["q200"]
    assert len(found.undecided) == 200
    (counter,) = counters
    assert counter.steps - counter.shared <= 1_500_000
    assert counter.shared < 100_000


async def test_indexes_are_no_work_of_the_policy_that_needs_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "STEPS_MAX", 1_000)
    body = {"a": [f"x{number}" for number in range(20_000)]}
    assert await selected(body, {"a": [{"prefix": "x19999"}]}, {"a": [{"prefix": "y"}]}) == ["q0"]


@pytest.mark.parametrize(("length", "expected"), [(20_000, 1), (5_000, 2), (1_000, 4)])
async def test_few_messages_are_evaluated_at_once(length: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish four messages at once: large ones, such that two of may be evaluated at the same time, and short ones."""
    monkeypatch.setattr(selection, "MESSAGES_AT_ONCE", 2)
    monkeypatch.setattr(selection, "STEPS_AT_ONCE", 0)  # each gives way after each policy
    alive: set[FilterMessage] = set()
    together = 0
    attempt = SubscriptionSelector._try

    async def watched(*given: Any) -> Any:
        nonlocal together
        alive.add(given[2])
        together = max(together, len(alive))
        found = await attempt(*given)
        alive.remove(given[2])
        return found

    monkeypatch.setattr(SubscriptionSelector, "_try", watched)
    found, selector = await audience({"a": [1]}, {"a": [{"numeric": [">", 5]}]}), SubscriptionSelector()
    published = message({"a": [0] * length})
    await asyncio.gather(*(selector.select(ACCOUNT, found, published, DecidedOutcomes()) for _ in range(4)))
    assert together == expected


async def test_messages_that_wait_for_the_thread_hold_no_values_and_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: asyncio.Queue[FilterMessage] = asyncio.Queue()
    released = FilterMessage.release

    def release(given: FilterMessage) -> None:
        released(given)
        waiting.put_nowait(given)

    monkeypatch.setattr(FilterMessage, "release", release)
    monkeypatch.setattr(selection, "TRIAL_STEPS", 500)
    selector, costly = SubscriptionSelector(), await audience(hostile(0))
    body = {"a": ["x" * 400 + f"{number:03}" for number in range(20)]}
    async with selector._alone.turn(ACCOUNT):
        task = asyncio.create_task(selector.select(ACCOUNT, costly, message(body), DecidedOutcomes()))
        found = await selector.select(ACCOUNT, await audience({"b": [1]}), message({"b": 1}), DecidedOutcomes())
        assert [one.queue.name for one in found.matching] == ["q0"]
        assert (await waiting.get())._values is None
        assert not task.done()
    assert not (await task).matching


@pytest.mark.parametrize("length", [30_000, 20])
async def test_accounts_are_evaluated_in_turns(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish large messages, or such that have an expensive policy, of one account before one of another."""
    monkeypatch.setattr(selection, "TRIAL_STEPS", 500)
    selector, costly = SubscriptionSelector(), await audience(hostile(0))
    published = message({"a": ["x" * 400 + f"{number:03}" for number in range(20)], "b": [0] * length})
    ended: list[str] = []

    async def publish(account: str) -> None:
        await selector.select(account, costly, published, DecidedOutcomes())
        ended.append(account)

    async with selector._alone.turn(ACCOUNT):
        tasks = []
        for account in (*[ACCOUNT] * 5, OTHER):
            tasks.append(asyncio.create_task(publish(account)))
            while sum(selector._alone._counts.values()) < len(tasks):
                await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert ended == [OTHER, *[ACCOUNT] * 5]


# --- counts, compared with those of single evaluations -------------------------------------------------------

SOME_VALUES = st.sampled_from(["x", "y", "", 1, 2.5])
SOME_POLICIES = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.lists(
        SOME_VALUES | st.sampled_from([{"exists": False}, {"exists": True}, {"prefix": "x"}]), min_size=1, max_size=3
    ),
    min_size=1,
)
SOME_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([("String", "x"), ("Number", "1.0"), ("String.Array", '["x", "y", "x"]'), ("Binary", b"x")]),
)
SOME_BODIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), SOME_VALUES | st.lists(SOME_VALUES)).map(json.dumps)


@settings(max_examples=150, deadline=None)
@given(
    policies=st.lists(st.tuples(st.booleans(), SOME_POLICIES | st.none()), max_size=8),
    attributes=SOME_ATTRIBUTES,
    body=SOME_BODIES | st.sampled_from(["{}", "[]", "x", "1", "{", '[{"a": "x"}]']),
)
@example(policies=[(True, {"a": ["x"]})], attributes={}, body="{}")
def test_counts_of_rejected_messages(
    policies: list[tuple[bool, Any]], attributes: dict[str, tuple[str, Any]], body: str
) -> None:
    records = [subscription(number, policy) for number, (_, policy) in enumerate(policies)]
    for (on_body, _), record in zip(policies, records, strict=True):
        if not on_body:
            record.attributes.pop("FilterPolicyScope", None)
    expected, matching = DecidedOutcomes(), []
    for number, (on_body, policy) in enumerate(policies):
        if policy is None or (
            oracle.matches_body(policy, body) if on_body else oracle.matches_attributes(policy, attributes)
        ):
            matching.append(f"q{number}")
        elif on_body:
            expected.filtered_by_body += 1
            expected.filtered_invalid_body += not _is_object(body)
        else:
            expected.filtered_by_attributes += 1
            expected.filtered_without_attributes += not attributes

    async def select() -> tuple[Selection, DecidedOutcomes]:
        outcomes = DecidedOutcomes()
        published = msgspec.structs.replace(
            message({}),
            message=body,
            attributes=tuple((name, type_, value) for name, (type_, value) in attributes.items()),
        )
        return await SubscriptionSelector().select(
            ACCOUNT, await AudienceCache().get(1, records), published, outcomes
        ), outcomes

    found, outcomes = asyncio.run(select())
    assert sorted(one.queue.name for one in found.matching) == matching
    assert not found.undecided
    assert outcomes == expected


def _is_object(body: str) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


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
    found = await audience({"a": 5}, {"a": [{"prefix": "x"}]}, {"a": 6}, None)
    assert names(found) == ["q1", "q3"]
    selection = await SubscriptionSelector().select(ACCOUNT, found, message({"a": "x"}), DecidedOutcomes())
    assert sorted(one.queue.name for one in selection.matching) == ["q1", "q3"]
    assert sorted(one.queue.name for one in selection.undecided) == ["q0", "q2"]
    (line,) = caplog.messages
    assert line.startswith("2 subscriptions of topic 't' of account 000000000001 get no messages")
