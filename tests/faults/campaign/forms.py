"""Running services of several processes, in each form, and faults of their processes."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from holdfast.settings import Settings, load
from tests.faults.campaign.owners import owner_of
from tests.faults.tools.client import Endpoint
from tests.faults.tools.process import SETTINGS
from tests.faults.tools.stream_traffic import StreamEndpoint
from tests.servers import proc
from tests.servers.server import ACCOUNT, free_port
from tests.servers.several import Several
from tests.servers.waiting import wait_until

STARTUP = Path(__file__).parents[1] / "startup"
BACK_SECONDS = 60.0


class Form(ABC):
    """A running service in one form.  Processes have names; those of a role differ by number."""

    name: str
    endpoint: Endpoint
    """Endpoint for clients."""
    streams: StreamEndpoint
    """Endpoint for Kafka's clients."""
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
        """Return the process id by name, as soon as the process exists."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """kill -9 a process; returns when its replacement serves."""

    @abstractmethod
    def restart_all(self) -> None:
        """Do a rolling restart of everything that can be restarted under load; returns when it is over."""

    @abstractmethod
    def log_text(self) -> str:
        """Return the logs of all processes."""

    def log_tail(self) -> str:
        return self.log_text()[-8000:]

    def log_of(self, name: str) -> str:
        """Return the log of this process, possibly mixed with that of others."""
        return self.log_text()

    @abstractmethod
    def owner_of(self, queue: str) -> str:
        """Return the backend that owns this queue, or its first partition."""

    def pause(self, name: str) -> None:
        """Send SIGSTOP, and wait until the process stands still."""
        proc.pause(self.pid(name))

    def resume(self, name: str) -> None:
        """Send SIGCONT, if the process still runs."""
        try:
            os.kill(self.pid(name), signal.SIGCONT)
        except ProcessLookupError:
            pass  # the process was ended meanwhile

    def set_clock(self, name: str, seconds: float) -> None:
        """Set the clock of a process off by this."""
        (self.folder / f"{name}.clock").write_text(str(seconds))

    def slow_disk(self, name: str, seconds: float) -> None:
        """Delay each sync of a process by this."""
        (self.folder / f"{name}.disk").write_text(str(seconds))

    def bad_block(self, name: str, path: Path | None, block: int = 0) -> None:
        """Make a block of 4 KiB of this file unreadable to a process; None: all are readable."""
        (self.folder / f"{name}.bad").write_text("" if path is None else f"{path} {block}")

    def until_logged(
        self, text: str, act: Callable[[], None], seconds: float = BACK_SECONDS, *, of: str | None = None
    ) -> None:
        """Act, and wait until this text has been logged once more than before, by any process or by ``of``."""

        def log_length() -> int:
            return (self.log_text() if of is None else self.log_of(of)).count(text)

        before = log_length()
        act()
        wait_until(lambda: log_length() > before, f"{text!r} is logged again", seconds)

    def environment(self) -> dict[str, str]:
        """Environment with which faults of a process's clock and disk can be injected."""
        return {"FAULTS_AT_START": str(self.folder), "PYTHONPATH": str(STARTUP)}


class OneMachine(Form):
    """``holdfast serve --frontends 2``, with one backend or several; its supervisor restarts dead processes."""

    def __init__(self, folder: Path, backends: int = 1) -> None:
        more = {"BACKENDS": str(backends)} if backends > 1 else {}
        self.name = f"--frontends 2 --backends {backends}"
        self.folder = folder
        kafka_port = free_port()
        self.server = Several(folder, {**SETTINGS, **more, "KAFKA_PORT": str(kafka_port)})
        self.server.settings.update(self.environment())
        self.endpoint = self.server
        self.streams = StreamEndpoint(kafka_port, self.server.access_key_id, self.server.secret_access_key)
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
        return load({}, {**self.server.settings, "HOLDFAST_DATA": str(self.server.data)})

    def kill_all(self) -> None:
        """Kill the supervisor, and thereby all processes; then start again."""
        self.server.kill()
        self.start()

    def restart_all(self) -> None:
        self.until_logged(
            "all frontends have been restarted", lambda: os.kill(self.server.pid, signal.SIGUSR1), 3 * BACK_SECONDS
        )

    def log_text(self) -> str:
        return self.server.log_text()
