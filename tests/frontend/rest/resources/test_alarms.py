"""The state and the end of alarms over REST; tests/frontend/cases/alarms.yaml has the rest."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from frontend.alarms.alarms import AlarmDefinition, Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.alarms import AlarmStatus
from tests.frontend.service import KEY, FrontendService, running


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    """A service with an alarm ``slow``."""
    async with running(tmp_path) as made:
        services = made.app.services
        assert services.keyring is not None
        services.alarms = Alarms(made.store.alarms, services.keyring, Webhooks(()), made.clock)
        asked = AlarmDefinition(
            "q", "ApproximateAgeOfOldestMessage", "GreaterThanThreshold", 300, 5, "https://example.com/"
        )
        await services.alarms.create(KEY.account, "slow", asked)
        yield made
        await services.alarms.close()


async def test_the_state_of_an_alarm_is_shown(service: FrontendService) -> None:
    found = await service.store.alarms.get_alarm(KEY.account, "slow")
    assert found is not None
    await service.store.alarms.update_alarm_status(
        found.alarm, AlarmStatus("ALARM", 100, 301.5, 90, delivered_s=110, trouble="away", lost=2)
    )
    shown = (await service.rest("GET", "/alarms/slow")).json
    assert (shown["state"], shown["since"], shown["value"]) == ("ALARM", 100, 301.5)
    assert (shown["breaching_since"], shown["delivered_at"], shown["trouble"], shown["lost"]) == (90, 110, "away", 2)


async def test_the_alarms_of_a_tenant_end_with_it(service: FrontendService) -> None:
    assert len(await service.store.alarms.list_alarms(KEY.account)) == 1
    await delete_tenant(service.app.services, await service.tenant())
    assert await service.store.alarms.list_alarms(KEY.account) == []
