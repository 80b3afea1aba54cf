"""``holdfast serve --frontends N --backends M``: backend processes, and frontends behind one port, so that all cores
are used.

The supervisor has the data folder, the listening sockets and the children, and nothing of the service: it accepts
connections and deals them out (:mod:`holdfast.dealer`), starts what has died again, and ends everything in order.

A child that dies is started again: at once, then after pauses that grow.  One that dies again and again within
:data:`STEADY_SECONDS` of its start is given up, and with it the service, for whoever looks after the supervisor to
know.  A backend that hangs is killed, for its shards are locked as long as it is there.  Nothing that was acknowledged
is lost by any of it: each backend has a log of its own, which is locked, so that no other writes it, and what a dead
one had is taken over by the others or by its next life, whichever is first.

On SIGUSR1 all children are restarted one by one: each backend hands its shards over before it ends, and each frontend
lets its clients go to the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from holdfast import child, logs
from holdfast.child import Orders
from holdfast.dealer import Dealer
from holdfast.endpoint_file import EndpointFile
from holdfast.folder import NODE, Claim
from holdfast.listen import LINGER_SECONDS, bind
from holdfast.observed import Observed
from holdfast.python import python
from holdfast.serve import CannotStart, Prepared, certificate_of, greet, prepare, publish_endpoint
from holdfast.settings import Settings
from metadata_service.sqlite import SQLiteStore
from telemetry.metrics import Family

STEADY_SECONDS = 10.0
"""A child that lived so long was not at fault when it began."""
PAUSE_SECONDS_FIRST = 0.1
PAUSE_SECONDS_MOST = 5.0
DEATHS_MOST = 6
"""So many in a row, each within ``STEADY_SECONDS`` of the start, and the service is given up."""
SILENT_SECONDS = 5.0
"""A frontend that was not heard for so long gets no connections; it should be heard every second."""
HANGS_SECONDS = 10
"""A backend that was not heard for so long is killed.  Seconds in which the supervisor itself stood still, or the
machine, do not count."""
STARTS_SECONDS = 60
"""The same for any child that is not ready yet: it is heard every second as soon as its loop runs."""
FRONTEND_GRACE_SECONDS = 5.0
"""Beyond ``drain_seconds``, for what remains to be written after the last answer."""
BACKEND_GRACE_SECONDS = 60.0
"""For the last checkpoint."""
HAND_OVER_SECONDS = 60.0
"""For a backend that gives its shards to others before it ends."""
TELL_SECONDS = 2.0
"""For a child to tell what it counts."""
SETTLE_SECONDS = 120.0
"""So long a restart of all children waits until the one that was started is ready, and a backend has its shards."""

log = logging.getLogger("holdfast")


def supervise(settings: Settings) -> int:
    """Run until a signal, and return the exit code: 0 after a drain, 1 if it did not start, 3 if it was given up.

    Raises as :func:`holdfast.serve.serve`.
    """
    logs.set_up(settings, "supervisor", "supervisor")
    if sys.platform != "linux":
        raise CannotStart("several processes need Linux: start the service without --frontends and --backends")
    claim = Claim(settings.data)
    try:
        certificate_of(settings)
        sockets = bind(settings.host, settings.port)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, sockets))
    finally:
        claim.release()


async def _run(settings: Settings, sockets: list[socket.socket]) -> int:
    store = SQLiteStore(settings.metadata_file)
    try:
        prepared = await prepare(settings, store)
    finally:
        await store.close()
    supervisor = Supervisor(settings, sockets)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop_or_quit, number)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR1, supervisor.restart_all)
    observed = await Observed.start(settings, "supervisor", "supervisor")
    supervisor.tell(observed)
    try:
        code = await supervisor.run(prepared)
    finally:
        await observed.close()
    log.info("stopped")
    return code


class Child:
    """A process, in all its lives.  Implements :class:`holdfast.dealer.Seat`."""

    def __init__(self, orders: Orders) -> None:
        self.name = orders.name
        self.load = 0
        self.begun = asyncio.Event()
        """It is ready, in this life."""
        self.settled = asyncio.Event()
        """A backend, in this life."""
        self.ready = asyncio.Event()
        """It has been ready once."""
        self.has_orders = False
        """In this life."""
        self.silent_seconds = 0
        """Counted by whoever looks after it; with its orders, it is heard every second."""
        self.leaves = False
        """It ends because it was told to, and is to be started again."""
        self.ended = asyncio.Event()
        """Set when this life has ended."""
        self._orders = orders
        self._line: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._heard_at = 0.0
        self.lives = 0
        """Begun so far."""
        self._told: asyncio.Future[list[Family]] | None = None
        """What it is about to tell."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be dealt connections."""
        return self.has_begun and not self.is_silent and not self.leaves

    @property
    def has_begun(self) -> bool:
        return self.begun.is_set()

    @property
    def is_silent(self) -> bool:
        """It runs, and yet nothing is heard of it."""
        return self.has_begun and asyncio.get_running_loop().time() - self._heard_at > SILENT_SECONDS

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def live(self, after: asyncio.Event | None) -> int:
        """One life; its exit code, negative for a signal.  Whoever cancels this kills the process.

        What it does begins ``after`` this event.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            with theirs:
                first = self._orders.first and not self.ready.is_set()
                orders = msgspec.structs.replace(self._orders, line=theirs.fileno(), first=first)
                process = await asyncio.create_subprocess_exec(
                    *(*python(), "-m", "holdfast.child", self.name),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._process, self._line = process, ours
            self.lives += 1
            loop.add_reader(ours.fileno(), self._heard, ours)
            ordering = asyncio.create_task(self._order(process, child.encode(orders), after))
            try:
                return await process.wait()
            finally:
                ordering.cancel()
                self.has_orders, self.load, self.silent_seconds = False, 0, 0
                self.begun.clear()
                self.settled.clear()
                self.ended.set()
                self.ended = asyncio.Event()
                self._process = self._line = None
                loop.remove_reader(ours.fileno())
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        finally:
            ours.close()

    def _heard(self, line: socket.socket) -> None:
        while True:
            try:
                said, files, _, _ = socket.recv_fds(line, child.MESSAGE_BYTES_MOST, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                said, files = b"", []
            self._heard_at = asyncio.get_running_loop().time()
            self.silent_seconds = 0
            if said == child.READY:
                self.begun.set()
                self.ready.set()
            elif said == child.SETTLED:
                self.settled.set()
            elif said.startswith(child.LOAD):
                self.load = int(said.removeprefix(child.LOAD))
            elif said == child.TOLD:
                self._hear_told(files)
            else:  # the process has ended, and who waits for it will know
                asyncio.get_running_loop().remove_reader(line.fileno())
                return

    def _hear_told(self, files: Sequence[int]) -> None:
        told, self._told = self._told, None
        for number in files:
            with open(number, "rb") as file:
                file.seek(0)
                data = file.read()
            if told is not None and not told.done():
                told.set_result(child.decode_families(data))

    async def tell(self) -> list[Family]:
        """What it counts and measures; nothing, if it does not say so soon."""
        if not self.has_begun or self._line is None:
            return []
        if self._told is None or self._told.done():
            self._told = asyncio.get_running_loop().create_future()
            self.say(child.TELL)
        try:
            async with asyncio.timeout(TELL_SECONDS):
                return await asyncio.shield(self._told)
        except TimeoutError:
            self._told = None  # the next who asks does so anew
            return []

    def say(self, message: bytes) -> None:
        """Give an order; a process that is about to end need not hear it."""
        if self._line is not None:
            try:
                self._line.send(message)
            except OSError as error:
                log.warning("%s does not take orders: %s", self.name, error.strerror)

    def give(self, accepted: socket.socket) -> bool:
        if self._line is None:
            return False
        try:
            socket.send_fds(self._line, [child.CONNECTION], [accepted.fileno()])
        except OSError:  # it has died, or has not taken what it was given before
            return False
        return True

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _order(self, process: asyncio.subprocess.Process, orders: bytes, after: asyncio.Event | None) -> None:
        if after is not None:
            await after.wait()
        assert process.stdin is not None
        process.stdin.write(orders)
        process.stdin.close()  # not waited for: who waits for the process will know how that ends
        self.has_orders = True


class _GivenUp(Exception):
    """A child cannot be kept alive; the text says which."""


class Supervisor:
    """The children, from the first start to the last end."""

    def __init__(self, settings: Settings, sockets: list[socket.socket]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._backends, self._frontends = _children(settings)
        self._children = (*self._backends, *self._frontends)
        self._keepers: dict[Child, asyncio.Task[None]] = {}
        self._dealer = Dealer(sockets, lambda: self._frontends)
        self._backed = asyncio.Event()
        """Every queue has a backend."""
        self._stop = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None
        """Of all children, one by one."""
        self._serving = False

    def tell(self, observed: Observed) -> None:
        """Answer for all processes, and show how they are."""
        registry, children = observed.registry, self._children

        async def others() -> list[tuple[str, list[Family]]]:
            told = await asyncio.gather(*(each.tell() for each in children))
            return [(each.name, families) for each, families in zip(children, told, strict=True)]

        def hindered() -> str:
            if self._stop.is_set():
                return "draining"
            return "" if self._serving and any(each.is_ready for each in self._frontends) else "starting"

        observed.others = others
        observed.health.status = "ready"
        observed.health.hindered = hindered
        registry.tell(
            "holdfast_child_ready",
            "1: the process does its work; 0: it starts, ends, or is not heard.",
            lambda: {(each.name,): each.is_ready for each in children},
            labels=("child",),
            most=len(children),
        )
        registry.tell(
            "holdfast_child_starts_total",
            "How often the process was started.",
            lambda: {(each.name,): each.lives for each in children},
            labels=("child",),
            most=len(children),
        )

    def stop_or_quit(self, number: int) -> None:
        """The first signal drains; the second ends all processes at once, which loses nothing that was acknowledged."""
        if self._stop.is_set():
            log.warning("stopped at once, by a second signal")
            for each in self._children:
                each.kill()
            os._exit(128 + number)
        self._stop.set()

    def reload(self) -> None:
        """All frontends load the certificate anew."""
        for each in self._frontends:
            each.say(child.RELOAD)

    def restart_all(self) -> None:
        """One after the other: the backends, each when the one before has its shards again, and then the frontends."""
        if not self._serving or self._stop.is_set():
            log.warning("nothing is restarted: the service is not ready, or is ending")
        elif self._restart is not None and not self._restart.done():
            log.warning("everything is being restarted already")
        else:
            self._restart = asyncio.create_task(self._restart_all(), name="restart")

    async def _restart_all(self) -> None:
        log.info("the backends and frontends are restarted, one by one")
        for children, what in ((self._backends, "backends"), (self._frontends, "frontends")):
            for each in children:
                if not await self._restarted(each):
                    log.error("%s is not there again as it was: the others are not restarted", each.name)
                    return
            log.info("all %s have been restarted", what)

    async def _restarted(self, restarted: Child) -> bool:
        """Whether it is there again, a backend with its shards.  One that dies meanwhile is started again as ever."""
        if not restarted.has_begun:
            return False
        is_backend = restarted in self._backends
        seconds = HAND_OVER_SECONDS + BACKEND_GRACE_SECONDS if is_backend else LINGER_SECONDS + FRONTEND_GRACE_SECONDS
        ended = restarted.ended
        restarted.leaves = True
        restarted.say(child.LEAVE)
        try:
            async with asyncio.timeout(seconds + self._settings.drain_seconds):
                await ended.wait()
        except TimeoutError:
            log.error("%s does not leave and is killed %s", restarted.name, logs.facts(pid=restarted.pid))
            restarted.kill()
            await ended.wait()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await (restarted.settled if is_backend else restarted.begun).wait()
        except TimeoutError:
            return False
        return True

    async def run(self, prepared: Prepared) -> int:
        """Start, serve until the end, and return the exit code.  Raises :class:`~holdfast.listen.CannotListen`."""
        code = 0
        endpoint_file = EndpointFile(self._settings.data)
        watch = asyncio.create_task(self._watch())
        try:
            for each in self._children:
                self._keepers[each] = asyncio.create_task(self._keep(each), name=each.name)
            for each in self._backends:
                await self._until_stopped(each.settled if len(self._backends) > 1 else each.ready)
            self._backed.set()
            for each in self._frontends:
                await self._until_stopped(each.ready)
            if not self._stop.is_set():
                self._dealer.start()
                self._serving = True
                publish_endpoint(endpoint_file, self._settings, self._sockets)
                greet(self._settings, self._sockets, prepared)
            await self._until_stopped(self._stop)
        except _GivenUp as error:
            log.error("the service cannot go on: %s", error)
            code = 3 if self._serving else 1
        finally:
            watch.cancel()
            try:
                await self._end()
            finally:
                endpoint_file.remove()
        return code

    async def _until_stopped(self, event: asyncio.Event) -> None:
        """Wait for the event, or for the end.  Raises :class:`_GivenUp`."""
        waiting = [asyncio.create_task(event.wait()), asyncio.create_task(self._stop.wait())]
        try:
            await asyncio.wait([*waiting, *self._keepers.values()], return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers.values():
                if keeper.done():
                    keeper.result()
        finally:
            for task in waiting:
                task.cancel()

    async def _watch(self) -> None:
        """Tell of frontends that hang, and kill backends that do: nobody else can have their shards before.

        What hangs before it is ready is killed, too: it would never be started again, nor the start of all ever end.
        """
        silent: set[Child] = set()
        while True:
            await asyncio.sleep(1)
            for each in self._children:
                each.silent_seconds += each.has_orders
                seconds = HANGS_SECONDS if each.has_begun else STARTS_SECONDS
                if each.silent_seconds > seconds and (each in self._backends or not each.has_begun):
                    facts = logs.facts(pid=each.pid, seconds=seconds)
                    log.error("%s does not answer and is killed %s", each.name, facts)
                    each.kill()
            for each in self._frontends:
                if each.is_silent and each not in silent:
                    silent.add(each)
                    log.error("%s does not answer and gets no connections %s", each.name, logs.facts(pid=each.pid))
                elif each in silent and not each.is_silent:
                    silent.discard(each)
                    log.warning("%s answers again", each.name)

    async def _keep(self, kept: Child) -> None:
        """Let the child live until the end of the service.  Raises :class:`_GivenUp`."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            try:
                code = await kept.live(None if kept in self._backends else self._backed)
                how = _how(code)
            except OSError as error:  # there is no memory, or there are too many processes
                code, how = 1, f"no process can be made: {error.strerror}"
            if self._stop.is_set():
                if code:
                    log.warning("%s did not end well (%s)", kept.name, how)
                return
            if not kept.ready.is_set():
                raise _GivenUp(f"{kept.name} did not start ({how})")
            left, kept.leaves = kept.leaves, False
            if left and not code:
                log.info("%s has left and is started again", kept.name)
                continue
            deaths = 1 if loop.time() - began >= STEADY_SECONDS else deaths + 1
            if deaths > DEATHS_MOST:
                raise _GivenUp(f"{kept.name} has died {deaths} times within seconds of its start ({how})")
            pause = min(PAUSE_SECONDS_MOST, PAUSE_SECONDS_FIRST * 2 ** (deaths - 1))
            log.error("%s has died and is started again (%s)", kept.name, how)
            try:
                async with asyncio.timeout(pause):
                    await self._stop.wait()
                return
            except TimeoutError:
                pass

    async def _end(self) -> None:
        """Frontends first, so that every call that was accepted is answered; then all backends, which keep what they
        have."""
        self._stop.set()
        if self._restart is not None:
            self._restart.cancel()
        if self._serving:
            self._dealer.stop()
        else:
            for bound in self._sockets:
                bound.close()
        await self._drain(self._frontends, self._settings.drain_seconds + FRONTEND_GRACE_SECONDS)
        await self._drain(self._backends, BACKEND_GRACE_SECONDS)

    async def _drain(self, children: Sequence[Child], seconds: float) -> None:
        for each in children:
            if each.has_begun:
                each.say(child.DRAIN)
            else:
                each.kill()  # it has begun nothing that would have to be ended
        keepers = {each: self._keepers[each] for each in children if each in self._keepers}
        if not keepers:
            return
        _, late = await asyncio.wait(keepers.values(), timeout=seconds)
        for each, keeper in keepers.items():
            if keeper in late:
                log.error("%s does not end and is killed %s", each.name, logs.facts(pid=each.pid, seconds=seconds))
                each.kill()
        if late:
            await asyncio.wait(late)


def _children(settings: Settings) -> tuple[list[Child], list[Child]]:
    """The backends, and the frontends."""
    common = Orders(
        name="",
        frontend=False,
        settings=settings,
        secret=secrets.token_bytes(32),
        line=-1,
        supervisor=os.getpid(),
        frontends=max(1, settings.frontends),
        first=False,
        nodes=tuple(f"backend-{number}" for number in range(1, settings.backends + 1)),
    )
    if settings.backends <= 1:
        alone = msgspec.structs.replace(common, name="backend", node=NODE, nodes=(NODE,))
        backends = [Child(alone)]
    else:
        backends = [Child(msgspec.structs.replace(common, name=node, node=node)) for node in common.nodes]
    other = msgspec.structs.replace(common, frontend=True)
    frontends = [
        Child(msgspec.structs.replace(other, name=f"frontend-{number}", first=number == 1, seals=number == 1))
        for number in range(1, common.frontends + 1)
    ]
    return backends, frontends


def _how(code: int) -> str:
    """How a process has ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
