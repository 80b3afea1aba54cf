"""Clients' values in log lines and error texts: truncated where long, masked where secret."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from frontend.sqs.protocol.errors import MASK
from holdfast.logs import _Formatter
from telemetry.logs import JsonLines
from tests.behaviour import wire
from tests.behaviour.cases import resolve
from tests.behaviour.runner import CaseCaller
from tests.behaviour.world import World, exchange
from tests.frontend.test_costs import owner, signed
from tests.tables import beside

LONG = 1_000_000
ANSWER_BYTES_MAX = 2_500
"""Maximum size of an error answer: its text may have 1,000 characters, which XML makes longer."""
LINE_LENGTH_MAX = 2_500


@pytest.fixture(scope="module")
def caller(world: World) -> CaseCaller:
    """The owner of a queue q, and of a FIFO queue q.fifo."""

    async def own() -> CaseCaller:
        made = await owner(world)
        request = wire.encode("json", "CreateQueue", {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}})
        assert (await exchange(world.app, signed(world, made, request))).status == 200
        return made

    return world.run(own())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the log, in both of its formats."""
    forms: list[logging.Formatter] = [_Formatter("p"), JsonLines("all", "p", 1)]
    return [form.format(record) for record in caplog.records for form in forms]


Sender = Callable[..., wire.WireAnswer]


@pytest.fixture
def sent(world: World, caller: CaseCaller, caplog: pytest.LogCaptureFixture) -> Sender:
    """Function that sends a request, while everything is logged."""

    def send(request: wire.WireRequest, *, is_signed: bool = True) -> wire.WireAnswer:
        request.headers = dict(request.headers) | {"Host": world.host}
        with caplog.at_level(logging.DEBUG):
            return world.run(exchange(world.app, signed(world, caller, request) if is_signed else request))

    return send


TABLES = beside(__file__, "texts.yaml")
SECRET = TABLES["secret"]
VALUES = {"x": "x" * LONG, "slashes": "/" * LONG, "head": "x" * 40_000, "some": "x" * 10_000, "zeros": "0" * 64}
VALUES |= {"secret": SECRET}


def calls(table: str) -> pytest.MarkDecorator:
    """Parameters of a test: the calls of a table, in both protocols."""
    rows = [
        pytest.param(protocol, action, params, id=f"{action}-{list(params)[-1]}-{protocol}")
        for row in TABLES[table]
        for action, params in row.items()
        for protocol in wire.PROTOCOLS
    ]
    return pytest.mark.parametrize(("protocol", "action", "params"), rows)


def check_lengths(answer: wire.WireAnswer, caplog: pytest.LogCaptureFixture) -> None:
    """Expect an error with a short text, in the answer and in the log."""
    assert 400 <= answer.status < 500
    assert len(answer.body) < ANSWER_BYTES_MAX
    assert max(map(len, lines(caplog)), default=0) < LINE_LENGTH_MAX


@calls("long_calls")
def test_long_values_of_calls(
    sent: Sender, caplog: pytest.LogCaptureFixture, protocol: wire.Protocol, action: str, params: dict[str, Any]
) -> None:
    answer = sent(wire.encode(protocol, action, resolve(params, VALUES)))
    check_lengths(answer, caplog)


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("number", range(len(TABLES["long_requests"])))
def test_long_values_of_requests(sent: Sender, caplog: pytest.LogCaptureFixture, number: int, is_signed: bool) -> None:
    row = {"method": "POST", "path": "/", **resolve(TABLES["long_requests"][number], VALUES)}
    request = wire.WireRequest(**row | {"body": row.get("body", "").encode()})
    check_lengths(sent(request, is_signed=is_signed), caplog)


@pytest.mark.parametrize("number", range(len(TABLES["long_signatures"])))
@pytest.mark.parametrize("path", ["/", "/v1/queues"])
def test_long_values_of_the_signer(sent: Sender, caplog: pytest.LogCaptureFixture, number: int, path: str) -> None:
    authorization = resolve(TABLES["long_signatures"][number], VALUES)
    headers = {"Authorization": authorization, "X-Amz-Date": VALUES["head"], f"X-Amz-{VALUES['head'][:20_000]}": "1"}
    check_lengths(sent(wire.WireRequest("GET", path, headers, "", b""), is_signed=False), caplog)


# --- values that must not be logged --------------------------------------------------------------------------


@calls("secret_calls")
def test_refused_ids_and_handles_are_not_in_the_log(
    sent: Sender, caplog: pytest.LogCaptureFixture, protocol: wire.Protocol, action: str, params: dict[str, Any]
) -> None:
    answer = sent(wire.encode(protocol, action, resolve(params, VALUES)))
    assert SECRET.encode() in answer.body
    assert caplog.records
    assert not any(SECRET in line for line in lines(caplog))
    assert any(MASK in line for line in lines(caplog))


def test_handles_that_count_for_nothing_are_not_in_the_log(sent: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """A handle of another queue, and one whose message is gone."""

    def done(action: str, **params: Any) -> dict[str, Any]:
        answer = wire.decode("json", action, sent(wire.encode("json", action, {"QueueUrl": "q"} | params)))
        assert isinstance(answer, dict), answer
        return answer

    done("SendMessage", MessageBody="m")
    handle = done("ReceiveMessage")["Messages"][0]["ReceiptHandle"]
    done("DeleteMessage", ReceiptHandle=handle)
    caplog.clear()
    for queue in ("q", "q.fifo"):
        params = {"QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 1}
        assert handle.encode() in sent(wire.encode("json", "ChangeMessageVisibility", params)).body
    assert len(caplog.records) == 2
    assert not any(handle in line for line in lines(caplog))
