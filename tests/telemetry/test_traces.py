"""Sampling of calls, and the fate of spans while the collector is down."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from telemetry import spans, traces
from telemetry.headers import RemoteSpan, read_parent
from telemetry.spans import Sampler, Span, Tracing
from telemetry.trace_metrics import CALLS_PASSED_OVER, CALLS_PER_SECOND_MOST, LOST_UNDELIVERED, LOST_WAITING, SPANS_LOST
from tests.servers.server import free_port
from tests.telemetry.collector import Collector

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + b"0"
ABOUT = {"service.name": "holdfast", "holdfast.role": "all"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send spans at once, not every five seconds."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


async def start(endpoint: str, ratio: float = 0) -> Tracing:
    return await traces.start(f"{endpoint}/v1/traces", ratio, ABOUT)


@pytest.fixture
async def collector(quick: None) -> AsyncIterator[Collector]:
    with Collector() as collector:
        yield collector


# --- sampling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "least", "most"), [(0.01, 900, 1100), (0.5, 49_000, 51_000), (0, 0, 0), (1, 10**5, 10**5)]
)
def test_so_many_are_sampled_as_the_ratio_says(ratio: float, least: int, most: int) -> None:
    sampler = Sampler(ratio, random.Random(1))
    assert least <= sum(not sampler.passes_over() for _ in range(100_000)) <= most


def test_which_ones_are_sampled_does_not_follow_from_those_before() -> None:
    """After a sampled call the next one is as likely to be sampled as any."""
    sampler = Sampler(0.1, random.Random(2))
    drawn = [not sampler.passes_over() for _ in range(200_000)]
    after = [now for before, now in itertools.pairwise(drawn) if before]
    assert 0.09 < sum(after) / len(after) < 0.11


async def test_the_callers_word_goes_before_the_ratio(collector: Collector) -> None:
    never, always = await start(collector.endpoint), await start(collector.endpoint, 1)
    open_ = {b"x-amzn-trace-id": b"Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7"}
    try:
        assert never.of_call({b"traceparent": PARENT}) is not None
        assert always.of_call({b"traceparent": UNSAMPLED}) is None
        for headers in ({}, open_, {b"traceparent": b"00-00-00-00"}, {b"x-amzn-trace-id": b"Root=1-4bf92f35"}):
            assert never.of_call(headers) is None
            assert always.of_call(headers) is not None
    finally:
        await never.close()
        await always.close()


async def test_callers_do_not_get_more_than_a_process_bears(collector: Collector) -> None:
    tracing = await start(collector.endpoint)
    passed_over = CALLS_PASSED_OVER.counts[0]
    try:
        made = [tracing.of_call({b"traceparent": PARENT}) for _ in range(3 * CALLS_PER_SECOND_MOST)]
    finally:
        await tracing.close()
    sampled = sum(span is not None for span in made)
    assert CALLS_PER_SECOND_MOST <= sampled <= 2 * CALLS_PER_SECOND_MOST, "one second, or two of them"
    assert CALLS_PASSED_OVER.counts[0] - passed_over == len(made) - sampled


def test_room_comes_back_with_each_second() -> None:
    sampler = Sampler(0)
    for second in (7.0, 8.5):
        assert [sampler.has_room(second) for _ in range(CALLS_PER_SECOND_MOST + 1)].count(True) == CALLS_PER_SECOND_MOST


# --- content of spans --------------------------------------------------------------------------------------


async def test_a_span_arrives_with_its_parent_and_state(collector: Collector) -> None:
    tracing = await start(collector.endpoint)
    span = tracing.of_call({b"traceparent": PARENT, b"tracestate": b"rojo=1,congo=2"})
    assert span is not None
    sent = read_parent(PARENT)
    assert sent is not None
    span.link(RemoteSpan(0xA, 0xB, True), "m")

    async def fails() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        await span.during("part", fails())
    span.set_attributes({"a": 1})
    span.end("work")
    await tracing.close()
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
    assert work.began_ns <= part.began_ns <= part.ended_ns <= work.ended_ns


async def test_what_a_peer_asks_goes_on_in_its_trace(collector: Collector) -> None:
    ours, theirs = await start(collector.endpoint, 1), await start(collector.endpoint)
    span = ours.of_call({b"tracestate": b"a=1"})
    assert span is not None
    at_peer = theirs.of_peer(span.place.pack(), "asked")
    assert at_peer is not None
    assert theirs.of_peer(b"nonsense", "asked") is None
    at_peer.end()
    span.end("asks")
    await ours.close()
    await theirs.close()
    (asks,), (asked,) = collector.named("asks"), collector.named("asked")
    assert (asked.trace_id, asked.parent_id) == (asks.trace_id, asks.span_id)
    assert asks.parent_id == ""


# --- a collector that is down ------------------------------------------------------------------------------


def lost() -> int:
    return SPANS_LOST.counts[LOST_UNDELIVERED]


async def until_lost(count: int) -> None:
    async with asyncio.timeout(60):
        while lost() < count:
            await asyncio.sleep(0.01)


def make(tracing: Tracing, count: int) -> None:
    for _ in range(count):
        tracing.of_delivery("delivery", []).end()


@pytest.mark.parametrize("status", [400, 404])
async def test_spans_that_are_refused_are_counted_and_told_once(
    collector: Collector, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = status
    before = lost()
    tracing = await start(collector.endpoint)
    make(tracing, 3)
    await until_lost(before + 3)
    make(tracing, 2)
    await until_lost(before + 5)
    with caplog.at_level(logging.INFO, "holdfast.telemetry"):
        collector.status = 200
        make(tracing, 1)
        await tracing.close()
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert f"traces do not reach {collector.endpoint}" in told[0]
    assert "again" in told[1]
    assert len(collector.spans) == 1


async def test_a_collector_that_is_away_keeps_nobody_waiting(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue fills, and then spans are dropped at once: neither calls nor the end wait."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "60")
    monkeypatch.setattr(spans, "QUEUE_SPANS_MOST", 600)
    monkeypatch.setattr(spans, "CLOSE_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    tracing = await start(f"http://127.0.0.1:{free_port()}")
    before = SPANS_LOST.counts[LOST_WAITING]
    started_at = loop.time()
    make(tracing, 5000)
    assert SPANS_LOST.counts[LOST_WAITING] - before >= 5000 - 600 - 2 * spans.BATCH_SPANS
    assert loop.time() - started_at < 30, "a send that is tried for a minute is not waited for"
    started_at = loop.time()
    await tracing.close()
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
    tracing = await start(collector.endpoint, 1)
    span = tracing.of_call({})
    assert isinstance(span, Span)
    traces.current.set(span)
    task = asyncio.create_task(asyncio.sleep(0, traces.current.get()))
    span.end("call")
    left = await task
    assert left is span
    assert left.ended
    await tracing.close()
