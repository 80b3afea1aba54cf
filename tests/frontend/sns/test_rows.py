"""Each attribute, error, operator and fact of SNS has rows in the tables."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frontend.sns.filters.expressions import _OPERATORS
from frontend.sns.protocol.errors import SNS_REGISTRY
from frontend.sns.topics.attributes import TOPIC_READABLE, TOPIC_SETTABLE
from frontend.sns.topics.subscription_attributes import SUBSCRIPTION_READABLE, SUBSCRIPTION_SETTABLE
from tests.frontend.sns.cases import SERVICE, load
from tests.frontend.sns.test_members import table as members
from tests.tables import beside

HERE = Path(__file__).parent
FACTS: dict[str, Any] = beside(__file__, "facts.yaml")
FILTERS: dict[str, Any] = beside(__file__, "filters.yaml")
TOPICS: dict[str, Any] = beside(str(HERE / "topics" / "x"), "tables.yaml")
MESSAGES: dict[str, Any] = beside(str(HERE / "messages" / "x"), "tables.yaml")
_DOCUMENTED = re.compile(r"<li> ?<p> ?<code>([A-Z]\w+)</code> ?[–-]")
_VALUES = {
    "MessageAttributes",
    "MessageBody",
    "Topic",
    "MessageGroup",
    "ReplayStatus",
    "Completed",
    "Failed",
    "Pending",
}
"""Values of attributes, which the documentation lists in the same form."""
ANYTHING_BUT = ("prefix", "suffix", "wildcard", "equals-ignore-case")


def documented(action: str, member: str, *, answered: bool = False) -> set[str]:
    """Names of attributes in the documentation of a member."""
    operation = SERVICE.operation_model(action)
    shape = operation.output_shape if answered else operation.input_shape
    return set(_DOCUMENTED.findall(shape.members[member].documentation)) - _VALUES


@cache
def text() -> str:
    """All tables."""
    return "\n".join(path.read_text("utf-8") for path in HERE.rglob("*.yaml") if path.name != "facts.yaml")


def named(section: str, tables: dict[str, Any]) -> set[str]:
    """Names of attributes that the rows of a table give."""
    return {name for row in tables[section] for name in row[0]}


@pytest.mark.parametrize("of", ["topic", "subscription"])
def test_attributes(of: str) -> None:
    settable = {"topic": TOPIC_SETTABLE, "subscription": SUBSCRIPTION_SETTABLE}[of]
    readable = {"topic": TOPIC_READABLE, "subscription": SUBSCRIPTION_READABLE}[of]
    actions = {
        "topic": (("SetTopicAttributes", "AttributeName"), ("CreateTopic", "Attributes")),
        "subscription": (("SetSubscriptionAttributes", "AttributeName"), ("Subscribe", "Attributes")),
    }[of]
    accepted, refused = named(f"{of} values", TOPICS), named(f"{of} refused", TOPICS)
    assert set(settable) <= accepted
    assert set(settable) <= refused
    found = set().union(*(documented(*one) for one in actions))
    assert len(found) > 4
    assert found <= set(settable) | refused
    answer = documented(f"Get{of.capitalize()}Attributes", "Attributes", answered=True)
    assert answer - set(readable) - refused <= FACTS["not_served"].keys()


def test_errors() -> None:
    without = FACTS["without_a_row"]
    for kind in SNS_REGISTRY.values():
        has_row = re.search(rf"\b{kind.query_code}\b", text()) is not None
        assert has_row != (kind.query_code in without), kind.query_code
    assert without.keys() <= {kind.query_code for kind in SNS_REGISTRY.values()}


def test_operators() -> None:
    def rows(section: str, name: str) -> list[str]:
        return [repr(row) for cases in FILTERS[section].values() for row in cases if f"'{name}'" in repr(row)]

    for name in (*_OPERATORS, "exists", "$or"):
        assert [one for section in ("both", "bodies") for one in rows(section, name)], name
        assert rows("refused", name), name
    for form in ANYTHING_BUT:
        assert any(f"'anything-but': {{'{form}'" in one for one in rows("both", "anything-but")), form


@pytest.mark.parametrize("fact", FACTS["facts"], ids=lambda fact: fact["fact"][:60])
def test_facts(fact: dict[str, Any]) -> None:
    assert fact["source"].startswith("https://")
    assert fact["rows"]
    cases = {case.name for case in load()} | {case.name.rpartition("-")[0] for case in load()}
    for row in fact["rows"]:
        table, _, name = row.partition(": ")
        match table:
            case "filters":
                section, _, operator = name.partition(" ")
                assert FILTERS[section][operator]
            case "topics":
                assert TOPICS[name]
            case "messages":
                assert MESSAGES[name]
            case "members":
                action, member = name.split(" ")
                assert members()[action]["members"][member]
            case _:
                assert row in cases, row
