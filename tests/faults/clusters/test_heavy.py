"""Groups of messages near 1 MiB that are transferred between three backends, one of which is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign.forms import OneMachine
from tests.faults.clusters.heavy import GROUP_MESSAGES, GROUPS, HeavyMoves


@pytest.mark.timeout(600)
async def test_groups_stay_in_order_in_batches_over_what_a_call_carries(tmp_path: Path) -> None:
    form = OneMachine(tmp_path, 3)
    try:
        form.start()
        moves = HeavyMoves(form.endpoint, form.owner_of)
        await moves.run(lambda yard, pile, goal: form.kill(form.owner_of(pile)))
        assert len(moves.received) == GROUPS * GROUP_MESSAGES
    finally:
        form.close()
