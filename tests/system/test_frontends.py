"""A server of several processes: a change at one frontend takes effect at all, whichever backend owns a queue.

The processes end in order.
"""

import asyncio
import copy
import http.client
import json
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.api import shard_of
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.compat.walk.kit import ServiceAddress, Walk, take
from tests.compat.walk.steps import STEPS
from tests.faults.tools.client import CallRefused, Client
from tests.holdfast.pairs import make_pair
from tests.servers.server import ACCOUNT, REGION, free_port
from tests.servers.several import Several, children_of, gone
from tests.servers.waiting import wait_until

SOON_SECONDS = 1.0
"""Time within which a change at one frontend affects the others; :data:`SLACK_SECONDS` are for a busy machine."""
SLACK_SECONDS = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    with Several(tmp_path_factory.mktemp("several"), {"BACKENDS": "3"}) as server:
        yield server


def everywhere(client: Any) -> Any:
    """Make a boto3 client reconnect for each call, so that calls alternate between frontends."""
    client.meta.events.register("before-send.sqs.*", lambda request, **_: request.headers.update(Connection="close"))
    return client


@pytest.fixture
async def two(server: Several) -> AsyncIterator[tuple[Client, Client]]:
    """Clients with permanent connections, each to another frontend."""
    clients: list[Client] = []
    found: dict[str, Client] = {}
    try:
        while len(found) < 2 and len(clients) < 200:  # one may have many connections of other tests
            ours = Client(server)
            clients.append(ours)
            await ours.call("ListQueues")
            name = server.served_by(ours.local_port)
            found.setdefault(name, ours)
        yield found["frontend-1"], found["frontend-2"]
    finally:
        for client in clients:
            await client.close()


async def refused_soon(call: Callable[[], Awaitable[object]], code: str) -> None:
    """Repeat the call until it is refused: within a second, plus the slack for a busy machine."""
    started_at = time.monotonic()
    while time.monotonic() - started_at < SOON_SECONDS + SLACK_SECONDS:
        try:
            await call()
        except CallRefused as error:
            if error.code != code:
                raise
            return
    pytest.fail(f"no {code} after {time.monotonic() - started_at:.1f} s")


@asynccontextmanager
async def spread(server: Several, each: int) -> AsyncIterator[list[Client]]:
    """Open connections until each frontend has this many of them.

    A new connection goes to the frontend with the fewest, and connections of earlier tests may still be counted.
    """
    clients: list[Client] = []
    served: Counter[str] = Counter()
    try:
        while len(served) < 2 or min(served.values()) < each:
            assert len(clients) < 200, served
            clients.append(Client(server))
            await clients[-1].call("ListQueues")
            served[server.served_by(clients[-1].local_port)] += 1
        yield clients
    finally:
        for client in clients:
            await client.close()


async def queue(client: Client, name: str, **attributes: str) -> str:
    url: str = (await client.call("CreateQueue", QueueName=name, Attributes=attributes))["QueueUrl"]
    return url


# --- all of it works ----------------------------------------------------------------------------------------


def test_boto3_walks_through_all_actions_at_both(server: Several) -> None:
    target = ServiceAddress(
        server.endpoint, server.region, server.account, server.access_key_id, server.secret_access_key
    )
    walk = Walk(target)
    everywhere(walk.client)
    for name in STEPS:
        take(walk, name)
    assert len(walk.called) == 23


# --- changes at one take effect at the other --------------------------------------------------------------------


async def test_a_new_queue_is_there_at_once_and_a_deleted_one_gone(two: tuple[Client, Client]) -> None:
    one, other = two
    url = await queue(one, "made")
    await other.call("SendMessage", QueueUrl=url, MessageBody="x")
    await one.call("DeleteQueue", QueueUrl=url)
    for call in ({"MessageBody": "x"}, {}):
        with pytest.raises(CallRefused, match=r"QueueDoesNotExist|NonExistentQueue"):
            await other.call("SendMessage" if call else "ReceiveMessage", QueueUrl=url, **call)


