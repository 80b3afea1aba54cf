"""A short run of the console's scenario."""

import msgspec

from bench.plan import QUICK
from bench.report import Book
from bench.run import BenchRun
from bench.scenarios.console import FEW, console
from bench.servers.servers import WORK, Holdfast

TINY = msgspec.structs.replace(QUICK, console_pages=5, empty_queues=FEW + 10, long_poll_waiting_s=0.3)


async def test_first_view_pages_and_lists() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    run = BenchRun(TINY, Book())
    with Holdfast() as server:
        await console(run, server)
    found = {one.name: one.value for one in run.book.figures}
    assert 0 < found["first view, received"] < 300
    assert found["first view"] > 0
    assert {"5 pages, one list", "5 pages, a queue each", "list by depth, 110 queues"} <= set(found)
    assert found[f"list by name, many queues over {FEW}"] > 0
