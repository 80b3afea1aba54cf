"""Topics and subscriptions in the console."""

import json

import pytest

from tests.browser import ask
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key
from tests.servers.server import Server
from tests.servers.waiting import wait_until

PAGES = (
    ("topics", "Topics"),
    *((f"topics/news{tab}", "news") for tab in ("", "/subscriptions", "/publish", "/settings")),
    ("filters", "Filter policies"),
)
LETS_TOPICS_IN = json.dumps(
    {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "sns.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": "*",
            }
        ]
    }
)


def make_queue(server: Server, key: str) -> None:
    """Make the queue ``reader``, to which topics may send."""
    api(server, key, "POST", "/queues", {"name": "reader", "attributes": {"Policy": LETS_TOPICS_IN}})


def make_topic(server: Server, key: str) -> str:
    """Make the topic ``news`` with a subscription of the queue ``reader``, and return its id."""
    make_queue(server, key)
    api(server, key, "POST", "/topics", {"name": "news", "tags": {"team": "shop"}})
    attributes = {"RawMessageDelivery": "true", "FilterPolicy": '{"kind": ["order"]}'}
    made = api(server, key, "POST", "/topics/news/subscriptions", {"queue": "reader", "attributes": attributes})
    return str(made["id"])


def facts(console: ConsolePage) -> dict[str, str]:
    """Facts of the page by their labels."""
    rows = "[...document.querySelectorAll('.facts > div')].map(row => [...row.children].map(one => one.innerText))"
    return dict(ask(console.browser, rows))


