"""Some faults of the campaign's plan for one machine, one after the other on one service."""

from pathlib import Path

import pytest

from tests.faults.campaign import whole
from tests.faults.campaign.forms import OneMachine
from tests.faults.campaign.plans import on_one_machine
from tests.tables import table

SELECTED: dict[int, list[str]] = table(__file__, "selected faults")
"""Names of faults, by the number of backends."""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backends", SELECTED)
async def test_faults_break_no_promise(tmp_path: Path, backends: int) -> None:
    form = OneMachine(tmp_path, backends)
    faults = [fault for fault in on_one_machine(form) if fault.name in SELECTED[backends]]
    assert [fault.name for fault in faults] == SELECTED[backends]
    rows = await whole.run(form, faults, 5)
    assert [row.broken for row in rows] == [[] for _ in faults]
    assert sum(row.lost for row in rows) == 0
    assert all(row.calls > whole.CALLS_BEFORE + whole.CALLS_AFTER for row in rows)
