"""Queues: each of their actions, pages, forms of QueueUrl, and many clients of one queue."""

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
    assert client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=walk.target.account)["QueueUrl"] == url
    statement = {"Sid": "a", "Effect": "Deny", "Principal": "*", "Action": "sqs:ReceiveMessage"}
    policy = {"Version": "2012-10-17", "Statement": [{**statement, "Resource": walk.arn(url)}]}
    client.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "3", "Policy": json.dumps(policy, indent=4)})
    found = walk.attributes(url)
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("40", "3")
    assert found["Policy"] == json.dumps(policy, separators=(",", ":"))
    client.tag_queue(QueueUrl=url, Tags={"Team": "red", "Größe": "a.b:/=+-@ c"})
    client.untag_queue(QueueUrl=url, TagKeys=["Team", "never there"])
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue", "Größe": "a.b:/=+-@ c"}
    client.add_permission(QueueUrl=url, Label="theirs", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    statements = json.loads(walk.attributes(url, "Policy")["Policy"])["Statement"]
    assert [statement["Sid"] for statement in statements] == ["a", "theirs"]
    client.remove_permission(QueueUrl=url, Label="theirs")
    client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert walk.attributes(url, "Policy") == {}
    walk.send(url, "delayed")
    assert walk.counters(url) == (0, 0, 1)
    client.purge_queue(QueueUrl=url)
    assert walk.counters(url) == (0, 0, 0)
    with walk.refused("AWS.SimpleQueueService.PurgeQueueInProgress", status=403, shape="PurgeQueueInProgress"):
        client.purge_queue(QueueUrl=url)
    client.delete_queue(QueueUrl=url)
    with walk.refused("AWS.SimpleQueueService.QueueDeletedRecently", shape="QueueDeletedRecently", text="60 seconds"):
        client.create_queue(QueueName=name)


@step
def queues_are_listed_in_pages(walk: Walk) -> None:
    client, prefix = walk.client, walk.name("page")
    urls = {client.create_queue(QueueName=f"{prefix}-{i}")["QueueUrl"] for i in range(5)}
    pages = list(client.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}))
    assert [len(page["QueueUrls"]) for page in pages] == [2, 2, 1]
    assert {url for page in pages for url in page["QueueUrls"]} == urls
    assert "QueueUrls" not in client.list_queues(QueueNamePrefix=walk.name("nothing"))


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
