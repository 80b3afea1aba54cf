"""Clients of the fault tests continue after a long time without a server."""

from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic


async def test_sends_that_no_server_got_do_not_stop_the_producers(server: FaultyServer) -> None:
    await server.start_with()
    async with Traffic(server, 1, open_max=0).running() as traffic:
        server.kill()
        await traffic.until(lambda: traffic.counts["unreachable"] > 50, "calls found no server")
        await server.start_with()
        sent = traffic.counts["sent"] + 20
        await traffic.until(lambda: traffic.counts["sent"] > sent, "messages were sent")
        await traffic.check()
