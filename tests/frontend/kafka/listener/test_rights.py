"""Rights: each API with each scope, with and without a fitting prefix, and other accounts' topics."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from auth.credentials import AccessKey, Tenant
from auth.principal import SCOPES, Scope
from frontend.kafka.dispatch import HANDLED
from frontend.kafka.protocol.generated import (
    configs,
    group_offsets,
    groups,
    membership,
    metadata,
    offsets,
    producers,
    topics,
)
from frontend.kafka.protocol.versions import ADVERTISED, BY_NAME
from frontend.streams.errors import ErrorCode
from tests.frontend.kafka.listener.kafka_service import CodecClient, KafkaService, running_kafka
from tests.frontend.kafka.listener.test_connections import fetch, produce
from tests.frontend.service import KEY

READ, WRITE, MANAGE = "streams:read", "streams:write", "streams:manage"
DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def topic_partitions(module: Any, request: str, **partition: Any) -> Callable[[str], Any]:
    def made(name: str) -> Any:
        parts = [getattr(module, f"{request}RequestPartition")(**partition)]
        topic = getattr(module, f"{request}RequestTopic")(name, partitions=parts)
        return getattr(module, f"{request}Request")(topics=[topic])

    return made


def offset_request(request: str, **more: Any) -> Callable[[str], Any]:
    def made(name: str) -> Any:
        body = topic_partitions(group_offsets, request)(name)
        body.group_id = name
        for field, value in more.items():
            setattr(body, field, value)
        return body

    return made


def joining(name: str) -> Any:
    protocols = [membership.JoinGroupRequestProtocol("range", b"")]
    return membership.JoinGroupRequest(name, 10_000, 10_000, protocol_type="consumer", protocols=protocols)


CALLS: dict[str, tuple[int, Callable[[str], Struct], set[str]]] = {
    "Produce": (9, lambda name: produce(topic=name), {WRITE}),
    "Fetch": (12, lambda name: fetch(topic=name), {READ}),
    "ListOffsets": (7, topic_partitions(offsets, "ListOffsets", timestamp=-1), {READ, WRITE, MANAGE}),
    "OffsetForLeaderEpoch": (4, topic_partitions(offsets, "OffsetForLeaderEpoch"), {READ, MANAGE}),
    "DeleteRecords": (2, topic_partitions(offsets, "DeleteRecords"), {MANAGE}),
    "Metadata": (
        9,
        lambda name: metadata.MetadataRequest([metadata.MetadataRequestTopic(name=name)]),
        {READ, WRITE, MANAGE},
    ),
    "InitProducerId": (4, lambda name: producers.InitProducerIdRequest(None), {WRITE}),
    "FindCoordinator": (4, lambda name: membership.FindCoordinatorRequest(coordinator_keys=[name]), {READ}),
    "JoinGroup": (5, joining, {READ}),
    "SyncGroup": (5, lambda name: membership.SyncGroupRequest(name, 1, "m"), {READ}),
    "Heartbeat": (4, lambda name: membership.HeartbeatRequest(name, 1, "m"), {READ}),
    "LeaveGroup": (
        5,
        lambda name: membership.LeaveGroupRequest(name, members=[membership.LeaveGroupRequestMember("m")]),
        {READ},
    ),
    "OffsetCommit": (8, offset_request("OffsetCommit"), {READ}),
    "OffsetFetch": (7, lambda name: group_offsets.OffsetFetchRequest(name, None), {READ}),
    "OffsetDelete": (0, offset_request("OffsetDelete"), {MANAGE}),
    "DescribeGroups": (5, lambda name: groups.DescribeGroupsRequest([name]), {READ, MANAGE}),
    "DeleteGroups": (2, lambda name: groups.DeleteGroupsRequest([name]), {MANAGE}),
    "CreateTopics": (
        7,
        lambda name: topics.CreateTopicsRequest([topics.CreateTopicsRequestTopic(name, -1, -1)], validate_only=True),
        {MANAGE},
    ),
    "DeleteTopics": (5, lambda name: topics.DeleteTopicsRequest(topic_names=[name]), {MANAGE}),
    "CreatePartitions": (
        3,
        lambda name: topics.CreatePartitionsRequest(
            [topics.CreatePartitionsRequestTopic(name, 5, None)], validate_only=True
        ),
        {MANAGE},
    ),
    "DescribeConfigs": (
        4,
        lambda name: configs.DescribeConfigsRequest([configs.DescribeConfigsRequestResource(2, name, None)]),
        {READ, WRITE, MANAGE},
    ),
    "AlterConfigs": (
        2,
        lambda name: configs.AlterConfigsRequest([configs.AlterConfigsRequestResource(2, name)], validate_only=True),
        {MANAGE},
    ),
    "IncrementalAlterConfigs": (
        1,
        lambda name: configs.IncrementalAlterConfigsRequest(
            [configs.IncrementalAlterConfigsRequestResource(2, name)], validate_only=True
        ),
        {MANAGE},
    ),
}
"""Version, request for a topic or group, and the scopes of which one suffices."""
_numbers = count()
OPEN = {"ApiVersions", "DescribeCluster", "ListGroups"}
"""APIs without a topic or group that anybody who has signed in may call."""


def errors_in(answer: Any) -> set[int]:
    """All error codes of an answer."""
    found: set[int] = set()
    for field in answer.__struct_fields__:
        value = getattr(answer, field)
        if field == "error_code":
            found.add(value)
        for one in value if isinstance(value, list) else ():
            if isinstance(one, Struct):
                found |= errors_in(one)
    return found


async def caller(service: KafkaService, *scopes: Scope, prefixes: tuple[str, ...] = ()) -> CodecClient:
    key = AccessKey(
        f"AKIAKEY000000000{next(_numbers):04}",
        "a secret access key",
        KEY.account,
        "AIDA",
        scopes=scopes,
        prefixes=prefixes,
    )
    await service.add_key(key)
    return await service.signed_in(key)


def test_every_api_has_a_handler_and_its_rights() -> None:
    handled = {name for name, api in BY_NAME.items() if api.key in HANDLED}
    assert handled == CALLS.keys() | OPEN
    assert {one.api_key for one in ADVERTISED} == HANDLED.keys() | {17, 36}


@pytest.mark.parametrize("name", CALLS)
async def test_rights_to_call(tmp_path: Path, name: str) -> None:
    version, request, sufficient = CALLS[name]
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        for scope in (READ, WRITE, MANAGE, "send", "receive", "manage", "monitor"):
            client = await caller(service, scope)  # type: ignore[arg-type]
            answer = await client.call(name, version, request("orders"))
            assert bool(errors_in(answer) & DENIED) is (scope not in sufficient), (scope, answer)
        for prefix, permitted in (("ord", True), ("other", False)):
            client = await caller(service, *SCOPES, prefixes=(prefix,))
            answer = await client.call(name, version, request("orders"))
            named = name != "InitProducerId"
            assert bool(errors_in(answer) & DENIED) is (named and not permitted), (prefix, answer)


async def test_lists_show_what_the_credential_may_be_used_for(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        for name in ("orders", "other"):
            await service.topic(name)
            commit = offset_request("OffsetCommit")(name)
            await (await service.signed_in()).call("OffsetCommit", 8, commit)
        for scopes, prefixes, seen in (
            (SCOPES, (), ["orders", "other"]),
            (SCOPES, ("ord",), ["orders"]),
            (("send",), (), []),
        ):
            client = await caller(service, *scopes, prefixes=prefixes)
            listed = await client.call("Metadata", 12, metadata.MetadataRequest(None))
            assert [topic.name for topic in listed.topics] == seen
            described = await client.call("ListGroups", 4, groups.ListGroupsRequest())
            assert sorted(group.group_id for group in described.groups) == seen


async def test_another_account_sees_nothing(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        (stream,) = service.catalog.streams.values()
        account = "210987654321"
        await service.store.credentials.put_tenant(Tenant(account, "others"))
        other = await service.add_key(AccessKey("AKIAOTHEROTHEROTHER", "a secret access key", account, "AIDA"))
        client = await service.signed_in(other)
        assert (await client.call("Metadata", 12, metadata.MetadataRequest(None))).topics == []
        answer = await client.call("Produce", 9, produce())
        assert errors_in(answer) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        request = fetch()
        request.topics[0].topic_id = stream.topic_id
        assert ErrorCode.UNKNOWN_TOPIC_ID in errors_in(await client.call("Fetch", 13, request))
        by_id = metadata.MetadataRequest([metadata.MetadataRequestTopic(stream.topic_id, None)])
        assert errors_in(await client.call("Metadata", 12, by_id)) == {ErrorCode.UNKNOWN_TOPIC_ID}
        delete = topics.DeleteTopicsRequest([topics.DeleteTopicsRequestTopic(None, stream.topic_id)])
        assert errors_in(await client.call("DeleteTopics", 6, delete)) == {ErrorCode.UNKNOWN_TOPIC_ID}
        own = await service.signed_in()
        await own.call("OffsetCommit", 8, offset_request("OffsetCommit")("orders"))
        assert (await client.call("ListGroups", 4, groups.ListGroupsRequest())).groups == []
        fetched = await client.call("OffsetFetch", 7, group_offsets.OffsetFetchRequest("orders", None))
        assert fetched.topics == []