def test_a_topic_is_made_subscribed_published_to_and_deleted(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_queue(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("topics", "Topics")
    console.wait_for("No topics yet")
    console.open_dialog("Create a topic")
    console.press("Cancel")
    console.press("Create a topic")
    console.fill("name", "news")
    console.press("Create")
    console.wait_for_heading("news")
    console.visit("topics/news/subscriptions", "news")
    console.wait_for("No subscriptions yet")
    console.open_dialog("Create a subscription")
    console.press("Cancel")
    console.press("Create a subscription")
    console.fill("endpoint", "reader")
    console.fill("RawMessageDelivery", "true")
    console.fill("FilterPolicy", '{"kind": ["order"]}')
    console.press("Subscribe")
    console.wait_for("All subscriptions")
    wait_until(lambda: facts(console).get("State") == "confirmed", "the subscription is confirmed")
    console.visit("topics/news/publish", "news")
    for body, kind in (("wanted", "order"), ("unwanted", "other")):
        console.visit("topics/news", "news")
        console.visit("topics/news/publish", "news")
        console.fill("body", body)
        console.press("Add an attribute")
        console.fill("name", "kind")
        console.fill("value", kind)
        console.press("Publish")
        console.wait_for("Published: ")
    console.go("reader/messages")
    console.press("Peek")
    console.wait_for("1 of 1 messages.")
    assert console.shown_messages() == ["wanted", "order"]
    console.visit("topics/news", "news")
    wait_until(
        lambda: [facts(console).get(name) for name in ("Published", "Delivered", "Filtered out")] == ["2", "1", "1"],
        "the numbers are shown",
    )
    console.visit("topics/news/settings", "news")
    console.open_dialog("Delete the topic…")
    console.fill("name", "news")
    console.press("Delete the topic")
    console.wait_for_heading("Topics")
    console.wait_for("No topics yet")


def test_a_subscription_is_changed_tested_and_deleted(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    subscription = make_topic(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("topics/news/subscriptions", "news")
    wait_until(lambda: [row[2:4] for row in console.rows()] == [["confirmed", "raw, filtered"]], "it is listed")
    console.press(f"arn:aws:sqs:{server.region}:{tenant.account}:reader")
    console.wait_for("Test the filter policy")
    console.press("Add an attribute")
    console.fill("name", "kind")
    console.fill("value", "other")
    console.press("Test")
    console.wait_for("It does not match")
    console.fill("FilterPolicy", '{"kind": [{"anything-but": "order"}]}')  # tried before it is saved
    console.press("Test")
    console.wait_for("It matches")
    console.fill("FilterPolicy", '{"kind": "order"}')
    console.press("Test")
    wait_until(lambda: "kind" in console.errors(), "the error in the policy is shown")
    console.fill("FilterPolicy", "")
    console.fill("RedrivePolicy", "reader")
    console.press("Save")
    console.wait_for("Saved.")
    path = f"/topics/news/subscriptions/{subscription}"
    dead = {"deadLetterTargetArn": f"arn:aws:sqs:{server.region}:{tenant.account}:reader"}
    attributes = api(server, tenant.key, "GET", path)["attributes"]
    assert {**attributes, "RedrivePolicy": json.loads(attributes["RedrivePolicy"])} == {
        "RawMessageDelivery": "true",
        "RedrivePolicy": dead,
    }
    console.open_dialog("Delete…")
    console.press("Delete the subscription")
    console.wait_for("No subscriptions yet")


def test_an_endpoint_is_subscribed_and_waits_for_its_confirmation(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_topic(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("topics", "Topics")
    wait_until(lambda: [row[:2] for row in console.rows()] == [["news", "1"]], "the topic is listed")
    console.press("news")
    console.wait_for_heading("news")
    console.press("Subscriptions")
    console.open_dialog("Create a subscription")
    console.fill("kind", "HTTP endpoint")
    console.fill("endpoint", "http://127.0.0.1:1/")  # nobody answers there
    console.press("Subscribe")
    console.wait_for("It waits for its confirmation")
    console.fill("token", "none")
    console.press("Confirm")
    wait_until(console.errors, "the token is refused")
    console.press("Look again")
    assert facts(console)["State"] == "to be confirmed"


def test_a_filter_policy_is_tried_without_a_topic(console: ConsolePage, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.visit("filters", "Filter policies")
    console.fill("FilterPolicy", '{"kind": ["order"]}')
    console.fill("FilterPolicyScope", "MessageBody")
    console.fill("body", '{"kind": "order"}')
    console.press("Test")
    console.wait_for("It matches")


def test_settings_policy_and_tags_of_a_topic(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_topic(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("topics/news/settings", "news")
    console.wait_for("Display name")
    console.fill("DisplayName", "News")
    statement = {"Sid": "all", "Effect": "Allow", "Principal": "*", "Action": "sns:Publish", "Resource": "*"}
    console.fill("Policy", json.dumps({"Statement": [statement]}))
    console.fill("principal", "999999999999")
    console.press("Check")
    console.wait_for("Allowed by statement 1 (all).")
    console.press("Save attributes")
    console.wait_for("Saved.")
    console.press("Remove")
    console.press("Add a tag")
    console.fill("key", "team")
    console.fill("value", "mail")
    console.press("Save tags")
    wait_until(lambda: api(server, tenant.key, "GET", "/topics/news")["tags"] == {"team": "mail"}, "tags are stored")
    assert api(server, tenant.key, "GET", "/topics/news")["attributes"]["DisplayName"] == "News"
    console.fill("MaximumMessageSize", "1")
    console.press("Save attributes")
    wait_until(lambda: "MaximumMessageSize" in console.errors(), "the error of the service is shown")


def test_a_key_that_only_sends_publishes(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_topic(server, tenant.key)
    console.sign_in(make_key(server, tenant.account, scopes=["send"], role="user").key)
    console.visit("topics", "Topics")
    console.fill("name", "news")
    console.press("Open")
    console.wait_for_heading("news")
    assert "Settings" not in console.text
    console.visit("topics/news/publish", "news")
    console.fill("body", "hello")
    console.press("Publish")
    console.wait_for("Published: ")
    console.sign_in(make_key(server, tenant.account, scopes=["receive"], role="user").key)
    assert "Topics" not in console.find("nav").text


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    assert coverage.uncalled("topics") == ""