async def test_a_changed_attribute_counts(two: tuple[Client, Client]) -> None:
    one, other = two
    url = await queue(one, "attributes", MaximumMessageSize="262144")

    async def send() -> None:
        await other.call("SendMessage", QueueUrl=url, MessageBody="x" * 2000)

    await send()
    await one.call("SetQueueAttributes", QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
    await refused_soon(send, "InvalidParameterValueException")


async def test_a_changed_policy_counts(two: tuple[Client, Client]) -> None:
    one, other = two
    url = await queue(one, "policy")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:policy"

    async def send() -> None:
        await other.call("SendMessage", QueueUrl=url, MessageBody="x")

    await send()
    deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}
    await one.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": json.dumps({"Statement": [deny]})})
    await refused_soon(send, "AccessDenied")


async def test_a_revoked_key_counts(server: Several) -> None:
    key = await asyncio.to_thread(server.rest, "POST", "/v1/keys", {"name": "worker"})
    as_worker = copy.copy(server)
    as_worker.access_key_id, as_worker.secret_access_key = key["id"], key["secret"]
    async with spread(as_worker, each=1) as workers:
        await asyncio.to_thread(server.rest, "DELETE", f"/v1/keys/{key['id']}")
        for worker in workers:
            await refused_soon(partial(worker.call, "ListQueues"), "InvalidClientTokenId")


async def test_a_repeated_send_is_stored_once_at_any_frontend(server: Several) -> None:
    clients = [everywhere(server.client()) for _ in range(2)]
    for client in clients:
        client.meta.events.register(
            "before-call.sqs.SendMessage",
            lambda params, **_: params["headers"].update({"x-holdfast-client-token": "order-4711"}),
        )
    url = clients[0].create_queue(QueueName="repeated")["QueueUrl"]
    sends = [
        asyncio.to_thread(client.send_message, QueueUrl=url, MessageBody="once") for client in clients for _ in range(4)
    ]
    answers = await asyncio.gather(*sends)
    assert len({answer["MessageId"] for answer in answers}) == 1
    count = clients[0].get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    assert count["Attributes"]["ApproximateNumberOfMessages"] == "1"


async def test_a_receive_is_repeated_and_a_handle_is_good_at_the_other(two: tuple[Client, Client]) -> None:
    one, other = two
    url = await queue(one, "attempts.fifo", FifoQueue="true")
    await one.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    repeat = await other.call(
        "SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d"
    )
    (first,) = (await one.call("ReceiveMessage", QueueUrl=url, ReceiveRequestAttemptId="a"))["Messages"]
    (again,) = (await other.call("ReceiveMessage", QueueUrl=url, ReceiveRequestAttemptId="a"))["Messages"]
    assert first["MessageId"] == again["MessageId"] == repeat["MessageId"]
    await one.call("DeleteMessage", QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert await other.call("ReceiveMessage", QueueUrl=url) == {}


# --- backends -------------------------------------------------------------------------------------------------


async def backend_of(server: Several, name: str) -> str:
    """Return the backend that owns a queue."""
    async with closing(SQLiteStore(server.data / "metadata.sqlite")) as store:
        shard = shard_of((await store.queues.get_queue(ACCOUNT, name)).partitions[0].id)
        owners = {entry.shard: entry.owner_log for entry in await store.entries.shards()}
        return next(entry.node for entry in await store.entries.logs() if entry.log_id == owners[shard])


async def queues_of_all(server: Several, client: Client, prefix: str, **attributes: str) -> dict[str, str]:
    """Create a queue for each backend; returns their URLs."""
    urls: dict[str, str] = {}
    for number in range(100):
        url = await queue(client, f"{prefix}{number}", **attributes)
        urls.setdefault(await backend_of(server, f"{prefix}{number}"), url)
        if len(urls) == 3:
            return urls
    raise AssertionError(f"there is a queue on each of three backends, and not only on {list(urls)}")


async def test_dead_letters_and_their_redrive_pass_between_backends(
    server: Several, two: tuple[Client, Client]
) -> None:
    one, other = two
    dead = await queue(one, "dead")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sources = await queues_of_all(server, one, "source", RedrivePolicy=policy, VisibilityTimeout="0")
    for name, url in sources.items():
        await one.call("SendMessage", QueueUrl=url, MessageBody=name)
        assert (await other.call("ReceiveMessage", QueueUrl=url))["Messages"][0]["Body"] == name
        assert await other.call("ReceiveMessage", QueueUrl=url) == {}
    arrived: set[str] = set()
    while len(arrived) < len(sources):
        found = await other.call("ReceiveMessage", QueueUrl=dead, WaitTimeSeconds=10, VisibilityTimeout=0)
        arrived |= {message["Body"] for message in found["Messages"]}
    assert arrived == sources.keys()
    await one.call("StartMessageMoveTask", SourceArn=arn)
    for name, url in sources.items():
        back = await other.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=10, VisibilityTimeout=600)
        assert [message["Body"] for message in back["Messages"]] == [name]


