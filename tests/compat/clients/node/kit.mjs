// What the steps share: a client that notes what it calls, new queues, waiting, and expected refusals.
// Where the service is comes from the environment, as for any application: the SDK reads the variables itself.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { SQS } from "@aws-sdk/client-sqs";

export const LONG_POLL_SECONDS = 20;

export const called = new Set();

// Let a client note the names of the actions that it calls.
export function noted(client) {
  const note = (next, context) => (args) => {
    called.add(context.commandName.replace(/Command$/, ""));
    return next(args);
  };
  client.middlewareStack.add(note, { step: "initialize", name: "note" });
  return client;
}

// A client that checks MD5s, as it does by default, and never retries.
export const newClient = (settings = {}) => noted(new SQS({ maxAttempts: 1, ...settings }));

export const sqs = newClient();

export function newName(what, suffix = "") {
  return `node-${what}-${randomUUID().slice(0, 12)}${suffix}`;
}

export async function newQueue(what, attributes = {}) {
  const suffix = attributes.FifoQueue ? ".fifo" : "";
  return (await sqs.createQueue({ QueueName: newName(what, suffix), Attributes: attributes })).QueueUrl;
}

export async function arnOf(url) {
  return (await sqs.getQueueAttributes({ QueueUrl: url, AttributeNames: ["QueueArn"] })).Attributes.QueueArn;
}

// Messages that are visible, in flight and delayed.
export async function counters(url) {
  const names = ["", "NotVisible", "Delayed"].map((part) => `ApproximateNumberOfMessages${part}`);
  const found = (await sqs.getQueueAttributes({ QueueUrl: url, AttributeNames: names })).Attributes;
  return names.map((name) => Number(found[name]));
}

export async function receiveOne(url, options = {}) {
  const answer = await sqs.receiveMessage({ QueueUrl: url, WaitTimeSeconds: LONG_POLL_SECONDS, ...options });
  assert.equal(answer.Messages?.length, 1, `no message within ${LONG_POLL_SECONDS} s`);
  return answer.Messages[0];
}

export async function waitUntil(condition, what, seconds = 20) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await pause(20)) {
    if (await condition()) return;
  }
  throw new Error(`${what}: not so after ${seconds} s`);
}

// The call has to be refused with an error of this class of the SDK, HTTP status and text.
export async function refused(call, Class, status, text) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof Class, `${error.name} is no ${Class.name}: ${error.stack}`);
    assert.equal(error.$metadata.httpStatusCode, status);
    assert.equal(error.$fault, "client");
    assert.ok(error.$metadata.requestId, "no request id");
    assert.match(error.message, text);
    return true;
  });
}
