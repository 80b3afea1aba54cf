"""Metrics and health of a running service: exact counts, on a separate port, and nothing about single queues."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.servers.scraping import names, samples, scrape, total, values_of
from tests.servers.server import Server, free_port
from tests.servers.several import Several
from tests.servers.waiting import wait_until
from tests.telemetry.collector import Collector

NAME = "nobody-is-to-read-this"


class Observed(Server):
    """Server with a port for metrics."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.metrics_port = free_port()
        super().__init__(folder, {"HEALTH_LISTEN": f"127.0.0.1:{self.metrics_port}", **(settings or {})})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    with Observed(tmp_path_factory.mktemp("metrics"), {"USAGE": "on"}) as server:
        yield server


def test_calls_are_counted_by_action_and_outcome(server: Observed) -> None:
    before = samples(scrape(server.metrics_port))
    client: Any = server.client()
    url = client.create_queue(QueueName=NAME)["QueueUrl"]
    for number in range(7):
        client.send_message(QueueUrl=url, MessageBody=str(number))
    client.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "x"}])
    with pytest.raises(ClientError):
        client.send_message(QueueUrl=url, MessageBody="\x01")
    with pytest.raises(ClientError):
        client.get_queue_url(QueueName="there-is-no-such-queue")
    received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=1)
    client.delete_message(QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"])
    text = scrape(server.metrics_port)
    after = samples(text)

    def increase(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert increase("holdfast_calls_total", action="SendMessage", outcome="ok") == 7
    assert increase("holdfast_calls_total", action="SendMessage", outcome="refused") == 1
    assert increase("holdfast_calls_total", action="GetQueueUrl", outcome="refused") == 1
    assert increase("holdfast_calls_total", action="ReceiveMessage", outcome="ok") == 2
    assert increase("holdfast_calls_total", outcome="failed") == 0
    assert increase("holdfast_call_errors_total", code="QueueDoesNotExist") == 1
    assert increase("holdfast_call_seconds_count", action="SendMessage") == 8
    assert 0 < increase("holdfast_call_seconds_sum", action="SendMessage") < 8
    polls = int(increase("holdfast_long_poll_seconds_count"))
    assert polls == 1
    assert increase("holdfast_call_seconds_count", action="ReceiveMessage") == 2 - polls
    assert increase("holdfast_messages") == 7
    assert total(after, "holdfast_messages", state="in flight") == len(received) - 1 + (8 - len(received))
    assert increase("holdfast_stored_bytes") > 0
    assert 0 < total(after, "holdfast_oldest_message_seconds") < 60
    # Each of these calls was alone, so each that wrote anything had its own row and write.
    rows = increase("holdfast_journal_row_records_count")
    assert (
        8 <= rows <= min(increase("holdfast_journal_row_records_sum"), increase("holdfast_journal_write_seconds_count"))
    )
    assert increase("holdfast_cache_lookups_total", cache="queues", result="hit") > 0
    assert increase("holdfast_signing_key_lookups_total", result="hit") > 0


def test_a_node_exports_its_state(server: Observed) -> None:
    found = samples(scrape(server.metrics_port))
    assert total(found, "holdfast_shards") == 256
    assert total(found, "holdfast_serving") == total(found, "holdfast_storing") == 1
    assert total(found, "holdfast_damaged") == 0
    low, free, size = (total(found, f"holdfast_disk_{name}_bytes") for name in ("low_water", "free", "size"))
    assert 0 < low < size
    assert 0 < free < size
    assert abs(total(found, "holdfast_clock_offset_seconds")) < 60
    assert total(found, "holdfast_process_resident_bytes") > 1 << 20
    assert 0 < total(found, "holdfast_process_open_files") < total(found, "holdfast_process_open_files_limit")
    assert total(found, "holdfast_build_info", role="all") == 1
    assert total(found, "holdfast_usage_waiting_files") >= 1
    wait_until(lambda: total(samples(scrape(server.metrics_port)), "holdfast_loop_lag_seconds_count"), "a lag is there")


def test_nothing_of_queues_and_accounts_is_shown(server: Observed) -> None:
    client: Any = server.client()
    for number in range(30):
        url = client.create_queue(QueueName=f"{NAME}-{number}")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="of a tenant")
    before = scrape(server.metrics_port)
    for number in range(30, 60):
        client.create_queue(QueueName=f"{NAME}-{number}")
    text = scrape(server.metrics_port)
    assert NAME not in text
    assert server.access_key_id not in text
    assert server.account not in text
    assert len(samples(text)) == len(samples(before))


def test_a_name_that_is_no_action_makes_no_series(server: Observed) -> None:
    for name in ("Shutdown", "x" * 50, "SendMessage2"):
        request = urllib.request.Request(
            server.endpoint, b"{}", {"x-amz-target": f"AmazonSQS.{name}", "content-type": "application/x-amz-json-1.0"}
        )
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=10)
    found = samples(scrape(server.metrics_port))
    assert not {value for value in values_of(found, "action") if value[0] in "Sx" and value != "SendMessage"} - {
        "SendMessageBatch"
    }
    assert total(found, "holdfast_calls_total", action="unknown", outcome="refused") >= 3


