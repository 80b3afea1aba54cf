"""``holdfast serve --frontends N``: one backend process and N frontends behind one port, so that all cores are used.

The supervisor has the data folder, the listening sockets and the children, and nothing of the service: it accepts
connections and deals them out (:mod:`holdfast.dealer`), starts what has died again, and ends everything in order.

A child that dies is started again: at once, then after pauses that grow.  One that dies again and again within
:data:`STEADY_SECONDS` of its start is given up, and with it the service, for whoever looks after the supervisor to
know.  Nothing that was acknowledged is lost by any of it: the journal is the backend's, and its log is locked, so
that two of them cannot write it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

import uvloop

from holdfast import child, logs
from holdfast.child import Orders
from holdfast.dealer import Dealer
from holdfast.folder import Claim
from holdfast.listen import bind
from holdfast.serve import CannotStart, Prepared, certificate_of, greet, prepare
from holdfast.settings import Settings
from metadata_service.sqlite import SQLiteStore

STEADY_SECONDS = 10.0
"""A child that lived so long was not at fault when it began."""
PAUSE_SECONDS_FIRST = 0.1
PAUSE_SECONDS_MOST = 5.0
DEATHS_MOST = 6
"""So many in a row, each within ``STEADY_SECONDS`` of the start, and the service is given up."""
SILENT_SECONDS = 5.0
"""A frontend that was not heard for so long gets no connections; it should be heard every second."""
FRONTEND_GRACE_SECONDS = 5.0
"""Beyond ``drain_seconds``, for what remains to be written after the last answer."""
BACKEND_GRACE_SECONDS = 60.0
"""For the last checkpoint."""

log = logging.getLogger("holdfast")


def supervise(settings: Settings) -> int:
    """Run until a signal, and return the exit code: 0 after a drain, 1 if it did not start, 3 if it was given up.

    Raises as :func:`holdfast.serve.serve`.
    """
    logs.set_up(settings.log_level, "supervisor")
    if sys.platform != "linux":
        raise CannotStart("several processes need Linux: start the service without --frontends")
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
    code = await supervisor.run(prepared)
    log.info("stopped")
    return code


class Child:
    """A process, in all its lives.  Implements :class:`holdfast.dealer.Seat`."""

    def __init__(self, settings: Settings, secret: bytes, name: str, *, frontend: bool, first: bool = False) -> None:
        self.name = name
        self.load = 0
        self.has_begun = False
        """In this life."""
        self.ready = asyncio.Event()
        """It has been ready once."""
        self._settings = settings
        self._secret = secret
        self._frontend = frontend
        self._first = first
        self._line: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._heard_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it can be dealt connections."""
        return self.has_begun and not self.is_silent

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
                orders = Orders(
                    name=self.name,
                    frontend=self._frontend,
                    settings=self._settings,
                    secret=self._secret,
                    line=theirs.fileno(),
                    supervisor=os.getpid(),
                    frontends=self._settings.frontends,
                    first=self._first and not self.ready.is_set(),
                )
                process = await asyncio.create_subprocess_exec(
                    *(*_python(), "-m", "holdfast.child", self.name),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._process, self._line = process, ours
            loop.add_reader(ours.fileno(), self._heard, ours)
            ordering = asyncio.create_task(_order(process, child.encode(orders), after))
            try:
                return await process.wait()
            finally:
                ordering.cancel()
                self.has_begun, self.load = False, 0
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
                said = line.recv(child.MESSAGE_BYTES_MOST)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            self._heard_at = asyncio.get_running_loop().time()
            if said == child.READY:
                self.has_begun = True
                self.ready.set()
            elif said.startswith(child.LOAD):
                self.load = int(said.removeprefix(child.LOAD))
            else:  # the process has ended, and who waits for it will know
                asyncio.get_running_loop().remove_reader(line.fileno())
                return

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


def _python() -> list[str]:
    """Python for a child, which imports nothing from the working folder unless this process came from there: others may
    be able to write to it."""
    came_from_there = not sys.flags.safe_path and sys.path[:1] == [str(Path(__file__).parents[1])]
    return [sys.executable] if came_from_there else [sys.executable, "-P"]


async def _order(process: asyncio.subprocess.Process, orders: bytes, after: asyncio.Event | None) -> None:
    if after is not None:
        await after.wait()
    assert process.stdin is not None
    process.stdin.write(orders)
    process.stdin.close()
    with contextlib.suppress(ConnectionError):  # it has ended, and who waits for that will know
        await process.stdin.wait_closed()


class _GivenUp(Exception):
    """A child cannot be kept alive; the text says which."""


class Supervisor:
    """The children, from the first start to the last end."""

    def __init__(self, settings: Settings, sockets: list[socket.socket]) -> None:
        secret = secrets.token_bytes(32)
        self._settings = settings
        self._sockets = sockets
        self._backend = Child(settings, secret, "backend", frontend=False)
        self._frontends = [
            Child(settings, secret, f"frontend-{number}", frontend=True, first=number == 1)
            for number in range(1, settings.frontends + 1)
        ]
        self._keepers: dict[Child, asyncio.Task[None]] = {}
        self._dealer = Dealer(sockets, lambda: self._frontends)
        self._stop = asyncio.Event()
        self._serving = False

    def stop_or_quit(self, number: int) -> None:
        """The first signal drains; the second ends all processes at once, which loses nothing that was acknowledged."""
        if self._stop.is_set():
            log.warning("stopped at once, by a second signal")
            for each in (*self._frontends, self._backend):
                each.kill()
            os._exit(128 + number)
        self._stop.set()

    def reload(self) -> None:
        """All frontends load the certificate anew."""
        for each in self._frontends:
            each.say(child.RELOAD)

    async def run(self, prepared: Prepared) -> int:
        """Start, serve until the end, and return the exit code.  Raises :class:`~holdfast.listen.CannotListen`."""
        code = 0
        try:
            children = (self._backend, *self._frontends)
            for each in children:
                self._keepers[each] = asyncio.create_task(self._keep(each), name=each.name)
            for each in children:
                await self._until_stopped(each.ready)
            if not self._stop.is_set():
                self._dealer.start()
                self._serving = True
                greet(self._settings, self._sockets, prepared)
            watch = asyncio.create_task(self._watch())
            try:
                await self._until_stopped(self._stop)
            finally:
                watch.cancel()
        except _GivenUp as error:
            log.error("the service cannot go on: %s", error)
            code = 3 if self._serving else 1
        finally:
            await self._end()
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
        """Tell of frontends that hang."""
        silent: set[Child] = set()
        while True:
            await asyncio.sleep(1)
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
                code = await kept.live(None if kept is self._backend else self._backend.ready)
                how = _how(code)
            except OSError as error:  # there is no memory, or there are too many processes
                code, how = 1, f"no process can be made: {error.strerror}"
            if self._stop.is_set():
                if code:
                    log.warning("%s did not end well (%s)", kept.name, how)
                return
            if not kept.ready.is_set():
                raise _GivenUp(f"{kept.name} did not start ({how})")
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
        """Frontends first, so that every call that was accepted is answered; then the backend."""
        self._stop.set()
        if self._serving:
            self._dealer.stop()
        else:
            for bound in self._sockets:
                bound.close()
        await self._drain(self._frontends, self._settings.drain_seconds + FRONTEND_GRACE_SECONDS)
        await self._drain([self._backend], BACKEND_GRACE_SECONDS)

    async def _drain(self, children: list[Child], seconds: float) -> None:
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


def _how(code: int) -> str:
    """How a process has ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
