"""Whole Holdfasts, in each form that has several processes, and what can be done to their processes."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.settings import Settings, load
from tests.faults.client import Endpoint
from tests.faults.owners import owner_of
from tests.faults.process import SETTINGS
from tests.system.server import ACCOUNT
from tests.system.several import Several
from tests.system.waiting import wait_until

STARTUP = Path(__file__).parent / "startup"
BACK_SECONDS = 60.0


class Form(ABC):
    """One form, running.  Processes have names; those of a role are told apart by number."""

    name: str
    endpoint: Endpoint
    """Where clients find it."""
    frontends: list[str]
    backends: list[str]
    folder: Path

    @abstractmethod
    def start(self) -> None:
        """Start everything; returns when it serves."""

    @abstractmethod
    def close(self) -> None:
        """End everything at once."""

    @abstractmethod
    def pid(self, name: str) -> int:
        """Of the process of this name, as soon as there is one."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """kill -9; returns when another one is in its place and serves."""

    @abstractmethod
    def restart_all(self) -> None:
        """A rolling restart of all that can be restarted under load; returns when it is over."""

    @abstractmethod
    def log_text(self) -> str:
        """What all have said."""

    def log_tail(self) -> str:
        """What they have said last."""
        return self.log_text()[-8000:]

    def log_of(self, name: str) -> str:
        """What the process of this name has said, perhaps with what others have."""
        return self.log_text()

    @abstractmethod
    def owner_of(self, queue: str) -> str:
        """The backend that has this queue now, or its first partition."""

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT, if it still runs."""
        try:
            os.kill(self.pid(name), signal.SIGCONT)
        except ProcessLookupError:
            pass  # somebody has ended it meanwhile

    def set_clock(self, name: str, seconds: float) -> None:
        """By how much its clock is off."""
        (self.folder / f"{name}.clock").write_text(str(seconds))

    def slow_disk(self, name: str, seconds: float) -> None:
        """How much longer its syncs take."""
        (self.folder / f"{name}.disk").write_text(str(seconds))

    def bad_block(self, name: str, path: Path | None, block: int = 0) -> None:
        """A block of 4 KiB of this file cannot be read by it; None: all can."""
        (self.folder / f"{name}.bad").write_text("" if path is None else f"{path} {block}")

    def until_logged(
        self, text: str, act: Callable[[], None], seconds: float = BACK_SECONDS, *, of: str | None = None
    ) -> None:
        """Do something, and wait until this has been said once more than before, by anyone or by the process ``of``."""

        def said() -> int:
            return (self.log_text() if of is None else self.log_of(of)).count(text)

        before = said()
        act()
        wait_until(lambda: said() > before, f"{text!r} is logged again", seconds)

    def environment(self) -> dict[str, str]:
        """With which a process can be given a wrong clock and a slow disk."""
        return {"FAULTS_AT_START": str(self.folder), "PYTHONPATH": str(STARTUP)}


class OneMachine(Form):
    """``holdfast serve --frontends 2``, with one backend or several: a supervisor starts again what has died."""

    def __init__(self, folder: Path, backends: int = 1, settings: Mapping[str, str] | None = None) -> None:
        more = {"BACKENDS": str(backends)} if backends > 1 else {}
        self.name = f"--frontends 2 --backends {backends}"
        self.folder = folder
        self.server = Several(folder, {**SETTINGS, **more, **(settings or {})})
        self.server.settings.update(self.environment())
        self.endpoint = self.server
        self.frontends = ["frontend-1", "frontend-2"]
        self.backends = [f"backend-{number}" for number in range(1, backends + 1)] if backends > 1 else ["backend"]

    def start(self) -> None:
        self.server.start(BACK_SECONDS)

    def close(self) -> None:
        self.server.kill()

    def pid(self, name: str) -> int:
        return wait_until(lambda: self.server.children().get(name), f"{name} runs")

    def kill(self, name: str) -> None:
        self.server.wait_again(name, self.server.kill_child(name), BACK_SECONDS)

    def owner_of(self, queue: str) -> str:
        if len(self.backends) == 1:
            return self.backends[0]
        return owner_of(self.settings(), ACCOUNT, queue)

    def settings(self) -> Settings:
        """Those of its processes."""
        return load({}, {**self.server.settings, "HOLDFAST_DATA": str(self.server.data)})

    def kill_all(self) -> None:
        """The supervisor, and so all of them; and start again."""
        self.server.kill()
        self.start()

    def restart_all(self) -> None:
        self.until_logged(
            "all frontends have been restarted", lambda: os.kill(self.server.pid, signal.SIGUSR1), 3 * BACK_SECONDS
        )

    def log_text(self) -> str:
        return self.server.log_text()