def test_they_are_not_where_tenants_call(server: Observed) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.endpoint}/metrics", timeout=10)
    assert b"holdfast_" not in refused.value.read()


def test_a_process_without_scrapes_has_loaded_nothing_for_it(tmp_path: Path) -> None:
    with Observed(tmp_path) as server:
        maps = Path(f"/proc/{server.pid}/maps").read_text()
        assert "google/_upb" not in maps  # protobuf, which OpenTelemetry loads
        scrape(server.metrics_port)


def test_one_port_answers_for_all_processes(tmp_path: Path) -> None:
    port = free_port()
    with Several(tmp_path, {"HEALTH_LISTEN": f"127.0.0.1:{port}", "FRONTENDS": "2", "BACKENDS": "2"}) as server:
        client: Any = server.client()
        url = client.create_queue(QueueName=NAME)["QueueUrl"]
        for number in range(5):
            client.send_message(QueueUrl=url, MessageBody=str(number))
        found = samples(scrape(port))
        assert values_of(found, "process") == {"supervisor", "frontend-1", "frontend-2", "backend-1", "backend-2"}
        assert total(found, "holdfast_calls_total", action="SendMessage", outcome="ok") == 5
        assert total(found, "holdfast_messages", state="visible") == 5
        assert total(found, "holdfast_shards") == 256
        assert total(found, "holdfast_child_ready") == total(found, "holdfast_child_starts_total") == 4
        assert total(found, "holdfast_cluster_nodes", state="live") == 2
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=10) as ready:
            assert ready.status == 200


def test_a_collector_gets_the_same(tmp_path: Path) -> None:
    with Collector() as collector:
        settings = {"OTLP_ENDPOINT": collector.endpoint, "OTLP_METRICS_SECONDS": "1"}
        with Observed(tmp_path, settings) as server:
            client: Any = server.client()
            url = client.create_queue(QueueName=NAME)["QueueUrl"]
            for number in range(5):
                client.send_message(QueueUrl=url, MessageBody=str(number))
            found = samples(scrape(server.metrics_port))
            assert server.stop() == 0  # sends the last spans
        (resource,) = collector.metrics[-1].resource_metrics
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert (about["service.name"], about["holdfast.role"]) == ("holdfast", "all")
        metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
        calls = {
            tuple(each.value.string_value for each in point.attributes): point.as_double or point.as_int
            for point in metrics["holdfast_calls_total"].sum.data_points
        }
        assert calls["SendMessage", "ok"] == 5
        assert metrics["holdfast_calls_total"].sum.is_monotonic
        seconds = metrics["holdfast_call_seconds"]
        assert seconds.unit == "s"
        (sends,) = (
            point for point in seconds.histogram.data_points if point.attributes[0].value.string_value == "SendMessage"
        )
        assert sends.count == sum(sends.bucket_counts) == 5
        assert len(sends.bucket_counts) == len(sends.explicit_bounds) + 1
        assert "holdfast_messages" in metrics
        shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in names(found)}
        assert shown <= metrics.keys()


def test_a_missing_collector_is_logged_once_and_has_no_other_effect(tmp_path: Path) -> None:
    settings = {"OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTLP_METRICS_SECONDS": "1"}
    with Observed(tmp_path, settings) as server:
        client: Any = server.client()
        url = client.create_queue(QueueName=NAME)["QueueUrl"]
        wait_until(lambda: "metrics do not reach" in server.log_text(), "the log says so")
        client.send_message(QueueUrl=url, MessageBody="x")
        assert server.stop() == 0
        assert server.log_text().count("metrics do not reach") == 1
