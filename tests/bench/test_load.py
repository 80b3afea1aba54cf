"""Short runs of the load generator on a fake queue: it signs, sends, receives and counts."""

import itertools
from array import array
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from bench.jobs import BODY_BYTES, Groups, Sqs
from bench.load import Call, Job, LoadAnswer, LoadError, LoadGenerator, Samples, Window, parse_answer, quantile
from tests.bench.fake_sqs import FakeSqs
from tests.servers.signing import RequestSigner, SigningCredentials

CREDENTIALS = SigningCredentials("AKIATEST", "secret/+of=a kind", "eu-west-3")
URL = "http://host/000000000000/queue"
HOST = "127.0.0.1"


@pytest.fixture
async def fake() -> AsyncIterator[FakeSqs]:
    async with FakeSqs(CREDENTIALS) as server:
        yield server


def sqs_of(fake: FakeSqs, groups: int | None = None) -> Sqs:
    return Sqs(RequestSigner(f"{HOST}:{fake.port}", CREDENTIALS), Groups(groups) if groups else None)


async def test_every_message_that_was_counted_was_sent_received_and_deleted_once(fake: FakeSqs) -> None:
    sqs = sqs_of(fake)
    async with LoadGenerator(HOST, fake.port, 5) as load:
        sent = await load.drain(sqs.send_batch(itertools.repeat(URL), 200))
        received = await load.drain(sqs.receive_and_delete(URL, 200))
    assert (sent.calls, sent.messages, sent.errors) == (20, 200, 0)
    assert (received.messages, received.errors) == (200, 0)
    assert fake.calls["DeleteMessageBatch"] == 20
    assert not fake.waiting
    assert not fake.handed_out
    assert len(set(fake.bodies)) == 200
    assert {len(body) for body in fake.bodies} == {BODY_BYTES}


async def test_receiving_ends_when_enough_messages_arrived(fake: FakeSqs) -> None:
    sqs = sqs_of(fake)
    async with LoadGenerator(HOST, fake.port, 1) as load:
        await load.drain(sqs.send_batch(itertools.repeat(URL), 100))
        window = await load.drain(sqs.receive_and_delete(URL, 30))
    assert window.messages == 30
    assert len(fake.waiting) == 70


async def test_groups_take_turns_and_deduplication_ids_are_never_repeated(fake: FakeSqs) -> None:
    sqs = sqs_of(fake, groups=3)
    async with LoadGenerator(HOST, fake.port, 2) as load:
        await load.drain(sqs.send_batch(itertools.repeat(URL), 60))
    assert set(Counter(group for group, _ in fake.groups).values()) == {20}
    assert len({token for _, token in fake.groups}) == 60


async def test_the_window_of_a_closed_load_counts_what_was_answered_in_it(fake: FakeSqs) -> None:
    marks: list[int] = []
    async with LoadGenerator(HOST, fake.port, 4) as load:
        jobs = sqs_of(fake).mixed(URL)
        window = await load.closed(jobs, 0.05, 0.2, lambda: marks.append(sum(fake.calls.values())))
    started_at, ended = marks
    assert abs(window.calls - (ended - started_at)) <= 4
    assert window.calls == sum(len(samples.latency) for samples in window.samples.values())
    assert set(window.samples) == {"SendMessage", "ReceiveMessage", "DeleteMessage"}
    assert window.errors == 0
    assert not fake.handed_out


async def test_a_paced_load_starts_as_many_jobs_as_were_due(fake: FakeSqs) -> None:
    async with LoadGenerator(HOST, fake.port, 4) as load:
        window = await load.paced(sqs_of(fake).send(itertools.repeat(URL)), 400, 0, 0.5, lambda: None)
    assert 100 < window.calls < 300  # 200, with a deviation of 14
    assert window.messages == window.calls


async def test_latency_of_a_paced_load_counts_from_when_the_call_was_due(fake: FakeSqs) -> None:
    """One connection cannot keep up with the pace, so waiting calls have a higher latency."""
    async with LoadGenerator(HOST, fake.port, 1) as load:
        window = await load.paced(sqs_of(fake).send(itertools.repeat(URL)), 50_000, 0, 0.3, lambda: None)
    assert max(window.samples["SendMessage"].latency) > 0.1


