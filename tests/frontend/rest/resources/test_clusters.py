"""Backend clusters over REST, with metadata that are away; tests/frontend/cases/clusters.yaml has the rest."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from frontend.request.pipeline import Pipeline
from frontend.rest import endpoint
from frontend.rest.resources import clusters
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import ClusterReport, Partition, ReportedNode
from metadata_service.store import StoreUnavailable
from tests.frontend.cases import CALLERS
from tests.frontend.service import KEY, FrontendService, running

OPERATOR = CALLERS["operator"]


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[FrontendService]:
    """A service without clusters."""
    async with running(tmp_path) as made:
        await made.store.credentials.put_access_key(OPERATOR)
        yield made


@pytest_asyncio.fixture
async def service(alone: FrontendService) -> FrontendService:
    """A service with two clusters, one of which has reported."""
    await alone.store.clusters.register_cluster("local")
    await alone.store.clusters.register_cluster("east")
    await alone.store.clusters.report_cluster(ClusterReport(1, 4, 9, 0, 0.25))
    alone.app.services.fleet = ClusterDirectory(alone.store.clusters, clock=lambda: 100.0, wall=lambda: 3.0)
    await alone.app.services.fleet.refresh()
    return alone


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
    status = (await service.rest("GET", "/cluster", by=OPERATOR)).json
    assert len(status["not_asked"]) == 2
    assert all("in the metadata" in one for one in status["not_asked"])
    assert [one["name"] for one in status["clusters"]] == ["local", "east"]
    assert status["manager"] is None
    listed = (await service.rest("GET", "/clusters", by=OPERATOR)).json
    assert listed["not_asked"] == [clusters.REPORTS]
    assert [one["name"] for one in listed["clusters"]] == ["local", "east"]


async def test_the_status_does_not_wait_for_the_caller(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "STATUS_SECONDS", 0.01)

    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Pipeline, "authenticate", hangs)
    refused = await service.rest("GET", "/cluster", by=OPERATOR)
    assert refused.problem == (503, "ServiceUnavailable")
    assert "The metadata, by which accounts, keys and queues are known" in refused.json["detail"]


async def test_partitions_that_move_are_shown(service: FrontendService) -> None:
    await service.make_queue("q")
    queue = await service.store.queues.get_queue(KEY.account, "q")
    moved = (
        msgspec.structs.replace(queue.partitions[0], state="draining"),
        Partition(1 << 40 | 7, slot=0, pending_token_sources=(queue.partitions[0].id,)),
    )
    await service.store.queues.update_queue(queue.queue_id, queue.version, now_ms=1, partitions=moved)
    assert (await service.rest("GET", "/queues/q/partitions", by=OPERATOR)).json == {
        "partitions": [
            {"id": queue.partitions[0].id, "cluster": "east", "state": "draining", "slot": 0},
            {"id": 1 << 40 | 7, "cluster": "east", "state": "opening", "slot": 0},
        ],
        "pinned": None,
    }


async def test_a_service_that_is_one_process_shows_its_node(alone: FrontendService) -> None:
    async def report() -> ClusterReport:
        return ClusterReport(0, 4, 9, 0, 0.25, "b1", (ReportedNode("b1", "10.0.0.1:9400"),))

    alone.app.services.alone = report
    status = (await alone.rest("GET", "/cluster", by=OPERATOR)).json
    assert [(one["name"], len(one["nodes"]), one["reported_seconds"]) for one in status["clusters"]] == [
        ("local", 1, 0.0)
    ]
    assert status["manager"] is None
