"""Backend clusters over REST: operators' views and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey
from frontend.rest import authentication
from frontend.rest.resources import clusters
from frontend.rest.resources.clusters import PINS_MOST
from frontend.sqs.endpoint import Visit
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import (
    Candidate,
    ClusterReport,
    ManagerDecision,
    ManagerEntry,
    Partition,
    Pin,
    ReportedNode,
)
from metadata_service.store import StoreUnavailable
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.rest.test_app import problem

OPERATOR = msgspec.structs.replace(
    KEY, access_key_id="AKIAOPERATOR00000000", secret="operators-secret", role="operator"
)
ADMIN = msgspec.structs.replace(KEY, access_key_id="AKIAADMIN00000000000", secret="admins-secret", role="admin")

EAST = ClusterReport(
    1,
    4,
    9,
    0,
    0.25,
    "b1",
    (
        ReportedNode("b1", "10.0.0.1:9400", True, 3, 120, 130, 0.25, 0.1, release="0.2.0"),
        ReportedNode("b2", "10.0.0.2:9400", True, 1, 80, 100, 0.2, 0.125, True),
        ReportedNode("b3", "10.0.0.3:9400", False, 2, 4500, 26),
        ReportedNode("b4", "10.0.0.4:9400", True, 2, 2600, 9),
        ReportedNode("b5", "10.0.0.5:9400", False, 7, 9_000_000, 0, gone=True, taken_over_ms=1500, owners=("b1", "b2")),
        ReportedNode("b6", "10.0.0.6:9400", False, 7, 9_000_000, 0, gone=True),
    ),
    moving=5,
    unassigned=26,
)


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[FrontendService]:
    """A service without clusters."""
    async with running(tmp_path) as made:
        for key in (OPERATOR, ADMIN):
            await made.store.put_access_key(key)
        yield made


@pytest_asyncio.fixture
async def service(alone: FrontendService) -> FrontendService:
    """A service with two clusters, one of which has reported."""
    await alone.store.register_cluster("local")
    await alone.store.register_cluster("east")
    await alone.store.report_cluster(EAST)
    alone.app.services.fleet = ClusterDirectory(alone.store, clock=lambda: 100.0, wall=lambda: 3.0)
    await alone.app.services.fleet.refresh()
    return alone


async def call(
    service: FrontendService, method: str, path: str, body: Any = None, *, by: AccessKey = OPERATOR
) -> FrontendAnswer:
    content = b"" if body is None else orjson.dumps(body)
    headers = {"Content-Type": "application/json"} if content else {}
    return await service.signed(method, f"/v1{path}", content, headers, by)


async def manage(
    service: FrontendService, *, pins: tuple[Pin, ...] = (), decisions: tuple[ManagerDecision, ...] = ()
) -> None:
    """Store an entry of a manager."""
    entry = await service.store.manager()
    await service.store.update_manager(
        ManagerEntry("m1", "start", decisions, pins, time_ms=1_799_999_999_000, version=entry.version)
    )


async def test_clusters_are_listed(service: FrontendService) -> None:
    assert (await call(service, "GET", "/clusters")).json["clusters"] == [
        {
            "name": "local",
            "number": 0,
            "state": "serving",
            "weight": 1.0,
            "utilisation": None,
            "reported_seconds": None,
            "nodes": 0,
        },
        {
            "name": "east",
            "number": 1,
            "state": "serving",
            "weight": 1.0,
            "utilisation": 0.25,
            "reported_seconds": 3.0,
            "nodes": 2,  # without suspect and gone nodes
        },
    ]


async def test_the_status_has_nodes_shards_and_decisions(service: FrontendService) -> None:
    status = (await call(service, "GET", "/cluster")).json
    assert status["manager"] is None
    local, east = status["clusters"]
    assert (local["nodes"], local["manager"]) == ([], None)
    assert (east["manager"], east["moving"], east["unassigned"]) == ("b1", 5, 26)
    assert east["nodes"][0] == {
        "name": "b1",
        "address": "10.0.0.1:9400",
        "state": "live",
        "since": None,
        "taken_over_by": [],
        "silent_seconds": 0.1,
        "shards": 130,
        "cpu": 0.25,
        "storage": 0.1,
        "release": "0.2.0",
    }
    assert east["nodes"][1]["release"] is None, "it is of one that does not say so"
    reported_at = service.app.services.clock() - 3
    assert [(node["name"], node["state"], node["taken_over_by"]) for node in east["nodes"][1:]] == [
        ("b2", "draining", []),
        ("b3", "suspect", []),
        ("b4", "suspect", []),
        ("b5", "gone", ["b1", "b2"]),
        ("b6", "gone", []),
    ]
    assert [node["since"] for node in east["nodes"][4:]] == [1.5, None]
    assert abs(east["nodes"][2]["since"] - (reported_at - 4.5)) < 60
    assert status["not_asked"] == []
    url = await service.make_queue("q")
    queue = await service.store.get_queue(KEY.account, "q")
    assert url
    await manage(service, pins=(Pin(queue.queue_id, 3), Pin(12345, 2)), decisions=(ManagerDecision(5000, "something"),))
    assert (await call(service, "GET", "/cluster")).json["manager"] == {
        "name": "m1",
        "heard": 1_799_999_999.0,
        "processes": [],
        "decisions": [{"time": 5.0, "text": "something"}],
        "pins": [{"account": KEY.account, "queue": "q", "partitions": 3}],
    }


async def test_what_has_not_reported_for_long_is_suspect_and_said_to_be(service: FrontendService) -> None:
    service.app.services.fleet = ClusterDirectory(service.store, clock=lambda: 100.0, wall=lambda: 40.0)
    await service.app.services.fleet.refresh()
    status = (await call(service, "GET", "/cluster")).json
    (missed,) = status["not_asked"]
    assert "cluster east: it has not reported for 40 s" in missed
    states = [node["state"] for node in status["clusters"][1]["nodes"]]
    assert states == ["suspect"] * 4 + ["gone"] * 2


async def test_processes_that_may_manage_are_listed(service: FrontendService) -> None:
    now_ms = int(service.app.services.clock() * 1000)
    entry = await service.store.manager()
    candidates = (
        Candidate("old", "0", now_ms - 90_000, now_ms - 70_000, "m1"),
        Candidate("m1", "1", now_ms - 1000),
        Candidate("m2", "2", now_ms - 20_000),
        Candidate("m3", "3", now_ms - 60_000),
    )
    await service.store.update_manager(
        msgspec.structs.replace(entry, manager="m1", start="1", candidates=candidates, time_ms=now_ms)
    )
    manager = (await call(service, "GET", "/cluster")).json["manager"]
    assert [(one["name"], one["state"], one["taken_over_by"]) for one in manager["processes"]] == [
        ("old", "gone", "m1"),
        ("m1", "acting", None),
        ("m2", "standing by", None),
        ("m3", "suspect", None),
    ]
    assert manager["processes"][0]["since"] == (now_ms - 70_000) / 1000


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_status_and_list_are_answered_without_the_metadata_and_say_so(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The last reports are shown."""
    monkeypatch.setattr(clusters, "ASK_SECONDS", 0.01)

    async def away(*_: object) -> None:
        if how == "fails":
            raise StoreUnavailable("it is away")
        await asyncio.Event().wait()

    fleet = service.app.services.fleet
    assert fleet is not None
    monkeypatch.setattr(fleet, "refresh", away)
    monkeypatch.setattr(fleet.registry, "manager", away)
    status = (await call(service, "GET", "/cluster")).json
    assert len(status["not_asked"]) == 2
    assert all("in the metadata" in one for one in status["not_asked"])
    assert [one["name"] for one in status["clusters"]] == ["local", "east"]
    assert status["manager"] is None
    listed = (await call(service, "GET", "/clusters")).json
    assert listed["not_asked"] == [clusters.REPORTS]
    assert [one["name"] for one in listed["clusters"]] == ["local", "east"]


