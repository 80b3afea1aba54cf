"""Commands with ``--data`` find the running service of the folder, and ignore files of earlier ones."""

import stat
from pathlib import Path

import pytest

from holdfast.runtime.endpoint_file import FOLDER, EndpointFile, running_endpoints
from tests.holdfast.command import holdfast
from tests.servers.server import Server, free_port

HERE = {"HOLDFAST_ENDPOINT": ""}


def files(data: Path) -> list[Path]:
    return list((data / FOLDER).iterdir())


def test_the_addresses_of_the_services_that_run(tmp_path: Path) -> None:
    assert running_endpoints(tmp_path) == []
    first, second = EndpointFile(tmp_path), EndpointFile(tmp_path)
    first.remove()  # not written
    first.write("http://127.0.0.1:1")
    second.write("https://[::1]:2")
    assert sorted(running_endpoints(tmp_path)) == ["http://127.0.0.1:1", "https://[::1]:2"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    first.remove()
    first.remove()
    assert running_endpoints(tmp_path) == ["https://[::1]:2"]
    second.remove()
    assert files(tmp_path) == []


def test_remains_of_a_killed_process_are_ignored_and_removed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    stale = tmp_path / FOLDER / "0123456789abcdef"
    stale.write_text("http://127.0.0.1:1\n")
    assert running_endpoints(tmp_path) == []
    running = EndpointFile(tmp_path)
    running.write("http://127.0.0.1:2")
    assert not stale.exists()
    assert running_endpoints(tmp_path) == ["http://127.0.0.1:2"]
    running.remove()


@pytest.mark.parametrize("arguments", [(), ("--frontends", "1")])
def test_a_command_finds_the_service_on_whatever_port(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Server(tmp_path, arguments=arguments) as server:
        listed = holdfast(server, "tenant", "list", environment=HERE)
        assert (listed.code, listed.err) == (0, "")
        shown = holdfast(server, "key", "show", environment=HERE)
        assert f"AWS_ENDPOINT_URL_SQS={server.endpoint} " in shown.out

        other_url = f"http://127.0.0.1:{free_port()}"
        asked = holdfast(server, "tenant", "list", environment={"HOLDFAST_ENDPOINT": other_url})
        assert asked.code == 5
        remark = f"calling {other_url} from HOLDFAST_ENDPOINT; {server.data} is served at {server.endpoint}"
        assert asked.err.startswith(f"holdfast: {remark}\n")

        server.kill()
        port = free_port()
        lost = holdfast(server, "tenant", "list", environment={**HERE, "HOLDFAST_PORT": str(port)})
        assert lost.code == 5
        says = f"holdfast: no running service was found on {server.data}; calling http://127.0.0.1:{port}\n"
        assert lost.err.startswith(says)

        server.port = free_port()
        server.start()
        assert holdfast(server, "tenant", "list", environment=HERE).err == ""
        server.stop()
        assert files(server.data) == []
