"""A tenant's alarm with real processes, of which the one that evaluates alarms is killed."""

import re
from pathlib import Path

import pytest

from tests.frontend.hooks import hook
from tests.holdfast.command import holdfast
from tests.servers.several import Several
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.long

SETTINGS = {"WEBHOOK_NETWORKS": "127.0.0.0/8", "ALARM_SECONDS": "1"}


def keeper(server: Several) -> str | None:
    """Return the frontend that evaluates alarms now."""
    found = re.findall(r"(frontend-\d) .*evaluates tenants' alarms", server.log_text())
    return found[-1] if found else None


def test_an_alarm_rings_whichever_frontend_dies(tmp_path: Path) -> None:
    with hook() as listening, Several(tmp_path, SETTINGS) as server:
        client = server.client()
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        named = ("--queue", "orders", "--at-least", "3", "--webhook", listening.url)
        made = holdfast(server, "alarm", "create", "deep", *named, "--json")
        assert made.code == 0, made.err
        secret = made.json["secret"]

        def states() -> list[str]:
            return [calls.json["state"] for calls in listening.calls]

        for body in "abc":
            client.send_message(QueueUrl=url, MessageBody=body)
        wait_until(lambda: states() == ["ALARM"], "the webhook is told")
        assert listening.calls[0].is_signed_by(secret)
        shown = holdfast(server, "alarm", "show", "deep")
        assert "ApproximateNumberOfMessagesVisible >= 3 for 1 min" in shown.out
        assert "ALARM" in shown.out
        assert "hush" not in shown.out + server.log_text()

        name = wait_until(lambda: keeper(server), "somebody looks after alarms")
        killed = server.kill_child(name)
        server.wait_again(name, killed)
        client = server.client()  # the former one's connections may have been to the killed frontend
        (message,) = client.receive_message(QueueUrl=url)["Messages"]
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        wait_until(lambda: states()[-1] == "OK", "another process looks after alarms")
        assert holdfast(server, "alarm", "list", "--json").json["alarms"][0]["state"] == "OK"
        assert holdfast(server, "alarm", "test", "deep").out == "The webhook at 127.0.0.1 has received it.\n"
        assert listening.calls[-1].json["type"] == "alarm.test"
        assert holdfast(server, "alarm", "delete", "deep").code == 0
        assert holdfast(server, "alarm", "show", "deep").code == 3
        assert "There are no alarms." in holdfast(server, "alarm", "list").out
