// @aws-sdk/client-sqs: every action, typed errors, bytes and digests, paging, and polls that are given up.

import assert from "node:assert/strict";
import {
  BatchEntryIdsNotDistinct,
  EmptyBatchRequest,
  InvalidAttributeName,
  InvalidAttributeValue,
  InvalidMessageContents,
  paginateListDeadLetterSourceQueues,
  paginateListQueues,
  PurgeQueueInProgress,
  QueueDeletedRecently,
  QueueDoesNotExist,
  QueueNameExists,
  ReceiptHandleIsInvalid,
  ResourceNotFoundException,
  SQSServiceException,
  TooManyEntriesInBatchRequest,
} from "@aws-sdk/client-sqs";
import { arnOf, counters, newClient, newName, newQueue, receiveOne, refused, sqs, waitUntil } from "./kit.mjs";

export async function sdk_manages_a_queue() {
  const name = newName("manage");
  const created = await sqs.createQueue({ QueueName: name, Attributes: { DelaySeconds: "1" }, tags: { team: "blue" } });
  const QueueUrl = created.QueueUrl;
  assert.equal((await sqs.getQueueUrl({ QueueName: name })).QueueUrl, QueueUrl);
  await sqs.setQueueAttributes({ QueueUrl, Attributes: { DelaySeconds: "0" } });
  const { Attributes } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["All"] });
  assert.equal(Attributes.DelaySeconds, "0");
  await sqs.tagQueue({ QueueUrl, Tags: { cost: "none" } });
  await sqs.untagQueue({ QueueUrl, TagKeys: ["team"] });
  assert.deepEqual((await sqs.listQueueTags({ QueueUrl })).Tags, { cost: "none" });
  await sqs.addPermission({ QueueUrl, Label: "l", AWSAccountIds: ["111122223333"], Actions: ["SendMessage"] });
  await sqs.removePermission({ QueueUrl, Label: "l" });
  await sqs.purgeQueue({ QueueUrl });
  await refused(sqs.purgeQueue({ QueueUrl }), PurgeQueueInProgress, 403, /PurgeQueue/);
  await sqs.deleteQueue({ QueueUrl });
  await refused(sqs.getQueueUrl({ QueueName: name }), QueueDoesNotExist, 400, /does not exist/);
  await refused(sqs.createQueue({ QueueName: name }), QueueDeletedRecently, 400, /60 seconds/);
}

export async function sdk_keeps_bytes_and_digests() {
  const QueueUrl = await newQueue("bytes");
  const MessageBody = "grüße <&> \r\n\t lone\rreturn 🐘";
  const MessageAttributes = {
    text: { DataType: "String", StringValue: "é" },
    number: { DataType: "Number", StringValue: "3.14" },
    bytes: { DataType: "Binary.raw", BinaryValue: Uint8Array.from({ length: 256 }, (_, i) => i) },
  };
  const trace = "Root=1-5759e988-bd862e3fe1be46a994272793";
  const MessageSystemAttributes = { AWSTraceHeader: { DataType: "String", StringValue: trace } };
  const sent = await sqs.sendMessage({ QueueUrl, MessageBody, MessageAttributes, MessageSystemAttributes });
  const message = await receiveOne(QueueUrl, { MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"] });
  assert.equal(message.MessageId, sent.MessageId);
  assert.equal(message.Body, MessageBody);
  assert.equal(message.MD5OfBody, sent.MD5OfMessageBody);
  assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
  assert.equal(message.Attributes.AWSTraceHeader, trace);
  assert.deepEqual(message.MessageAttributes.text, MessageAttributes.text);
  assert.deepEqual(new Uint8Array(message.MessageAttributes.bytes.BinaryValue), MessageAttributes.bytes.BinaryValue);
  await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 0 });
  const again = await receiveOne(QueueUrl);
  assert.equal(again.Attributes, undefined);
  assert.equal(again.MessageAttributes, undefined);
  await sqs.deleteMessage({ QueueUrl, ReceiptHandle: again.ReceiptHandle });
  assert.deepEqual(await counters(QueueUrl), [0, 0, 0]);
}

export async function sdk_sends_and_deletes_batches() {
  const QueueUrl = await newQueue("batch", { FifoQueue: "true", ContentBasedDeduplication: "true" });
  const ids = ["a", "b", "c"];
  const Entries = ids.map((id) => ({ Id: id, MessageBody: id, MessageGroupId: "g" }));
  const sent = await sqs.sendMessageBatch({ QueueUrl, Entries });
  assert.deepEqual(sent.Successful.map((e) => e.Id), ids);
  const { Messages } = await sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20 });
  assert.deepEqual(Messages.map((m) => m.Body), ids);
  const handles = Messages.map((m) => ({ Id: m.Body, ReceiptHandle: m.ReceiptHandle }));
  const hidden = handles.map((h) => ({ ...h, VisibilityTimeout: 60 }));
  assert.equal((await sqs.changeMessageVisibilityBatch({ QueueUrl, Entries: hidden })).Successful.length, 3);
  const bad = { Id: "bad", ReceiptHandle: "garbage" };
  const deleted = await sqs.deleteMessageBatch({ QueueUrl, Entries: [...handles, bad] });
  assert.deepEqual(deleted.Successful.map((e) => e.Id), ids);
  assert.deepEqual(deleted.Failed.map((e) => [e.Id, e.Code, e.SenderFault]), [["bad", "ReceiptHandleIsInvalid", true]]);
}

