"""Signed calls of SNS with any forms, over the whole frontend and a backend in memory.

For any form the answer is 200 or a registered client error, in XML, with a request id; never a server error.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import shutil
import tempfile
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

from frontend.settings import FrontendSettings
from frontend.sns.protocol.errors import SNS_REGISTRY
from frontend.sqs.protocol.errors import REGISTRY
from tests.behaviour.wire import WireRequest
from tests.behaviour.world import exchange
from tests.frontend.service import HOST, KEY, FrontendService, running, sign
from tests.fuzz import sns_targets
from tests.fuzz.grammar import Draws
from tests.fuzz.kafka_targets import promise

FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
CODES = frozenset(kind.query_code for kind in (*SNS_REGISTRY.values(), *REGISTRY.values()))
BODY_BYTES_MAX = FrontendSettings().max_body_bytes
FURNISHED = (
    b"Action=CreateTopic&Version=2010-03-31&Name=t",
    b"Action=CreateTopic&Version=2010-03-31&Name=t.fifo&Attributes.entry.1.key=FifoTopic&Attributes.entry.1.value=true",
    b"Action=Subscribe&Version=2010-03-31&Protocol=sqs"
    b"&TopicArn=arn:aws:sns:us-east-1:000000000000:t&Endpoint=arn:aws:sqs:us-east-1:000000000000:q",
)
"""Calls for a topic of each kind and a subscription; a form may delete them, or set attributes that refuse them."""
FURNISHED_EVERY = 20
PUBLISHED = b"Action=Publish&Version=2010-03-31&TopicArn=arn:aws:sns:us-east-1:000000000000:t&Message=m"


class SnsDoor:
    """A frontend with a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        logging.getLogger("holdfast.sqs").propagate = False
        self._running = running(Path(folder))
        self._service: FrontendService = self.loop.run_until_complete(self._running.__aenter__())
        self.loop.run_until_complete(self._service.make_queue("q"))
        self._feeds = 0
        self.feed([_of_account(PUBLISHED)])  # the first call initializes more than others

    def feed(self, forms: list[bytes]) -> bool:
        """Make calls one after another, which may find a topic and a subscription; True if one was accepted."""
        return self.loop.run_until_complete(self._feed(forms))

    async def _feed(self, forms: list[bytes]) -> bool:
        if self._feeds % FURNISHED_EVERY == 0:
            for form in FURNISHED:
                await self._call(_of_account(form))
        self._feeds += 1
        taken = False
        for form in forms:
            taken |= await self._call(form)
        return taken

    async def _call(self, form: bytes) -> bool:
        headers = sign("POST", "/", form, FORM, self._service.clock(), KEY, "sns")
        answer = await exchange(self._service.app, WireRequest("POST", "/", {**headers, "Host": HOST}, "", form))
        promise(answer.status < 500, f"answered {answer.status}: {answer.body!r}")
        root = ET.fromstring(answer.body)
        promise("x-amzn-requestid" in answer.headers, "an answer without an id")
        if answer.status == 200:
            return True
        # SQS's format has an error of a form that cannot be read, or is of neither service
        codes = [element.text for element in root.iter() if element.tag.endswith("}Code")]
        promise(len(codes) == 1 and codes[0] in CODES, f"the codes {codes} are not registered")
        return False


@cache
def door() -> SnsDoor:
    return SnsDoor()


def make_calls(draws: Draws) -> list[bytes]:
    door()  # its start is no part of a call's cost
    return [_of_account(_versioned(sns_targets.make_form(draws))) for _ in range(draws.one((1, 1, 2)))]


def large_calls(draws: Draws, length: int) -> list[bytes]:
    door()
    return [_of_account(sns_targets.large_form(draws, min(length, BODY_BYTES_MAX - 1_000)))]


def feed_calls(forms: list[bytes]) -> bool:
    return door().feed(forms)


def _of_account(form: bytes) -> bytes:
    """A form with the caller's account."""
    return form.replace(b"000000000000", KEY.account.encode())


def _versioned(form: bytes) -> bytes:
    """A form that belongs to SNS by its version, unless it has another one."""
    return form if b"Version=" in form else form + b"&Version=2010-03-31"
