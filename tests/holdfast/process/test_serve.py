"""The process: output, start and end.  A stub answers the requests."""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.runtime.endpoint_file import running_endpoints
from tests.holdfast.pairs import make_pair

ROOT = Path(__file__).resolve().parents[3]


class _Process:
    """``holdfast serve`` with the stub, on a free port."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0, **settings: str) -> None:
        self.data = folder / "data"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        command = ["serve", "--port", str(port), "--data", str(self.data), *arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.holdfast.stub", *command],
            cwd=ROOT,
            env=environment | {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        self.connections: list[http.client.HTTPConnection] = []

    def until_started(self) -> _Process:
        """Wait for the greeting, which is stored in ``said``."""
        assert self.process.stdout is not None
        while not re.search(r"export AWS_ENDPOINT|key show --data", self.said):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            self.said += line
        return self

    @property
    def port(self) -> int:
        found = re.search(r"is at https?://127\.0\.0\.1:(\d+)\.", self.said)
        assert found
        return int(found[1])

    def ask(self, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.connections.append(connection)
        connection.request("GET", path)
        return connection

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code and standard error."""
        out, errors = self.process.communicate(timeout=60)
        self.said += out
        return self.process.returncode, errors


@pytest.fixture
def processes() -> Iterator[list[_Process]]:
    started: list[_Process] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
        for connection in one.connections:
            connection.close()


@pytest.fixture
def server(tmp_path: Path, processes: list[_Process]) -> _Process:
    processes.append(_Process(tmp_path))
    return processes[-1].until_started()


def test_the_first_start_greets_with_three_lines(server: _Process) -> None:
    _, *lines = server.said.strip().split("\n\n")
    (first, second, third) = lines[0].split("\n")
    assert re.fullmatch(r"export AWS_ACCESS_KEY_ID=AKIA[A-Z2-7]{16}", first)
    assert re.fullmatch(r"export AWS_SECRET_ACCESS_KEY=[\w-]{40}", second)
    where = f"AWS_ENDPOINT_URL_SQS=http://127.0.0.1:{server.port} AWS_DEFAULT_REGION=us-east-1 AWS_REGION=us-east-1"
    assert third.startswith(f"export {where}; aws() {{")


def test_a_key_that_the_settings_give_is_not_repeated(tmp_path: Path, processes: list[_Process]) -> None:
    processes.append(
        _Process(tmp_path, root_access_key_id="AKIAGIVEN00000000000", root_secret_access_key="given/secret")
    )
    said = processes[0].until_started().said
    processes[0].signal(signal.SIGTERM)
    code, log = processes[0].end()
    assert code == 0
    assert "Access key AKIAGIVEN00000000000" in said
    assert "given/secret" not in processes[0].said + log


def test_later_starts_tell_how_to_see_the_key(server: _Process, tmp_path: Path, processes: list[_Process]) -> None:
    first = server.said
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0
    again = _Process(tmp_path)
    processes.append(again)
    again.until_started()
    assert f"holdfast key show --data {again.data}" in again.said
    secret = re.search(r"SECRET_ACCESS_KEY=(\S+)", first)
    assert secret
    assert secret[1] not in again.said
    command = again.said.rsplit(": ", 1)[1].split()  # without a port: it is that of the service running on the folder
    shown = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.strip() == first.strip().split("\n\n")[1].replace(f":{server.port} ", f":{again.port} ")


