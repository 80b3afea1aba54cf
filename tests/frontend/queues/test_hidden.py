"""Hidden queues of topics: no action of SQS and no route reaches one, although the frontend has it in its cache."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from metadata_service.models import NewQueue
from tests.frontend.service import KEY, FrontendService, running

NAME = "~topic"
ARN = f"arn:aws:sqs:us-east-1:{KEY.account}:{NAME}"


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        metadata = made.app.services.metadata
        await metadata.create(NewQueue(KEY.account, NAME, {}, {}, now_ms=1, hold_seconds=0))
        assert metadata.cached(KEY.account, NAME) is not None
        yield made


@pytest.mark.parametrize("url", [NAME, f"/{KEY.account}/{NAME}", f"http://queue.example.com/{KEY.account}/{NAME}"])
@pytest.mark.parametrize("action", ["SendMessage", "ReceiveMessage", "GetQueueAttributes", "PurgeQueue", "DeleteQueue"])
async def test_a_url_of_a_hidden_queue_names_none(service: FrontendService, action: str, url: str) -> None:
    given = {"MessageBody": "b"} if action == "SendMessage" else {}
    answer = await service.json(action, {"QueueUrl": url, **given})
    assert (answer.status, answer.code) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    assert service.app.services.metadata.cached(KEY.account, NAME) is not None


async def test_an_arn_of_a_hidden_queue_names_none(service: FrontendService) -> None:
    moved = await service.json("StartMessageMoveTask", {"SourceArn": ARN})
    assert (moved.status, moved.code) == (404, "ResourceNotFoundException")
    assert await service.app.context.queues.by_arn(ARN, KEY.account) is None


@pytest.mark.parametrize("path", ["/metrics", "/peek", "/messages", ""])
async def test_a_route_of_a_hidden_queue_is_refused(service: FrontendService, path: str) -> None:
    answer = await service.rest("GET", f"/queues/{NAME}{path}")
    assert answer.problem == (400, "InvalidRequest")