async def test_the_status_does_not_wait_for_who_calls(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "STATUS_SECONDS", 0.01)

    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Visit, "enter", hangs)
    refused = await call(service, "GET", "/cluster")
    assert problem(refused) == (503, "ServiceUnavailable")
    assert "The metadata, by which accounts, keys and queues are known" in refused.json["detail"]


async def test_a_node_is_drained_and_undrained(service: FrontendService) -> None:
    assert problem(await call(service, "POST", "/clusters/east/nodes/b9/drain")) == (404, "NotFound")
    assert problem(await call(service, "POST", "/clusters/north/nodes/b1/drain")) == (404, "NotFound")
    for _ in range(2):
        assert (await call(service, "POST", "/clusters/east/nodes/b2/drain")).status == 200
    assert (await call(service, "POST", "/clusters/east/nodes/b1/drain")).status == 200
    assert (await service.store.backend_clusters())[1].drained == ("b1", "b2")
    assert (await call(service, "POST", "/clusters/east/nodes/b2/undrain")).status == 200
    assert (await call(service, "POST", "/clusters/east/nodes/away/undrain")).status == 200
    assert (await service.store.backend_clusters())[1].drained == ("b1",)
    assert "cluster.drain" in service.audit_file.read_text()


async def test_a_cluster_is_retired_and_serves_again(service: FrontendService) -> None:
    assert (await call(service, "POST", "/clusters/east/retire")).json["state"] == "retiring"
    assert problem(await call(service, "POST", "/clusters/local/retire")) == (409, "LastCluster")
    assert problem(await call(service, "POST", "/clusters/north/retire")) == (404, "NotFound")
    assert (await call(service, "POST", "/clusters/east/serve")).json["state"] == "serving"
    assert (await call(service, "PUT", "/clusters/local/weight", {"weight": 2.5})).json["weight"] == 2.5
    for wrong in ({"weight": 0}, {"weight": "much"}, {}, {"weight": 1, "more": 1}):
        assert problem(await call(service, "PUT", "/clusters/local/weight", wrong))[0] == 400
    local, east = await service.store.backend_clusters()
    assert (local.weight, local.state, east.weight, east.state) == (2.5, "serving", 1.0, "serving")


