"""Queues and messages in the console."""

import json
import re
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.browser import ask, logged
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key, make_queues
from tests.servers.server import Server
from tests.servers.waiting import wait_until


def test_the_way_to_the_first_message(console: ConsolePage, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.wait_for("No queues yet")
    console.open_dialog("Create the first queue")
    console.press("Cancel")
    console.press("Create the first queue")
    console.fill("name", "first")
    console.press("Create")
    console.wait_for_heading("first")
    console.go("first/messages")
    console.press("Peek")
    console.wait_for("The queue is empty.")
    console.fill("body", '{"order":12345678901234567890,"lines":[]}')
    console.press("Send")
    console.wait_for("Sent: ")
    console.press("Peek")
    console.wait_for("1 of 1 messages.")
    assert console.shown_messages() == ['{\n  "order": 12345678901234567890,\n  "lines": []\n}']
    console.press("Receive")
    console.wait_for("Received: 1")
    console.press("Delete")
    console.wait_for("Deleted: ")
    console.press("Peek")
    console.wait_for("The queue is empty.")
    console.go("")
    wait_until(lambda: [row[:4] for row in console.rows()] == [["first", "0", "0", "0"]], "the list shows the queue")
    console.open_dialog("Create a queue")
    console.fill("name", "second")
    console.fill("type", "fifo")
    console.press("Create")
    console.wait_for_heading("second.fifo")


def test_the_list_is_searched_and_paged_by_the_service(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    for number in range(60):
        api(server, tenant.key, "POST", "/queues", {"name": f"q-{number:02}"})
    api(server, tenant.key, "POST", "/queues", {"name": "other"})
    console.sign_in(tenant.key)
    names = [f"q-{number:02}" for number in range(60)]

    def wait_for_names(wanted: list[str]) -> None:
        wait_until(lambda: [row[0] for row in console.rows()] == wanted, f"{len(wanted)} queues are listed")

    wait_for_names(["other", *names[:49]])
    console.press("Next")
    wait_for_names(names[49:])
    console.press("Previous")
    wait_for_names(["other", *names[:49]])
    console.fill_in("#search", "q-5")
    wait_for_names(names[50:])
    console.fill_in("#search", "q-5x")
    console.wait_for("No queue’s name begins like this.")


def test_the_list_is_sorted_and_filtered_by_numbers(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    for name, count in (("a", 0), ("b", 3), ("c", 1)):
        api(server, tenant.key, "POST", "/queues", {"name": name, "tags": {"team": "shop" if count else "mail"}})
        for _ in range(count):
            api(server, tenant.key, "POST", f"/queues/{name}/messages", {"body": "b"})
    console.sign_in(tenant.key)
    wait_until(lambda: [row[0] for row in console.rows()] == ["a", "b", "c"], "queues are listed by name")
    console.fill("sort", "depth")
    wait_until(lambda: [row[:2] for row in console.rows()] == [["b", "3"], ["c", "1"], ["a", "0"]], "deepest first")
    console.fill("state", "empty")
    wait_until(lambda: [row[0] for row in console.rows()] == ["a"], "empty queues are listed")
    api(server, tenant.key, "POST", "/queues/a/messages", {"body": "b"})
    console.wait_for("No such queue is in this state.")
    console.fill("state", "any")
    console.fill("sort", "name")
    console.fill("tag", "team=shop")
    wait_until(lambda: [row[0] for row in console.rows()] == ["b", "c"], "queues with the tag are listed")
    console.fill("tag", "team=none")
    console.wait_for("No such queue has this tag.")


def test_numbers_are_live(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    wait_until(lambda: [row[:2] for row in console.rows()] == [["dead", "0"], ["orders", "0"]], "the list is shown")
    assert [row[6] for row in console.rows()] == ["–", "dead"], "dead-letter queues are shown"
    for _ in range(3):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    wait_until(lambda: [row[1] for row in console.rows()] == ["0", "3"], "the list shows the messages")
    console.go("orders")
    console.wait_for("Oldest message")
    chart = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label'))"
    wait_until(lambda: ask(console.browser, chart), "the charts are there")
    assert ask(console.browser, chart)[0] == "Messages. Now: Available 3, In flight 0, Delayed 0 messages"
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    wait_until(lambda: ", Delayed 0" in ask(console.browser, chart)[0].replace("Available 4", ""), "the chart follows")
    wait_until(lambda: ask(console.browser, chart)[1].startswith("Messages per second. Now: Sent "), "rates are shown")


def test_late_numbers_have_their_time(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    wait_until(lambda: [row[:2] for row in console.rows()] == [["dead", "0"], ["orders", "0"]], "the list is shown")
    assert "As of" not in console.text
    console.browser.execute_script("const now = Date.now; Date.now = () => now() + 30_000")
    console.wait_for("newer numbers have not arrived.")
    assert re.search(r"As of \d\d:\d\d:\d\d", console.text)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    wait_until(lambda: [row[1] for row in console.rows()] == ["0", "1"], "new numbers arrive")
    wait_until(lambda: "As of" not in console.text, "they are not late")


def test_live_numbers_go_on_after_an_event_that_cannot_be_shown(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_queues(server, tenant.account)
    console.browser.execute_script(
        "const real = window.fetch; let broken = 0; window.fetch = (path, asked) => "
        "path.startsWith('/v1/events') && !broken++ "
        "? Promise.resolve(new Response('event: queues\\ndata: {}\\n\\n')) : real(path, asked)"
    )
    console.fill("bearer", tenant.key)
    console.press("Sign in")
    wait_until(lambda: [row[0] for row in console.rows()] == ["dead", "orders"], "the page has followed anew")
    assert console.errors() == ""
    assert "TypeError" in "".join(logged(console.browser, "browser")), "the fault is reported"


def test_a_message_shows_its_trace(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"authorization": f"Bearer {tenant.key}", "traceparent": f"00-{trace}-00f067aa0ba902b7-00"}
    url = f"{server.endpoint}/v1/queues/orders/messages"
    assert httpx.post(url, content="traced", headers=headers, trust_env=False).is_success
    assert api(server, tenant.key, "GET", "/queues/orders/peek")["messages"][0]["trace_id"] == trace
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Peek")
    link = console.find("article a[target]")
    assert link.get_attribute("href") == f"https://traces.example.com/trace/{trace}?from=holdfast"
    assert link.get_attribute("rel") == "noopener noreferrer"
    console.press("Receive")
    wait_until(lambda: console.text.count(trace) == 2, "the received message shows it, too")


def test_a_dead_letter_shows_its_queue(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    peek = "/queues/dead/peek"
    receive = partial(api, server, tenant.key, "GET", "/queues/orders/messages?visibility=0")
    wait_until(lambda: (receive(), api(server, tenant.key, "GET", peek)["messages"])[1], "it is a dead letter")
    console.sign_in(tenant.key)
    console.go("dead/messages")
    console.press("Peek")
    wait_until(lambda: "Came from\norders" in console.text, "its queue is shown")


def test_configuration_and_tags(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.go("orders/configuration")
    timeout = console.find("[name='VisibilityTimeout']")
    assert (timeout.get_attribute("min"), timeout.get_attribute("max")) == ("0", "43200")
    console.fill("VisibilityTimeout", "77")
    console.press("Save attributes")
    console.wait_for("Saved.")
    console.fill("Policy", "{")
    console.press("Save attributes")
    wait_until(lambda: "olicy" in console.errors(), "the policy is refused")
    console.fill("Policy", "")
    console.press("Add a tag")
    console.fill("key", "stage")
    console.fill("value", "test")
    console.press("Save tags")
    wait_until(
        lambda: api(server, tenant.key, "GET", "/queues/orders")["tags"] == {"team": "shop", "stage": "test"}, "tagged"
    )
    wait_until(lambda: console.find("section[aria-labelledby=tags] .done").text == "Saved.", "it says so")
    console.press("Remove tag 1")
    console.press("Save tags")
    wait_until(lambda: len(api(server, tenant.key, "GET", "/queues/orders")["tags"]) == 1, "a tag is removed")
    shown = api(server, tenant.key, "GET", "/queues/orders")
    assert shown["attributes"]["VisibilityTimeout"] == "77"
    assert "RedrivePolicy" in shown["attributes"], "what was not changed stays"


def test_a_policy_is_checked_before_it_is_saved(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.go("orders/configuration")
    console.fill("principal", server.account)
    console.press("Check")
    console.wait_for("Not allowed")
    arn = f"arn:aws:sqs:{server.region}:{tenant.account}:orders"
    who = {"AWS": server.account}
    statement = {"Sid": "partner", "Effect": "Allow", "Principal": who, "Action": "sqs:SendMessage", "Resource": arn}
    console.fill("Policy", json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    console.press("Check")
    console.wait_for("Allowed by statement 1 (partner).")
    assert "Policy" not in api(server, tenant.key, "GET", "/queues/orders")["attributes"], "nothing was saved"


def test_dead_letters_move_back_and_moves_are_cancelled(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_queues(server, tenant.account)
    for number in range(20):
        api(server, tenant.key, "POST", "/queues/dead/messages", {"body": str(number)})
    console.sign_in(tenant.key)
    console.go("orders/dead-letters")
    console.wait_for("After 3 receives a message is moved to dead.")
    console.go("dead/dead-letters")
    console.fill("destination", "orders")
    console.fill("rate", "1")
    console.press("Start")
    console.wait_for("The move has started.")
    wait_until(lambda: console.rows()[0][1] == "running", "the move is shown")
    console.press("Cancel")
    console.wait_for("The move was cancelled after ")
    wait_until(lambda: console.rows()[0][1] == "cancelled", "the move is over")
    console.fill("rate", "")
    console.press("Start")
    wait_until(lambda: console.rows()[0][1] == "completed", "the rest is moved, and shown")
    counted = api(server, tenant.key, "GET", "/queues?counters=true")["queues"]
    assert [one["messages"]["visible"] for one in counted] == [0, 20]


def test_new_messages_are_followed(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "first"})
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Follow new messages")
    console.wait_for("Waiting for messages.")
    for number in range(2):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": f"new {number}"})
    wait_until(lambda: console.shown_messages() == ["new 0", "new 1"], "new messages are shown, each once")
    console.press("Stop following")
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "later"})
    console.press("Follow new messages")
    wait_until(lambda: console.shown_messages() == ["new 0", "new 1", "later"], "it goes on where it was")


def test_a_message_is_edited_and_sent_again(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    sent = {
        "body": "<order><id>1</id></order>",
        "attributes": {"kind": {"type": "String.x", "value": "new"}},
        "group": "g",
    }
    api(server, tenant.key, "POST", "/queues/orders/messages", sent)
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Peek")
    console.wait_for("1 of 1 messages.")
    assert console.shown_messages()[0] == "<order>\n  <id>1</id>\n</order>", "XML has a line for each element"
    console.press("Text")
    wait_until(lambda: console.shown_messages()[0] == sent["body"], "it is shown as it was sent")
    console.press("Edit and send again")
    body = console.find("#send ~ form [name=body]")
    wait_until(lambda: body.get_attribute("value") == sent["body"], "the form has the message")
    console.fill_in("#send ~ form [name=body]", "edited")
    console.press("Add an attribute")
    console.press("Remove attribute 2")
    console.press("Send")
    console.wait_for("Sent: ")
    again = api(server, tenant.key, "GET", "/queues/orders/peek")["messages"][1]
    assert (again["body"], again["attributes"], again["group"]) == ("edited", sent["attributes"], "g")


def test_a_file_is_sent_and_shown_whole(
    console: ConsolePage, server: Server, tenant: ConsoleTenant, tmp_path: Path
) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.go("orders/messages")
    for content, said in ((b"\xff" * 9, "9 B that are no text"), (b"x" * 20_001, "19.5 KiB of text")):
        file = tmp_path / str(len(content))
        file.write_bytes(content)
        console.keyboard.focus_field("#file")
        console.find("#file").send_keys(str(file))  # as if it were chosen in the system's dialog
        console.wait_for(said)
    console.press("Send")
    console.wait_for("Sent: ")
    console.press("Peek")
    console.press("Show all 20,001 characters")
    wait_until(lambda: console.shown_messages() == ["x" * 20_001], "all of it is shown")


def test_messages_that_a_filter_finds_are_moved(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    for body in ("red one", "blue", "red two"):
        message = {"body": body, "attributes": {"a": {"type": "String", "value": "v"}}}
        api(server, tenant.key, "POST", "/queues/dead/messages", message)
    console.sign_in(tenant.key)
    console.go("dead/messages")
    console.press("Peek")
    console.wait_for("3 of 3 messages.")
    console.fill("search", "red")
    console.press("Move the 2 shown")
    console.wait_for("Moved: 0. 2 could not be moved: a message must be available, and needs a destination")
    console.fill("destination", "orders")
    console.press("Move the 2 shown")
    console.wait_for("2 messages were moved.")
    moved = api(server, tenant.key, "GET", "/queues/orders/peek")["messages"]
    assert sorted(one["body"] for one in moved) == ["red one", "red two"]
    assert moved[0]["attributes"] == {"a": {"type": "String", "value": "v"}}
    left = api(server, tenant.key, "GET", "/queues/dead/peek")["messages"]
    assert [one["body"] for one in left] == ["blue"]
    console.fill("search", "")
    console.press("Move")
    console.wait_for("1 message was moved.")


def test_purge_and_delete_ask_for_the_name(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    console.sign_in(tenant.key)
    console.go("orders")
    console.open_dialog("Purge…")
    console.fill("name", "order")
    assert not console.find("dialog button[type=submit]").is_enabled()
    console.fill("name", "orders")
    console.press("Delete all messages")
    console.wait_for("The queue was purged.")
    assert api(server, tenant.key, "GET", "/queues/orders")["messages"]["visible"] == 0
    console.open_dialog("Delete…")
    console.fill("name", "orders")
    console.press("Delete the queue")
    console.wait_for_heading("Queues")
    wait_until(lambda: [row[0] for row in console.rows()] == ["dead"], "the queue is gone")


def test_a_key_is_offered_what_it_may_do(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    sender = make_key(server, tenant.account, scopes=["send"])
    console.sign_in(sender.key)
    console.wait_for("Your key cannot list queues")
    console.fill("name", "orders")
    console.press("Open")
    console.wait_for_heading("orders")
    assert "Purge" not in console.text
    assert "Configuration" not in console.text
    console.go("orders/messages")
    headings = "[...document.querySelectorAll('h2')].map(one => one.innerText)"
    wait_until(lambda: ask(console.browser, headings) == ["Send"], "only sending is offered")
    console.fill("body", "hello")
    console.press("Send")
    console.wait_for("Sent: ")


def test_messages_are_searched_by_text_and_time(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    for number in range(120):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": f"number {number}."})
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Peek")
    console.wait_for("10 of 10 messages.")
    console.fill("search", "number 115.")
    console.wait_for("0 of 10 messages.")
    console.press("Search on")
    console.wait_for("1 of 120 messages.")
    assert console.shown_messages() == ["number 115."]
    sent = api(server, tenant.key, "GET", "/queues/orders/peek?limit=100")["messages"][0]["sent"]

    def fill_time(name: str, seconds: float) -> None:
        field = console.find(f"[name='{name}']")
        console.browser.execute_script(
            "const [field, seconds] = arguments;"
            "const local = new Date((seconds - new Date().getTimezoneOffset() * 60) * 1000);"
            "field.value = local.toISOString().slice(0, 19); field.dispatchEvent(new Event('input'))",
            field,
            int(seconds),
        )

    fill_time("from", sent - 3600)
    fill_time("until", sent - 1800)
    console.wait_for("0 of 120 messages.")
    fill_time("until", sent + 3600)
    console.wait_for("1 of 120 messages.")


def test_alarms_are_set_tested_and_deleted(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.go("orders/alarms")
    console.wait_for("No alarms yet")
    console.fill("name", "deep")
    console.fill("threshold", "100")
    console.fill("webhook", "https://hooks.example.com/secret-path")
    console.press("Set the alarm")
    console.wait_for("The alarm deep is set.")
    secret = console.find("pre").text
    read_aloud = "[...document.querySelectorAll('[role=status], [role=alert]')].map(one => one.textContent).join()"
    assert secret not in ask(console.browser, read_aloud)
    (made,) = api(server, tenant.key, "GET", "/alarms?queue=orders")["alarms"]
    assert (made["threshold"], made["minutes"], made["comparison"]) == (100.0, 5, "GreaterThanThreshold")
    assert console.rows()[0][1] == "ApproximateNumberOfMessagesVisible is above 100 for 5 min"
    assert "hooks.example.com" in console.rows()[0][3]
    assert "secret-path" not in console.text
    console.press("Test")
    wait_until(lambda: console.find("[role=status].done").text, "the result of the test is shown")
    console.open_dialog("Delete deep")
    console.press("Delete the alarm")
    console.wait_for("No alarms yet")
    assert api(server, tenant.key, "GET", "/alarms")["alarms"] == []


def test_dead_letters_and_age_have_charts(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/dead/messages", {"body": "b"})
    console.sign_in(tenant.key)
    console.go("orders")
    console.wait_for("The queue is empty. Send it a message.")
    labels = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label'))"
    wait_until(lambda: "Dead letters in dead. Now: Stored 1 messages" in ask(console.browser, labels), "dead letters")
    assert "Age of the oldest message (seconds). Now: Oldest message 0 seconds" in ask(console.browser, labels)
    console.press("Send it a message")
    console.wait_for("Shows the first messages without receiving them")


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    scripts = ("queues", "tags.js", "policy_check.js", "body.js", "message_attributes.js", "charts.js")
    costs = ["latestMonths()", "const found = [];", "shown.costs = true"]  # in test_account_in_browser.py
    assert coverage.uncalled(*scripts, but=costs) == ""
