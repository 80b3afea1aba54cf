"""Filter policies: cases as data, and a comparison with a slow matcher."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from frontend.sns.filters.body_paths import PathTree
from frontend.sns.filters.compiler import FilterScope, compile_filter_policy
from frontend.sns.filters.expressions import FilterPolicyInvalid
from frontend.sns.filters.message import FilterMessage
from frontend.sns.filters.policy import FilterPolicy
from frontend.sqs.protocol.md5 import Attribute
from tests.behaviour.cases import resolve
from tests.frontend.sns import oracle
from tests.tables import beside

CASES: dict[str, Any] = beside(__file__, "filters.yaml")


def as_text(policy: Any) -> str:
    return policy if isinstance(policy, str) else json.dumps(policy)


def compiled(policy: Any, scope: FilterScope) -> FilterPolicy:
    found = compile_filter_policy(as_text(policy), scope)
    assert found is not None
    return found


def matches(policy: FilterPolicy, attributes: Sequence[Attribute], body: str, *, indexed: bool = False) -> bool:
    """``indexed``: few values are indexed, too."""
    message = filter_message(attributes, body, policy)
    if indexed:
        every = message.body_values() if policy.on_body else message.attribute_values()
        for values in (every or {}).values():
            values.small = False
    return policy.matches(message)


def filter_message(attributes: Sequence[Attribute], body: str, *policies: FilterPolicy) -> FilterMessage:
    paths = PathTree()
    for policy in policies:
        paths.add(policy.paths)
    return FilterMessage(attributes, body, paths)


def attribute(name: str, value: Any) -> Attribute:
    """An attribute with the type of a value."""
    if isinstance(value, str):
        return name, "String", value
    if isinstance(value, list):
        return name, "String.Array", json.dumps(value)
    return name, "Number", json.dumps(value)


def rows(section: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{operator} {number}")
        for operator, cases in CASES[section].items()
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", rows("both"))
def test_cases_of_both_scopes(case: dict[str, Any]) -> None:
    on_attributes, on_body = (compiled(case["policy"], scope) for scope in ("MessageAttributes", "MessageBody"))
    for expected, messages in ((True, case["matches"]), (False, case["misses"])):
        for message in messages:
            attributes = [attribute(name, value) for name, value in message.items()]
            for indexed in (False, True):
                assert matches(on_attributes, attributes, "", indexed=indexed) is expected, message
                assert matches(on_body, (), json.dumps(message), indexed=indexed) is expected, message


@pytest.mark.parametrize("case", rows("attributes"))
def test_cases_of_attributes(case: dict[str, Any]) -> None:
    policy = compiled(case["policy"], "MessageAttributes")
    for expected, messages in ((True, case["matches"]), (False, case["misses"])):
        for message in messages:
            attributes: list[Attribute] = [
                (name, type_, value.encode() if type_.startswith("Binary") else value)
                for name, (type_, value) in message.items()
            ]
            assert matches(policy, attributes, '{"a": "x"}') is expected, message


@pytest.mark.parametrize("case", rows("bodies"))
def test_cases_of_bodies(case: dict[str, Any]) -> None:
    policy = compiled(case["policy"], "MessageBody")
    for expected, messages in ((True, case["matches"]), (False, case["misses"])):
        for message in messages:
            body = as_text(message)
            for indexed in (False, True):
                assert matches(policy, [("a", "String", "x")], body, indexed=indexed) is expected, message
            if isinstance(case["policy"], dict):
                assert oracle.matches_body(case["policy"], body) is expected or "\\ud800" in body, message


@pytest.mark.parametrize("case", rows("refused"))
def test_refusals(case: list[Any]) -> None:
    policy, text = resolve(case[0], {}), case[1]
    with pytest.raises(FilterPolicyInvalid) as caught:
        compile_filter_policy(as_text(policy), "MessageBody")
    assert str(caught.value) == f"FilterPolicy: {text}"


def test_nested_policies_are_refused_for_attributes() -> None:
    for policy in ({"a": {"b": [1]}}, {"$or": [{"a": [1]}, {"b": {"c": [1]}}]}):
        with pytest.raises(FilterPolicyInvalid) as caught:
            compile_filter_policy(as_text(policy), "MessageAttributes")
        assert str(caught.value) == "Filter policy scope MessageAttributes does not support nested filter policy"


@pytest.mark.parametrize("policy", CASES["accepted"], ids=range(len(CASES["accepted"])))
def test_policies_within_the_limits(policy: Any) -> None:
    compiled(resolve(policy, {}), "MessageBody")


@pytest.mark.parametrize("text", ["", "{}", " {} ", "\n"])
def test_an_empty_policy_is_none(text: str) -> None:
    assert compile_filter_policy(text, "MessageAttributes") is None


def test_a_message_is_read_once_and_only_if_a_policy_needs_it() -> None:
    on_attributes, on_body = compiled({"a": ["x"]}, "MessageAttributes"), compiled({"a": ["x"]}, "MessageBody")
    message = filter_message([("a", "String", "x")], '{"a": "x"}', on_attributes, on_body)
    assert on_attributes.matches(message)
    assert not message._body_is_read
    assert on_body.matches(message)
    first = message.body_values()
    assert on_body.matches(message)
    assert message.body_values() is first
    assert message.attribute_values() is message.attribute_values()


# --- comparison with the slow matcher ------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a.b", "c", ""])
TEXTS = st.sampled_from(["x", "xy", "yx", "X", "", "*", "10.0.0.1", "1", "a*", "xyx", "::1", "x\U0010ffff"])
NUMBERS = st.sampled_from([0, 1, 1.5, -1, 10**9, 10**9 + 1, 0.000004, 2.00001, -(10**12), 100])
SCALARS = TEXTS | NUMBERS | st.sampled_from([True, False, None])
LEAVES = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2), max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=10
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=4)
PATTERNS = st.sampled_from(["x*", "*x", "x*y*", "*", "x", "a\\*", "*y*"])
IN_RANGE = st.sampled_from([0, 1, 1.5, -1, 10**9, 2, 2.00001])
LOWER, UPPER = st.sampled_from([">", ">="]), st.sampled_from(["<", "<="])
STARTS = st.sampled_from(["x", "xy", "y", "X", "1", "\U0010ffff"])
EXPRESSIONS = st.one_of(
    st.fixed_dictionaries({"prefix": TEXTS}),
    st.fixed_dictionaries({"suffix": TEXTS}),
    st.fixed_dictionaries({"equals-ignore-case": TEXTS}),
    st.fixed_dictionaries({"wildcard": PATTERNS}),
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.fixed_dictionaries({"cidr": st.sampled_from(["10.0.0.0/8", "10.0.0.1/32", "::/0"])}),
    st.fixed_dictionaries({"numeric": st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), IN_RANGE)}),
    st.fixed_dictionaries({"numeric": st.tuples(LOWER, st.just(-1), UPPER, st.sampled_from([0, 1, 1.5, 2]))}),
    st.fixed_dictionaries(
        {"anything-but": TEXTS | NUMBERS | st.lists(TEXTS, min_size=1) | st.lists(NUMBERS, min_size=1)}
    ),
    *(
        st.fixed_dictionaries({"anything-but": st.fixed_dictionaries({name: one | st.lists(one, min_size=1)})})
        for name, one in (("prefix", STARTS), ("suffix", STARTS), ("wildcard", PATTERNS))
    ),
    st.fixed_dictionaries({"anything-but": st.fixed_dictionaries({"equals-ignore-case": st.lists(TEXTS, min_size=1)})}),
)
CONDITIONS = st.lists(SCALARS | EXPRESSIONS, min_size=1, max_size=2)


def _with_or(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda keys, alternatives: keys | {"$or": alternatives}, inner, st.lists(inner, min_size=2, max_size=2)
    )


FLAT = st.dictionaries(NAMES, CONDITIONS, min_size=1, max_size=2)
NESTED = st.recursive(
    FLAT,
    lambda inner: st.dictionaries(NAMES, CONDITIONS | inner, min_size=1, max_size=2) | _with_or(inner),
    max_leaves=3,
)


@settings(max_examples=400, deadline=None)
@given(policy=NESTED, body=BODIES)
@example(policy={"a": {"a": [1], "b": [1]}}, body={"a": [{"a": 1}, {"b": 1}]})
def test_bodies_match_as_by_the_definition(policy: dict[str, Any], body: dict[str, Any]) -> None:
    text = json.dumps(body)
    try:
        found = compile_filter_policy(json.dumps(policy), "MessageBody")
    except FilterPolicyInvalid as error:
        assume("too complex" not in str(error))
        raise
    assert found is not None
    for indexed in (False, True):
        assert matches(found, (), text, indexed=indexed) is oracle.matches_body(policy, text)


ATTRIBUTES = st.dictionaries(
    NAMES,
    st.one_of(
        st.tuples(st.just("String"), TEXTS),
        st.tuples(st.just("Number"), NUMBERS.map(json.dumps)),
        st.tuples(st.just("String.Array"), st.lists(SCALARS, max_size=3).map(json.dumps)),
        st.tuples(st.just("Binary"), TEXTS),
    ),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(policy=FLAT | _with_or(FLAT), attributes=ATTRIBUTES)
def test_attributes_match_as_by_the_definition(policy: dict[str, Any], attributes: dict[str, tuple[str, str]]) -> None:
    found = compiled(policy, "MessageAttributes")
    message: list[Attribute] = [
        (name, type_, text.encode() if type_ == "Binary" else text) for name, (type_, text) in attributes.items()
    ]
    for indexed in (False, True):
        assert matches(found, message, "", indexed=indexed) is oracle.matches_attributes(policy, attributes)
