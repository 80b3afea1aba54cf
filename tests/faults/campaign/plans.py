"""Plans: the faults injected into each form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from metadata_service.topics import hidden_queue_name
from tests.faults.campaign.distributed import Distributed
from tests.faults.campaign.forms import Form, OneMachine
from tests.faults.campaign.whole import Fault, FaultResults, SomeForm, campaign
from tests.faults.clusters.heavy import HeavyMoves
from tests.faults.clusters.restored import CLUSTERS, TwoClusters
from tests.faults.disks.bad_block import BadBlock
from tests.faults.processes.out_of_files import OUT_SECONDS, no_free_files, out_of_files
from tests.faults.tools.topic_traffic import NEWS, NEWS_RAW
from tests.faults.tools.traffic import DEAD, ORDERS, WORK
from tests.servers.cassandra_server import QUICK_START
from tests.servers.local_cluster import LocalCluster
from tests.servers.proxy import Direction

APART_SECONDS = 10.0
"""Duration of a network fault: longer than its detection and a takeover."""
FREEZE_SECONDS = 7.0
"""Duration of a pause: longer than the time limits for frontends' reports and for heartbeats."""
MOVING_SECONDS = 3.0
"""Time after which messages are being transferred."""
WRONG_SECONDS = 6.0
"""Duration of a clock fault, or of a slow disk."""
RESTORED_SECONDS = 900.0
"""Timeout for starting, backing up, losing, restoring and emptying a service."""
HOUR_SECONDS = 3600.0
MINUTES_SECONDS = 600.0
"""Clock error that is large, but within the tolerance of signatures."""

EARLY_SHARE = 0.1
"""Maximum share by which a shard's time runs fast: it follows a wrong clock at a tenth."""

WAYS = {
    "": Direction.BOTH,
    ": what callers send does not arrive": Direction.TO_SERVER,
    ": answers do not arrive": Direction.TO_CLIENT,
}


def killed(name: str) -> Callable[[Form], None]:
    """Make a fault: kill -9, and a restart."""
    return lambda form: form.kill(name)


def frozen(form: Form, name: str) -> None:
    """Send SIGSTOP, and SIGCONT after a while."""
    form.pause(name)
    try:
        time.sleep(FREEZE_SECONDS)
    finally:
        form.resume(name)


@contextmanager
def wrong_clock(form: Form, name: str, seconds: float) -> Iterator[None]:
    """Set a process's clock off during the block."""
    form.set_clock(name, seconds)
    try:
        yield
    finally:
        form.set_clock(name, 0)


def clock_off(form: Form, name: str, seconds: float) -> None:
    """Set a process's clock off for a while."""
    with wrong_clock(form, name, seconds):
        time.sleep(WRONG_SECONDS)


def slow_disk(form: Form, name: str, sync_seconds: float) -> None:
    """Delay a process's syncs for a while."""
    form.slow_disk(name, sync_seconds)
    try:
        time.sleep(WRONG_SECONDS)
    finally:
        form.slow_disk(name, 0)


def on_one_machine(form: OneMachine) -> list[Fault[OneMachine]]:
    """Faults for ``holdfast serve`` with several processes."""
    one, *_ = form.backends
    faults: list[Fault[OneMachine]] = [
        *[Fault[OneMachine](f"kill -9 of {name}", killed(name)) for name in (*form.frontends, *form.backends)],
        Fault("kill -9 of all processes", OneMachine.kill_all),
        Fault("a frontend is paused (SIGSTOP), and continued", lambda f: frozen(f, f.frontends[0])),
        Fault("a backend is paused (SIGSTOP): it is killed, and its shards served", lambda f: hung(f, one)),
        Fault("a frontend's clock 10 minutes ahead", lambda f: clock_off(f, f.frontends[0], MINUTES_SECONDS)),
        Fault("a backend's clock an hour ahead", lambda f: clock_off(f, one, HOUR_SECONDS)),
        Fault("a backend's clock an hour behind", lambda f: clock_off(f, one, -HOUR_SECONDS)),
        Fault("a backend's disk takes 0.3 s for a sync", lambda f: slow_disk(f, one, 0.3)),
        Fault("a frontend has no file descriptor left", lambda f: out_of_files(f, f.frontends[0])),
        Fault("a backend has no file descriptor left", lambda f: out_of_files(f, one)),
        Fault("a block of 4 KiB of a backend's disk cannot be read", bad_block, damages=True),
        Fault("a backend without a file descriptor is killed", lambda f: killed_without_files(f, one)),
    ]
    if len(form.backends) > 1:
        faults += [*moves_of_heavy_groups()]
    return [*faults, Fault("rolling restart of everything", OneMachine.restart_all)]


