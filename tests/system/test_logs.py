"""JSON log of a real service: every line of it, from all processes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.holdfast.command import process
from tests.servers.server import REPOSITORY, SECRET_ACCESS_KEY, Server, clean_environment
from tests.servers.several import Several
from tests.servers.waiting import wait_until


def lines(text: str) -> list[dict[str, Any]]:
    """Parse each line of a log as JSON."""
    return [json.loads(line) for line in text.splitlines()]


def refused(server: Server) -> str:
    """Make an unsigned call; returns the request id that the client gets."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("POST", "/", b"{}", {"X-Amz-Target": "AmazonSQS.ListQueues"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 403
        return str(answer.headers["x-amzn-requestid"])


def test_every_line_of_all_processes_is_json(tmp_path: Path) -> None:
    with Several(tmp_path, {"LOG_FORMAT": "json", "LOG_LEVEL": "debug", "BACKENDS": "1"}, frontends=1) as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="first\nsecond")
        request_id = refused(server)
        os.kill(server.children()["frontend-1"], signal.SIGKILL)
        expected = '"message": "frontend-1 '
        wait_until(lambda: expected in server.log_text(), "the supervisor tells of a process that died")
        wait_until(server.ready, "the service is there again")
        assert server.stop() == 0
    found = lines(server.log_text())
    assert {line["role"] for line in found} == {"supervisor", "backend", "frontend"}
    assert {line["process"] for line in found} == {"supervisor", "backend", "frontend-1"}
    assert all(line["pid"] > 0 and line["time"].endswith("Z") for line in found)
    (refusal,) = (line for line in found if request_id in line["message"])
    assert (refusal["request_id"], refusal["role"], refusal["logger"]) == (request_id, "frontend", "holdfast.sqs")
    assert found[-1]["message"] == "stopped"
    assert SECRET_ACCESS_KEY not in server.log_text()


def test_the_first_start_shows_no_secret_in_json(tmp_path: Path) -> None:
    """In text form it prints the key for the person at the terminal; a log collector would store it."""
    with Server(tmp_path, {"LOG_FORMAT": "json"}, known_keys=False) as server:
        shown = process(server, "key", "show").out
        assert server.stop() == 0
    log = server.log_text()
    assert any("holdfast key show" in line["message"] for line in lines(log))
    (secret,) = (line.partition("=")[2] for line in shown.splitlines() if "SECRET_ACCESS_KEY" in line)
    assert len(secret) >= 40
    assert secret not in log


def test_why_it_does_not_start_is_json_too(tmp_path: Path) -> None:
    server = Server(tmp_path, {"LOG_FORMAT": "json"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        server.begin()
        assert server.running().wait(60) == 1
    (line,) = lines(server.log_text())
    assert line["level"] == "error"
    assert "in use by another program" in line["message"]


def test_warnings_and_uncaught_errors_are_json_too() -> None:
    """Covers messages of libraries too, such as uvicorn's."""
    program = """
import logging, threading, warnings
from holdfast import logs
from holdfast.settings import load
logs.set_up(load({}, {"HOLDFAST_LOG_FORMAT": "json"}), "backend", "b1")
logging.getLogger("uvicorn.error").warning("one\\ntwo")
warnings.warn("three")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise OSError("four")
"""
    environment = {**clean_environment(), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    found = lines(done.stderr)
    assert [line["logger"] for line in found] == ["uvicorn.error", "py.warnings", "holdfast", "holdfast"]
    assert found[0]["message"] == "one\ntwo"
    assert "three" in found[1]["message"]
    assert "ZeroDivisionError" in found[2]["exception"]
    assert "OSError: four" in found[3]["exception"]
