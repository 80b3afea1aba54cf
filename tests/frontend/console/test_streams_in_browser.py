"""Streams and consumer groups in the console."""

import pytest

from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key
from tests.servers.server import Server
from tests.servers.waiting import wait_until


def make_stream(server: Server, key: str) -> None:
    """Make the stream ``clicks`` with five records in the first of two partitions, two of them read by ``readers``."""
    api(server, key, "POST", "/streams", {"name": "clicks", "partitions": 2, "settings": {"retention.ms": -1}})
    records = [
        {
            "value": f'{{"n": {number}}}',
            "key": f"k{number}",
            "partition": 0,
            "timestamp": 1_700_000_000 + number,
            "headers": [{"name": "h", "value": "v"}],
        }
        for number in range(5)
    ]
    api(server, key, "POST", "/streams/clicks/records", {"records": records})
    offsets = {"stream": "clicks", "offsets": [{"partition": 0, "offset": 2}]}
    api(server, key, "POST", "/consumer-groups/readers/commit", offsets)


def values(console: ConsolePage) -> list[str]:
    return ["".join(one.split()) for one in console.shown_messages()]


def test_a_stream_is_made_filled_and_deleted(console: ConsolePage, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.visit("streams", "Streams")
    console.wait_for("No streams yet")
    console.open_dialog("Create a stream")
    console.press("Cancel")
    console.press("Create a stream")
    console.fill("name", "clicks")
    console.fill("partitions", "2")
    console.press("Create")
    console.wait_for_heading("clicks")
    wait_until(lambda: [row[2] for row in console.rows()] == ["0", "0"], "its partitions are shown")
    console.visit("streams/clicks/records", "clicks")
    console.fill("value", "hello")
    console.fill("partition", "1")
    console.press("Publish")
    console.wait_for("Stored in partition 1 with the offset 0.")
    console.press("Peek")
    wait_until(lambda: values(console) == ["hello"], "the record is shown")
    console.visit("streams/clicks/settings", "clicks")
    console.fill("partitions", "3")
    console.press("Add a setting")
    console.fill("name", "retention.ms")
    console.fill("value", "1000000")
    console.press("Save")
    console.wait_for("Saved.")
    console.press("Remove setting 1")
    console.press("Save")
    console.wait_for("All settings have their defaults.")
    console.open_dialog("Delete…")
    console.fill("name", "clicks")
    console.press("Delete the stream")
    console.wait_for_heading("Streams")
    console.wait_for("No streams yet")


def test_lists_are_searched_and_paged(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    for number in range(51):
        api(server, tenant.key, "POST", "/topics", {"name": f"t-{number:02}"})
    names = [f"t-{number:02}" for number in range(51)]
    console.sign_in(tenant.key)
    console.visit("topics", "Topics")
    wait_until(lambda: [row[0] for row in console.rows()] == names[:50], "the first page is shown")
    console.press("Next")
    wait_until(lambda: [row[0] for row in console.rows()] == names[50:], "the second page is shown")
    console.press("Previous")
    wait_until(lambda: [row[0] for row in console.rows()] == names[:50], "the first page is shown again")
    console.fill_in("input[type=search]", "t-4")
    wait_until(lambda: [row[0] for row in console.rows()] == names[40:50], "topics whose names begin so are shown")


def test_records_are_peeked_by_offset_and_time(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_stream(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("streams/clicks/records", "clicks")
    console.fill("start", "offset")
    console.fill("offset", "3")
    console.fill_in("section[aria-labelledby=peek] [name=partition]", "0")
    console.press("Peek")
    wait_until(lambda: values(console) == ['{"n":3}', '{"n":4}'], "records from the offset on are shown")
    console.fill("start", "earliest")
    console.fill_in("section[aria-labelledby=peek] [name=key]", "k1")
    console.press("Peek")
    wait_until(lambda: values(console) == ['{"n":1}'], "the record with the key is shown")
    console.press("Next records")
    console.wait_for("There are no records here, or no more.")
    console.visit("streams/clicks", "clicks")
    console.visit("streams/clicks/records", "clicks")
    console.fill("start", "time")
    console.browser.execute_script(
        "const field = document.querySelector('[name=time]');"
        "const local = new Date((1700000004 - new Date().getTimezoneOffset() * 60) * 1000);"
        "field.value = local.toISOString().slice(0, 19); field.dispatchEvent(new Event('input'))"
    )
    console.press("Peek")
    wait_until(lambda: values(console) == ['{"n":4}'], "records of the time or later are shown")


def test_groups_have_lag_and_are_reset(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_stream(server, tenant.key)
    console.sign_in(tenant.key)
    console.visit("streams/clicks/groups", "clicks")
    wait_until(lambda: [(row[0], row[3]) for row in console.rows()] == [("readers", "3")], "the lag is shown")
    console.visit("streams", "Streams")
    console.press("readers")
    console.wait_for_heading("readers")
    wait_until(lambda: [row[:5] for row in console.rows()] == [["clicks", "0", "2", "5", "3"]], "offsets are shown")
    console.fill("to", "offset")
    console.fill("offset", "4")
    console.fill("partition", "0")
    console.press("Reset")
    console.wait_for("The group goes on from 0:4.")
    wait_until(lambda: console.rows()[0][4] == "1", "the lag is now one")
    console.open_dialog("Delete the group…")
    console.fill("name", "readers")
    console.press("Delete the group")
    console.wait_for_heading("Streams")
    console.wait_for("No consumer groups yet")


def test_a_key_is_offered_what_it_may_do_with_streams(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_stream(server, tenant.key)
    console.sign_in(make_key(server, tenant.account, scopes=["send"]).key)
    assert "Streams" not in console.find("nav").text
    console.sign_in(make_key(server, tenant.account, scopes=["streams:read"], role="user").key)
    console.visit("streams/clicks/records", "clicks")
    console.wait_for("Peek")
    assert "Publish" not in console.text
    assert "Settings" not in console.text


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    assert coverage.uncalled("streams", "named_list.js", but=["cells: [visible(one.instance"]) == "", (
        "without a consumer"
    )