async def test_refused_calls_are_counted_and_the_first_is_kept(fake: FakeSqs) -> None:
    fake.refuse.add("SendMessage")
    left = iter(range(7))
    send = sqs_of(fake).send(itertools.repeat(URL))
    async with LoadGenerator(HOST, fake.port, 2) as load:
        window = await load.drain(lambda: None if next(left, None) is None else send())
    assert (window.calls, window.errors, window.messages) == (7, 7, 0)
    assert "SendMessage: 500" in window.first_error


async def test_a_wrong_signature_is_an_error(fake: FakeSqs) -> None:
    sqs = Sqs(RequestSigner(f"{HOST}:{fake.port}", CREDENTIALS._replace(secret="another")))
    async with LoadGenerator(HOST, fake.port, 1) as load:
        window = await load.drain(sqs.create_queues(iter(["q"])))
    assert window.errors == 1
    assert "SignatureDoesNotMatch" in window.first_error


async def test_an_entry_that_failed_makes_the_call_an_error(fake: FakeSqs) -> None:
    sqs = sqs_of(fake)
    async with LoadGenerator(HOST, fake.port, 1) as load:
        await load.drain(sqs.send_batch(itertools.repeat(URL), 10))
        fake.waiting[3]["ReceiptHandle"] = fake.waiting[4]["ReceiptHandle"]
        window = await load.drain(sqs.receive_and_delete(URL, 10))
    assert window.errors == 1
    assert "DeleteMessageBatch" in window.first_error


async def test_chunked_answers_are_understood(fake: FakeSqs) -> None:
    fake.chunked = True
    async with LoadGenerator(HOST, fake.port, 2) as load:
        window = await load.drain(sqs_of(fake).send_batch(itertools.repeat(URL), 50))
    assert (window.messages, window.errors) == (50, 0)


async def test_a_connection_that_closes_ends_the_load(fake: FakeSqs) -> None:
    def job() -> Job:
        yield "Nonsense", b"\r\n\r\n"
        return 0

    async with LoadGenerator(HOST, fake.port, 1) as load:
        with pytest.raises(LoadError, match="closed"):
            await load.drain(job)


def test_a_signer_follows_the_clock_to_the_next_day() -> None:
    now = [1_790_000_000.0]
    signer = RequestSigner("host", CREDENTIALS, lambda: now[0])
    first = signer.request("ListQueues", b"{}")
    assert signer.request("ListQueues", b"{}") == first
    now[0] += 86_400
    second = signer.request("ListQueues", b"{}")
    assert b"X-Amz-Date: 20260921T" in first
    assert b"/20260922/eu-west-3/sqs/aws4_request" in second


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", LoadAnswer(200, b"{}")),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nx: y\r\n\r\n", LoadAnswer(404, b"")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", None),
        (b"HTTP/1.1 200 OK\r\nContent-Le", None),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n",
            LoadAnswer(200, b"abcd"),
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", None),
    ],
)
def test_answers_are_parsed_when_they_are_whole(data: bytes, answer: LoadAnswer | None) -> None:
    assert parse_answer(data) == answer


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}"])
def test_answers_that_cannot_be_distinguished_are_refused(data: bytes) -> None:
    with pytest.raises(LoadError):
        parse_answer(data)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.51, 3.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_quantiles_are_values_that_were_measured(values: list[float], q: float, expected: float) -> None:
    assert quantile(array("d", values), q) == expected


def test_a_window_sorts_the_latencies_of_all_actions_together() -> None:
    window = Window()
    window.samples = {"A": Samples(), "B": Samples()}
    window.samples["A"].latency.extend([3.0, 1.0])
    window.samples["B"].latency.append(2.0)
    assert list(window.latencies()) == [1.0, 2.0, 3.0]


def test_a_call_is_a_name_and_bytes() -> None:
    call: Call = next(Sqs(RequestSigner("host", CREDENTIALS)).send(itertools.repeat(URL))())  # type: ignore[arg-type]
    assert call[0] == "SendMessage"
    assert call[1].startswith(b"POST / HTTP/1.1\r\nHost: host\r\n")
