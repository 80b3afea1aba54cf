"""The table of cases of the frontend."""

import logging
from contextlib import AsyncExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest

from billing.metering.meter import Meter
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.document_jobs import Documents
from tests.auth.outside import OidcIssuer
from tests.frontend.cases import FrontendCase, FrontendCaseRun, add_callers, load
from tests.frontend.hooks import hook
from tests.frontend.lake import AnsweringReader
from tests.frontend.metered import Metered
from tests.frontend.service import running


@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
async def test_case(
    case: FrontendCase, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in case.given.get("bounds", {}).items():
        monkeypatch.setattr(constant, value)
    caplog.set_level(logging.INFO)
    folder = tmp_path / "usage"
    meter = Meter.start(folder, "host-1")
    issuer = OidcIssuer()
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(tmp_path, case.settings, meter, (issuer, case.oidc)))
        listening = stack.enter_context(hook()) if case.given.get("hook") else None
        allowed = () if listening is None else [ip_network("127.0.0.0/8")]
        await add_callers(service)
        services = service.app.services
        assert services.keyring is not None
        services.alarms = alarms = Alarms(service.store.alarms, services.keyring, Webhooks(allowed), service.clock)
        services.lake = lake = AnsweringReader()
        services.documents = documents = Documents(service.store.documents, lake, service.clock)
        await FrontendCaseRun(Metered(service, meter, folder), case, lake, issuer, caplog.records, listening).run()
        await documents.close()
        await alarms.close()
    await meter.close()


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in load()]
    assert len(set(names)) == len(names)