export async function sdk_moves_dead_letters() {
  const dead = await newQueue("dead");
  const SourceArn = await arnOf(dead);
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: SourceArn, maxReceiveCount: 1 });
  const url = await newQueue("source", { RedrivePolicy });
  const sources = [];
  for await (const page of paginateListDeadLetterSourceQueues({ client: sqs, pageSize: 1 }, { QueueUrl: dead })) {
    sources.push(...page.queueUrls);
  }
  assert.deepEqual(sources, [url]);
  await sqs.sendMessage({ QueueUrl: url, MessageBody: "poison" });
  await receiveOne(url, { VisibilityTimeout: 0 });
  assert.equal((await sqs.receiveMessage({ QueueUrl: url })).Messages, undefined);
  await waitUntil(async () => (await counters(dead))[0] === 1, "the message is a dead letter");
  await sqs.startMessageMoveTask({ SourceArn });
  const newest = async () => (await sqs.listMessageMoveTasks({ SourceArn })).Results[0];
  await waitUntil(async () => (await newest()).Status === "COMPLETED", "the move task is completed");
  assert.equal((await newest()).ApproximateNumberOfMessagesMoved, 1);
  assert.equal((await receiveOne(url)).Body, "poison");
  for (let start = 0; start < 2; start += 1) {
    const Entries = Array.from({ length: 10 }, (_, i) => ({ Id: `${i}`, MessageBody: `${i}` }));
    await sqs.sendMessageBatch({ QueueUrl: dead, Entries });
  }
  const slow = { SourceArn, DestinationArn: await arnOf(url), MaxNumberOfMessagesPerSecond: 1 };
  const { TaskHandle } = await sqs.startMessageMoveTask(slow);
  const cancelled = await sqs.cancelMessageMoveTask({ TaskHandle });
  assert.ok(cancelled.ApproximateNumberOfMessagesMoved < 20);
}

export async function sdk_errors_are_typed() {
  const QueueUrl = await newQueue("typed");
  const missing = QueueUrl.replace("typed", "missing");
  const garbage = { QueueUrl, ReceiptHandle: "garbage" };
  await refused(sqs.sendMessage({ QueueUrl: missing, MessageBody: "x" }), QueueDoesNotExist, 400, /does not exist/);
  await refused(sqs.deleteMessage(garbage), ReceiptHandleIsInvalid, 404, /garbage/);
  const name = QueueUrl.split("/").at(-1);
  const other = { QueueName: name, Attributes: { VisibilityTimeout: "1" } };
  await refused(sqs.createQueue(other), QueueNameExists, 400, /VisibilityTimeout/);
  const set = (Attributes) => sqs.setQueueAttributes({ QueueUrl, Attributes });
  await refused(set({ NoSuchThing: "1" }), InvalidAttributeName, 400, /NoSuchThing/);
  await refused(set({ DelaySeconds: "901" }), InvalidAttributeValue, 400, /DelaySeconds/);
  const body = sqs.sendMessage({ QueueUrl, MessageBody: "\u0001" });
  await refused(body, InvalidMessageContents, 400, /./);
  const batch = (...ids) => sqs.sendMessageBatch({ QueueUrl, Entries: ids.map((Id) => ({ Id, MessageBody: "x" })) });
  await refused(batch(), EmptyBatchRequest, 400, /at least one/);
  await refused(batch("a", "a"), BatchEntryIdsNotDistinct, 400, /Id a repeated/);
  await refused(batch(..."abcdefghijk"), TooManyEntriesInBatchRequest, 400, /You have sent 11/);
  const SourceArn = `${await arnOf(QueueUrl)}-missing`;
  await refused(sqs.listMessageMoveTasks({ SourceArn }), ResourceNotFoundException, 404, /./);

  const untyped = sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 11 });
  await refused(untyped, SQSServiceException, 400, /Must be between 1 and 10/);
  await assert.rejects(untyped, { name: "InvalidParameterValue" });
  const accessKeyId = process.env.AWS_ACCESS_KEY_ID;
  const stranger = newClient({ credentials: { accessKeyId, secretAccessKey: "guessed" } });
  await assert.rejects(stranger.listQueues(), { name: "SignatureDoesNotMatch" });
}

export async function sdk_lists_in_pages() {
  const prefix = newName("page");
  const urls = [];
  for (let i = 0; i < 5; i += 1) {
    urls.push((await sqs.createQueue({ QueueName: `${prefix}-${i}` })).QueueUrl);
  }
  const pages = [];
  for await (const page of paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: prefix })) {
    pages.push(page.QueueUrls);
  }
  assert.deepEqual(pages.map((page) => page.length), [2, 2, 1]);
  assert.deepEqual(pages.flat().sort(), urls.sort());
}

export async function sdk_long_polls_end_at_the_first_message() {
  const QueueUrl = await newQueue("poll");
  const began = performance.now();
  const polled = receiveOne(QueueUrl);
  await sqs.sendMessage({ QueueUrl, MessageBody: "ping" });
  assert.equal((await polled).Body, "ping");
  assert.ok(performance.now() - began < 10_000);
}

export async function sdk_a_poll_that_was_given_up_takes_no_message() {
  const QueueUrl = await newQueue("abort");
  const controller = new AbortController();
  const poller = newClient();
  const options = { abortSignal: controller.signal };
  const poll = poller.receiveMessage({ QueueUrl, WaitTimeSeconds: 20 }, options);
  const ended = assert.rejects(poll, { name: "AbortError" });
  await counters(QueueUrl);
  controller.abort();
  await ended;
  poller.destroy();
  await counters(QueueUrl);
  await sqs.sendMessage({ QueueUrl, MessageBody: "for those who still wait" });
  const { Messages } = await sqs.receiveMessage({ QueueUrl });
  assert.equal(Messages?.length, 1, "the poll that was given up took it");
}
