"""Requests beside Kafka's own broker: the answers are the same, or a reason is given."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct

from frontend.kafka.protocol.versions import BY_KEY
from tests.frontend.kafka.listener.kafka_service import CodecClient, connected
from tests.frontend.kafka.listener.sign_ins import scram
from tests.frontend.kafka.messages import APIS, class_of
from tests.frontend.kafka.test_batches import GOOD
from tests.servers.java.kafka_broker import KafkaBroker
from tests.servers.server import Server, free_port
from tests.tables import beside

CASES: list[dict[str, Any]] = beside(__file__, "broker_requests.yaml")
UNSTABLE = {6, 14, 15, 16}
"""Errors of Kafka while it makes a topic, and its own topic of offsets: the request is repeated."""
READS = {"Metadata", "DescribeConfigs", "ListOffsets", "Fetch", "OffsetFetch", "DescribeGroups", "ListGroups"}
"""Requests that are repeated for :data:`APPLIED_SECONDS` if the answer is another one than expected: Kafka's broker
applies what its controller has decided a little later."""
APPLIED_SECONDS = 5
READY_SECONDS = 60
NOT_COMPARED = {
    "throttle_time_ms",
    "error_message",
    "topic_id",
    "cluster_id",
    "host",
    "port",
    "client_id",
    "client_host",
    "documentation",
    "config_source",
    "leader_epoch",
    "committed_leader_epoch",
    "topic_config_error_code",
    "producer_id",
    "log_append_time_ms",
}
"""Fields that differ between two services, or between two starts of one."""
CONFIGS_COMPARED = ("name", "value", "read_only", "is_sensitive", "config_type")
_BY_NAME = {api.name: api for api in APIS}
_OLDEST = {api.name: api.version_min for api in BY_KEY.values()} | {"Produce": 3, "Metadata": 1}
"""First versions that are served.  Of Produce, earlier ones are announced; Metadata 0 lists a topic of Kafka's own."""
_PARTITION_EPOCH = slice(12, 16)
"""Place of the leader's epoch in a batch."""


# --- cases in old versions ---------------------------------------------------------------------------------


def in_oldest_version(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case in the first version that is served, which names one group where later ones name several."""
    api = case["api"].split()[0]
    request = dict(case["request"])
    if api == "OffsetFetch":
        (group,) = request["groups"]
        request = {"group_id": group["group_id"], "topics": group["topics"] or []}
    elif api == "FindCoordinator":
        (request["key"],) = request.pop("coordinator_keys")
    elif api == "LeaveGroup":
        (member,) = request.pop("members")
        request["member_id"] = member["member_id"]
    return {**case, "name": f"{case['name']}, oldest", "api": f"{api} {_OLDEST[api]}", "request": request}


ALL_CASES = CASES + [in_oldest_version(case) for case in CASES if "differs" not in case]
"""The latter find the state that the former leave: there are no topics and no groups."""


# --- requests and answers ----------------------------------------------------------------------------------


def struct_in(hint: Any) -> type[Struct]:
    """Return the class of the structures in a list."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    return next(struct_in(each) for each in get_args(hint) if each is not type(None))


def made(structure: type[Struct], given: Mapping[str, Any], member: str) -> Any:
    """Build a structure from the fields of a case."""
    hints = get_type_hints(structure)

    def value(name: str, of: Any) -> Any:
        if name == "records":
            return GOOD
        if isinstance(of, list):
            return [made(struct_in(hints[name]), each, member) if isinstance(each, dict) else each for each in of]
        return member if of == "$member" else of

    return structure(**{name: value(name, of) for name, of in given.items()})


def compared(answer: Any, member: str, name: str = "") -> Any:
    """Return an answer as plain values, without what always differs."""
    if isinstance(answer, Struct):
        fields = {each: getattr(answer, each) for each in answer.__struct_fields__}
        if name == "configs":
            return {each: fields[each] for each in CONFIGS_COMPARED if each in fields}
        kept = {each: of for each, of in fields.items() if each not in NOT_COMPARED}
        return {each: compared(of, member, each) for each, of in kept.items()}
    if isinstance(answer, list):
        return sorted((compared(each, member, name) for each in answer), key=repr)
    if isinstance(answer, bytes | bytearray | memoryview):
        data = bytearray(answer)
        data[_PARTITION_EPOCH] = bytes(len(data[_PARTITION_EPOCH]))
        return bytes(data)
    return "$member" if member and answer == member else answer


def codes(answer: Any) -> Iterator[int]:
    """Yield all error codes of an answer."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name == "error_code":
                yield value
            yield from codes(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from codes(each)


async def perform(client: CodecClient, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Send all requests, in order; return the answers by name.  ``expected``: answers, if they are known."""
    answers: dict[str, Any] = {}
    member = ""
    for case in ALL_CASES:
        api, version = case["api"].split()
        request = made(class_of(_BY_NAME[api].request), case["request"], member)
        wanted = expected.get(case["name"]) if api in READS and "differs" not in case else None
        started_at = time.monotonic()
        while True:
            answer = await client.call(api, int(version), request)
            found = compared(answer, member)
            passed = time.monotonic() - started_at
            if UNSTABLE & set(codes(found)):
                assert passed < READY_SECONDS, f"{case['name']}: {found}"
            elif wanted in (None, found) or passed > APPLIED_SECONDS:
                break
            await asyncio.sleep(0.1)
        if "save" in case:
            member = getattr(answer, case["save"])
            found = compared(answer, member)
        answers[case["name"]] = found
        for topic, count in case.get("until", {}).items():
            await partitions_are(client, topic, count)
        if "gone" in case:
            await partitions_are(client, case["gone"], 0)
    return answers


async def partitions_are(client: CodecClient, topic: str, count: int) -> None:
    """Wait until the topic has so many partitions, each with a leader."""
    names = [{"name": topic}]
    request = made(class_of(_BY_NAME["Metadata"].request), {"topics": names, "allow_auto_topic_creation": False}, "")
    end = time.monotonic() + READY_SECONDS
    while True:
        (found,) = (await client.call("Metadata", 9, request)).topics
        if len(found.partitions) == count and not any(one.error_code for one in found.partitions):
            return
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)


# --- the two services --------------------------------------------------------------------------------------


async def of_kafka(broker: KafkaBroker, expected: Mapping[str, Any]) -> dict[str, Any]:
    async with connected(broker.port) as client:
        return await perform(client, expected)


async def of_holdfast(server: Server, port: int) -> dict[str, Any]:
    async with connected(port) as client:
        answer = await scram(client, "SCRAM-SHA-256", server.access_key_id, server.secret_access_key)
        assert answer.error_code == 0, answer
        return await perform(client, {})


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Answers of Kafka and of Holdfast to each request."""
    port = free_port()
    with Server(tmp_path_factory.mktemp("holdfast"), {"KAFKA_PORT": str(port)}) as server:
        ours = asyncio.run(of_holdfast(server, port))
    with KafkaBroker() as broker:
        theirs = asyncio.run(of_kafka(broker, ours))
    return {name: (theirs[name], ours[name]) for name in theirs}


@pytest.mark.long
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case["name"])
def test_the_broker_answers_the_same(answers: dict[str, tuple[Any, Any]], case: dict[str, Any]) -> None:
    theirs, ours = answers[case["name"]]
    if "differs" in case:
        assert theirs != ours, "this is no difference any more"
    else:
        assert ours == theirs
