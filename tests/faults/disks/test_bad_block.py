"""A bad block of a real backend's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign.forms import OneMachine
from tests.faults.disks.bad_block import BadBlock


@pytest.mark.timeout(600)
async def test_only_the_messages_in_the_block_are_lost_and_they_are_named(tmp_path: Path) -> None:
    form = OneMachine(tmp_path)
    try:
        form.start()
        damage = BadBlock(form)
        await damage.run()
        assert 3 <= len(damage.lost) <= 5, "about four lie in a block"
    finally:
        form.close()
