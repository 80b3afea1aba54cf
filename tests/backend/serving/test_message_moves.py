"""Moves of chosen messages: after a crash at any moment each message is in exactly one of the two queues."""

import pytest

from backend import api
from tests.backend.nodes import restart
from tests.simulator.test_found import VirtualNode

BODIES = [b"%d" % place for place in range(10)]


def drained(service: VirtualNode, target: api.Target) -> list[bytes]:
    """Receive and delete all messages of a queue."""
    found: list[bytes] = []
    while messages := service.receive(target, 600):
        found += [message.payload for message in messages]
        service.call(api.Delete(target, [message.handle for message in messages]))
    return found


@pytest.mark.parametrize("fifo", [False, True])
def test_no_message_is_lost_or_doubled_by_a_crash(service: VirtualNode, fifo: bool) -> None:
    source, other = service.queue(7, fifo=fifo), service.queue(8, fifo=fifo)
    split = []
    for moment in range(20):
        messages = [
            api.NewMessage(body, None, body.decode() if fifo else None, (b"%d" % moment + body).rjust(16, b"."))
            for body in BODIES
        ]
        numbers = [one.number for one in service.call(api.Send(source, messages))]
        service.loop.create_task(service.node.call(api.MoveMessages(source, numbers, "queue8")))
        service.loop.run_for(moment * 0.002)
        restart(service, power=True)
        service.loop.until(service.quiet, 60)
        here, there = drained(service, source), drained(service, other)
        assert sorted(here + there) == BODIES
        split.append(len(there))
    assert split[0] == 0
    assert split[-1] == len(BODIES)
