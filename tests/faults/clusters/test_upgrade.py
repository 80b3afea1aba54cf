"""Upgrade on one machine to another release, and back: no call fails, and nothing is lost.

The other release is installed in place of the running one, and all processes are restarted one by one under load.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import __version__
from metadata_service.sqlite.schema import SCHEMA, stored_version
from tests.faults.tools.process import SETTINGS
from tests.faults.tools.traffic import Traffic
from tests.servers import releases
from tests.servers.server import REPOSITORY, clean_environment
from tests.servers.several import Several


class Installed:
    """A service whose code is a symbolic link, as if one release is installed in place of another."""

    def __init__(self, folder: Path) -> None:
        self.link = folder / "installed"
        self.server = Several(folder, {**SETTINGS, "BACKENDS": "2"}, code=self.link)

    def install(self, code: Path) -> None:
        new = self.link.with_name("new")
        new.symlink_to(code)
        new.replace(self.link)

    async def restart(self, traffic: Traffic) -> None:
        """Restart all but the supervisor, which keeps the code that it was started with."""
        before = self.server.children()
        times = self.server.log_text().count("all frontends have been restarted")
        self.server.running().send_signal(signal.SIGUSR1)
        await traffic.until(
            lambda: self.server.log_text().count("all frontends have been restarted") > times,
            "all processes have been restarted",
            100,
        )
        after = self.server.children()
        assert before.keys() == after.keys() == {"backend-1", "backend-2", "frontend-1", "frontend-2"}
        assert not before.items() & after.items()


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    made = Installed(tmp_path)
    yield made
    made.server.kill()


async def there_and_back(installed: Installed, older: tuple[Path, str], newer: tuple[Path, str]) -> None:
    """Change from one release to the next and back, under load; each is its code, and the version that it reports."""
    server = installed.server
    installed.install(older[0])
    server.start()
    async with Traffic(server, 31, body_bytes=2000, producers=1, groups=3, open_max=100).running() as traffic:
        for code, release in (newer, older):
            await traffic.answered(100)
            installed.install(code)
            await installed.restart(traffic)
            async with asyncio.timeout(60):  # the manager reports every other second
                while await asyncio.to_thread(releases_shown, server) != {release}:
                    pass
        await traffic.answered(100)
        await traffic.check()
    traffic.check_no_call_failed()
    assert server.stop() == 0


def releases_shown(server: Several) -> set[str | None]:
    """Return the releases of the backends, by ``holdfast cluster status``."""
    command = [sys.executable, "-m", "holdfast", "cluster", "status", "--json"]
    environment = {**server.client_environment(), "HOLDFAST_ENDPOINT": server.endpoint, "PYTHONPATH": str(REPOSITORY)}
    asked = subprocess.run(command, env=environment, cwd=server.folder, capture_output=True, check=True, timeout=60)
    (cluster,) = json.loads(asked.stdout)["clusters"]
    return {node.get("release") for node in cluster["nodes"]}


def roll_back(code: Path, data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "schema", "rollback", "--data", str(data)]
    environment = {**clean_environment(), "PYTHONPATH": os.fspath(code)}
    return subprocess.run(command, env=environment, cwd=data, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.long
async def test_from_the_release_before_to_this_one_and_back(installed: Installed, tmp_path: Path) -> None:
    before = (releases.before(tmp_path / "before"), __version__)  # before a release, it has the same number
    await there_and_back(installed, before, (REPOSITORY, __version__))


@pytest.mark.long
async def test_from_this_release_to_the_one_after_and_back(installed: Installed, tmp_path: Path) -> None:
    """The next release uses a newer protocol between its processes, and has a migration that this one does not know."""
    after = releases.after(tmp_path / "after")
    await there_and_back(installed, (REPOSITORY, __version__), (after, releases.AFTER))
    log = installed.server.log_text()
    assert "version 1 of the protocol" in log
    assert "version 2 of the protocol" in log, "by two processes of the release after"
    file = installed.server.data / "metadata.sqlite"
    assert stored_version(file) == (SCHEMA.version + 1, SCHEMA.stored(SCHEMA.version).oldest, 0)
    done = await asyncio.to_thread(roll_back, after, installed.server.data)
    assert done.returncode == 0, done.stderr
    assert stored_version(file) == SCHEMA.stored(SCHEMA.version)
    installed.server.start()
    assert len(installed.server.client().list_queues()["QueueUrls"]) == 3
    assert installed.server.stop() == 0
