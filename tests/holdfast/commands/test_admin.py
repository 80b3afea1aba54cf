"""The administrative commands against a real ``holdfast serve``."""

import contextlib
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast import __version__
from holdfast.commandline.text_tables import shown, table
from holdfast.commands.main import main
from tests.holdfast.command import holdfast
from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server, free_port
from tests.tables import beside


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("service"), settings={"SEGMENT_BYTES": str(1 << 21)}) as running:
        yield running


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript) -> None:
    replay(
        transcript,
        ServiceShell(server),
        root=server.access_key_id,
        root_secret=server.secret_access_key,
        endpoint=server.endpoint,
        data=str(server.data),
        nowhere=f"http://127.0.0.1:{free_port()}",
        release=__version__,
    )


def test_a_deleted_tenant_keeps_neither_data_keys_nor_queues_and_its_acts_are_audited(server: Server) -> None:
    account = holdfast(server, "tenant", "create", "Acme", "--json").json["account"]
    key = holdfast(server, "key", "create", "boss", "--role", "admin", "--account", account, "--json").json
    client = server.client(aws_access_key_id=key["id"], aws_secret_access_key=key["secret"])
    client.send_message(QueueUrl=client.create_queue(QueueName="jobs-1")["QueueUrl"], MessageBody="of Acme")
    holdfast(server, "limits", "set", account, "queues=5")
    with contextlib.closing(sqlite3.connect(f"file:{server.data}/metadata.sqlite?mode=ro", uri=True)) as metadata:
        count = "SELECT (SELECT count(*) FROM data_keys WHERE account = ?1), count(*) FROM queues WHERE account = ?1"
        assert metadata.execute(count, (account,)).fetchone() == (1, 1)
        for act in (("suspend",), ("resume",), ("delete", "--yes")):
            assert holdfast(server, "tenant", act[0], account, *act[1:]).code == 0
        assert metadata.execute(count, (account,)).fetchone() == (0, 0)
    audit = (server.data / "audit.jsonl").read_text()
    assert key["secret"] not in audit
    acts = [line["action"] for line in map(json.loads, audit.splitlines()) if line["target"] == account]
    assert acts == ["tenant.create", "limits.set", "tenant.suspend", "tenant.resume", "tenant.delete"]


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


def test_every_operation_of_administration_is_a_command(server: Server) -> None:
    """A new REST operation needs a command as well."""
    words: dict[str, list[str]] = beside(__file__, "tables.yaml")["commands by word"]
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
        if path.startswith("/v1/") and not path.endswith("/records")
    }
    named = {f"{word}_{command}" for word, commands in words.items() for command in commands}
    operation_of = {
        "keyring_rotate-key": "keyring_rotate",
        "queue_check-policy": "queue_policy_check",
        "queue_push-secret": "queue_push_secret",
        "queue_cancel-move": "queue_cancel_move",
        "queue_watch": "metrics_list",
        "message_peek": "queue_peek",
        "message_tail": "message_delete",  # `receive --delete`; a tail peeks
        "key_caller": "caller_show",
        "topic_check-policy": "topic_policy_check",
        "topic_change-subscription": "subscription_change",
        "topic_confirm": "subscription_confirm",
        "topic_subscribe": "subscription_create",
        "topic_subscriptions": "subscription_list",
        "topic_test-filter": "filter_policy_test",
        "topic_unsubscribe": "subscription_delete",
    }
    named = {operation_of.get(name, name) for name in named}
    operations = {name.replace("data_key_", "keyring_") for name in operations}
    others = {"topic_metrics", "usage_show", "costs_show", "metrics_scrape", "availability_show", "queue_export"}
    others |= {"limits_use"}  # `limits show --use`
    of_groups = {"group_list", "group_describe", "group_commit", "group_reset", "group_delete"}
    named -= {f"stream_{one}" for one in ("groups", "produce", "reset", "tail", "export", "import")}  # records, groups
    named -= {"topic_export", "topic_import"}  # files
    of_subscriptions = {"subscription_list_own", "subscription_show"}  # topic subscriptions
    exporting = {"document_create", "document_show", "document_content"}
    of_the_console = {"events_follow", "queue_move_messages"}  # `queue watch` polls; a person chooses messages
    assert (
        operations == named - {"invoice_export"} | others | of_groups | of_subscriptions | exporting | of_the_console
    ), "invoice export has documents made"


def test_a_table_is_whole_where_there_is_no_terminal() -> None:
    text = table(("NAME", "N"), [("x" * 500, 1), ("y", 22)], nothing="-")
    assert [line.split() for line in text.splitlines()] == [["NAME", "N"], ["x" * 500, "1"], ["y", "22"]]
    assert table(("NAME",), [], nothing="There is nothing.") == "There is nothing."


def test_nothing_raw_reaches_the_terminal() -> None:
    assert shown("a\x1b[2J\x9b\n\u2028\ud800é") == "a\\x1b[2J\\x9b\\n\\u2028\\ud800é"
    assert shown(["a", "b"]) == "a, b"
    assert (shown(None), shown([]), shown(True)) == ("-", "-", "yes")
