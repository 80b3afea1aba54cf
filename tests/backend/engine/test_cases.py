"""Queues in virtual time, command by command: the cases of ``cases/*.yaml``.

A case has the settings of its queue (``queue``, or several in ``queues``: it runs with each), perhaps those of the
dead-letter queue ``dead``, and steps.  A step has an action as its first key:

- ``send: [BODIES]``: with ``group``, ``token``, ``also``, ``delay`` and ``retry: NUMBER`` or ``[NUMBER, CALL]``;
  ``as`` names the answers, and ``twins`` names earlier ones that they repeat: no other answer is a duplicate
- ``receive: [BODIES]`` or ``receive: NUMBER``: with ``messages_max``, ``visibility``, ``attempt``, ``wait`` and
  ``dead_letter: MAX_RECEIVES``; ``as`` names the claims, ``same`` names earlier ones that they repeat
- ``delete: [CLAIMS]``, ``change: CLAIM`` with ``to: SECONDS``: with their ``outcomes``, if not all are DONE
- ``release: [CLAIMS]``: with ``released``, the number of claims that it ends
- ``pass: SECONDS``, ``configure: {SETTINGS}``, ``purge: ID``, ``drop: true``, ``restart: true``: by a replay
- ``quarantine: [CLAIMS]``, ``move: [CLAIMS]``: of their messages, as a move task does
- ``deliver: true``: transfers under way arrive at ``dead``; ``taken`` and ``returned: [TRANSFERS]`` end them
- ``counters: [VISIBLE, IN FLIGHT, DELAYED]``, ``due: [MIN, MAX]``: seconds until the next wakeup
- ``empty: true``: nothing is kept in memory

A step with ``at: dead`` is one of that queue.  With ``refused: ERROR`` (and ``match``) it raises this, and writes no
record.  After the last step, a replay and a checkpoint of each queue have to give its state.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backend import api
from backend.api import DeadLetter, HandleOutcome, SendResult
from backend.engine.claims import Claimed
from backend.engine.queue import QueueCommands
from backend.engine.records import Dropped, Quarantined, TransferBack, TransferDone
from backend.engine.snapshot import describe
from tests.backend.engine.machine import OTHER, SALT, MemoryChunks, PartitionMachine
from tests.tables import read_yaml


def retry(token: int, call: bytes = b"first") -> bytes:
    return token.to_bytes(16, "big") + call.ljust(16)


def load() -> list[Any]:
    found = []
    for path in sorted((Path(__file__).parent / "cases").glob("*.yaml")):
        for case in read_yaml(path):
            for settings in case.get("queues", [case.get("queue", {})]):
                label = "-".join(f"{name}={settings[name]}" for name in settings) if "queues" in case else ""
                found.append(pytest.param(settings, case, id=" ".join((path.stem, case["name"], label)).rstrip()))
    return found


@pytest.mark.parametrize(("settings", "case"), load())
async def test_case(settings: dict[str, Any], case: dict[str, Any]) -> None:
    run = _Run(settings, case.get("dead", {}))
    for number, step in enumerate(case["steps"], 1):
        try:
            run.step(dict(step))
        except Exception as error:
            error.add_note(f"in step {number}: {step}")
            raise
    for machine in run.machines.values():
        machine.fold.advance(machine.now)
        assert describe(machine.replayed()) == describe(machine.fold)
        assert describe(await MemoryChunks().copy(machine.fold)) == describe(machine.fold)


class _Run:
    def __init__(self, settings: dict[str, Any], dead: dict[str, Any]) -> None:
        self.machines = {"queue": PartitionMachine(**settings), "dead": PartitionMachine(partition=9, **dead)}
        self.answers: dict[str, SendResult] = {}
        self.claims: dict[str, Claimed] = {}

    def step(self, options: dict[str, Any]) -> None:
        machine, refused = self.machines[options.pop("at", "queue")], options.pop("refused", None)
        action, match = next(iter(options)), options.pop("match", None)
        act = getattr(self, f"do_{action}")
        if refused is None:
            act(machine, options.pop(action), **options)
            return
        before, state = len(machine.journal), describe(machine.fold)
        with pytest.raises(getattr(api, refused), match=match):
            act(machine, options.pop(action), **options)
        assert (len(machine.journal), describe(machine.fold)) == (before, state)

    def do_send(self, machine: PartitionMachine, bodies: list[str], twins: Any = (), **options: Any) -> None:
        names = options.pop("as", ())
        if "retry" in options:
            number, *call = options["retry"] if isinstance(options["retry"], list) else [options["retry"]]
            options["retry"] = retry(number, *(one.encode() for one in call))
        for name in options.keys() & {"token", "also"}:
            options[name] = options[name].encode() * 16
        for place, answer in enumerate(machine.send(*map(str, bodies), **options)):
            if place < len(names):
                self.answers[names[place]] = answer
            first = self.answers[twins[place]] if place < len(twins) and twins[place] else None
            assert answer.duplicate == (first is not None)
            assert first is None or (answer.message_id, answer.number) == (first.message_id, first.number)

    def do_receive(self, machine: PartitionMachine, expected: Any, same: Any = (), **options: Any) -> None:
        names, checked = options.pop("as", ()), {name: options.pop(name, None) for name in ("receives", "carried")}
        if "dead_letter" in options:
            options["dead_letter"] = DeadLetter(options["dead_letter"], OTHER, machine.settings.fifo)
        claims = machine.claim(**options)
        if isinstance(expected, int):
            assert len(claims) == expected
        else:
            assert [machine.payloads[claim.number].decode() for claim in claims] == list(map(str, expected))
        self.claims.update(zip(names, claims, strict=False))
        if same:
            assert [machine.handle(claim) for claim in claims] == [machine.handle(self.claims[one]) for one in same]
        for name, values in checked.items():
            assert values is None or [getattr(claim, name) for claim in claims] == values

    def do_delete(self, machine: PartitionMachine, names: list[str], outcomes: Any = ()) -> None:
        expected = [HandleOutcome[one] for one in outcomes] or [HandleOutcome.DONE] * len(names)
        assert machine.delete(*(self.claims[name] for name in names)) == expected

    def do_change(self, machine: PartitionMachine, name: str, to: int, outcome: str = "DONE") -> None:
        assert machine.change(self.claims[name], to) == HandleOutcome[outcome]

    def do_release(self, machine: PartitionMachine, names: list[str], released: int) -> None:
        written = machine.queue.release([machine.handle(self.claims[name]) for name in names], machine.now)
        assert len(written) == released
        machine.write(written)

    def do_pass(self, machine: PartitionMachine, seconds: float) -> None:
        machine.pass_time(seconds)

    def do_configure(self, machine: PartitionMachine, values: dict[str, Any]) -> None:
        new = replace(machine.settings, **{"version": machine.settings.version + 1, **values})
        written = machine.queue.configure(new)
        assert bool(written) == (new.version > machine.settings.version)
        machine.write(written)
        machine.settings = new if written else machine.settings

    def do_purge(self, machine: PartitionMachine, purge_id: int) -> None:
        machine.write(machine.queue.purge(purge_id))
        assert machine.queue.purge(purge_id) == [], "a purge may be repeated"

    def do_drop(self, machine: PartitionMachine, _: bool) -> None:
        machine.write([Dropped(1)])

    def do_restart(self, machine: PartitionMachine, _: bool) -> None:
        machine.fold = machine.replayed()
        machine.queue = QueueCommands(machine.fold, machine.queue.handles, SALT)

    def do_quarantine(self, machine: PartitionMachine, names: list[str]) -> None:
        machine.write([Quarantined([self.claims[name].number for name in names])])

    def do_move(self, machine: PartitionMachine, names: list[str]) -> None:
        machine.write(machine.queue.move_out([(self.claims[name].number, OTHER) for name in names], machine.now))

    def do_deliver(self, machine: PartitionMachine, _: bool) -> None:
        machine.hand_over(self.machines["dead"])

    def do_taken(self, machine: PartitionMachine, transfers: list[int]) -> None:
        machine.write([TransferDone(OTHER.partition, transfers)])

    def do_returned(self, machine: PartitionMachine, transfers: list[int]) -> None:
        machine.write([TransferBack(OTHER.partition, transfers)])

    def do_counters(self, machine: PartitionMachine, expected: list[int]) -> None:
        assert list(machine.counters()) == expected

    def do_due(self, machine: PartitionMachine, bounds: list[float]) -> None:
        assert bounds[0] * 1000 <= machine.fold.due - machine.now <= bounds[1] * 1000

    def do_empty(self, machine: PartitionMachine, _: bool) -> None:
        fold = machine.fold
        fold.advance(machine.now)
        kept = (fold.blocks, fold.segments, fold.lane_names, fold.in_flight, fold.retries.chunks())
        assert not any(kept)
