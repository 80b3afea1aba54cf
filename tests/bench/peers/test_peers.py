"""Load on other brokers: every counted message was confirmed, or received and acknowledged."""

import asyncio
import struct
from typing import Any

import pytest

from bench.jobs import BATCH, BODY_BYTES
from bench.load import LoadError, LoadGenerator
from bench.peers.amqp import METHOD, Amqp, AmqpFrames, Confirms, frame
from bench.peers.load import connect_by
from bench.peers.nats import Messages, Nats
from tests.bench.fake_brokers import FakeNats, FakeRabbit, running

HOST = "127.0.0.1"


def load(port: int, connections: int, greet: Any) -> LoadGenerator:
    return LoadGenerator(HOST, port, connections, connect_by(greet))


async def test_rabbitmq_confirms_what_is_counted() -> None:
    async with running(FakeRabbit()) as broker:
        queue = await asyncio.to_thread(Amqp, HOST, broker.port, "queue")
        async with load(broker.port, 3, queue.publisher) as connections:
            window = await connections.drain(queue.publish(1, 30))
            filled = await connections.drain(queue.publish(20, 60))
    assert (window.messages, window.calls, filled.messages, filled.calls) == (30, 30, 60, 3)
    assert len(broker.messages) == len(set(broker.messages)) == 90
    assert {len(body) for body in broker.messages} == {BODY_BYTES}


async def test_rabbitmq_acknowledges_ten_messages_at_a_time() -> None:
    async with running(FakeRabbit()) as broker:
        queue = await asyncio.to_thread(Amqp, HOST, broker.port, "queue")
        broker.messages += [b"%d" % number for number in range(4 * BATCH)]
        left, consume = iter(range(4)), queue.consume()
        async with load(broker.port, 1, queue.consumer) as connections:
            window = await connections.drain(lambda: None if next(left, None) is None else consume())
            async with asyncio.timeout(60):
                while len(broker.acknowledged) < 4:
                    await asyncio.sleep(0.001)
    assert window.messages == 4 * BATCH
    assert broker.acknowledged == [(BATCH * number, True) for number in range(1, 5)]


async def test_a_message_that_rabbitmq_refuses_ends_the_load() -> None:
    async with running(FakeRabbit()) as broker:
        broker.refuse = True
        queue = await asyncio.to_thread(Amqp, HOST, broker.port, "queue")
        async with load(broker.port, 1, queue.publisher) as connections:
            with pytest.raises(LoadError, match="no confirmation but method"):
                await connections.drain(queue.publish(1, 3))


def test_confirmations_count_one_by_one_and_together() -> None:
    def confirmed(tag: int, several: bool) -> bytes:
        return frame(METHOD, struct.pack(">HHQB", 60, 80, tag, several))

    codec = Confirms(AmqpFrames())
    one = b"\0\x3c\0\x28\0\0\0"
    codec.say(5 * one)
    assert codec.received(b"") is None
    assert codec.received(confirmed(5, False) + confirmed(3, True)) is None
    last = confirmed(4, False)
    assert codec.received(last[:9]) is None
    assert codec.received(last[9:]) is not None
    codec.say(one)
    assert codec.received(b"") is None


async def test_nats_stores_and_hands_out_what_is_counted() -> None:
    async with running(FakeNats()) as broker:
        stream = await asyncio.to_thread(Nats, HOST, broker.port, "s")
        assert [subject.split(b".")[2] for subject in broker.created] == [b"STREAM", b"CONSUMER"]
        async with load(broker.port, 2, stream.client) as connections:
            published = await connections.drain(stream.publish(1, 10))
            filled = await connections.drain(stream.publish(5, 10))
            assert len(set(broker.messages)) == 20
            left, consume = iter(range(2)), stream.consume()
            taken = await connections.drain(lambda: None if next(left, None) is None else consume())
    assert (published.messages, filled.messages, taken.messages) == (10, 10, 20)
    assert (published.calls, filled.calls, taken.calls) == (10, 2, 4)
    assert not broker.messages
    assert broker.acknowledged == [b"+ACK"] * 20
    assert broker.pongs > 0


async def test_a_refusal_of_jetstream_ends_the_load() -> None:
    async with running(FakeNats()) as broker:
        stream = await asyncio.to_thread(Nats, HOST, broker.port, "s")
        broker.error = b'{"error":{"code":503}}'
        async with load(broker.port, 1, stream.client) as connections:
            with pytest.raises(LoadError, match="JetStream says"):
                await connections.drain(stream.publish(1, 1))


def test_messages_of_nats_may_hold_line_ends() -> None:
    messages = Messages()
    data = b"MSG a 1 4\r\n\r\n\r\n\r\nMSG b 1 reply 2\r\nhi\r\n"
    found = [message for place in range(len(data)) for message in messages.feed(data[place : place + 1])]
    assert found == [(b"", b"\r\n\r\n"), (b"reply", b"hi")]
    with pytest.raises(LoadError, match="Slow Consumer"):
        messages.feed(b"-ERR 'Slow Consumer'\r\n")
