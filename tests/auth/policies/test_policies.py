"""The policy language: results for requests, and refused documents."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.policies.conditions import VALUE_LENGTH_MAX, Glob
from auth.policies.policies import Decision, PolicyCaller, PolicyError, ServicePrincipal, compile_policy
from auth.principal import Principal
from tests.tables import beside

ACTIONS = ("SendMessage", "ReceiveMessage", "DeleteMessage", "GetQueueUrl", "SetQueueAttributes")
QUEUE = "arn:aws:sqs:us-east-1:111111111111:orders"
BEN = Principal("222222222222", "AIDABEN", "arn:aws:iam::222222222222:user/ben", "AKIA")
ROOT = Principal("222222222222", "AIDAROOT", "arn:aws:iam::222222222222:root", "AKIA")
SESSION = Principal("222222222222", "AROA:s", "arn:aws:sts::222222222222:assumed-role/worker/s1", "ASIA")
OUTSIDER = Principal("222222222222", "x", "arn:aws:sts::222222222222:federated-user/auth0|dora", "token")
CARLA = Principal("333333333333", "AIDACARLA", "arn:aws:iam::333333333333:user/carla", "AKIA")
ALLOWED, DENIED, SILENT = Decision.ALLOWED, Decision.DENIED, Decision.SILENT

TABLES = beside(__file__, "policies.yaml")
ALLOW = TABLES["allow"]


def document(*statements: dict[str, Any], version: str = "2012-10-17") -> dict[str, Any]:
    return {"Version": version, "Statement": list(statements)}


def statement(**changes: Any) -> dict[str, Any]:
    """A statement that allows all actions to all callers, with changes; None omits an element."""
    return {name: value for name, value in (ALLOW | changes).items() if value is not None}


def decide(
    *statements: dict[str, Any],
    who: PolicyCaller = BEN,
    action: str = "SendMessage",
    resource: str = QUEUE,
    **facts: str,
) -> Decision:
    """``facts`` are condition keys, with ``__`` for the colon."""
    known = {name.replace("__", ":").lower(): value for name, value in facts.items()}
    return compile_policy(document(*statements), ACTIONS).decide(who, action, resource, known.get)


def test_a_service_is_one_that_is_named_or_among_all() -> None:
    topics = ServicePrincipal("sns.amazonaws.com")
    for principal, expected in TABLES["services"]:
        assert (decide(statement(Principal=principal), who=topics) is ALLOWED) is expected, principal
    others = statement(Principal=None, NotPrincipal={"Service": "sns.amazonaws.com"})
    assert decide(others, who=topics) is SILENT
    assert decide(others) is ALLOWED
    source = statement(
        Principal={"Service": "sns.amazonaws.com"},
        Condition={"ArnLike": {"aws:SourceArn": "arn:aws:sns:*:111111111111:t*"}},
    )
    assert decide(source, who=topics, aws__SourceArn="arn:aws:sns:us-east-1:111111111111:topic") is ALLOWED
    assert decide(source, who=topics, aws__SourceArn="arn:aws:sns:us-east-1:222222222222:topic") is SILENT


def test_actions_are_those_of_the_service() -> None:
    policy = compile_policy(document(statement(Action="SNS:Pub*")), ("Publish", "Subscribe"), "sns")
    assert policy.decide(BEN, "Publish", QUEUE, lambda key: None) is ALLOWED
    assert policy.decide(BEN, "Subscribe", QUEUE, lambda key: None) is SILENT
    with pytest.raises(PolicyError, match="out of service scope"):
        compile_policy(document(statement(Action="sqs:*")), ("Publish",), "sns")
    with pytest.raises(PolicyError, match="governed by SNS:Publish"):
        compile_policy(document(statement(Action="sns:PublishBatch")), ("Publish",), "sns")


# --- principals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("principal", "those"), TABLES["principals"])
def test_principals(principal: Any, those: list[str]) -> None:
    everybody = {"ben": BEN, "root": ROOT, "session": SESSION, "carla": CARLA, "nobody": None}
    fits = {name for name, who in everybody.items() if decide(statement(Principal=principal), who=who) is ALLOWED}
    assert fits == set(those)
    others = statement(Principal=None, NotPrincipal=principal)
    assert {name for name, who in everybody.items() if decide(others, who=who) is ALLOWED} == set(everybody) - set(
        those
    )


def test_a_federated_user_is_named_by_its_arn() -> None:
    for principal, decision in (
        ({"AWS": OUTSIDER.arn}, ALLOWED),
        ({"AWS": "222222222222"}, ALLOWED),
        ({"AWS": OUTSIDER.arn + "x"}, SILENT),
    ):
        assert decide(statement(Principal=principal), who=OUTSIDER) is decision


@pytest.mark.parametrize("principal", TABLES["bad_principals"])
def test_bad_principals(principal: Any) -> None:
    for element in ("Principal", "NotPrincipal"):
        with pytest.raises(PolicyError):
            compile_policy(document(statement(**{"Principal": None, element: principal})), ACTIONS)


# --- actions and resources ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("pattern", "those"), TABLES["actions"])
def test_actions(pattern: Any, those: list[str]) -> None:
    assert {action for action in ACTIONS if decide(statement(Action=pattern), action=action) is ALLOWED} == set(those)
    others = statement(Action=None, NotAction=pattern)
    assert {action for action in ACTIONS if decide(others, action=action) is ALLOWED} == set(ACTIONS) - set(those)


@pytest.mark.parametrize("pattern", TABLES["bad_actions"])
def test_bad_actions(pattern: Any) -> None:
    with pytest.raises(PolicyError):
        compile_policy(document(statement(Action=pattern)), ACTIONS)


def test_a_batch_action_is_refused_with_the_action_that_governs_it() -> None:
    with pytest.raises(PolicyError, match="governed by SQS:SendMessage"):
        compile_policy(document(statement(Effect="Deny", Action="sqs:SendMessageBatch")), ACTIONS)


@pytest.mark.parametrize(("pattern", "fits"), TABLES["resources"])
def test_resources(pattern: Any, fits: bool | None) -> None:
    if fits is None:
        with pytest.raises(PolicyError):
            decide(statement(Resource=pattern))
        return
    assert (decide(statement(Resource=pattern)) is ALLOWED) is fits
    assert (decide(statement(Resource=None, NotResource=pattern)) is ALLOWED) is not fits


def test_a_statement_without_resource_is_about_the_queue() -> None:
    assert decide(statement(Resource=None)) is ALLOWED


# --- effects -----------------------------------------------------------------------------------------------


def test_deny_wins_wherever_it_stands() -> None:
    deny = statement(Effect="Deny", Principal={"AWS": "222222222222"}, Action="sqs:SendMessage")
    for statements in ((deny, statement()), (statement(), deny)):
        assert decide(*statements) is DENIED
        assert decide(*statements, who=CARLA) is ALLOWED
        assert decide(*statements, action="ReceiveMessage") is ALLOWED


def test_a_policy_without_a_matching_statement_has_no_decision() -> None:
    assert decide(statement(Principal={"AWS": "333333333333"})) is SILENT
    assert decide(statement(Effect="Deny", Principal={"AWS": "333333333333"})) is SILENT


def test_every_element_of_a_policy() -> None:
    def compiled(*statements: dict[str, Any]) -> tuple[bool, bool]:
        policy = compile_policy(document(*statements), ACTIONS)
        return policy.denies, policy.public

    assert compiled(statement(Principal={"AWS": "222222222222"})) == (False, False)
    assert compiled(statement()) == (False, True)
    assert compiled(statement(Principal=None, NotPrincipal={"AWS": "222222222222"})) == (False, True)
    assert compiled(statement(Principal=None, NotPrincipal="*")) == (False, False)
    assert compiled(statement(Effect="Deny")) == (True, False)


# --- conditions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operator", "values", "fits", "others"), TABLES["operators"])
def test_operators(operator: str, values: Any, fits: list[str], others: list[str]) -> None:
    conditional = statement(Condition={operator: {"aws:Thing": values}})
    for value in fits:
        assert decide(conditional, AWS__thing=value) is ALLOWED, value
    for value in others:
        assert decide(conditional, AWS__thing=value) is SILENT, value


@pytest.mark.parametrize(("operator", "value", "holds"), TABLES["missing_keys"])
def test_a_key_that_is_not_there(operator: str, value: str, holds: bool) -> None:
    """IAM: false, except for negated operators, ``IfExists``, ``ForAllValues`` and ``Null``."""
    assert (decide(statement(Condition={operator: {"aws:Thing": value}})) is ALLOWED) is holds


def test_all_keys_and_all_operators_must_hold() -> None:
    condition = {"StringEquals": {"aws:A": "1", "aws:B": "2"}, "Bool": {"aws:SecureTransport": "true"}}
    conditional = statement(Condition=condition)
    assert decide(conditional, aws__a="1", aws__b="2", aws__securetransport="true") is ALLOWED
    assert decide(conditional, aws__a="1", aws__b="3", aws__securetransport="true") is SILENT
    assert decide(conditional, aws__a="1", aws__b="2", aws__securetransport="false") is SILENT
    assert decide(conditional, aws__a="1", aws__securetransport="true") is SILENT


@pytest.mark.parametrize("condition", TABLES["bad_conditions"])
def test_bad_conditions(condition: Any) -> None:
    with pytest.raises(PolicyError):
        compile_policy(document(statement(Condition=condition)), ACTIONS)


def test_an_operator_in_the_wrong_case_is_refused_with_the_right_spelling() -> None:
    with pytest.raises(PolicyError, match="It is written StringEquals"):
        compile_policy(document(statement(Condition={"stringEquals": {"aws:A": "1"}})), ACTIONS)


# --- documents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", TABLES["bad_documents"])
def test_bad_documents(given: Any) -> None:
    with pytest.raises(PolicyError):
        compile_policy(given, ACTIONS)


def test_variables_mean_nothing_in_the_older_version() -> None:
    older = document(statement(Condition={"StringEquals": {"aws:A": "${aws:userid}"}}), version="2008-10-17")
    policy = compile_policy(older, ACTIONS)
    assert policy.decide(BEN, "SendMessage", QUEUE, lambda key: "${aws:userid}") is ALLOWED


# --- cost --------------------------------------------------------------------------------------------------


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_patterns_match_as_defined(pattern: str, text: str) -> None:
    def fits(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return fits(pattern[1:], text) or (bool(text) and fits(pattern, text[1:]))
        return bool(text) and pattern[0] in (text[0], "?") and fits(pattern[1:], text[1:])

    assert Glob(pattern)(text) is fits(pattern, text)


LONGEST = "a" * VALUE_LENGTH_MAX


@pytest.mark.parametrize(
    "patterns",
    [
        ["*" + "?" * 1_900 + "b*"] * 4,
        ["*a" * 900 + "*b?"] * 4,
        ["*" + "a?" * 950 + "b*"] * 4,
        ["*" + "?a" * 300 + "b*"] * 13,
        ["*a?b*"] * 900,
        ["*" + "a" * 49 + "b" + "a" * 49 + "*"] * 75,
        ["*?*?*?b"] * 700,
        ["?" * 2_047 + "b"] * 3,
        ["*"] * 1_500,
    ],
    ids=lambda patterns: f"{patterns[0][:8]}-{len(patterns)}",
)
@pytest.mark.parametrize("kind", ["user agent", "resource"])
def test_no_policy_is_slow(kind: str, patterns: list[str]) -> None:
    if kind == "resource":
        given_statement = statement(Resource=[*patterns, "b"])
    else:
        given_statement = statement(Condition={"StringLike": {"aws:UserAgent": [*patterns, "b"]}})
    assert len(json.dumps(document(given_statement))) < 9_000
    policy = compile_policy(document(given_statement), ACTIONS)
    begin = time.thread_time()
    policy.decide(BEN, "SendMessage", LONGEST, {"aws:useragent": LONGEST}.get)
    assert time.thread_time() - begin < 0.1


def test_long_patterns_are_refused() -> None:
    for changes in ({"Resource": "a" * 2_049}, {"Condition": {"StringLike": {"aws:UserAgent": "*" * 2_049}}}):
        with pytest.raises(PolicyError, match="longer than 2048"):
            compile_policy(document(statement(**changes)), ACTIONS)


@pytest.mark.parametrize("operator", ["StringLike", "StringNotLike", "StringEqualsIgnoreCase", "StringNotEquals"])
def test_a_value_that_is_too_long_allows_nothing_and_denies(operator: str) -> None:
    condition = {operator: {"aws:UserAgent": "*"}}
    facts = {"aws:useragent": LONGEST + "a"}.get
    allow = compile_policy(document(statement(Condition=condition)), ACTIONS)
    assert allow.decide(BEN, "SendMessage", QUEUE, facts) is SILENT
    deny = compile_policy(document(ALLOW, statement(Effect="Deny", Condition=condition)), ACTIONS)
    assert deny.decide(BEN, "SendMessage", QUEUE, facts) is DENIED


def test_a_decision_takes_microseconds() -> None:
    condition = {"StringEquals": {"aws:SourceAccount": "222222222222"}, "Bool": {"aws:SecureTransport": "true"}}
    policy = compile_policy(document(statement(Resource=QUEUE, Condition=condition)), ACTIONS)
    facts = {"aws:sourceaccount": "222222222222", "aws:securetransport": "true"}.get

    def thousand_seconds() -> float:
        begin = time.process_time()
        for _ in range(1000):
            assert policy.decide(BEN, "SendMessage", QUEUE, facts) is ALLOWED
        return time.process_time() - begin

    assert min(thousand_seconds() for _ in range(5)) < 0.1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["*", "sqs:*", "Allow"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        *("Version", "Statement", "Effect", "Principal", "Action", "Resource", "Condition", "AWS"),
                        *("DateLessThan", "IpAddress", "NumericLessThan", "StringLike", "aws:A"),
                    ]
                ),
                inner,
                max_size=6,
            )
        ),
        max_leaves=20,
    )
)
def test_any_document_is_a_policy_or_is_refused(given: Any) -> None:
    try:
        policy = compile_policy(given, ACTIONS)
    except PolicyError:
        return
    assert policy.decide(BEN, "SendMessage", QUEUE, lambda key: "x") in Decision