def moves_of_heavy_groups() -> list[Fault[Any]]:
    """Faults during transfers of messages near 1 MiB, in batches larger than one call carries."""
    meanwhile: dict[str, Callable[[Form, str, str, str], object]] = {
        "": lambda form, yard, pile, goal: None,
        ", and the node that they leave is killed": lambda form, yard, pile, goal: kill_owner(form, pile),
        ", and the node that receives them is killed": lambda form, yard, pile, goal: kill_owner(form, goal),
        ", and one has no file descriptor left": lambda form, yard, pile, goal: out_of_files(form, form.owner_of(pile)),
    }
    return [
        Fault(f"groups of messages near 1 MiB move between nodes{text}", partial(move_heavy_groups, act), alone=True)
        for text, act in meanwhile.items()
    ]


def move_heavy_groups(meanwhile: Callable[[Form, str, str, str], object], form: Form) -> None:
    """Move heavy messages through three queues of the form, which ``meanwhile`` gets."""
    asyncio.run(HeavyMoves(form.endpoint, form.owner_of).run(partial(meanwhile, form)))


def kill_owner(form: Form, queue: str) -> None:
    """kill -9 the backend that owns the queue, during the transfers."""
    time.sleep(MOVING_SECONDS)
    form.kill(form.owner_of(queue))


def hung(form: OneMachine, name: str) -> None:
    """Suspend a process until the supervisor kills it, and its replacement serves."""
    pid = form.pid(name)
    form.until_logged(f"{name} does not answer and is killed", lambda: form.pause(name))
    form.server.wait_again(name, pid)


def bad_block(form: OneMachine) -> None:
    """Make a block unreadable; only messages in it are lost, and reported."""
    asyncio.run(BadBlock(form).run())


def killed_without_files(form: Form, name: str) -> None:
    """Leave a process without free descriptors, and kill it in that state."""
    with no_free_files(form.pid(name)):
        time.sleep(OUT_SECONDS)
        form.kill(name)