async def test_stored_bytes_are_the_sum_of_all_backends(server: Several, two: tuple[Client, Client]) -> None:
    one, other = two

    async def stored() -> int:
        shown = await asyncio.to_thread(server.rest, "GET", f"/v1/tenants/{ACCOUNT}")
        return int(shown["stored_bytes"])

    urls = (await queues_of_all(server, one, "weight")).values()
    before = await stored()
    for url in urls:
        await other.call("SendMessage", QueueUrl=url, MessageBody="x" * 10_000)
    async with asyncio.timeout(20):  # each backend measures its queues' load periodically
        while (added := await stored() - before) < 30_000:
            await asyncio.sleep(0.05)
    assert added < 31_000


async def test_a_message_wakes_a_receive_that_waits_at_the_other_on_each_backend(
    server: Several, two: tuple[Client, Client]
) -> None:
    one, other = two
    for name, url in (await queues_of_all(server, one, "poll")).items():
        waiting = asyncio.create_task(other.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
        await asyncio.sleep(0)
        await one.call("SendMessage", QueueUrl=url, MessageBody=name)
        assert (await waiting)["Messages"][0]["Body"] == name


# --- processes ------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Several]:
    """Server that only this test uses; not started yet."""
    made = Several(tmp_path, {"DRAIN_SECONDS": "0.2"})
    yield made
    made.kill()


def test_without_its_supervisor_nothing_is_left_and_the_next_one_can_begin(own: Several) -> None:
    own.start()
    url = own.client().create_queue(QueueName="q")["QueueUrl"]
    own.client().send_message(QueueUrl=url, MessageBody="x")
    pids = list(own.children().values())
    assert len(pids) == 3
    own.kill()
    gone(pids)
    own.start()
    assert own.client().receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"


def test_one_process_and_several_take_turns_on_a_folder(own: Several) -> None:
    one, three, two = "backend frontend-1", "backend-1 backend-2 backend-3 frontend-1", "backend-1 backend-2 frontend-1"
    turns = ((1, 0, one), (0, 3, three), (0, 2, two), (0, 0, ""))
    for number, (frontends, backends, processes) in enumerate(turns):
        own.settings.update(HOLDFAST_FRONTENDS=str(frontends), HOLDFAST_BACKENDS=str(backends))
        own.start()
        sqs = own.client()
        for name in ("q", "r", "s"):
            url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody=f"{name}{number}")
            found: set[str] = set()
            while len(found) <= number:
                received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
                found |= {message["Body"] for message in received}
            assert found == {f"{name}{earlier}" for earlier in range(number + 1)}
        assert sorted(own.children()) == processes.split()
        assert own.stop() == 0


def test_a_signal_to_all_processes_drains_in_order(own: Several) -> None:
    """Sends the signal as systemd does, or a terminal."""
    own.start()
    pids = own.children()
    for pid in pids.values():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert own.client().list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert own.children() == pids
    assert own.stop() == 0
    assert "Traceback" not in own.log_text()
    assert own.log_text().splitlines()[-1].endswith("info supervisor holdfast: stopped")


def test_a_process_that_hangs_at_the_end_is_killed(own: Several) -> None:
    own.start()
    pids = own.children()
    os.kill(pids["frontend-1"], signal.SIGSTOP)
    assert own.stop() == 0
    assert "frontend-1 does not end and is killed" in own.log_text()
    gone(list(pids.values()))


