"""Backend clusters over REST: what operators see and change of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey
from frontend.admin.clusters import PINS_MOST
from metadata_service.fleet import Fleet
from metadata_service.models import ClusterReport, Decision, ManagerEntry, Partition, Pin, ReportedNode
from tests.frontend.fakes import KEY, Answer, Service, running
from tests.frontend.test_admin import problem

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
    ),
    moving=5,
    homeless=26,
)


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Service]:
    """A service without clusters."""
    async with running(tmp_path) as made:
        for key in (OPERATOR, ADMIN):
            await made.store.put_access_key(key)
        yield made


@pytest_asyncio.fixture
async def service(alone: Service) -> Service:
    """One with two clusters, of which one has reported."""
    await alone.store.register_cluster("local")
    await alone.store.register_cluster("east")
    await alone.store.report_cluster(EAST)
    alone.app.services.fleet = Fleet(alone.store, clock=lambda: 100.0, wall=lambda: 3.0)
    await alone.app.services.fleet.look()
    return alone


async def call(service: Service, method: str, path: str, body: Any = None, *, by: AccessKey = OPERATOR) -> Answer:
    content = b"" if body is None else orjson.dumps(body)
    headers = {"Content-Type": "application/json"} if content else {}
    return await service.signed(method, f"/v1{path}", content, headers, by)


async def manage(service: Service, *, pins: tuple[Pin, ...] = (), decisions: tuple[Decision, ...] = ()) -> None:
    """There is a manager."""
    entry = await service.store.manager()
    await service.store.update_manager(
        ManagerEntry("m1", "start", decisions, pins, time_ms=1_799_999_999_000, version=entry.version)
    )


async def test_clusters_are_listed(service: Service) -> None:
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
            "nodes": 2,
        },
    ]


async def test_the_status_has_nodes_shards_and_decisions(service: Service) -> None:
    status = (await call(service, "GET", "/cluster")).json
    assert status["manager"] is None
    local, east = status["clusters"]
    assert (local["nodes"], local["manager"]) == ([], None)
    assert (east["manager"], east["moving"], east["homeless"]) == ("b1", 5, 26)
    assert east["nodes"][0] == {
        "name": "b1",
        "address": "10.0.0.1:9400",
        "state": "live",
        "silent_seconds": 0.1,
        "shards": 130,
        "cpu": 0.25,
        "storage": 0.1,
        "release": "0.2.0",
    }
    assert east["nodes"][1]["release"] is None, "it is of one that does not say so"
    assert [(node["name"], node["state"]) for node in east["nodes"][1:]] == [("b2", "draining"), ("b3", "silent")]
    url = await service.make_queue("q")
    queue = await service.store.get_queue(KEY.account, "q")
    assert url
    await manage(service, pins=(Pin(queue.queue_id, 3), Pin(12345, 2)), decisions=(Decision(5000, "something"),))
    assert (await call(service, "GET", "/cluster")).json["manager"] == {
        "name": "m1",
        "heard": 1_799_999_999.0,
        "decisions": [{"time": 5.0, "text": "something"}],
        "pins": [{"account": KEY.account, "queue": "q", "partitions": 3}],
    }


async def test_a_node_is_drained_and_undrained(service: Service) -> None:
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


async def test_a_cluster_is_retired_and_serves_again(service: Service) -> None:
    assert (await call(service, "POST", "/clusters/east/retire")).json["state"] == "retiring"
    assert problem(await call(service, "POST", "/clusters/local/retire")) == (409, "LastCluster")
    assert problem(await call(service, "POST", "/clusters/north/retire")) == (404, "NotFound")
    assert (await call(service, "POST", "/clusters/east/serve")).json["state"] == "serving"
    assert (await call(service, "PUT", "/clusters/local/weight", {"weight": 2.5})).json["weight"] == 2.5
    for wrong in ({"weight": 0}, {"weight": "much"}, {}, {"weight": 1, "more": 1}):
        assert problem(await call(service, "PUT", "/clusters/local/weight", wrong))[0] == 400
    local, east = await service.store.backend_clusters()
    assert (local.weight, local.state, east.weight, east.state) == (2.5, "serving", 1.0, "serving")


async def test_an_operator_sets_how_many_partitions_a_queue_has(service: Service) -> None:
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


async def test_pins_are_bounded_and_those_of_deleted_queues_make_room(service: Service) -> None:
    await service.make_queue("q")
    await service.make_queue("other")
    kept = (await service.store.get_queue(KEY.account, "other")).queue_id
    await manage(service, pins=(*(Pin(10**6 + number, 2) for number in range(PINS_MOST - 1)), Pin(kept, 2)))
    assert (await call(service, "PUT", "/queues/q/partitions", {"partitions": 4})).status == 200
    assert len((await service.store.manager()).pins) == 2
    await manage(service, pins=tuple(Pin(kept, number) for number in range(PINS_MOST)))
    assert problem(await call(service, "PUT", "/queues/q/partitions", {"partitions": 4})) == (400, "InvalidRequest")


@pytest.mark.parametrize("by", [ADMIN, KEY])
async def test_only_operators_see_and_change_clusters(service: Service, by: AccessKey) -> None:
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


async def test_a_service_that_is_one_process_shows_its_node_and_has_nothing_to_change(alone: Service) -> None:
    assert (await call(alone, "GET", "/clusters")).json == {"clusters": []}

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