def on_cassandra(form: Distributed) -> list[Fault[Distributed]]:
    """Faults for all roles as processes of their own, on three nodes of Cassandra."""
    frontend, *_ = form.frontends
    metadata, *_ = form.metadata
    named = [metadata, *form.backends, frontend, *form.managers]
    faults = [
        *[Fault[Distributed](f"kill -9 of {name}", killed(name)) for name in named],
        Fault("kill -9 of all of Holdfast", Distributed.kill_all),
        Fault("an owner of shards is paused past its takeover, and continued", zombie(WORK)),
        Fault("a metadata node is paused, and continued", lambda f: frozen(f, metadata)),
        Fault("a frontend is paused, and continued", lambda f: frozen(f, frontend)),
        *[Fault(f"a backend and its callers apart{text}", apart(ORDERS, way)) for text, way in WAYS.items()],
        *[
            Fault(f"a backend and one frontend apart{text}", apart_from(WORK, frontend, way))
            for text, way in WAYS.items()
        ],
        *[Fault(f"a backend and Cassandra apart{text}", owner_apart(ORDERS, way)) for text, way in WAYS.items()],
        Fault("a frontend and Cassandra apart", no_cassandra(frontend)),
        Fault("a metadata node and Cassandra apart", no_cassandra(metadata)),
        Fault("Cassandra takes 0.1 s longer each way", slow_cassandra),
        Fault("a backend's clock an hour ahead", lambda f: clock_off(f, f.owner_of(WORK), HOUR_SECONDS)),
        Fault(
            "a backend killed, and back with a clock an hour behind",
            lambda f: killed_with_clock_off(f, f.owner_of(WORK)),
        ),
        Fault("a metadata node's clock an hour ahead", lambda f: clock_off(f, metadata, HOUR_SECONDS)),
        Fault("a backend has no file descriptor left", lambda f: out_of_files(f, f.owner_of(ORDERS))),
        Fault("a metadata node has no file descriptor left", lambda f: out_of_files(f, metadata)),
        Fault("a frontend has no file descriptor left", lambda f: out_of_files(f, frontend)),
        Fault("Redis killed, and an empty one in its place", lambda f: f.redis_away(WRONG_SECONDS)),
        Fault("Redis flushed", Distributed.redis_flushed),
        Fault("one Cassandra node killed, and back", lambda f: f.without_cassandra([0], APART_SECONDS)),
        Fault("two Cassandra nodes killed, and back", lambda f: f.without_cassandra([1, 2], APART_SECONDS)),
        Fault("all Cassandra nodes killed, and back", lambda f: f.without_cassandra([0, 1, 2], APART_SECONDS)),
        Fault("a Cassandra node is paused, and continued", lambda f: f.cassandra_hangs(0, APART_SECONDS)),
        Fault("rolling restart of everything", Distributed.restart_all),
        Fault("a split, while the owner is a zombie", resized(WORK, 3, zombie(WORK)), alone=True),
        Fault(
            "a drain, while the owner and its callers are apart",
            resized(WORK, 1, apart(WORK, Direction.BOTH)),
            alone=True,
        ),
    ]
    faults += [
        *moves_of_heavy_groups(),
        Fault("messages near 1 MiB move, while their queues are split", split_heavy, alone=True),
    ]
    if form.wrongs:
        faults += [
            Fault("a Cassandra node's clock an hour ahead", lambda f: f.wrong_clock(0, HOUR_SECONDS, a_while)),
            Fault("a Cassandra node's clock an hour behind", lambda f: f.wrong_clock(1, -HOUR_SECONDS, a_while)),
            Fault("a Cassandra node's disk takes 0.3 s for a sync", lambda f: f.slow_syncs([0], 0.3, a_while)),
            Fault("all disks of Cassandra take 0.3 s for a sync", lambda f: f.slow_syncs([0, 1, 2], 0.3, a_while)),
        ]
    return faults


def a_while() -> None:
    time.sleep(WRONG_SECONDS)


def slow_cassandra(form: Distributed) -> None:
    """Slow down the network to Cassandra for a while."""
    with form.bad_network(form.proxies, lambda proxy: proxy.delay(0.1)):
        time.sleep(WRONG_SECONDS)


def killed_with_clock_off(form: Form, name: str) -> None:
    """Kill a process; others take over its shards, and it restarts with a clock an hour behind, for a while."""
    with wrong_clock(form, name, -HOUR_SECONDS):
        form.kill(name)
        time.sleep(WRONG_SECONDS)


def zombie(queue: str) -> Callable[[Distributed], None]:
    """Suspend the queue's owner until after the takeover of its shards, and resume it."""
    return lambda form: form.wait_for_zombie(form.owner_of(queue))


def apart(queue: str, direction: Direction) -> Callable[[Distributed], None]:
    """Disconnect the queue's owner from all its callers, until others own the queue."""
    return lambda form: form.apart(form.owner_of(queue), direction, queue)


def apart_from(queue: str, frontend: str, direction: Direction) -> Callable[[Distributed], None]:
    """Disconnect the queue's owner from one of two frontends for a while."""
    return lambda form: form.apart_from(form.owner_of(queue), frontend, direction, APART_SECONDS)


def owner_apart(queue: str, direction: Direction) -> Callable[[Distributed], None]:
    """Disconnect the queue's owner from all nodes of Cassandra for a while."""
    return lambda form: form.apart_from_cassandra(form.owner_of(queue), direction, APART_SECONDS)


def no_cassandra(name: str) -> Callable[[Distributed], None]:
    """Disconnect a process from all nodes of Cassandra for a while."""
    return lambda form: form.apart_from_cassandra(name, Direction.BOTH, APART_SECONDS)