def test_it_says_in_one_line_that_it_started(server: _Process) -> None:
    server.signal(signal.SIGTERM)
    _, errors = server.end()
    (started,) = [line for line in errors.splitlines() if "started" in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info holdfast: started ", started)
    assert f"version={__version__} url=http://127.0.0.1:{server.port} data={server.data}" in started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(server: _Process, number: signal.Signals) -> None:
    polling = server.ask("/poll")
    idle = server.ask("/")
    assert idle.getresponse().read() == b"ok"
    server.signal(number)
    answer = polling.getresponse()
    assert (answer.status, answer.read()) == (200, b"ended")
    code, errors = server.end()
    assert code == 0
    assert "stub closed" in server.said
    assert errors.splitlines()[-1].endswith("info holdfast: stopped")
    assert "Traceback" not in errors


def test_a_second_signal_ends_it_at_once(server: _Process) -> None:
    server.ask("/stuck")
    server.signal(signal.SIGTERM)
    assert server.process.stderr is not None
    while "draining" not in server.process.stderr.readline():
        pass
    server.signal(signal.SIGTERM)
    code, errors = server.end()
    assert code == 128 + signal.SIGTERM
    assert "stopped at once" in errors
    assert "stub closed" not in server.said


def test_a_drain_ends_in_time(tmp_path: Path, processes: list[_Process]) -> None:
    server = _Process(tmp_path, drain_seconds="0.1")
    processes.append(server)
    server.until_started()
    server.ask("/stuck")
    while server.ask("/").getresponse().read() != b"ok":
        pass
    server.signal(signal.SIGTERM)
    code, errors = server.end()
    assert code == 0
    assert "cut off" in errors
    assert "calls=1" in errors
    assert "stub closed" in server.said


def test_a_service_that_cannot_go_on_ends_the_process(server: _Process) -> None:
    failing = server.ask("/fail")
    failing.getresponse().read()
    code, errors = server.end()
    assert code == 3
    assert "the service cannot go on: the journal is lost" in errors
    assert "stub closed" in server.said


def refused(process: _Process) -> str:
    """The sentence with which a start was refused."""
    code, errors = process.end()
    assert code in (1, 2)
    lines = [line for line in errors.splitlines() if line.startswith("holdfast: ")]
    assert len(lines) == 1
    assert "Traceback" not in errors
    return lines[0]


def test_a_port_in_use(server: _Process, tmp_path: Path, processes: list[_Process]) -> None:
    processes.append(_Process(tmp_path / "other", port=server.port))
    said = refused(processes[-1])
    assert said == f"holdfast: port {server.port} on 127.0.0.1 is in use by another program; choose another with --port"


def test_a_data_folder_in_use(server: _Process, tmp_path: Path, processes: list[_Process]) -> None:
    processes.append(_Process(tmp_path))
    said = refused(processes[-1])
    assert f"data folder {server.data} is in use by another Holdfast (process {server.process.pid})" in said


def test_settings_that_cannot_be_used(tmp_path: Path, processes: list[_Process]) -> None:
    processes.append(_Process(tmp_path, prot="1"))
    assert refused(processes[-1]) == "holdfast: HOLDFAST_PROT in the environment is no setting of Holdfast"
    processes.append(_Process(tmp_path, "--region", "Mars 1"))
    assert refused(processes[-1]).startswith("holdfast: --region cannot be 'Mars 1'")
    processes.append(_Process(tmp_path, connections_per_client_limit="0"))
    assert "HOLDFAST_CONNECTIONS_PER_CLIENT_LIMIT cannot be '0'" in refused(processes[-1])
    processes.append(_Process(tmp_path, trusted_proxies="10.0.0.0/8,proxy.example.com"))
    assert "trusted_proxies: 'proxy.example.com' does not appear to be" in refused(processes[-1])
    processes.append(_Process(tmp_path, "--tls-cert", "none.pem", "--tls-key", "none.pem"))
    assert "certificate none.pem with key none.pem cannot be used" in refused(processes[-1])


def test_nothing_to_show_without_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "key", "show", "--data", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stderr) == (1, f"holdfast: {tmp_path} is no data folder of Holdfast\n")
    assert list(tmp_path.iterdir()) == []


def test_help_tells_every_setting() -> None:
    command = [sys.executable, "-m", "holdfast", "serve", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--data DIR" in shown
    assert "HOLDFAST_QUEUE_NAME_HOLD_SECONDS" in shown


def test_help_is_there_at_once() -> None:
    """It loads no web framework and no database."""
    program = (
        "import sys\nfrom holdfast.commands.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: print(sorted({'fastapi', 'httptools', 'sqlite3', 'pydantic'} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_trusted_proxies_are_believed(tmp_path: Path, processes: list[_Process]) -> None:
    headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9", "X-Forwarded-Proto": "https"}
    standard = {"Forwarded": 'for="[2001:db8::1]:99";proto=https'}
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("nobody", {}, "http 127.0.0.1"),
        ("another", {"trusted_proxies": "10.0.0.0/8"}, "http 127.0.0.1"),
        ("us", {"trusted_proxies": "10.0.0.0/8, 127.0.0.1"}, "https 203.0.113.9"),
        ("standard", {"trusted_proxies": "127.0.0.0/8", "forwarded_header": "forwarded"}, "https 2001:db8::1"),
    )
    for name, settings, expected in cases:
        processes.append(_Process(tmp_path / name, **settings))
        server = processes[-1].until_started()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        server.connections.append(connection)
        connection.request("GET", "/origin", headers=headers | standard)
        assert connection.getresponse().read().decode() == expected
        server.signal(signal.SIGTERM)


def test_one_client_gets_so_many_connections(tmp_path: Path, processes: list[_Process]) -> None:
    processes.append(_Process(tmp_path, connections_per_client_limit="2"))
    server = processes[-1].until_started()
    assert [server.ask("/").getresponse().status for _ in range(3)] == [200, 200, 503]


@pytest.fixture
def secure(tmp_path: Path, processes: list[_Process]) -> _Process:
    """A server with TLS; the pair is in ``cert.pem`` and ``key.pem``."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair().write(cert, key)
    processes.append(_Process(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)))
    return processes[-1].until_started()


def test_tls(secure: _Process, tmp_path: Path) -> None:
    assert f"AWS_ENDPOINT_URL_SQS=https://127.0.0.1:{secure.port}" in secure.said
    assert running_endpoints(secure.data) == [f"https://127.0.0.1:{secure.port}"]
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", secure.port, timeout=60, context=context)
    connection.request("POST", "/echo", body=b"secret" * 1000)
    assert connection.getresponse().read() == b"secret" * 1000
    connection.close()
    secure.signal(signal.SIGTERM)
    assert secure.end()[0] == 0


def _until_loaded(server: _Process, times: int) -> None:
    assert server.process.stderr is not None
    while times:
        line = server.process.stderr.readline()
        assert line
        times -= "certificate loaded" in line


def test_a_hangup_reloads_the_certificate(secure: _Process) -> None:
    secure.signal(signal.SIGHUP)
    _until_loaded(secure, times=2)


def test_a_changed_certificate_is_loaded(secure: _Process, tmp_path: Path) -> None:
    pair = make_pair()
    pair.write(tmp_path / "cert.pem", tmp_path / "key.pem")
    _until_loaded(secure, times=2)
    connection = http.client.HTTPSConnection("127.0.0.1", secure.port, timeout=60, context=pair.trust())
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"ok"
    connection.close()
