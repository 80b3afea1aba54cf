"""Sampling of calls, and the fate of spans while the collector is down."""

import asyncio
import itertools
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from telemetry import spans, traces
from telemetry.headers import RemoteSpan, read_parent
from telemetry.spans import Sampler, Span, Tracing
from telemetry.trace_metrics import CALLS_PER_SECOND_MAX, CALLS_SKIPPED, LOST_UNDELIVERED, LOST_WAITING, SPANS_LOST
from tests.closing import closing
from tests.servers.server import free_port
from tests.servers.waiting import until
from tests.telemetry.collector import Collector

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + b"0"
ABOUT = {"service.name": "holdfast", "holdfast.role": "all"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send spans at once, not every five seconds."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@asynccontextmanager
async def started(endpoint: str, ratio: float = 0) -> AsyncIterator[Tracing]:
    async with closing(await traces.start(f"{endpoint}/v1/traces", ratio, ABOUT)) as tracing:
        yield tracing


@pytest.fixture
def collector(quick: None) -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


# --- sampling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "sampled_min", "sampled_max"), [(0.01, 900, 1100), (0.5, 49_000, 51_000), (0, 0, 0), (1, 10**5, 10**5)]
)
def test_the_ratio_determines_the_share_of_samples(ratio: float, sampled_min: int, sampled_max: int) -> None:
    sampler = Sampler(ratio, random.Random(1))
    assert sampled_min <= sum(not sampler.skips() for _ in range(100_000)) <= sampled_max


def test_sampling_does_not_depend_on_earlier_calls() -> None:
    """After a sampled call the next one is as likely to be sampled as any."""
    sampler = Sampler(0.1, random.Random(2))
    drawn = [not sampler.skips() for _ in range(200_000)]
    after = [now for before, now in itertools.pairwise(drawn) if before]
    assert 0.09 < sum(after) / len(after) < 0.11


async def test_the_callers_decision_overrides_the_ratio(collector: Collector) -> None:
    open_ = {b"x-amzn-trace-id": b"Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7"}
    async with started(collector.endpoint) as never, started(collector.endpoint, 1) as always:
        assert never.of_call({b"traceparent": PARENT}) is not None
        assert always.of_call({b"traceparent": UNSAMPLED}) is None
        for headers in ({}, open_, {b"traceparent": b"00-00-00-00"}, {b"x-amzn-trace-id": b"Root=1-4bf92f35"}):
            assert never.of_call(headers) is None
            assert always.of_call(headers) is not None


async def test_callers_do_not_get_more_than_a_process_bears(collector: Collector) -> None:
    passed_over = CALLS_SKIPPED.counts[0]
    async with started(collector.endpoint) as tracing:
        made = [tracing.of_call({b"traceparent": PARENT}) for _ in range(3 * CALLS_PER_SECOND_MAX)]
    sampled = sum(span is not None for span in made)
    assert CALLS_PER_SECOND_MAX <= sampled <= 2 * CALLS_PER_SECOND_MAX, "one second, or two of them"
    assert CALLS_SKIPPED.counts[0] - passed_over == len(made) - sampled


def test_the_budget_is_renewed_each_second() -> None:
    sampler = Sampler(0)
    for second in (7.0, 8.5):
        assert [sampler.has_room(second) for _ in range(CALLS_PER_SECOND_MAX + 1)].count(True) == CALLS_PER_SECOND_MAX


# --- content of spans --------------------------------------------------------------------------------------


async def test_a_span_arrives_with_its_parent_and_state(collector: Collector) -> None:
    sent = read_parent(PARENT)
    assert sent is not None

    async def fails() -> None:
        raise OSError("full")

    async with started(collector.endpoint) as tracing:
        span = tracing.of_call({b"traceparent": PARENT, b"tracestate": b"rojo=1,congo=2"})
        assert span is not None
        span.link(RemoteSpan(0xA, 0xB, True), "m")
        with pytest.raises(OSError, match="full"):
            await span.during("part", fails())
        span.set_attributes({"a": 1})
        span.end("work")
    (part,), (work,) = collector.named("part"), collector.named("work")
    assert (work.trace_id, work.parent_id, work.state) == (
        f"{sent.trace_id:032x}",
        f"{sent.span_id:016x}",
        "rojo=1,congo=2",
    )
    assert work.links == [(f"{0xA:032x}", f"{0xB:016x}")]
    assert work.attributes == {"a": 1}
    assert not work.failed
    assert (part.trace_id, part.parent_id, part.failed) == (work.trace_id, work.span_id, True)
    assert part.attributes == {"error.type": "OSError"}
    assert work.started_ns <= part.started_ns <= part.ended_ns <= work.ended_ns


async def test_a_call_of_a_peer_continues_its_trace(collector: Collector) -> None:
    async with started(collector.endpoint, 1) as ours, started(collector.endpoint) as other:
        span = ours.of_call({b"tracestate": b"a=1"})
        assert span is not None
        at_peer = other.of_peer(span.place.pack(), "asked")
        assert at_peer is not None
        assert other.of_peer(b"nonsense", "asked") is None
        at_peer.end()
        span.end("asks")
    (asks,), (asked,) = collector.named("asks"), collector.named("asked")
    assert (asked.trace_id, asked.parent_id) == (asks.trace_id, asks.span_id)
    assert asks.parent_id == ""


# --- a collector that is down ------------------------------------------------------------------------------


def lost() -> int:
    return SPANS_LOST.counts[LOST_UNDELIVERED]


def make(tracing: Tracing, count: int) -> None:
    for _ in range(count):
        tracing.of_delivery("delivery", []).end()


@pytest.mark.parametrize("status", [400, 404])
async def test_refused_spans_are_counted_and_logged_once(
    collector: Collector, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = status
    before = lost()
    async with started(collector.endpoint) as tracing:
        make(tracing, 3)
        await until(lambda: lost() >= before + 3)
        make(tracing, 2)
        await until(lambda: lost() >= before + 5)
        caplog.set_level(logging.INFO, "holdfast.telemetry")
        collector.status = 200
        make(tracing, 1)
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert f"traces do not reach {collector.endpoint}" in messages[0]
    assert "again" in messages[1]
    assert len(collector.spans) == 1


async def test_a_collector_that_is_away_blocks_no_caller(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue fills, and then spans are dropped at once: neither calls nor the end wait."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "60")
    monkeypatch.setattr(spans, "QUEUE_SPANS_MAX", 600)
    monkeypatch.setattr(spans, "CLOSE_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    async with started(f"http://127.0.0.1:{free_port()}") as tracing:
        before = SPANS_LOST.counts[LOST_WAITING]
        started_at = loop.time()
        make(tracing, 5000)
        assert SPANS_LOST.counts[LOST_WAITING] - before >= 5000 - 600 - 2 * spans.BATCH_SPANS
        assert loop.time() - started_at < 30, "a send that is tried for a minute is not waited for"
        started_at = loop.time()
    assert loop.time() - started_at < 10


# --- nothing is loaded unless needed -----------------------------------------------------------------------


def test_without_a_collector_nothing_of_it_is_loaded() -> None:
    program = (
        "import sys; import holdfast.process.embedded, holdfast.process.frontend; "
        "print([name for name in ('telemetry.spans', 'opentelemetry.sdk', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_work_that_was_left_behind_is_no_part_of_the_call(collector: Collector) -> None:
    async with started(collector.endpoint, 1) as tracing:
        span = tracing.of_call({})
        assert isinstance(span, Span)
        traces.current.set(span)
        task = asyncio.create_task(asyncio.sleep(0, traces.current.get()))
        span.end("call")
        left = await task
        assert left is span
        assert left.ended