def resized(queue: str, partitions: int, meanwhile: Callable[[Distributed], object]) -> Callable[[Distributed], None]:
    """Change a queue's number of partitions, and call ``meanwhile`` once that has started."""
    return lambda form: form.splitter().resize({queue: partitions}, lambda: meanwhile(form))


def split_heavy(form: Distributed) -> None:
    """Give each of the standard queues through which heavy messages move two more partitions."""
    moves = HeavyMoves(form.endpoint, form.owner_of, fifo=False, groups=3)
    asyncio.run(moves.run(lambda *queues: form.splitter().resize(dict.fromkeys(queues, 3))))


def split_and_drain(form: Distributed) -> None:
    """Split a standard queue and the publications of a topic, and drain two others; the next call does the reverse."""
    ones, others = (WORK, hidden_queue_name(NEWS)), (DEAD, NEWS_RAW)
    split, drained = (others, ones) if form.is_split else (ones, others)
    form.splitter().resize({**dict.fromkeys(split, 3), **dict.fromkeys(drained, 1)})
    form.is_split = not form.is_split


async def _two_clusters(folder: Path, seed: int, on_result: OnResult, only: str) -> list[FaultResults]:
    """Back up two backend clusters under load, lose and restore them, with and without a fault meanwhile."""
    rows: list[FaultResults] = []
    amiss: dict[str, Callable[[LocalCluster], object]] = {
        "backed up under load, lost and restored": lambda cluster: None,
        "backed up under load while a backend is killed, lost and restored": backend_killed,
    }
    for number, (what, meanwhile) in enumerate(amiss.items()):
        if only not in what:
            continue
        row = FaultResults("2 backend clusters on Cassandra", what)
        service = TwoClusters(two_clusters(), made(folder / str(number)), seed + number)
        try:
            async with asyncio.timeout(RESTORED_SECONDS):
                await service.run(meanwhile)
        except Exception as error:
            row.broken = [f"{error!r}"]
        finally:
            await asyncio.to_thread(service.cluster.close)
        row.calls, row.errors, row.lost = service.seen.calls, service.seen.errors, len(service.seen.lost)
        row.broken += service.seen.broken
        row.fault += f" ({service.seen.had_to_be_there} had to be there, {service.seen.had_to_be_gone} not)"
        rows.append(row)
        on_result(row)
    return rows


def two_clusters() -> LocalCluster:
    """Make a cluster, not started, with one Cassandra node, because a backup may hold all logs for 1.2 s at most."""
    cluster = LocalCluster(cassandra=1, metadata=1, backends=1, managers=1, redis=False, java_options=QUICK_START)
    cluster.add_backend(CLUSTERS[1])
    return cluster


def backend_killed(cluster: LocalCluster) -> None:
    """kill -9 one backend during the backup, and start it again."""
    time.sleep(1)
    process = cluster.of("backend")[-1]
    process.kill()
    process.start()


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


OnResult = Callable[[FaultResults], None]
"""Receiver of each row as it is completed."""
RunForm = Callable[[Path, int, OnResult, str], Coroutine[None, None, list[FaultResults]]]
"""Runs the planned faults whose names contain a text, in a folder of its own: (folder, seed, on_result, text)."""


def _campaign(
    make: Callable[[Path], SomeForm],
    plan: Callable[[SomeForm], list[Fault[SomeForm]]],
    amid: Callable[[SomeForm], object] | None = None,
) -> RunForm:
    return lambda folder, seed, on_result, only: campaign(
        lambda number: make(made(folder / str(number))),
        plan,
        seed,
        on_result=on_result,
        early_share=EARLY_SHARE,
        amid=amid,
        only=only,
    )


FORMS: dict[str, RunForm] = {
    "frontends": _campaign(OneMachine, on_one_machine),
    "backends": _campaign(lambda folder: OneMachine(folder, 3), on_one_machine),
    "cassandra": _campaign(lambda folder: Distributed(folder, managers=1), on_cassandra, amid=split_and_drain),
    "two-clusters": _two_clusters,
}
