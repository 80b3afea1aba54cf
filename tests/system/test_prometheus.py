"""Prometheus's own server scrapes running services, loads the alerts, and has data for each dashboard query."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from tests.holdfast.pairs import make_pair
from tests.servers.scraping import scrape
from tests.servers.server import REPOSITORY, Server, clean_environment, free_port
from tests.servers.several import Several
from tests.servers.waiting import wait_until

CHART = REPOSITORY / "helm" / "holdfast"
RULES = CHART / "files" / "rules.yaml"
DOCUMENT = REPOSITORY / "docs" / "monitoring.md"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
VARIABLES = {"$namespace": ".*", "$__rate_interval": "10s"}
"""Values of Grafana's variables."""


class Prometheus:
    """Prometheus server that scrapes these ports every other second."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.port = free_port()
        binary = shutil.which("prometheus")
        assert binary is not None, "prometheus is missing: scripts/need prometheus installs it"
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "holdfast",
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": {"namespace": "queues"}}
                    ],
                }
            ],
        }
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
                    *(f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
            )
        wait_until(self._ready, "Prometheus is ready")

    def _ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Watched(NamedTuple):
    """Services scraped by Prometheus."""

    prometheus: Prometheus
    ports: tuple[int, int]
    client: Any
    limited: Any
    """Client of the service that has limits."""
    topics: Any
    """Client for SNS of the service of several processes."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A service of several processes, and one of a single process with TLS, limits and traces."""
    folder = tmp_path_factory.mktemp("prometheus")
    ports = free_port(), free_port()
    cert, key = folder / "cert.pem", folder / "key.pem"
    make_pair().write(cert, key)
    small = {"SEGMENT_BYTES": str(1 << 21), "USAGE": "on", "USAGE_STREAM": "holdfast-usage"}
    several = Several(
        folder / "several",
        {
            **small,
            "HEALTH_LISTEN": f"127.0.0.1:{ports[0]}",
            "BACKENDS": "2",
            "KAFKA_PORT": str(free_port()),
        },
        frontends=1,
    )
    single = Server(
        folder / "single",
        {
            **small,
            "HEALTH_LISTEN": f"127.0.0.1:{ports[1]}",
            "DEFAULT_LIMITS": "calls=1:3",
            "TLS_CERT": str(cert),
            "TLS_KEY": str(key),
            "TRACE_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        },
    )
    with several, ExitStack() as stack:
        stack.callback(single.kill)
        single.begin()
        wait_until(lambda: reached(ports[1]), "the second service is ready")
        prometheus = Prometheus(folder / "prometheus", list(ports))
        stack.callback(prometheus.close)
        limited = single.client(endpoint_url=f"https://127.0.0.1:{single.port}", verify=str(cert))
        topics = boto3.client(
            "sns",
            endpoint_url=several.endpoint,
            region_name=several.region,
            aws_access_key_id=several.access_key_id,
            aws_secret_access_key=several.secret_access_key,
        )
        yield Watched(prometheus, ports, several.client(), limited, topics)


def reached(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def questions() -> dict[str, str]:
    """Return all queries of the dashboards, by their position."""
    found = {}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                for variable, value in VARIABLES.items():
                    expr = expr.replace(variable, value)
                assert "$" not in expr, expr
                found[f"{path.stem}, {panel['title']}, {target['legendFormat']}"] = expr
    return found


def test_every_question_of_the_dashboards_has_an_answer(watched: Watched) -> None:
    client, limited = watched.client, watched.limited
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    left = questions()
    topics = watched.topics
    topic = topics.create_topic(Name="news")["TopicArn"]
    for queue in ("orders", "absent"):
        endpoint = f"arn:aws:sqs:us-east-1:{topic.split(':')[4]}:{queue}"
        topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint)

    def call() -> None:
        for _ in range(5):  # fills segments, and causes checkpoints
            client.send_message_batch(
                QueueUrl=url, Entries=[{"Id": str(number), "MessageBody": "x" * 100_000} for number in range(10)]
            )
        topics.publish(TopicArn=topic, Message="m")
        received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=1)["Messages"]
        client.delete_message(QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"])
        client.receive_message(QueueUrl=url, WaitTimeSeconds=1)
        with pytest.raises(ClientError):
            client.get_queue_url(QueueName="there-is-none")
        for _ in range(5):
            with suppress(ClientError):  # refused by the limit, as intended
                limited.list_queues()

    def answered() -> bool:
        call()
        for where, expr in list(left.items()):
            if watched.prometheus.query(expr):
                del left[where]
        return not left

    try:
        wait_until(answered, "all questions are answered", 80, 0.5)
    except TimeoutError:
        raise AssertionError(f"without an answer: {left}") from None


def test_it_scrapes_both_and_finds_nothing_wrong(watched: Watched) -> None:
    wait_until(lambda: len(watched.prometheus.query("up == 1")) == 2, "both are scraped")
    assert watched.prometheus.query("scrape_samples_scraped > 0")
    firing = {one["metric"]["alertname"] for one in watched.prometheus.query('ALERTS{alertstate="firing"}')}
    assert not firing & {"HoldfastAbsent", "HoldfastDamaged", "HoldfastJournalFails", "HoldfastTakeoversTooOften"}
    rules = [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]
    wait_until(lambda: watched.prometheus.query("holdfast:calls_failed:ratio_rate5m"), "the ratios are recorded")
    assert len(rules) == sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])
    assert all(rule["health"] in ("ok", "unknown") for rule in rules), [r for r in rules if r["health"] == "err"]


def test_exactly_the_exported_metrics_are_documented(watched: Watched) -> None:
    """Excludes metrics of metadata nodes, which do not run here."""
    exported = {name for port in watched.ports for name in families(port)}
    documented = set(re.findall(r"^\| `(holdfast_\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert exported == {name for name in documented if not name.startswith("holdfast_metadata_")}


def families(port: int) -> Iterator[str]:
    for line in scrape(port).splitlines():
        if line.startswith("# TYPE "):
            yield line.split()[2]