async def test_a_process_that_hangs_gets_no_connections(own: Several) -> None:
    await asyncio.to_thread(own.start)
    hanging = own.children()["frontend-1"]
    os.kill(hanging, signal.SIGSTOP)
    await asyncio.to_thread(wait_until, lambda: "frontend-1 does not answer" in own.log_text(), "that is told")
    clients = [Client(own) for _ in range(6)]
    try:
        for client in clients:
            await client.call("ListQueues")
        assert {own.served_by(client.local_port) for client in clients} == {"frontend-2"}
        os.kill(hanging, signal.SIGCONT)
        await asyncio.to_thread(wait_until, lambda: "frontend-1 answers again" in own.log_text(), "that is told")
        late = Client(own)
        clients.append(late)
        await late.call("ListQueues")
        assert own.served_by(late.local_port) == "frontend-1"
    finally:
        for client in clients:
            await client.close()


def test_a_second_signal_ends_all_at_once(own: Several) -> None:
    own.start()
    pids = own.children()
    os.kill(pids["backend"], signal.SIGSTOP)
    process = own.running()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining" in own.log_text(), "it drains")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    gone(list(pids.values()))


def test_a_process_that_dies_again_and_again_is_given_up(own: Several) -> None:
    own.start()
    process = own.running()

    def killed() -> bool:
        pid = children_of(own.pid).get("frontend-1")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return process.poll() is not None

    wait_until(killed, "the supervisor gives up")
    assert process.returncode == 3
    log = own.log_text()
    assert "the service cannot continue: frontend-1 has died 7 times within seconds of its start" in log
    assert "Traceback" not in log


def test_the_reason_of_a_failed_start_is_logged(tmp_path: Path) -> None:
    server = Several(tmp_path, {"AUDIT_FILE": str(tmp_path / "none" / "audit.jsonl")})
    reasons = r"the audit log \S+ cannot be written: No such file[\s\S]*frontend-\d did not start \(exit code 1\)"
    with pytest.raises(RuntimeError, match=r"ended with 1:[\s\S]*" + reasons):
        server.start()
    assert "Traceback" not in server.log_text()


def test_modules_in_the_folder_it_is_started_from_are_not_run(tmp_path: Path) -> None:
    """Others may be able to write there, as in /tmp; -P stands for the installed command, which ignores that folder."""

    class Installed(Several):
        def command(self) -> list[str]:
            python, *rest = super().command()
            return [python, "-P", *rest]

    marks = ("uvloop", "msgspec", "holdfast")
    for name in marks:
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write({name!r})\nraise SystemExit(9)\n")
    with Installed(tmp_path, frontends=1) as server:
        assert len(server.children()) == 2
    assert not (tmp_path / "ran").exists()


def test_a_hangup_reloads_the_certificate_everywhere(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair().write(cert, key)
    kafka_port = free_port()
    server = Several(tmp_path, {"TLS_CERT": str(cert), "TLS_KEY": str(key), "KAFKA_PORT": str(kafka_port)})

    def loaded_twice(name: str) -> bool:
        return server.log_text().count(f"info {name} holdfast: certificate loaded") >= 2

    def certificates() -> set[str]:
        """Return the certificates that Kafka's clients get from the frontends, to which connections go in turn."""
        return {ssl.get_server_certificate(("127.0.0.1", kafka_port), timeout=20).strip() for _ in range(4)}

    server.begin()
    try:
        wait_until(lambda: "supervisor holdfast: started" in server.log_text(), "it has started")
        trust = ssl.create_default_context(cafile=str(cert))
        for _ in range(4):
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=trust)
            connection.request("GET", "/health/ready")
            assert connection.getresponse().read() == b'{"status":"ready"}'
            connection.close()
        assert certificates() == {cert.read_text().strip()}
        make_pair().write(cert, key)
        server.running().send_signal(signal.SIGHUP)
        for name in ("frontend-1", "frontend-2"):
            wait_until(partial(loaded_twice, name), f"{name} has loaded it again")
        assert certificates() == {cert.read_text().strip()}
    finally:
        server.kill()
