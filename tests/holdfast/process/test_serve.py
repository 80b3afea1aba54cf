"""The process: output, start and end.  A stub answers the requests."""

import http.client
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import __version__
from holdfast.runtime.endpoint_file import running_endpoints
from tests.holdfast.command import PipedCommand
from tests.holdfast.pairs import make_pair
from tests.servers.server import REPOSITORY


class _Process(PipedCommand):
    """``holdfast serve`` with the stub, on a free port."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0, **settings: str) -> None:
        self.data = folder / "data"
        where = ("--port", str(port), "--data", str(self.data))
        super().__init__("serve", *where, *arguments, module="tests.holdfast.stub", **settings)
        self.connections: list[http.client.HTTPConnection] = []

    def until_started(self) -> Self:
        """Wait for the greeting."""
        return self.wait_for(r"export AWS_ENDPOINT|key show --data")

    @property
    def port(self) -> int:
        found = re.search(r"is at https?://127\.0\.0\.1:(\d+)\.", self.printed)
        assert found
        return int(found[1])

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)
        self.connections.append(connection)
        return connection

    def ask(self, path: str) -> http.client.HTTPConnection:
        connection = self.connect()
        connection.request("GET", path)
        return connection

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


Start = Callable[..., _Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes, by default all on one data folder."""
    started: list[_Process] = []

    def starting(*arguments: str, folder: str = ".", **settings: Any) -> _Process:
        started.append(_Process(tmp_path / folder, *arguments, **settings))
        return started[-1]

    yield starting
    for one in started:
        one.close()
        for connection in one.connections:
            connection.close()


@pytest.fixture
def server(start: Start) -> _Process:
    return start().until_started()


def test_the_first_start_greets_with_three_lines(server: _Process) -> None:
    _, *lines = server.printed.strip().split("\n\n")
    (first, second, third) = lines[0].split("\n")
    assert re.fullmatch(r"export AWS_ACCESS_KEY_ID=AKIA[A-Z2-7]{16}", first)
    assert re.fullmatch(r"export AWS_SECRET_ACCESS_KEY=[\w-]{40}", second)
    url = f"http://127.0.0.1:{server.port}"
    where = f"AWS_ENDPOINT_URL_SQS={url} AWS_DEFAULT_REGION=us-east-1 AWS_REGION=us-east-1 AWS_ENDPOINT_URL_SNS={url}"
    assert third.startswith(f"export {where}; aws() {{")


def test_a_key_that_the_settings_give_is_not_repeated(start: Start) -> None:
    server = start(root_access_key_id="AKIAGIVEN00000000000", root_secret_access_key="given/secret").until_started()
    assert "Access key AKIAGIVEN00000000000" in server.printed
    server.signal(signal.SIGTERM)
    code, log = server.end()
    assert code == 0
    assert "given/secret" not in server.printed + log


def test_later_starts_report_how_to_see_the_key(server: _Process, start: Start) -> None:
    first = server.printed
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0
    again = start().until_started()
    assert f"holdfast key show --data {again.data}" in again.printed
    secret = re.search(r"SECRET_ACCESS_KEY=(\S+)", first)
    assert secret
    assert secret[1] not in again.printed
    command = again.printed.rsplit(": ", 1)[
        1
    ].split()  # without a port: it is that of the service running on the folder
    shown = subprocess.run(
        [sys.executable, "-m", *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.strip() == first.strip().split("\n\n")[1].replace(f":{server.port}", f":{again.port}")


def test_one_line_reports_the_start(server: _Process) -> None:
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
    assert "stub closed" in server.printed
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
    assert "stub closed" not in server.printed


def test_a_drain_ends_in_time(start: Start) -> None:
    server = start(drain_seconds="0.1").until_started()
    server.ask("/stuck")
    while server.ask("/").getresponse().read() != b"ok":
        pass
    server.signal(signal.SIGTERM)
    code, errors = server.end()
    assert code == 0
    assert "aborted" in errors
    assert "calls=1" in errors
    assert "stub closed" in server.printed


def test_a_service_that_cannot_go_on_ends_the_process(server: _Process) -> None:
    failing = server.ask("/fail")
    failing.getresponse().read()
    code, errors = server.end()
    assert code == 3
    assert "the service cannot continue: the journal is lost" in errors
    assert "stub closed" in server.printed


def refused(process: _Process) -> str:
    """The sentence with which a start was refused."""
    code, errors = process.end()
    assert code in (1, 2)
    lines = [line for line in errors.splitlines() if line.startswith("holdfast: ")]
    assert len(lines) == 1
    assert "Traceback" not in errors
    return lines[0]


def test_a_port_in_use(server: _Process, start: Start) -> None:
    printed = refused(start(folder="other", port=server.port))
    assert (
        printed == f"holdfast: port {server.port} on 127.0.0.1 is in use by another program; choose another with --port"
    )


def test_a_data_folder_in_use(server: _Process, start: Start) -> None:
    printed = refused(start())
    assert f"data folder {server.data} is in use by another Holdfast (process {server.process.pid})" in printed


def test_a_certificate_that_cannot_be_read(start: Start) -> None:
    printed = refused(start("--tls-cert", "none.pem", "--tls-key", "none.pem"))
    assert "certificate none.pem with key none.pem cannot be used" in printed


def test_help_lists_every_setting() -> None:
    command = [sys.executable, "-m", "holdfast", "serve", "--help"]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--data DIR" in shown
    assert "HOLDFAST_QUEUE_NAME_HOLD_SECONDS" in shown


def test_help_is_there_at_once() -> None:
    """It loads no web framework and no database."""
    program = (
        "import sys\nfrom holdfast.commands.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: print(sorted({'fastapi', 'httptools', 'sqlite3', 'pydantic'} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trusted_proxies": "10.0.0.0/8, 127.0.0.1"}, b"https 203.0.113.9"),
        ({"trusted_proxies": "127.0.0.0/8", "forwarded_header": "forwarded"}, b"https 2001:db8::1"),
    ],
)
def test_trusted_proxies_are_believed(start: Start, settings: dict[str, str], expected: bytes) -> None:
    headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9", "X-Forwarded-Proto": "https"}
    standard = {"Forwarded": 'for="[2001:db8::1]:99";proto=https'}
    connection = start(**settings).until_started().connect()
    connection.request("GET", "/origin", headers=headers | standard)
    assert connection.getresponse().read() == expected


def test_one_client_gets_so_many_connections(start: Start) -> None:
    server = start(connections_per_client_limit="2").until_started()
    assert [server.ask("/").getresponse().status for _ in range(3)] == [200, 200, 503]


@pytest.fixture
def secure(tmp_path: Path, start: Start) -> _Process:
    """A server with TLS; the pair is in ``cert.pem`` and ``key.pem``."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair().write(cert, key)
    return start("--tls-cert", str(cert), "--tls-key", str(key)).until_started()


def test_tls(secure: _Process, tmp_path: Path) -> None:
    assert f"AWS_ENDPOINT_URL_SQS=https://127.0.0.1:{secure.port}" in secure.printed
    assert running_endpoints(secure.data) == [f"https://127.0.0.1:{secure.port}"]
    connection = secure.connect(ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
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
    connection = secure.connect(pair.trust())
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"ok"
