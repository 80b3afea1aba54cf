"""The administrative commands, each as a process, against a real ``holdfast serve``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from holdfast import __version__
from holdfast.commandline.text_tables import shown, table
from holdfast.commands.main import main
from tests.holdfast.migrate.sides import CommandResult
from tests.servers.server import ACCESS_KEY_ID, REPOSITORY, SECRET_ACCESS_KEY, Server, clean_environment, free_port

DEAD_ARN = "arn:aws:sqs:us-east-1:000000000000:dead"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service"), settings={"SEGMENT_BYTES": str(1 << 21)}) as running:
        yield running


def holdfast(
    server: Server, *arguments: str, data: bool = True, environment: dict[str, str] | None = None
) -> CommandResult:
    """Run a command in this process, non-interactively; ``data``: authenticated by the data folder."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, _environment(server, environment), clear=True),
        open(os.devnull) as nobody,
        mock.patch.object(sys, "stdin", nobody),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main([*arguments, *_where(server, data)])
        except SystemExit as exit_:
            code = int(str(exit_.code))
    return CommandResult(code, out.getvalue(), err.getvalue())


def process(server: Server, *arguments: str, stdin: int = subprocess.DEVNULL) -> CommandResult:
    """Run a command as a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments, *_where(server, True)],
        env=_environment(server, {"PYTHONPATH": str(REPOSITORY)}),
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def _where(server: Server, data: bool) -> list[str]:
    return ["--data", str(server.data)] if data else []


def _environment(server: Server, more: dict[str, str] | None) -> dict[str, str]:
    return {**clean_environment(), "HOLDFAST_ENDPOINT": server.endpoint, **(more or {})}


# --- queues ---------------------------------------------------------------------------------------------------


def test_a_service_is_checked_by_a_signed_message(server: Server) -> None:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
    checked = holdfast(server, "queue", "check", data=False, environment=keys)
    assert checked.code == 0, checked.err
    assert re.fullmatch(r"Message [0-9a-f-]{36} was sent, received and deleted; with its .+ s\.\n", checked.out)
    queue = holdfast(server, "queue", "check", "--json", data=False, environment=keys).json["queue"]
    assert queue.startswith("holdfast-check-")
    assert not holdfast(server, "queue", "list", "--prefix", "holdfast-check-", "--json").json["queues"]


def test_a_check_says_what_fails(server: Server) -> None:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": "guessed"}
    refused = holdfast(server, "queue", "check", data=False, environment=keys)
    assert refused.code == 4
    assert refused.err.startswith("holdfast: CreateQueue is answered 403: ")
    gone = {**keys, "HOLDFAST_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    assert holdfast(server, "queue", "check", data=False, environment=gone).code == 5


def test_queues_are_listed_shown_looked_at_purged_and_deleted(server: Server) -> None:
    client = server.client()
    client.create_queue(QueueName="dead")
    policy = json.dumps({"deadLetterTargetArn": DEAD_ARN, "maxReceiveCount": 1})
    url = client.create_queue(QueueName="work", Attributes={"RedrivePolicy": policy}, tags={"team": "shop"})["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="first \x9b31m\nline [red]")
    client.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=600)
    client.receive_message(QueueUrl=url, VisibilityTimeout=600)

    listed = holdfast(server, "queue", "list", "--prefix", "wo")
    assert listed.code == 0
    heading, row = listed.out.splitlines()
    assert heading.split() == ["QUEUE", "VISIBLE", "IN", "FLIGHT", "DELAYED", "BYTES"]
    assert row.split()[:-1] == ["work", "0", "1", "1"]
    bodies = len("first \x9b31m\nline [red]later".encode())
    assert bodies < int(row.split()[-1]) < bodies + 2 * 200, "bodies, and what is stored with them"
    assert {queue["name"] for queue in holdfast(server, "queue", "list", "--json").json["queues"]} >= {"work", "dead"}

    shown_ = holdfast(server, "queue", "show", "work")
    assert "team=shop" in shown_.out
    assert DEAD_ARN in shown_.out
    assert holdfast(server, "queue", "show", "work", "--json").json["messages"]["in_flight"] == 1

    for _ in range(2):
        peeked = holdfast(server, "queue", "peek", "work")
        assert "first \\x9b31m\\nline [red]" in peeked.out
        assert "in_flight" in peeked.out
        assert "\x9b" not in peeked.out
    first, later = holdfast(server, "queue", "peek", "work", "--json").json["messages"]
    assert (first["body"], first["receives"]) == ("first \x9b31m\nline [red]", 1)
    assert (later["body"], later["state"]) == ("later", "delayed")

    refused = holdfast(server, "queue", "purge", "work")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "holdfast: this cannot be undone, and there is nobody to ask: add --yes\n"
    assert holdfast(server, "queue", "purge", "work", "--yes").code == 0
    again = holdfast(server, "queue", "purge", "work", "--yes")
    assert again.code == 1
    assert again.err == "holdfast: Only one PurgeQueue operation on work is allowed every 60 seconds.\n"
    assert holdfast(server, "queue", "peek", "work").out == "The queue is empty.\n"
    assert holdfast(server, "queue", "delete", "work", "--yes").code == 0
    gone = process(server, "queue", "show", "work")
    assert gone == (3, "", "holdfast: The specified queue does not exist.\n")


def test_messages_are_moved(server: Server) -> None:
    client = server.client()
    arn = DEAD_ARN.replace("dead", "moved-dead")
    dead = client.create_queue(QueueName="moved-dead")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    client.create_queue(QueueName="moved", Attributes={"RedrivePolicy": policy})
    client.send_message(QueueUrl=dead, MessageBody="m")
    assert "are being moved to moved" in holdfast(server, "queue", "move", "moved-dead", "--to", "moved").out
    queue = client.get_queue_url(QueueName="moved")["QueueUrl"]
    (message,) = client.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
    assert message["Body"] == "m"
    assert "MOVE TASK" in holdfast(server, "queue", "show", "moved-dead").out


@pytest.mark.parametrize(("typed", "code", "left"), [("no\n", 1, True), ("yes\n", 0, False)])
def test_a_person_is_asked(server: Server, typed: str, code: int, left: bool) -> None:
    server.client().create_queue(QueueName=f"asked-{code}")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        result = process(server, "queue", "delete", f"asked-{code}", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.code == code
    assert "cannot be had back" in result.err
    assert (holdfast(server, "queue", "show", f"asked-{code}").code == 0) == left


# --- data keys ------------------------------------------------------------------------------------------------


def test_the_life_of_a_named_data_key(server: Server) -> None:
    client = server.client()
    url = client.create_queue(QueueName="keyed", Attributes={"KmsMasterKeyId": "alias/k"})["QueueUrl"]
    assert "There are no named data keys" in holdfast(server, "keyring", "list", "--account", "000000000000").out
    client.send_message(QueueUrl=url, MessageBody="m")
    (key,) = holdfast(server, "keyring", "list", "--json").json["data_keys"]
    assert (key["name"], key["state"], key["versions"]) == ("alias/k", "active", 1)
    assert "alias/k" in holdfast(server, "keyring", "list").out
    rotated = holdfast(server, "keyring", "rotate-key", "arn:aws:kms:us-east-1:000000000000:alias/k")
    assert (rotated.code, rotated.out) == (0, "Version 2 of the data key alias/k encrypts from now on.\n")
    assert holdfast(server, "keyring", "rotate-key", "never").code == 3
    unasked = holdfast(server, "keyring", "destroy", "alias/k")
    assert (unasked.code, "add --yes" in unasked.err) == (2, True)
    for typed, code in (("yes\n", 1), ("alias/k\n", 0)):
        ours, theirs = pty.openpty()
        try:
            os.write(ours, typed.encode())
            result = process(server, "keyring", "destroy", "alias/k", stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)
        assert (result.code, "Type alias/k to go on" in result.err) == (code, True)
        state = holdfast(server, "keyring", "list", "--json").json["data_keys"][0]["state"]
        assert state == ("destroyed" if code == 0 else "active")
    assert holdfast(server, "keyring", "destroy", "alias/k", "--yes").code == 0, "it can be repeated"
    assert holdfast(server, "keyring", "destroy", "never", "--yes").code == 3
    assert holdfast(server, "keyring", "rotate-key", "alias/k").code == 1


# --- tenants, limits, keys ------------------------------------------------------------------------------------


def test_the_life_of_a_tenant(server: Server) -> None:
    made = holdfast(server, "tenant", "create", "Acme Inc", "--json").json
    account = made["account"]
    assert "Acme Inc" in holdfast(server, "tenant", "list").out
    key = holdfast(server, "key", "create", "boss", "--role", "admin", "--account", account, "--json").json
    boss = {"AWS_ACCESS_KEY_ID": key["id"], "AWS_SECRET_ACCESS_KEY": key["secret"]}

    def as_boss(*arguments: str) -> CommandResult:
        return holdfast(server, *arguments, data=False, environment=boss)

    assert as_boss("tenant", "show", account).code == 0
    assert as_boss("tenant", "list").code == 4
    assert key["id"] in as_boss("key", "list").out
    worker = as_boss("key", "create", "worker", "--scope", "send", "--prefix", "jobs-", "--expires-in", "1h")
    assert "not shown again" in worker.out
    client = server.client(aws_access_key_id=key["id"], aws_secret_access_key=key["secret"])
    url = client.create_queue(QueueName="jobs-1")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="of Acme")

    limits = holdfast(server, "limits", "set", account, "calls=50:200", "long-polls=1234").out
    assert "50:200" in limits
    assert "1234" in limits
    holdfast(server, "limits", "set", account, "calls=none", "long-polls=none")
    assert set(holdfast(server, "limits", "show", account, "--json").json.values()) == {None}

    assert holdfast(server, "tenant", "suspend", account).code == 0
    assert as_boss("queue", "list").code == 4
    assert holdfast(server, "tenant", "resume", account).code == 0
    assert as_boss("queue", "list").code == 0

    rotated = as_boss("key", "rotate", key["id"], "--keep", "1h", "--json").json
    assert rotated["id"] != key["id"]
    assert as_boss("key", "revoke", rotated["id"], "--yes").code == 0

    with sqlite3.connect(f"file:{server.data}/metadata.sqlite?mode=ro", uri=True) as metadata:
        count = "SELECT count(*) FROM data_keys WHERE account = ?"
        assert metadata.execute(count, (account,)).fetchone() == (1,)
        assert holdfast(server, "tenant", "delete", account, "--yes").code == 0
        assert metadata.execute(count, (account,)).fetchone() == (0,)
        assert metadata.execute("SELECT count(*) FROM queues WHERE account = ?", (account,)).fetchone() == (0,)
    metadata.close()
    deleted = holdfast(server, "tenant", "show", account, "--json").json
    assert (deleted["state"], deleted["name"]) == ("deleted", "Acme Inc")
    assert deleted["deleted"] >= deleted["created"] > 0
    assert as_boss("queue", "list").code == 4

    audit = (server.data / "audit.jsonl").read_text()
    assert key["secret"] not in audit
    acts = [line["action"] for line in map(json.loads, audit.splitlines()) if line["target"] == account]
    changed = ["limits.set", "limits.set", "tenant.suspend", "tenant.resume", "tenant.delete"]
    assert acts == ["tenant.create", *changed]


def test_a_key_is_revoked_for_good(server: Server) -> None:
    key = holdfast(server, "key", "create", "temporary", "--json").json
    mine = {"AWS_ACCESS_KEY_ID": key["id"], "AWS_SECRET_ACCESS_KEY": key["secret"]}
    assert holdfast(server, "queue", "list", data=False, environment=mine).code == 0
    assert holdfast(server, "key", "revoke", key["id"], "--yes").code == 0
    assert holdfast(server, "queue", "list", data=False, environment=mine).code == 4
    assert "revoked" in holdfast(server, "key", "list").out
    assert key["secret"] not in holdfast(server, "key", "list", "--json").out


def test_an_api_key_is_all_that_plain_http_needs(server: Server, tmp_path: Path) -> None:
    server.client().create_queue(QueueName="plain")
    made = holdfast(server, "key", "create", "curl", "--kind", "api", "--prefix", "pla", "--json").json
    url = f"{server.endpoint}/v1/queues/plain/messages"
    with httpx.Client(headers={"Authorization": f"Bearer {made['secret']}"}, trust_env=False) as plain:
        assert plain.get(url).status_code == 204
        sent = plain.post(url, content=b"two coffees", headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert sent.status_code == 201
        (message,) = plain.get(url, params={"wait": 20}).json()["messages"]
        assert (message["id"], message["body"]) == (sent.json()["id"], "two coffees")
        assert plain.delete(url, params={"receipt_handle": message["receipt_handle"]}).status_code == 204
        assert plain.get(f"{server.endpoint}/v1/queues/other/messages").status_code == 403
    key_file = tmp_path / "key"
    key_file.write_text(made["secret"] + "\n")
    listed = holdfast(server, "queue", "list", "--json", "--api-key-file", str(key_file), data=False)
    assert [queue["name"] for queue in listed.json["queues"]] == ["plain"]
    assert holdfast(server, "key", "revoke", made["id"], "--yes").code == 0
    again = holdfast(server, "queue", "list", data=False, environment={"HOLDFAST_API_KEY": made["secret"]})
    assert again.code == 4


# --- roles and tokens -----------------------------------------------------------------------------------------


def test_a_role_is_made_listed_assumed_and_deleted(server: Server) -> None:
    made = holdfast(
        server, "role", "set", "deployer", "--scope", "send", "--scope", "manage", "--prefix", "app-",
        "--trust-account", "111111111111", "--trust-subject", "ci@example", "--session-most", "2h", "--json",
    ).json  # fmt: skip
    wanted = {
        "arn": "arn:aws:iam::000000000000:role/deployer",
        "scopes": ["send", "manage"],
        "prefixes": ["app-"],
        "trusted_accounts": ["111111111111"],
        "trusted_subjects": ["ci@example"],
        "session_seconds_most": 7200,
    }
    assert {name: made[name] for name in wanted} == wanted
    heading, row = holdfast(server, "role", "list").out.splitlines()
    assert heading.startswith("ROLE")
    assert row.split() == [made["arn"], "send,", "manage", "app-", "111111111111", "ci@example", "7200"]
    sts = boto3.client(
        "sts",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
    )
    session = sts.assume_role(RoleArn=made["arn"], RoleSessionName="tests", DurationSeconds=7200)["Credentials"]
    client = server.client(
        aws_access_key_id=session["AccessKeyId"],
        aws_secret_access_key=session["SecretAccessKey"],
        aws_session_token=session["SessionToken"],
    )
    client.create_queue(QueueName="app-1")
    told = holdfast(server, "role", "set", "deployer").out
    assert "send, receive, manage" in told, "what is not given has its default"
    assert holdfast(server, "role", "list", "--json").json["roles"][0]["prefixes"] == []
    refused = holdfast(server, "role", "delete", "deployer")
    assert (refused.code, refused.out) == (2, "")
    assert holdfast(server, "role", "delete", "deployer", "--yes").out == "Role deployer is deleted.\n"
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        client.list_queues()
    gone = holdfast(server, "role", "delete", "deployer", "--yes")
    assert (gone.code, gone.err) == (3, "holdfast: There is no role deployer in account 000000000000.\n")
    assert holdfast(server, "role", "list").out == "There are no roles.\n"


def test_operators_work_on_the_roles_of_other_accounts(server: Server) -> None:
    account = holdfast(server, "tenant", "create", "Roles Inc", "--json").json["account"]
    made = holdfast(server, "role", "set", "worker", "--account", account, "--json").json
    assert made["account"] == account
    assert "worker" in holdfast(server, "role", "list", "--account", account).out
    assert holdfast(server, "role", "list").out == "There are no roles.\n"
    assert holdfast(server, "role", "delete", "worker", "--account", account, "--yes").code == 0


def test_a_token_is_bought_with_an_api_key(server: Server) -> None:
    key = holdfast(server, "key", "create", "buyer", "--kind", "api", "--json").json
    mine = {"HOLDFAST_API_KEY": key["secret"]}
    arguments = ("token", "buy", "--lasts", "15m", "--scope", "manage", "--prefix", "tok-")
    bought = holdfast(server, *arguments, "--json", data=False, environment=mine).json
    assert 890 < bought["expires"] - time.time() <= 900
    server.client().create_queue(QueueName="tok-1")
    as_token = {"HOLDFAST_API_KEY": bought["token"]}
    listed = holdfast(server, "queue", "list", "--json", data=False, environment=as_token).json
    assert [queue["name"] for queue in listed["queues"]] == ["tok-1"]
    told = holdfast(server, *arguments, data=False, environment=mine)
    assert [line.split()[0] for line in told.out.splitlines()] == ["token", "expires"]
    not_by_token = holdfast(server, *arguments, data=False, environment=as_token)
    assert not_by_token.code == 4
    assert "Only an API key can buy a token" in not_by_token.err
    assert holdfast(server, *arguments).code == 4, "nor by an access key"
    too_long = holdfast(server, "token", "buy", "--lasts", "2h", data=False, environment=mine)
    assert too_long.code == 1
    assert "3600" in too_long.err
    assert bought["token"] not in (server.data / "audit.jsonl").read_text()


# --- clusters -------------------------------------------------------------------------------------------------


def test_the_status_of_a_service_that_is_one_process(server: Server) -> None:
    server.client().create_queue(QueueName="whole")
    status = holdfast(server, "cluster", "status")
    assert status.code == 0
    heading, _, columns, node, _, manager = status.out.splitlines()
    assert heading.startswith("Cluster local is serving; used to ")
    assert heading.endswith("0 shards on their way, 0 without a living node.")
    assert columns.split() == ["NODE", "STATE", "RELEASE", "HEARTBEAT", "SHARDS", "CPU", "STORAGE", "ADDRESS"]
    assert node.split()[:7] == ["node", "live", __version__, "0", "s", "ago", "256"]
    assert manager == "There is no out-cluster manager: nothing splits queues or moves them off a cluster."
    (shown_,) = holdfast(server, "cluster", "status", "--json").json["clusters"]
    assert 0 < shown_["nodes"][0]["storage"] < 1
    assert holdfast(server, "cluster", "list").out.split()[6:9] == ["local", "serving", "1"]
    assert holdfast(server, "cluster", "queue", "whole").out.split()[5:] == ["local", "open", "0"]
    for refused in (
        holdfast(server, "cluster", "drain", "node"),
        holdfast(server, "cluster", "retire", "local", "--yes"),
        holdfast(server, "cluster", "weight", "local", "2"),
        holdfast(server, "cluster", "split", "whole", "2"),
    ):
        assert refused.code == 1
        assert refused.err == "holdfast: This service is one process, and has no clusters to manage.\n"
    assert holdfast(server, "cluster", "drain", "stranger").code == 3
    asked = holdfast(server, "cluster", "retire", "local")
    assert asked.code == 2
    assert "cannot be undone" not in asked.err
    assert "holdfast cluster serve local takes the cluster back" in asked.err


def test_every_operation_of_administration_is_a_command(server: Server) -> None:
    """A new REST operation needs a command as well."""
    words = {
        "alarm": {"create", "delete", "list", "show", "test"},
        "cluster": {"drain", "list", "queue", "retire", "serve", "split", "status", "undrain", "weight"},
        "invoice": {"export", "list", "show"},
        "key": {"create", "list", "rotate", "revoke"},
        "keyring": {"destroy", "list", "rotate-key"},
        "limits": {"set", "show"},
        "queue": {"delete", "list", "metrics", "move", "peek", "purge", "show"},
        "role": {"delete", "list", "set"},
        "tenant": {"create", "delete", "list", "resume", "show", "suspend"},
        "token": {"buy"},
    }
    out = io.StringIO()
    for word, commands in words.items():
        for command in commands:
            with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as exit_:
                main([word, command, "--help"])
            assert exit_.value.code == 0
    described = httpx.get(f"{server.endpoint}/openapi.json", trust_env=False, timeout=60).json()["paths"]
    operations = {
        operation["operationId"].partition("_v1_")[0]
        for path, methods in described.items()
        for operation in methods.values()
        if path.startswith("/v1/") and not path.endswith("/messages")
    }
    commands = {f"{word}_{command}" for word, commands in words.items() for command in commands}
    commands = {{"keyring_rotate-key": "keyring_rotate"}.get(name, name) for name in commands}
    operations = {name.replace("data_key_", "keyring_") for name in operations}
    others = {"usage_show", "metrics_scrape", "availability_show", "queue_export"}
    exporting = {"document_create", "document_show", "document_content"}
    assert operations == commands - {"invoice_export"} | others | exporting, "invoice export has documents made"


# --- failures -------------------------------------------------------------------------------------------------


def test_who_is_not_signed_in(server: Server, tmp_path: Path) -> None:
    nobody = holdfast(server, "queue", "list", data=False)
    assert nobody.code == 2
    assert "HOLDFAST_API_KEY" in nobody.err
    wrong = {"AWS_ACCESS_KEY_ID": server.access_key_id, "AWS_SECRET_ACCESS_KEY": "another-secret"}
    assert holdfast(server, "queue", "list", data=False, environment=wrong).code == 4
    assert holdfast(server, "queue", "list", data=False, environment={"HOLDFAST_API_KEY": "nonsense"}).code == 4
    assert holdfast(server, "queue", "list", "--api-key-file", str(tmp_path / "none"), data=False).code == 2


@pytest.mark.parametrize("value", ["", "  ", "hf_a\nb", "hf_\u00e9"])
def test_a_variable_that_holds_no_key(server: Server, value: str) -> None:
    refused = holdfast(server, "queue", "list", data=False, environment={"HOLDFAST_API_KEY": value})
    assert (refused.code, refused.err) == (2, "holdfast: the variable HOLDFAST_API_KEY holds no API key\n")
    emptied = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert holdfast(server, "queue", "list", data=False, environment=emptied).code == 2


def test_errors_name_what_was_given_and_what_there_is(server: Server) -> None:
    assert "there is no limit 'speed'; there are calls, " in holdfast(server, "limits", "set", "1", "speed=1").err
    for number in ("0", "101", "-1", "ten"):
        peeked = holdfast(server, "queue", "peek", "orders", f"--max={number}")
        assert (peeked.code, "--max: a number from 1 to 100" in peeked.err) == (2, True)


def test_limits_that_are_shown_can_be_set(server: Server) -> None:
    lines = [line.split() for line in holdfast(server, "limits", "show", "000000000000").out.splitlines()]
    for name, _ in lines:
        assert holdfast(server, "limits", "set", "000000000000", f"{name}=none").code == 0


def test_what_cannot_be_reached(server: Server, tmp_path: Path) -> None:
    elsewhere = f"http://127.0.0.1:{free_port()}"
    refused = process(server, "queue", "list", "--endpoint", elsewhere)
    assert refused.code == 5
    assert refused.err.startswith(f"holdfast: {elsewhere} cannot be reached: ")
    assert refused.err.count("\n") == 1
    assert holdfast(server, "queue", "list", "--endpoint", "queue.example.com").code == 2
    assert holdfast(server, "queue", "list", "--data", str(tmp_path), data=False).code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue",),
        ("queue", "show"),
        ("key", "create", "x", "--scope", "all"),
        ("key", "create", "x", "--expires-in", "soon"),
        ("role",),
        ("role", "set"),
        ("role", "set", "x", "--session-most", "long"),
        ("token", "buy", "x"),
        ("cluster", "weight", "east", "much"),
        ("cluster", "split", "orders", "65"),
        ("cluster", "split", "orders", "0"),
        ("limits", "set", "000000000000"),
        ("limits", "set", "000000000000", "calls=fast"),
        ("limits", "set", "000000000000", "speed=1"),
        ("limits", "set", "000000000000", "stored_bytes=much"),
    ],
)
def test_wrong_arguments(server: Server, arguments: tuple[str, ...]) -> None:
    result = holdfast(server, *arguments, data=False)
    assert (result.code, result.out) == (2, "")
    assert "error:" in result.err


def test_the_servers_own_commands_know_the_variables_of_the_others(server: Server) -> None:
    shown_ = holdfast(server, "key", "show", environment={"HOLDFAST_API_KEY": "x"})
    assert shown_.code == 0
    assert server.secret_access_key in shown_.out


# --- output ---------------------------------------------------------------------------------------------------


def test_a_table_is_whole_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = table(("NAME", "N"), [("x" * 500, 1), ("y", 22)], nothing="-")
    assert [line.split() for line in text.splitlines()] == [["NAME", "N"], ["x" * 500, "1"], ["y", "22"]]
    assert table(("NAME",), [], nothing="There is nothing.") == "There is nothing."


def test_nothing_raw_reaches_the_terminal() -> None:
    assert shown("a\x1b[2J\x9b\n\u2028\ud800é") == "a\\x1b[2J\\x9b\\n\\u2028\\ud800é"
    assert shown(["a", "b"]) == "a, b"
    assert (shown(None), shown([]), shown(True)) == ("-", "-", "yes")