async def test_an_operator_sets_how_many_partitions_a_queue_has(service: FrontendService) -> None:
    await service.make_queue("q")
    await service.make_queue("q.fifo", FifoQueue="true")
    path = "/queues/q/partitions"
    assert problem(await call(service, "PUT", path, {"partitions": 4})) == (409, "NoManager")
    await manage(service)
    assert (await call(service, "PUT", path, {"partitions": 4})).json["pinned"] == 4
    assert (await call(service, "PUT", path, {"partitions": 2})).json["pinned"] == 2
    queue = await service.store.get_queue(KEY.account, "q")
    entry = await service.store.manager()
    assert (entry.pins, entry.manager, entry.start) == ((Pin(queue.queue_id, 2),), "m1", "start")
    assert problem(await call(service, "PUT", "/queues/q.fifo/partitions", {"partitions": 4})) == (
        409,
        "FixedPartitions",
    )
    assert problem(await call(service, "PUT", "/queues/none/partitions", {"partitions": 4})) == (404, "NotFound")
    for wrong in (0, 65, "4", 1.5):
        assert problem(await call(service, "PUT", path, {"partitions": wrong}))[0] == 400
    moved = (
        msgspec.structs.replace(queue.partitions[0], state="draining"),
        Partition(1 << 40 | 7, slot=0, awaits=(queue.partitions[0].id,)),
    )
    await service.store.update_queue(queue.queue_id, queue.version, now_ms=1, partitions=moved)
    assert (await call(service, "GET", path)).json == {
        "partitions": [
            {"id": queue.partitions[0].id, "cluster": "east", "state": "draining", "slot": 0},
            {"id": 1 << 40 | 7, "cluster": "east", "state": "opening", "slot": 0},
        ],
        "pinned": 2,
    }
    assert (await call(service, "PUT", path, {"partitions": None})).json["pinned"] is None
    assert (await service.store.manager()).pins == ()


async def test_pins_are_bounded_and_those_of_deleted_queues_make_room(service: FrontendService) -> None:
    await service.make_queue("q")
    await service.make_queue("other")
    kept = (await service.store.get_queue(KEY.account, "other")).queue_id
    await manage(service, pins=(*(Pin(10**6 + number, 2) for number in range(PINS_MOST - 1)), Pin(kept, 2)))
    assert (await call(service, "PUT", "/queues/q/partitions", {"partitions": 4})).status == 200
    assert len((await service.store.manager()).pins) == 2
    await manage(service, pins=tuple(Pin(kept, number) for number in range(PINS_MOST)))
    assert problem(await call(service, "PUT", "/queues/q/partitions", {"partitions": 4})) == (400, "InvalidRequest")


@pytest.mark.parametrize("by", [ADMIN, KEY])
async def test_only_operators_see_and_change_clusters(service: FrontendService, by: AccessKey) -> None:
    await service.make_queue("q")
    before = await service.store.backend_clusters()
    for method, path, body in (
        ("GET", "/clusters", None),
        ("GET", "/cluster", None),
        ("POST", "/clusters/east/nodes/b1/drain", None),
        ("POST", "/clusters/east/nodes/b1/undrain", None),
        ("POST", "/clusters/east/retire", None),
        ("POST", "/clusters/east/serve", None),
        ("PUT", "/clusters/east/weight", {"weight": 2}),
        ("GET", "/queues/q/partitions", None),
        ("PUT", "/queues/q/partitions", {"partitions": 2}),
    ):
        assert problem(await call(service, method, path, body, by=by)) == (403, "AccessDenied")
    assert await service.store.backend_clusters() == before


async def test_a_service_that_is_one_process_shows_its_node_and_has_nothing_to_change(alone: FrontendService) -> None:
    assert (await call(alone, "GET", "/clusters")).json == {"clusters": [], "not_asked": []}

    async def report() -> ClusterReport:
        return msgspec.structs.replace(EAST, cluster=0, nodes=EAST.nodes[:1])

    alone.app.services.alone = report
    status = (await call(alone, "GET", "/cluster")).json
    assert [(one["name"], len(one["nodes"]), one["reported_seconds"]) for one in status["clusters"]] == [
        ("local", 1, 0.0)
    ]
    assert status["manager"] is None
    await alone.make_queue("q")
    for method, path, body in (
        ("POST", "/clusters/local/nodes/b1/drain", None),
        ("POST", "/clusters/local/retire", None),
        ("PUT", "/queues/q/partitions", {"partitions": 2}),
    ):
        assert problem(await call(alone, method, path, body)) == (409, "OneProcess")
    partitions = (await call(alone, "GET", "/queues/q/partitions")).json
    assert [one["cluster"] for one in partitions["partitions"]] == ["local"]
