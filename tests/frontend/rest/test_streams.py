"""Streams over REST at a real service, beside Kafka's clients."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka import KafkaConsumer, KafkaProducer

from frontend.streams.partitioner import murmur2
from tests.frontend.kafka.test_real_service import KafkaServer
from tests.holdfast.command import holdfast
from tests.servers.server import REPOSITORY, clean_environment
from tests.servers.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(Path(tmp_path_factory.mktemp("service"))) as started:
        yield started


@pytest.fixture(scope="module")
def rest(server: KafkaServer) -> Iterator[httpx.Client]:
    key = holdfast(server, "key", "create", "curl", "--kind", "api", "--json").json["secret"]
    with httpx.Client(
        base_url=f"{server.endpoint}/v1", headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=60
    ) as client:
        yield client


def _refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_stream_is_created_listed_changed_and_deleted(rest: httpx.Client) -> None:
    made = rest.post("/streams", json={"name": "life", "settings": {"retention.ms": 3_600_000}})
    assert made.status_code == 201, made.text
    assert made.json()["settings"] == {"retention.ms": "3600000"}
    assert made.json()["partitions"] == [{"partition": 0, "first_offset": 0, "end_offset": 0, "stored_bytes": 0}]
    assert _refused(rest.post("/streams", json={"name": "life"})) == (409, "StreamExists")
    assert _refused(rest.post("/streams", json={"name": "x", "settings": {"no": 1}})) == (400, "InvalidRequest")
    changed = rest.patch("/streams/life", json={"partitions": 3, "settings": {"retention.ms": None}}).json()
    assert (len(changed["partitions"]), changed["settings"]) == (3, {})
    assert _refused(rest.patch("/streams/life", json={"partitions": 2})) == (400, "InvalidRequest")
    assert "life" in [one["name"] for one in rest.get("/streams").json()["streams"]]
    assert rest.get("/streams?prefix=lif&limit=1").json()["next"] is None
    assert rest.delete("/streams/life").status_code == 204
    assert _refused(rest.get("/streams/life")) == (404, "NotFound")


def test_a_key_or_a_header_may_be_named_records(rest: httpx.Client) -> None:
    rest.post("/streams", json={"name": "names"})
    one = {"key": "records", "value": "x", "headers": {"records": "y"}}
    for body in (one, {"records": [{"headers": {"a": "b" * 300}}, one]}):
        assert rest.post("/streams/names/records", json=body).status_code == 201
    assert [each.get("key") for each in rest.get("/streams/names/records").json()["records"]] == [
        "records",
        None,
        "records",
    ]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_of_kafkas_clients_are_read(server: KafkaServer, rest: httpx.Client, codec: str | None) -> None:
    name = f"codec-{codec}"
    rest.post("/streams", json={"name": name})
    with closing(KafkaProducer(**server.sign_in, compression_type=codec, linger_ms=50)) as producer:
        sent = [producer.send(name, b"%d" % n, b"k%d" % (n % 2), headers=[("h", b"\xff")]) for n in range(20)]
        assert [one.get(60).offset for one in sent] == list(range(20))
    page = rest.get(f"/streams/{name}/records?limit=7").json()
    assert [one["value"] for one in page["records"]] == [str(n) for n in range(7)]
    assert page["records"][0]["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert page["next"] == "0:7"
    rest_of_it = rest.get(f"/streams/{name}/records", params={"after": page["next"], "key": "k1"}).json()
    assert [one["offset"] for one in rest_of_it["records"]] == list(range(7, 20, 2))
    assert rest.get(f"/streams/{name}/records?header=h=other").json() == {"records": [], "next": "0:20"}
    end = rest.get(f"/streams/{name}/records?offset=latest")
    assert (end.status_code, end.headers["x-holdfast-next"]) == (204, "0:20")
    assert _refused(rest.get(f"/streams/{name}/records?offset=21")) == (400, "OffsetOutOfRange")


def test_records_of_rest_reach_kafkas_clients_in_the_partitions_of_their_keys(
    server: KafkaServer, rest: httpx.Client
) -> None:
    rest.post("/streams", json={"name": "orders", "partitions": 3})
    given: list[dict[str, Any]] = [{"key": f"key-{n}", "value": str(n), "headers": {"n": str(n)}} for n in range(30)]
    stored = rest.post("/streams/orders/records", json={"records": given})
    assert stored.status_code == 201, stored.text
    places = [(one["partition"], one["offset"]) for one in stored.json()["records"]]
    assert places == [(murmur2(f"key-{n}".encode()) % 2**31 % 3, offset) for n, (_, offset) in enumerate(places)]
    with closing(KafkaProducer(**server.sign_in)) as producer:
        theirs = [producer.send("orders", b"x", f"key-{n}".encode()).get(60).partition for n in range(30)]
    assert theirs == [partition for partition, _ in places]
    found: dict[tuple[int, int], Any] = {}
    consumer = KafkaConsumer("orders", group_id="readers", auto_offset_reset="earliest", **server.sign_in)
    with closing(consumer):

        def is_whole() -> bool:
            for records in consumer.poll(500).values():
                found.update({(one.partition, one.offset): one for one in records})
            return len(found) == 60

        wait_until(is_whole, "60 records were consumed")
        for n, place in enumerate(places):
            assert (found[place].key, found[place].value) == (f"key-{n}".encode(), b"%d" % n)
            assert found[place].headers == [("n", b"%d" % n)]
        consumer.commit()
        in_use = rest.post("/consumer-groups/readers/reset", json={"stream": "orders", "to": "earliest"})
        assert _refused(in_use) == (409, "GroupInUse")
        shown = rest.get("/consumer-groups/readers").json()
        assert [len(shown["members"]), sum(one["lag"] for one in shown["positions"])] == [1, 0]
    reset = rest.post("/consumer-groups/readers/reset", json={"stream": "orders", "offset": 1})
    assert [one["offset"] for one in reset.json()["offsets"]] == [1, 1, 1]
    assert sum(one["lag"] for one in rest.get("/consumer-groups/readers").json()["positions"]) == 57


def test_a_group_goes_on_where_it_has_committed(rest: httpx.Client) -> None:
    rest.post("/streams", json={"name": "work"})
    for text in ("one", "two", "three"):
        sent = rest.post("/streams/work/records?key=a", content=text, headers={"Content-Type": "text/plain"})
        assert sent.status_code == 201, sent.text
    page = rest.get("/streams/work/records?group=curl&limit=2").json()
    assert [one["value"] for one in page["records"]] == ["one", "two"]
    commit = {"stream": "work", "position": page["next"]}
    assert rest.post("/consumer-groups/curl/commit", json=commit).status_code == 204
    left = rest.get("/streams/work/records?group=curl").json()
    assert [one["value"] for one in left["records"]] == ["three"]
    assert [one["name"] for one in rest.get("/consumer-groups?prefix=cu").json()["groups"]] == ["curl"]
    by_time = rest.get("/streams/work/records", params={"timestamp": left["records"][0]["timestamp"]}).json()
    assert by_time["records"][-1]["value"] == "three"
    assert rest.delete("/consumer-groups/curl").status_code == 204
    assert _refused(rest.get("/consumer-groups/curl")) == (404, "NotFound")


def test_a_key_without_the_scope_or_the_prefix_is_refused(server: KafkaServer, rest: httpx.Client) -> None:
    rest.post("/streams", json={"name": "mine-1"})
    arguments = ("--scope", "streams:read", "--prefix", "mine-")
    made = holdfast(server, "key", "create", "narrow", "--kind", "api", *arguments, "--json").json["secret"]
    with httpx.Client(
        base_url=f"{server.endpoint}/v1", headers={"Authorization": f"Bearer {made}"}, trust_env=False, timeout=60
    ) as narrow:
        assert narrow.get("/streams/mine-1/records").status_code == 204
        assert _refused(narrow.post("/streams/mine-1/records", json={"value": "x"})) == (403, "AccessDenied")
        assert _refused(narrow.get("/streams/other/records")) == (403, "AccessDenied")
        assert [one["name"] for one in narrow.get("/streams").json()["streams"]] == ["mine-1"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"vlaue": "x"}', "vlaue"),
        ('{"value": "x", "value_base64": "eA=="}', "both"),
        ('{"value_base64": "!"}', "not base64"),
        ('{"value": "x", "partition": 7}', "no partition 7"),
        ('{"records": []}', "records"),
    ],
)
def test_malformed_records_are_refused(rest: httpx.Client, body: str, detail: str) -> None:
    rest.post("/streams", json={"name": "strict"})
    answer = rest.post("/streams/strict/records", content=body, headers={"Content-Type": "application/json"})
    assert _refused(answer) == (400, "InvalidRequest")
    assert detail in answer.json()["detail"]
    assert rest.get("/streams/strict/records").status_code == 204


def test_the_commands_produce_tail_and_reset(server: KafkaServer, rest: httpx.Client) -> None:
    assert holdfast(server, "stream", "create", "lines", "--set", "retention.ms=3600000").code == 0
    stored = subprocess.run(
        [sys.executable, "-m", "holdfast", "stream", "produce", "lines", "--key-separator", ":", "--data", server.data],
        input=b"a:one\nb:two\nthree",
        env={**clean_environment(), "HOLDFAST_ENDPOINT": server.endpoint, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (stored.returncode, stored.stdout) == (0, b"3 records are stored.\n"), stored.stderr
    tailed = holdfast(server, "stream", "tail", "lines", "--offset", "earliest", "--max", "3")
    assert [line.split("  ")[2:] for line in tailed.out.splitlines()] == [["a", "one"], ["b", "two"], ["-", "three"]]
    keyed = holdfast(server, "stream", "tail", "lines", "--offset", "earliest", "--key", "b", "--no-wait", "--json")
    assert [json.loads(line)["value"] for line in keyed.out.splitlines()] == ["two"]
    assert holdfast(server, "stream", "tail", "lines", "--no-wait").out == "", "the default is the end"
    grouped = ("stream", "tail", "lines", "--group", "cli", "--no-wait")
    assert len(holdfast(server, *grouped).out.splitlines()) == 3
    assert holdfast(server, *grouped).out == ""
    assert holdfast(server, "stream", "reset", "cli", "lines", "--to", "2").code == 2, "it asks"
    assert holdfast(server, "stream", "reset", "cli", "lines", "--to", "2", "--yes").code == 0
    (position,) = holdfast(server, "stream", "groups", "cli", "--json").json["positions"]
    assert (position["offset"], position["lag"]) == (2, 1)
    assert holdfast(server, "stream", "set", "lines", "--partitions", "2", "--unset", "retention.ms").code == 0
    described = holdfast(server, "stream", "describe", "lines", "--json").json
    assert (len(described["partitions"]), described["settings"]) == (2, {})
    assert "lines" in holdfast(server, "stream", "list").out
    assert holdfast(server, "stream", "delete", "lines", "--yes").code == 0
    assert holdfast(server, "stream", "describe", "lines").code == 3


def test_changes_are_audited_and_the_documentation_describes_them(server: KafkaServer, rest: httpx.Client) -> None:
    rest.post("/streams", json={"name": "audited"})
    rest.delete("/streams/audited")
    entries = [json.loads(line) for line in (server.data / "audit.jsonl").read_text().splitlines()]
    mine = [one for one in entries if one["target"].endswith(":audited")]
    assert [(one["action"], one["outcome"]) for one in mine] == [("stream.create", "done"), ("stream.delete", "done")]
    paths = httpx.get(f"{server.endpoint}/openapi.json", trust_env=False, timeout=60).json()["paths"]
    assert {"get", "post"} == paths["/v1/streams/{name}/records"].keys()
    assert {"200", "204"} <= paths["/v1/streams/{name}/records"]["get"]["responses"].keys()
    assert "/v1/consumer-groups/{group}/reset" in paths
