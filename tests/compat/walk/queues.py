"""Queues: creation, deletion, attributes, tags, permissions, counters, and forms of QueueUrl."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.compat.walk.kit import Walk, step

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


@step
def a_queue_from_birth_to_deletion(walk: Walk) -> None:
    client, name = walk.client, walk.name("life")
    url = client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "40"}, tags={"team": "blue"})["QueueUrl"]
    assert url.endswith(f"/{walk.target.account}/{name}"), url
    assert client.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=walk.target.account)["QueueUrl"] == url
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue"}

    assert client.create_queue(QueueName=name)["QueueUrl"] == url
    assert client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "40"})["QueueUrl"] == url
    with walk.refused("QueueAlreadyExists", shape="QueueNameExists", text="VisibilityTimeout"):
        client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "41"})

    client.delete_queue(QueueUrl=url)
    with walk.refused(NO_QUEUE, shape="QueueDoesNotExist"):
        client.get_queue_url(QueueName=name)
    with walk.refused(NO_QUEUE, shape="QueueDoesNotExist"):
        client.send_message(QueueUrl=url, MessageBody="too late")
    with walk.refused("AWS.SimpleQueueService.QueueDeletedRecently", shape="QueueDeletedRecently", text="60 seconds"):
        client.create_queue(QueueName=name)


@step
def attributes_are_set_and_read(walk: Walk) -> None:
    client, url = walk.client, walk.queue("attributes")
    found = walk.attributes(url)
    assert found["QueueArn"].startswith(f"arn:aws:sqs:{walk.target.region}:{walk.target.account}:walk-attributes-")
    assert int(found["CreatedTimestamp"]) <= int(found["LastModifiedTimestamp"])
    defaults = {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }
    assert {k: v for k, v in found.items() if k in defaults} == defaults
    assert set(found) - set(defaults) == {"QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"}

    wanted = {"DelaySeconds": "3", "MaximumMessageSize": "1024", "MessageRetentionPeriod": "60"}
    client.set_queue_attributes(QueueUrl=url, Attributes=wanted)
    assert walk.attributes(url, *wanted) == wanted
    with walk.refused("InvalidAttributeValue", shape="InvalidAttributeValue", text="MessageRetentionPeriod"):
        client.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "59"})
    with walk.refused("InvalidAttributeName", shape="InvalidAttributeName", text="NoSuchThing"):
        client.set_queue_attributes(QueueUrl=url, Attributes={"NoSuchThing": "1"})
    with walk.refused("InvalidAttributeName", shape="InvalidAttributeName", text="NoSuchThing"):
        walk.attributes(url, "NoSuchThing")
    assert walk.attributes(url, *wanted) == wanted

    fifo = walk.attributes(walk.queue("attributes", fifo=True))
    assert fifo["FifoQueue"] == "true"
    assert fifo["ContentBasedDeduplication"] == "false"
    assert fifo["DeduplicationScope"] == "queue"
    assert fifo["FifoThroughputLimit"] == "perQueue"


@step
def policies_come_back_as_compact_json(walk: Walk) -> None:
    url = walk.queue("policy")
    statement = {"Sid": "a", "Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": walk.arn(url)}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    walk.client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy, indent=4)})
    assert walk.attributes(url, "Policy")["Policy"] == json.dumps(policy, separators=(",", ":"))
    walk.client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert walk.attributes(url, "Policy") == {}


@step
def queues_are_listed_in_pages(walk: Walk) -> None:
    client, prefix = walk.client, walk.name("page")
    urls = {client.create_queue(QueueName=f"{prefix}-{i}")["QueueUrl"] for i in range(5)}
    pages = list(client.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}))
    assert [len(page["QueueUrls"]) for page in pages] == [2, 2, 1]
    assert {url for page in pages for url in page["QueueUrls"]} == urls
    whole = client.list_queues(QueueNamePrefix=prefix)
    assert set(whole["QueueUrls"]) == urls
    assert "NextToken" not in whole
    assert "QueueUrls" not in client.list_queues(QueueNamePrefix=walk.name("nothing"))


@step
def tags_are_added_overwritten_and_removed(walk: Walk) -> None:
    client, url = walk.client, walk.queue("tags")
    assert not client.list_queue_tags(QueueUrl=url).get("Tags")
    client.tag_queue(QueueUrl=url, Tags={"team": "blue", "Team": "red", "Größe": "a.b:/=+-@ c"})
    client.tag_queue(QueueUrl=url, Tags={"team": "green"})
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "green", "Team": "red", "Größe": "a.b:/=+-@ c"}
    client.untag_queue(QueueUrl=url, TagKeys=["Team", "never there"])
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "green", "Größe": "a.b:/=+-@ c"}


@step
def permissions_are_statements_of_the_policy(walk: Walk) -> None:
    client, url = walk.client, walk.queue("permission")
    client.add_permission(QueueUrl=url, Label="theirs", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    (statement,) = json.loads(walk.attributes(url, "Policy")["Policy"])["Statement"]
    assert statement["Sid"] == "theirs"
    assert statement["Effect"] == "Allow"
    assert statement["Resource"] == walk.arn(url)
    with walk.refused("InvalidParameterValue", text="theirs"):
        client.add_permission(QueueUrl=url, Label="theirs", AWSAccountIds=["111122223333"], Actions=["*"])
    client.remove_permission(QueueUrl=url, Label="theirs")
    with walk.refused("InvalidParameterValue", text="can't find label"):
        client.remove_permission(QueueUrl=url, Label="theirs")


@step
def a_purge_empties_the_queue_and_is_rare(walk: Walk) -> None:
    url = walk.queue("purge")
    walk.send(url, "visible", "in flight")
    walk.send(url, "delayed", DelaySeconds=900)
    walk.one(url)
    assert walk.counters(url) == (1, 1, 1)
    walk.client.purge_queue(QueueUrl=url)
    assert walk.counters(url) == (0, 0, 0)
    assert walk.receive(url, 10) == []
    code = "AWS.SimpleQueueService.PurgeQueueInProgress"
    with walk.refused(code, status=403, shape="PurgeQueueInProgress"):
        walk.client.purge_queue(QueueUrl=url)
    walk.send(url, "after")
    assert walk.one(url)["Body"] == "after"


@step
def a_queue_url_may_carry_an_old_host_or_only_the_name(walk: Walk) -> None:
    url = walk.queue("moved")
    account, name = url.split("/")[-2:]
    walk.send(f"https://sqs.{walk.target.region}.amazonaws.com/{account}/{name}", "by another host")
    walk.send(f"http://localhost:1/{account}/{name}", "by another port")
    walk.send(name, "by name")
    assert {m["Body"] for m in walk.collect(url, 3)} == {"by another host", "by another port", "by name"}


@step
def many_clients_share_one_queue(walk: Walk) -> None:
    url, bodies = walk.queue("crowd"), [str(i) for i in range(60)]

    def drain(_: int) -> list[str]:
        found: list[str] = []
        while batch := walk.receive(url, 10, WaitTimeSeconds=1):
            walk.delete(url, batch)
            found += [m["Body"] for m in batch]
        return found

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda share: walk.send(url, *share), [bodies[i::6] for i in range(6)]))
        received = [body for found in pool.map(drain, range(6)) for body in found]
    assert sorted(received, key=int) == bodies
    assert walk.counters(url) == (0, 0, 0)
