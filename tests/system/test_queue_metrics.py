"""Queue metrics for tenants by Prometheus and the command line: through two frontends, while a backend is killed."""

import json
from pathlib import Path

import httpx

from tests.holdfast.command import holdfast
from tests.servers.scraping import by_queue
from tests.servers.several import Several
from tests.servers.waiting import wait_until

NAMES = [f"jobs-{place}" for place in range(6)]
"""Enough queues that each backend has some."""


def scraped(server: Several, key: str) -> dict[str, dict[str, float]]:
    """Return the samples of the page that this key sees, by name and queue."""
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{server.endpoint}/v1/metrics", headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    return by_queue(answer.text)


def test_queues_are_seen_from_outside(tmp_path: Path) -> None:
    with Several(tmp_path, {"BACKENDS": "2"}) as server:
        client = server.client()
        client.create_queue(QueueName="secret")
        urls = [client.create_queue(QueueName=name)["QueueUrl"] for name in NAMES]
        for url in urls:
            client.receive_message(QueueUrl=url)
            for body in ("1", "2", "3"):
                client.send_message(QueueUrl=url, MessageBody=body)
            (message,) = client.receive_message(QueueUrl=url)["Messages"]
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            client.receive_message(QueueUrl=url)
        made = holdfast(server, "key", "create", "prometheus", "--kind", "api", "--prefix", "jobs-", "--json").json
        page = scraped(server, made["secret"])
        assert {queue for of in page.values() for queue in of} == {*NAMES, ""}
        for name in NAMES:
            assert page["holdfast_queue_messages_visible"][name] == 1
            assert page["holdfast_queue_messages_not_visible"][name] == 1
            assert page["holdfast_queue_messages_sent_total"][name] == 3
            assert page["holdfast_queue_messages_received_total"][name] == 2
            assert page["holdfast_queue_messages_deleted_total"][name] == 1
            assert page["holdfast_queue_empty_receives_total"][name] == 1
            assert page["holdfast_queue_oldest_message_age_seconds"][name] > 0
        shown = holdfast(server, "queue", "metrics", "jobs-0")
        lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines() if line[:1].isupper()}
        assert lines["NumberOfMessagesSent"] == ["3", "Count", "since"]
        assert lines["ApproximateNumberOfMessagesVisible"] == ["1", "Count", "now"]
        metrics = json.loads(holdfast(server, "queue", "metrics", "jobs-0", "--json").out)

        killed = server.kill_child("backend-1")
        server.wait_again("backend-1", killed)

        def all_are_told_of() -> bool:
            answers = [holdfast(server, "queue", "metrics", name, "--json") for name in NAMES]
            return all(answer.code == 0 for answer in answers)

        wait_until(all_are_told_of, "all queues have an owner")
        after = json.loads(holdfast(server, "queue", "metrics", "jobs-0", "--json").out)
        values = [{one["name"]: one["value"] for one in document["metrics"]} for document in (metrics, after)]
        assert [one["ApproximateNumberOfMessagesVisible"] for one in values] == [1, 1]
        if after["counted_since"] > metrics["counted_since"]:
            assert values[1]["NumberOfMessagesSent"] == 0, "its backend was killed"
        else:
            assert values[1]["NumberOfMessagesSent"] == 3
