"""``holdfast serve --frontends N --backends M``: a real server of several processes, and functions to observe them."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import proc
from tests.servers.server import CODE, Server
from tests.servers.waiting import wait_until


class Several(Server):
    """Server with its backends and its frontends as processes."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        frontends: int = 2,
        code: Path = CODE,
    ) -> None:
        super().__init__(folder, {"FRONTENDS": str(frontends), **(settings or {})}, arguments, code=code)

    def children(self) -> dict[str, int]:
        """Return the ids of the running processes, by name."""
        return children_of(self.pid)

    def kill_child(self, name: str) -> int:
        """kill -9 the process of this name, as soon as there is one; returns its id."""
        pid = wait_until(lambda: self.children().get(name), f"{name} runs")
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_again(self, name: str, killed: int, timeout_seconds: float = 120.0) -> None:
        """Wait until a replacement of the killed process serves."""

        def back() -> bool:
            pid = self.children().get(name, killed)
            return pid != killed and f"info {name} holdfast: ready pid={pid}" in self.log_text()

        wait_until(back, f"{name} is back", timeout_seconds)

    def served_by(self, port: int) -> str:
        """Return the process that has a client's connection, by the client's port."""
        ours, client = f":{self.port:04X}", f":{port:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(ours) and fields[2].endswith(client):
                inode = f"socket:[{fields[9]}]"
                return next(name for name, pid in self.children().items() if inode in files_of(pid))
        raise AssertionError(f"there is no connection from port {port}")


def children_of(pid: int) -> dict[str, int]:
    """Return the processes that a supervisor has started, by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if name := proc.child_name(int(child)):
                found[name] = int(child)
    return found


def files_of(pid: int) -> set[str]:
    """Return the files that a process has open; empty if it has ended, or belongs to another user."""
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass  # closed meanwhile
    return found


def gone(pids: Sequence[int], timeout_seconds: float = 120.0) -> None:
    """Wait until none of these processes runs."""
    wait_until(lambda: not any(proc.is_running(pid) for pid in pids), f"processes {pids} are gone", timeout_seconds)
