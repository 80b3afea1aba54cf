"""The cases of SNS in this folder."""

from pathlib import Path

import msgspec
import pytest

from frontend.settings import FrontendSettings
from tests.frontend.service import running
from tests.frontend.sns.cases import RecordingSender, SnsCase, SnsCaseRun, load


@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
async def test_case(case: SnsCase, tmp_path: Path) -> None:
    sender = RecordingSender()
    async with running(
        tmp_path, msgspec.convert(case.settings, FrontendSettings), sender_of=lambda context: sender
    ) as service:
        await SnsCaseRun(service, sender, case).run()
